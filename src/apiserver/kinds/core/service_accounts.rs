//! ServiceAccounts: nothing special but their tokens (TokenRequest, KEP-1205).

use std::time::Duration;

use api::r;
use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Status, Value, meta, time};
use async_trait::async_trait;
use serde_json::json;

use crate::authn::token::{Grant, Ref, TokenError};
use crate::kinds::tree::{int, text};
use crate::registry::options::WriteOptions;
use crate::registry::strategy::{Change, Strategy};

/// What a request that names no life gets (seconds).
const DEFAULT_LIFE: i64 = 3600;
/// Shortest and longest life (seconds).
const MIN_LIFE: i64 = 600;
const MAX_LIFE: i64 = 1 << 32;

const TOKEN_GROUP: &str = "authentication.k8s.io";

pub struct ServiceAccounts;

#[async_trait]
impl Strategy for ServiceAccounts {
    fn id(&self) -> (&'static str, &'static str) {
        ("", r::SERVICEACCOUNTS.plural)
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
        if change.subresource != "token" {
            return Err(Status::path_not_found());
        }
        token(change, name, body).await
    }
}

/// Answers a TokenRequest with a token for the account `name`.
async fn token(change: &Change<'_>, name: &str, mut request: Value) -> Result<Value, Status> {
    check_names(change, name, &request)?;
    let life = life(change, &request)?;
    let registry = change.registry;
    let account = registry
        .stored_value("", "serviceaccounts", change.namespace, name)
        .await?
        .ok_or_else(|| Status::not_found("", "serviceaccounts", name))?;
    let mut grant = Grant {
        namespace: change.namespace.to_owned(),
        service_account: reference(&account),
        audiences: audiences(&request),
        expiration_seconds: life,
        pod: None,
        node: None,
        secret: None,
    };
    bind(change, name, &request["spec"]["boundObjectRef"], &mut grant).await?;
    let now = time::now();
    let issued = registry
        .tokens
        .issue(grant, now.unix_timestamp())
        .map_err(refused)?;
    request["spec"]["audiences"] = json!(issued.audiences);
    request["spec"]["expirationSeconds"] = life.into();
    let expiration = now + Duration::from_secs(life.unsigned_abs());
    request["status"] = json!({
        "token": if change.dry_run { "" } else { &issued.token },
        "expirationTimestamp": time::format(expiration),
    });
    meta::set_name(&mut request, name);
    meta::set_namespace(&mut request, change.namespace);
    meta::set_creation_timestamp(&mut request, &time::format(now));
    Ok(request)
}

fn check_names(change: &Change<'_>, name: &str, request: &Value) -> Result<(), Status> {
    let (given, namespace) = (meta::name(request), meta::namespace(request));
    if !given.is_empty() && given != name {
        return Err(Status::bad_request(format!(
            "service account name ({name}) does not match name in the request ({given})"
        )));
    }
    if !namespace.is_empty() && namespace != change.namespace {
        return Err(Status::bad_request(format!(
            "the namespace of the provided object does not match the namespace sent on the request: {namespace} != {}",
            change.namespace
        )));
    }
    Ok(())
}

/// The life granted (seconds).
fn life(change: &Change<'_>, request: &Value) -> Result<i64, Status> {
    let life = int(request, &["spec", "expirationSeconds"]).unwrap_or(DEFAULT_LIFE);
    let path = Path::new("spec").child("expirationSeconds");
    let mut errors = ErrorList::new();
    if life < MIN_LIFE {
        let why = "may not specify a duration less than 10 minutes";
        errors.push(Error::invalid(&path, life, why));
    }
    if life > MAX_LIFE {
        let why = "may not specify a duration larger than 2^32 seconds";
        errors.push(Error::invalid(&path, life, why));
    }
    if !errors.is_empty() {
        return Err(Status::invalid(TOKEN_GROUP, "TokenRequest", "", errors));
    }
    let most = change.registry.options.service_accounts.max_expiration;
    let most = most.map_or(MAX_LIFE, |most| {
        i64::try_from(most.as_secs()).unwrap_or(MAX_LIFE)
    });
    Ok(life.min(most))
}

fn audiences(request: &Value) -> Vec<String> {
    request["spec"]["audiences"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|audience| audience.as_str().map(str::to_owned))
        .collect()
}

fn reference(object: &Value) -> Ref {
    Ref {
        name: meta::name(object).to_owned(),
        uid: meta::uid(object).to_owned(),
    }
}

/// Binds the token to the object it names, whose end is the token's end.
async fn bind(
    change: &Change<'_>,
    account: &str,
    bound: &Value,
    grant: &mut Grant,
) -> Result<(), Status> {
    if bound.is_null() {
        return Ok(());
    }
    let kind = text(bound, &["kind"]);
    let (plural, namespace) = match (text(bound, &["apiVersion"]), kind) {
        ("v1" | "", "Pod") => ("pods", change.namespace),
        ("v1" | "", "Secret") => ("secrets", change.namespace),
        ("v1" | "", "Node") => ("nodes", ""),
        (version, _) => {
            let (group, version) = meta::group_version(version);
            let group = if group.is_empty() {
                version.to_owned()
            } else {
                format!("{group}/{version}")
            };
            return Err(Status::bad_request(format!(
                "cannot bind token for serviceaccount {account:?} to object of type {group}, Kind={kind}"
            )));
        }
    };
    let name = text(bound, &["name"]);
    let object = change
        .registry
        .stored_value("", plural, namespace, name)
        .await?
        .ok_or_else(|| Status::not_found("", plural, name))?;
    let uid = text(bound, &["uid"]);
    if !uid.is_empty() && uid != meta::uid(&object) {
        return Err(Status::conflict(
            "",
            plural,
            name,
            &format!(
                "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
            ),
        ));
    }
    match kind {
        "Pod" => {
            if text(&object, &["spec", "serviceAccountName"]) != account {
                return Err(Status::bad_request(format!(
                    "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
                )));
            }
            grant.node = node_of(change, &object).await?;
            grant.pod = Some(reference(&object));
        }
        "Secret" => grant.secret = Some(reference(&object)),
        _ => grant.node = Some(reference(&object)),
    }
    Ok(())
}

/// The node a pod is bound to goes into its tokens (KEP-4193).
async fn node_of(change: &Change<'_>, pod: &Value) -> Result<Option<Ref>, Status> {
    let name = text(pod, &["spec", "nodeName"]);
    if name.is_empty() {
        return Ok(None);
    }
    let node = change.registry.stored_value("", "nodes", "", name).await?;
    Ok(node.map(|node| reference(&node)))
}

fn refused(error: TokenError) -> Status {
    match error {
        TokenError::NoSigner => Status::path_not_found(),
        error => {
            tracing::error!(%error, "Cannot make a service account token");
            Status::internal("failed to generate token")
        }
    }
}
