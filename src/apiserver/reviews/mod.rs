//! The review resources: questions about identity and authority that are answered and not stored. They only know create.
//!
//! `kubectl auth can-i` and `auth whoami`, kubelets and extension servers ask these. Read `Review` first.

mod access;
mod identity;

use api::Resource;
use apimachinery::codec::media::{self, MediaType};
use apimachinery::codec::{self, DecodeError, Decoded, json, protobuf, yaml};
use apimachinery::status::Status;
use apimachinery::{Value, meta};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Request, Response, StatusCode};

use crate::body::Body;
use crate::front::Front;
use crate::front::negotiate::Accepted;
use crate::front::respond;
use crate::request::{RequestContext, RequestInfo, Verb};

/// One of the questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Review {
    Token,
    SelfSubject,
    SubjectAccess,
    SelfSubjectAccess,
    LocalSubjectAccess,
    SelfSubjectRules,
}

impl Review {
    /// The review that a request is for.
    pub fn of(info: &RequestInfo) -> Option<Self> {
        match (info.group.as_str(), info.resource.as_str()) {
            ("authentication.k8s.io", "tokenreviews") => Some(Self::Token),
            ("authentication.k8s.io", "selfsubjectreviews") => Some(Self::SelfSubject),
            ("authorization.k8s.io", "subjectaccessreviews") => Some(Self::SubjectAccess),
            ("authorization.k8s.io", "selfsubjectaccessreviews") => Some(Self::SelfSubjectAccess),
            ("authorization.k8s.io", "localsubjectaccessreviews") => Some(Self::LocalSubjectAccess),
            ("authorization.k8s.io", "selfsubjectrulesreviews") => Some(Self::SelfSubjectRules),
            _ => None,
        }
    }

    /// Answers the question in the request's body.
    pub async fn answer(
        self,
        front: &Front,
        context: &RequestContext,
        request: Request<Body>,
        accepted: Accepted,
    ) -> Result<Response<Body>, Status> {
        let info = &context.info;
        let served = front.routes.discovery.served();
        let resource = served
            .find(&info.group, &info.version, &info.resource)
            .ok_or_else(Status::path_not_found)?;
        let misplaced = !info.name.is_empty() || resource.namespaced == info.namespace.is_empty();
        if misplaced {
            return Err(Status::path_not_found());
        }
        if info.verb != Verb::Create {
            return Err(Status::method_not_allowed());
        }
        let accept = request.headers().get(ACCEPT);
        let accept = accept.and_then(|value| value.to_str().ok());
        let media = media::accept_without_table(accept)
            .ok_or_else(|| Status::not_acceptable(media::ACCEPTED))?
            .media;
        let accepted = Accepted { media, ..accepted };
        let mut object = read(resource, request, front.limits.body_bytes).await?;
        let status = match self {
            Self::Token => identity::token(front, &object).await?,
            Self::SelfSubject => identity::self_subject(context),
            Self::SubjectAccess => access::subject(context, &object, None).await?,
            Self::LocalSubjectAccess => {
                access::subject(context, &object, Some(&info.namespace)).await?
            }
            Self::SelfSubjectAccess => access::self_subject(context, &object).await?,
            Self::SelfSubjectRules => access::rules(context, &object)?,
        };
        object["status"] = status;
        if self == Self::SelfSubject {
            meta::set_creation_timestamp(&mut object, &apimachinery::time::now_text());
        }
        Ok(respond::value(StatusCode::CREATED, &object, accepted))
    }
}

/// The object in a request's body, fitted to its table.
async fn read(
    resource: &'static Resource,
    request: Request<Body>,
    limit: usize,
) -> Result<Value, Status> {
    let content_type = request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let Some(media) = media::content_type(content_type) else {
        return Err(Status::unsupported_media_type(media::ACCEPTED));
    };
    let body = request.into_body().collect(limit).await?;
    let refuse = |error: DecodeError| codec::bad_request("", "", resource.kind, &error, &body);
    let decoded = match media {
        MediaType::Json => json::decode(&body).map_err(refuse)?,
        MediaType::Yaml => yaml::decode(&body).map_err(refuse)?,
        MediaType::Protobuf => {
            let message_for = |api_version: &str, kind: &str| {
                let (group, version) = meta::group_version(api_version);
                api::message_for(group, version, kind)
            };
            Decoded {
                value: protobuf::decode_object(&body, message_for).map_err(refuse)?,
                strict: Vec::new(),
            }
        }
    };
    let version = resource.api_version();
    let (said_version, said_kind) = (
        meta::api_version(&decoded.value).to_owned(),
        meta::kind(&decoded.value).to_owned(),
    );
    let fits = (said_version.is_empty() || said_version == version)
        && (said_kind.is_empty() || said_kind == resource.kind);
    if !fits {
        return Err(Status::bad_request(format!(
            "{said_kind} in version {said_version:?} cannot be handled as a {}",
            resource.kind
        )));
    }
    let mut object = decoded.conform(resource.schema).map_err(refuse)?.value;
    meta::set_type(&mut object, &version, resource.kind);
    Ok(object)
}
