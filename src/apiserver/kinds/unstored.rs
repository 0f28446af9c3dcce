//! Resources that are answered and not stored: bindings by the old path, and component statuses.

use api::Resource;
use apimachinery::codec::media::Transform;
use apimachinery::{Status, Value, meta};
use http::{HeaderMap, Request, Response, StatusCode};
use serde_json::json;

use super::core::pods::bind;
use crate::body::Body;
use crate::registry::options::WriteOptions;
use crate::registry::strategy::Change;
use crate::registry::{Registry, output, read_object, respond_value, table};
use crate::request::{RequestContext, Verb};

/// Answers a request for a resource without storage.
pub async fn handle(
    registry: &Registry,
    context: &RequestContext,
    resource: &'static Resource,
    request: Request<Body>,
) -> Result<Response<Body>, Status> {
    match (resource.plural, context.info.verb) {
        ("bindings", Verb::Create) => binding(registry, context, resource, request).await,
        ("componentstatuses", Verb::Get) => {
            let name = context.info.name.as_str();
            let found = components(registry)
                .await
                .into_iter()
                .find(|component| meta::name(component) == name)
                .ok_or_else(|| Status::not_found("", "componentstatuses", name))?;
            let object = match wants_table(request.headers())? {
                true => table::of_values(resource, &[found]),
                false => found,
            };
            respond_value(StatusCode::OK, &object, context, request.headers())
        }
        ("componentstatuses", Verb::List) => {
            let found = components(registry).await;
            let list = match wants_table(request.headers())? {
                true => table::of_values(resource, &found),
                false => json!({
                    "kind": "ComponentStatusList",
                    "apiVersion": "v1",
                    "metadata": {},
                    "items": found,
                }),
            };
            respond_value(StatusCode::OK, &list, context, request.headers())
        }
        _ => Err(Status::path_not_found()),
    }
}

fn wants_table(headers: &HeaderMap) -> Result<bool, Status> {
    Ok(output::negotiate(headers)?.transform == Transform::Table)
}

async fn binding(
    registry: &Registry,
    context: &RequestContext,
    resource: &'static Resource,
    request: Request<Body>,
) -> Result<Response<Body>, Status> {
    let options = WriteOptions::parse(&context.info.query, "CreateOptions")?;
    let (head, body) = request.into_parts();
    let object = read_object(registry, context, resource, &head.headers, body, &options).await?;
    let change = Change {
        registry,
        request: context,
        resource: &api::r::PODS,
        subresource: "binding",
        namespace: &context.info.namespace,
        dry_run: options.dry_run,
    };
    let name = meta::name(&object).to_owned();
    let answer = bind(&change, &name, &object).await?;
    respond_value(StatusCode::CREATED, &answer, context, &head.headers)
}

/// The components besides the store, and where they serve their health.
const COMPONENTS: [(&str, u16); 2] = [("controller-manager", 10257), ("scheduler", 10259)];

/// Asks all at once.
async fn components(registry: &Registry) -> Vec<Value> {
    let [(manager, manager_port), (scheduler, scheduler_port)] = COMPONENTS;
    let (manager, scheduler, store) = tokio::join!(
        component(registry, manager, manager_port),
        component(registry, scheduler, scheduler_port),
        async {
            let health = registry.options.store.health().await;
            let health = health.map(|()| "ok".to_owned());
            status("etcd-0", health.map_err(|error| error.to_string()))
        }
    );
    vec![manager, scheduler, store]
}

async fn component(registry: &Registry, name: &'static str, port: u16) -> Value {
    let is_part = registry.options.in_process.contains(&name);
    let health = match is_part {
        // A part that ends takes this process down.
        true => Ok("ok".to_owned()),
        false => registry.streaming.health_of(port).await,
    };
    status(name, health)
}

fn status(name: &str, health: Result<String, String>) -> Value {
    let (status, message) = match health {
        Ok(message) => ("True", message),
        Err(message) => ("False", message),
    };
    json!({
        "kind": "ComponentStatus",
        "apiVersion": "v1",
        "metadata": {"name": name},
        "conditions": [{"type": "Healthy", "status": status, "message": message}],
    })
}
