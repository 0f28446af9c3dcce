//! `Impersonate-*` headers: acting as somebody else, each part of whom has to be allowed.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderMap;

use crate::authz::{Attributes, Authorizers};
use crate::query::percent_decode;
use crate::request::UserInfo;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// Why a request may not act as somebody else.
#[derive(Debug, PartialEq, Eq)]
pub enum ImpersonationError {
    /// The headers make no sense: 500 as upstream, with this text.
    Malformed(String),
    /// Whose impersonation of what is refused: 403.
    Forbidden {
        group: &'static str,
        resource: String,
        namespace: String,
        name: String,
        reason: String,
    },
}

/// The user to act as, or `None` when the headers name nobody.
pub async fn impersonate(
    headers: &mut HeaderMap,
    user: &Arc<UserInfo>,
    authorizers: &Authorizers,
) -> Result<Option<Arc<UserInfo>>, ImpersonationError> {
    if !headers
        .keys()
        .any(|name| name.as_str().starts_with("impersonate-"))
    {
        return Ok(None);
    }
    let wanted = Wanted::parse(headers)?;
    let Some(wanted) = wanted else {
        return Ok(None);
    };
    wanted.check(user, authorizers).await?;
    let names: Vec<_> = headers
        .keys()
        .filter(|name| name.as_str().starts_with("impersonate-"))
        .cloned()
        .collect();
    for name in names {
        headers.remove(name);
    }
    Ok(Some(Arc::new(wanted.into_user())))
}

#[derive(Debug)]
struct Wanted {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl Wanted {
    fn parse(headers: &HeaderMap) -> Result<Option<Self>, ImpersonationError> {
        let text =
            |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let name = headers.get(USER).map(text).unwrap_or_default();
        let uid = headers.get(UID).map(text).unwrap_or_default();
        let groups: Vec<String> = headers.get_all(GROUP).iter().map(text).collect();
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (key, value) in headers {
            if let Some(key) = key.as_str().strip_prefix(EXTRA) {
                let key = percent_decode(key, false).unwrap_or_else(|| key.to_owned());
                extra.entry(key).or_default().push(text(value));
            }
        }
        if name.is_empty() {
            if groups.is_empty() && extra.is_empty() && uid.is_empty() {
                return Ok(None);
            }
            return Err(ImpersonationError::Malformed(
                "requested impersonation of groups, uid or extra without impersonating a user name"
                    .to_owned(),
            ));
        }
        Ok(Some(Self {
            name,
            uid,
            groups,
            extra,
        }))
    }

    async fn check(
        &self,
        user: &UserInfo,
        authorizers: &Authorizers,
    ) -> Result<(), ImpersonationError> {
        let ask = Ask { user, authorizers };
        let account = UserInfo {
            name: self.name.clone(),
            ..UserInfo::default()
        };
        match account.service_account() {
            Some((namespace, name)) => ask.may("", "serviceaccounts", "", namespace, name).await?,
            None => ask.may("", "users", "", "", &self.name).await?,
        }
        for group in &self.groups {
            ask.may("", "groups", "", "", group).await?;
        }
        for (key, values) in &self.extra {
            for value in values {
                ask.may("authentication.k8s.io", "userextras", key, "", value)
                    .await?;
            }
        }
        if !self.uid.is_empty() {
            ask.may("authentication.k8s.io", "uids", "", "", &self.uid)
                .await?;
        }
        Ok(())
    }

    fn into_user(self) -> UserInfo {
        let Self {
            name,
            uid,
            mut groups,
            extra,
        } = self;
        let mut user = UserInfo {
            name,
            uid,
            extra,
            groups: Vec::new(),
        };
        if let Some((namespace, _)) = user.service_account() {
            if groups.is_empty() {
                groups.push("system:serviceaccounts".to_owned());
                groups.push(format!("system:serviceaccounts:{namespace}"));
            }
        }
        let settled =
            |group: &String| group == UserInfo::AUTHENTICATED || group == UserInfo::UNAUTHENTICATED;
        if user.name == UserInfo::ANONYMOUS {
            if !groups.iter().any(settled) {
                groups.push(UserInfo::UNAUTHENTICATED.to_owned());
            }
        } else if !groups.iter().any(settled) {
            groups.push(UserInfo::AUTHENTICATED.to_owned());
        }
        user.groups = groups;
        user
    }
}

struct Ask<'a> {
    user: &'a UserInfo,
    authorizers: &'a Authorizers,
}

impl Ask<'_> {
    async fn may(
        &self,
        group: &'static str,
        resource: &str,
        subresource: &str,
        namespace: &str,
        name: &str,
    ) -> Result<(), ImpersonationError> {
        let attributes = Attributes {
            user: self.user,
            verb: "impersonate",
            is_resource: true,
            group,
            version: if group.is_empty() { "" } else { "v1" },
            resource,
            subresource,
            namespace,
            name,
            path: "",
            field_selector: "",
            label_selector: "",
        };
        let verdict = self.authorizers.authorize(&attributes).await;
        if verdict.is_allowed() {
            return Ok(());
        }
        let resource = match subresource {
            "" => resource.to_owned(),
            subresource => format!("{resource}/{subresource}"),
        };
        Err(ImpersonationError::Forbidden {
            group,
            resource,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            reason: verdict.reason.into_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authz::{Authorizer, Verdict};

    /// Lets its user impersonate anything but the group `secret`.
    struct AllButSecret;

    impl Authorizer for AllButSecret {
        fn authorize(&self, attributes: &Attributes<'_>) -> Verdict {
            match attributes.name {
                "secret" => Verdict::no_opinion(""),
                _ => Verdict::allow(""),
            }
        }
    }

    async fn act(
        pairs: &[(&'static str, &'static str)],
    ) -> Result<Option<UserInfo>, ImpersonationError> {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, http::HeaderValue::from_static(value));
        }
        let authorizers = Authorizers::new(vec![Box::new(AllButSecret)]);
        let user = Arc::new(UserInfo::new("admin", []));
        let acting = impersonate(&mut headers, &user, &authorizers).await?;
        assert!(acting.is_none() || headers.is_empty());
        Ok(acting.map(|user| (*user).clone()))
    }

    #[tokio::test]
    async fn the_named_user_is_acted_as_with_its_groups_and_extras() {
        let user = act(&[
            (USER, "jane"),
            (GROUP, "a"),
            (GROUP, "b"),
            (UID, "u1"),
            ("impersonate-extra-acme.com%2fproject", "p"),
        ])
        .await
        .expect("allowed")
        .expect("a user");
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("jane", "u1"));
        assert_eq!(user.groups, ["a", "b", "system:authenticated"]);
        assert_eq!(user.extra["acme.com/project"], ["p"]);
    }

    #[tokio::test]
    async fn a_service_account_gets_its_groups() {
        let user = act(&[(USER, "system:serviceaccount:ns:sa")])
            .await
            .expect("allowed")
            .expect("a user");
        let expect = [
            "system:serviceaccounts",
            "system:serviceaccounts:ns",
            "system:authenticated",
        ];
        assert_eq!(user.groups, expect);
    }

    #[tokio::test]
    async fn one_refused_part_refuses_the_whole() {
        let error = act(&[(USER, "jane"), (GROUP, "secret")])
            .await
            .expect_err("refused");
        assert!(
            matches!(error, ImpersonationError::Forbidden { resource, name, .. } if resource == "groups" && name == "secret")
        );
        let error = act(&[(GROUP, "a")]).await.expect_err("no user");
        assert!(matches!(error, ImpersonationError::Malformed(_)));
        assert_eq!(act(&[]).await, Ok(None));
    }
}
