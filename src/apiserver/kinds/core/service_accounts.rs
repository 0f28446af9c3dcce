//! Service accounts, and the tokens that are made for them (`TokenREST`, KEP-1205).

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Status, Value, meta, time};
use async_trait::async_trait;

use super::super::tree::{at, int, items, object_mut, set, text};
use crate::authn::token::{Grant, Ref, TokenError};
use crate::registry::options::WriteOptions;
use crate::registry::strategy::{Change, Strategy};

/// Shortest and longest life that may be asked for (seconds).
const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;
const DEFAULT_SECONDS: i64 = 3600;

pub struct ServiceAccounts;

#[async_trait]
impl Strategy for ServiceAccounts {
    fn id(&self) -> (&'static str, &'static str) {
        ("", "serviceaccounts")
    }

    fn returns_deleted(&self) -> bool {
        true
    }

    async fn post_subresource(
        &self,
        change: &Change<'_>,
        name: &str,
        body: Value,
        _options: &WriteOptions,
    ) -> Result<Value, Status> {
        token(change, name, body).await
    }
}

async fn token(change: &Change<'_>, name: &str, mut request: Value) -> Result<Value, Status> {
    if !meta::name(&request).is_empty() && meta::name(&request) != name {
        return Err(Status::bad_request(format!(
            "metadata.name: Invalid value: {:?}: must match the service account name if specified",
            meta::name(&request)
        )));
    }
    let registry = change.registry;
    let account = registry
        .stored_value("", "serviceaccounts", change.namespace, name)
        .await?
        .ok_or_else(|| Status::not_found("", "serviceaccounts", name))?;
    let seconds = int(&request, &["spec", "expirationSeconds"]).unwrap_or(DEFAULT_SECONDS);
    let errors = check_life(seconds);
    if !errors.is_empty() {
        return Err(Status::invalid(
            "authentication.k8s.io",
            "TokenRequest",
            "",
            errors,
        ));
    }
    let longest = registry.options.service_accounts.max_expiration;
    let seconds = longest.map_or(seconds, |longest| seconds.min(longest.as_secs() as i64));
    let mut grant = Grant {
        namespace: change.namespace.to_owned(),
        service_account: reference(&account),
        audiences: items(&request, &["spec", "audiences"])
            .iter()
            .filter_map(|audience| Some(audience.as_str()?.to_owned()))
            .collect(),
        expiration_seconds: seconds,
        pod: None,
        node: None,
        secret: None,
    };
    if !at(&request, &["spec", "boundObjectRef"]).is_null() {
        bind(change, name, &request, &mut grant).await?;
    }
    let issued = registry
        .tokens
        .issue(grant, time::now().unix_timestamp())
        .map_err(|error| match error {
            TokenError::NoSigner => Status::not_found("", "serviceaccounts/token", name),
            error => Status::internal(error),
        })?;
    let expires =
        time::Time::from_unix_timestamp(issued.expiration).unwrap_or_else(|_| time::now());
    let audiences: Vec<Value> = issued.audiences.into_iter().map(Value::from).collect();
    let spec = object_mut(&mut request, &["spec"]);
    spec.insert("audiences".to_owned(), audiences.into());
    spec.insert("expirationSeconds".to_owned(), seconds.into());
    let status = object_mut(&mut request, &["status"]);
    status.insert("token".to_owned(), issued.token.into());
    status.insert(
        "expirationTimestamp".to_owned(),
        time::format(expires).into(),
    );
    meta::set_name(&mut request, name);
    meta::set_namespace(&mut request, change.namespace);
    meta::set_creation_timestamp(&mut request, &time::now_text());
    set(&mut request, "kind", "TokenRequest");
    set(&mut request, "apiVersion", "authentication.k8s.io/v1");
    Ok(request)
}

fn check_life(seconds: i64) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = Path::new("spec.expirationSeconds");
    if seconds < MIN_SECONDS {
        errors.push(Error::invalid(
            &path,
            seconds,
            "may not specify a duration less than 10 minutes",
        ));
    }
    if seconds > MAX_SECONDS {
        errors.push(Error::invalid(
            &path,
            seconds,
            "may not specify a duration larger than 2^32 seconds",
        ));
    }
    errors
}

fn reference(object: &Value) -> Ref {
    Ref {
        name: meta::name(object).to_owned(),
        uid: meta::uid(object).to_owned(),
    }
}

/// The object that the token lives and dies with.
async fn bind(
    change: &Change<'_>,
    account: &str,
    request: &Value,
    grant: &mut Grant,
) -> Result<(), Status> {
    let bound = at(request, &["spec", "boundObjectRef"]);
    let called = text(bound, &["name"]);
    let registry = change.registry;
    let plural = match (text(bound, &["apiVersion"]), text(bound, &["kind"])) {
        ("v1" | "", "Pod") => "pods",
        ("v1" | "", "Secret") => "secrets",
        ("v1" | "", "Node") => "nodes",
        (version, kind) => {
            return Err(Status::bad_request(format!(
                "cannot bind token to object of type {version}, Kind={kind}"
            )));
        }
    };
    let namespace = if plural == "nodes" {
        ""
    } else {
        change.namespace
    };
    let object = registry
        .stored_value("", plural, namespace, called)
        .await?
        .ok_or_else(|| Status::not_found("", plural, called))?;
    let wanted = text(bound, &["uid"]);
    if !wanted.is_empty() && wanted != meta::uid(&object) {
        return Err(Status::conflict(
            "",
            plural,
            called,
            &format!(
                "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might have been deleted and then recreated"
            ),
        ));
    }
    let reference = reference(&object);
    match plural {
        "secrets" => grant.secret = Some(reference),
        "nodes" => grant.node = Some(reference),
        _ => {
            let runs_as = text(&object, &["spec", "serviceAccountName"]);
            if runs_as != account {
                return Err(Status::bad_request(format!(
                    "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                )));
            }
            let node = text(&object, &["spec", "nodeName"]);
            if !node.is_empty() {
                let found = registry.stored_value("", "nodes", "", node).await?;
                grant.node = Some(Ref {
                    name: node.to_owned(),
                    uid: found.as_ref().map(meta::uid).unwrap_or("").to_owned(),
                });
            }
            grant.pod = Some(reference);
        }
    }
    Ok(())
}
