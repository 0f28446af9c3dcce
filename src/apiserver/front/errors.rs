//! The front's own refusals, in upstream's words.

use apimachinery::status::{Reason, Status};
use http::header::RETRY_AFTER;
use http::{HeaderValue, Response, StatusCode};

use super::respond;
use crate::authn::impersonation::ImpersonationError;
use crate::authz::Attributes;
use crate::body::Body;
use crate::request::{RequestInfo, UserInfo};

/// `responsewriters.Forbidden`: who may not do what where, and why when the authorizer says.
pub fn forbidden(attributes: &Attributes<'_>, reason: &str) -> Status {
    let mut why = denial(attributes);
    if !reason.is_empty() {
        why.push_str(": ");
        why.push_str(reason);
    }
    if attributes.is_resource {
        Status::forbidden(attributes.group, attributes.resource, attributes.name, &why)
    } else {
        Status::forbidden("", "", "", &why)
    }
}

/// `User "u" cannot list resource "pods" in API group "" in the namespace "default"`.
fn denial(attributes: &Attributes<'_>) -> String {
    let user = &attributes.user.name;
    let verb = attributes.verb;
    if !attributes.is_resource {
        return format!("User {user:?} cannot {verb} path {:?}", attributes.path);
    }
    let mut resource = attributes.resource.to_owned();
    if !attributes.subresource.is_empty() {
        resource = format!("{resource}/{}", attributes.subresource);
    }
    let place = match attributes.namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    format!(
        "User {user:?} cannot {verb} resource {resource:?} in API group {:?} {place}",
        attributes.group
    )
}

pub fn impersonation(error: ImpersonationError, user: &UserInfo, info: &RequestInfo) -> Status {
    match error {
        ImpersonationError::Malformed(why) => Status::failure(
            500,
            Reason::InternalError,
            format!("Internal Server Error: {:?}: {why}", info.path),
        ),
        ImpersonationError::Forbidden {
            group,
            resource,
            namespace,
            name,
            reason,
        } => {
            let attributes = Attributes {
                user,
                verb: "impersonate",
                is_resource: true,
                group,
                version: "",
                resource: &resource,
                subresource: "",
                namespace: &namespace,
                name: &name,
                path: "",
                field_selector: "",
                label_selector: "",
            };
            forbidden(&attributes, &reason)
        }
    }
}

pub fn timed_out() -> Status {
    Status::timeout("request did not complete within the allotted timeout", 0)
}

pub fn panicked() -> Status {
    Status::failure(
        500,
        Reason::InternalError,
        "This request caused apiserver to panic. Look in the logs for details.",
    )
}

/// Plain text, as upstream's `tooManyRequests`; clients look at the header.
pub fn too_many_requests() -> Response<Body> {
    let mut response = respond::plain_error(
        StatusCode::TOO_MANY_REQUESTS,
        "Too many requests, please try again later.",
    );
    response
        .headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    #[track_caller]
    fn check(path: &str, message: &str) {
        let info = RequestInfo::parse(&Method::GET, &path.parse().expect("a uri"));
        let user = UserInfo::anonymous();
        let status = forbidden(&Attributes::of(&user, &info), "");
        assert_eq!((status.code, status.message.as_str()), (403, message));
    }

    #[test]
    fn refusals_read_as_upstreams() {
        check(
            "/api/v1/namespaces/default/pods",
            r#"pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group "" in the namespace "default""#,
        );
        check(
            "/apis/apps/v1/namespaces/a/deployments/d/status",
            r#"deployments.apps "d" is forbidden: User "system:anonymous" cannot get resource "deployments/status" in API group "apps" in the namespace "a""#,
        );
        check(
            "/api/v1/nodes",
            r#"nodes is forbidden: User "system:anonymous" cannot list resource "nodes" in API group "" at the cluster scope"#,
        );
        check(
            "/foo",
            r#"forbidden: User "system:anonymous" cannot get path "/foo""#,
        );
    }
}
