//! Resources that are not in the binary's table: custom kinds and those of aggregated servers, as discovery tells of
//! them.
//!
//! Clients and informers take a `&'static Resource`; one made here lives as long as the process, so each is made once
//! and there are at most `MAX`.

use std::collections::HashMap;

use api::Resource;
use parking_lot::Mutex;

use crate::discovery::Served;

/// Resources made at most; more than any cluster serves.
const MAX: usize = 10_000;

static MADE: Mutex<Option<HashMap<Served, &'static Resource>>> = Mutex::new(None);

/// The resource that is served: the binary's own, or one made for it. None when there are too many.
pub fn resource(served: &Served) -> Option<&'static Resource> {
    if let Some(known) = api::find(&served.group, &served.version, &served.resource) {
        return Some(known);
    }
    let mut made = MADE.lock();
    let made = made.get_or_insert_default();
    if let Some(known) = made.get(served) {
        return Some(known);
    }
    if made.len() >= MAX {
        tracing::error!(resource = %served.resource, group = %served.group, "too many custom kinds, this one is not followed");
        return None;
    }
    let text = |text: &str| -> &'static str { text.to_string().leak() };
    let verbs: Vec<&'static str> = served.verbs.iter().map(|verb| text(verb)).collect();
    let resource = Box::leak(Box::new(Resource {
        group: text(&served.group),
        version: text(&served.version),
        plural: text(&served.resource),
        kind: text(&served.kind),
        singular: text(&served.kind.to_lowercase()),
        namespaced: served.is_namespaced,
        default_on: true,
        short_names: &[],
        categories: &[],
        verbs: verbs.leak(),
        storage_version_hash: "",
        etcd_prefix: "",
        storage_group: "",
        storage_version: "",
        subresources: &[],
        columns: &[],
        field_labels: &[],
        schema: api::r::CONFIGMAPS.schema,
    }));
    made.insert(served.clone(), resource);
    Some(resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_custom_kind_is_made_once_and_a_known_one_never() {
        let served = |group: &str, resource: &str| Served {
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            kind: "Some".into(),
            is_namespaced: true,
            verbs: vec!["list".into()],
        };
        let first = resource(&served("example.com", "widgets")).unwrap();
        let second = resource(&served("example.com", "widgets")).unwrap();
        assert!(std::ptr::eq(first, second));
        assert_eq!(
            (first.path("n").as_str(), first.kind),
            ("/apis/example.com/v1/namespaces/n/widgets", "Some")
        );
        assert!(std::ptr::eq(
            resource(&served("", "pods")).unwrap(),
            &raw const api::r::PODS as *const Resource
        ));
    }
}
