//! OpenAPI documents of the served resources, made from the tables when they are asked for.
//!
//! `v3` makes the document of one path of the `/openapi/v3` index, `v2` the one document of everything. `definitions`
//! turns types into schemas, `paths` turns resources into operations; both write either dialect, told apart by `Dialect`.
//!
//! **Invariant:** nothing is kept: who serves a document keeps its bytes.

mod definitions;
mod descriptions;
mod enumerations;
mod paths;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use apimachinery::Value;
use serde_json::json;

use crate::Resource;
use definitions::Definitions;

/// Which OpenAPI a document speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// Swagger 2.0: definitions, body parameters, `type` beside the parameter's name.
    V2,
    /// OpenAPI 3.0: components, request bodies, a schema in each parameter.
    V3,
}

impl Dialect {
    /// The reference to a definition.
    fn reference(self, name: &str) -> Value {
        match self {
            Self::V2 => json!({ "$ref": format!("#/definitions/{name}") }),
            Self::V3 => json!({ "$ref": format!("#/components/schemas/{name}") }),
        }
    }
}

/// The keys of the `/openapi/v3` index that have resources behind them (`api/v1`, `apis/apps/v1`), sorted.
pub fn v3_paths(served: &[&'static Resource]) -> Vec<String> {
    let mut paths: Vec<String> = served.iter().map(|resource| path_of(resource)).collect();
    paths.sort();
    paths.dedup();
    paths
}

/// The OpenAPI v3 document of one key of `v3_paths`; `None` when nothing served is behind it.
pub fn v3(path: &str, served: &[&'static Resource]) -> Option<Value> {
    let resources: Vec<_> = served
        .iter()
        .copied()
        .filter(|resource| path_of(resource) == path)
        .collect();
    if resources.is_empty() {
        return None;
    }
    let mut definitions = Definitions::new(Dialect::V3);
    for resource in &resources {
        definitions.name_kind(resource);
    }
    let paths = paths::of(&resources, &mut definitions);
    Some(json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": paths,
        "components": {
            "schemas": definitions.finish(),
            "securitySchemes": {
                "BearerToken": bearer_token(),
            },
        },
    }))
}

/// The OpenAPI v2 document of everything served.
pub fn v2(served: &[&'static Resource]) -> Value {
    let mut definitions = Definitions::new(Dialect::V2);
    for resource in served {
        definitions.name_kind(resource);
    }
    let mut paths = BTreeMap::new();
    for path in v3_paths(served) {
        let resources: Vec<_> = served
            .iter()
            .copied()
            .filter(|resource| path_of(resource) == path)
            .collect();
        paths.extend(paths::of(&resources, &mut definitions));
    }
    json!({
        "swagger": "2.0",
        "info": info(),
        "paths": paths,
        "definitions": definitions.finish(),
        "securityDefinitions": {
            "BearerToken": bearer_token(),
        },
        "security": [{ "BearerToken": [] }],
    })
}

/// `api/v1`, or `apis/<group>/<version>`.
fn path_of(resource: &Resource) -> String {
    if resource.group.is_empty() {
        format!("api/{}", resource.version)
    } else {
        format!("apis/{}/{}", resource.group, resource.version)
    }
}

fn info() -> Value {
    json!({ "title": "Kubernetes", "version": "v1.37.0" })
}

fn bearer_token() -> Value {
    json!({
        "type": "apiKey",
        "name": "authorization",
        "in": "header",
        "description": "A bearer token in the Authorization header.",
    })
}
