//! Lists in pages: whole and consistent, and what becomes of one that took too long.

use std::collections::BTreeSet;

use kube::api::ListParams;
use serde_json::{Value, json};

use crate::cluster::{Cluster, eventually, items, text};
use crate::endpoint::{Endpoint, version};
use crate::kinds::POD_TEMPLATE;

const OBJECTS: usize = 40;

async fn forty_templates(cluster: &Cluster) -> Endpoint {
    let templates = cluster.within(&cluster.namespace().await, POD_TEMPLATE);
    for number in 0..OBJECTS {
        templates
            .create(&template(&format!("template-{number:04}")))
            .await
            .expect("created");
    }
    templates
}

fn template(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "template": {"spec": {"containers": [{"name": "test", "image": "test2"}]}},
    })
}

fn names(list: &Value) -> Vec<String> {
    let name = |item| text(item, "/metadata/name").to_owned();
    items(list).iter().map(name).collect()
}

pub async fn pages_make_up_one_list(cluster: &Cluster) {
    let templates = forty_templates(cluster).await;
    let whole = templates
        .list(&ListParams::default())
        .await
        .expect("a list");
    for limit in [1, 7, 39, 40, 41] {
        let (mut seen, mut token, mut of) = (Vec::new(), String::new(), None);
        loop {
            let mut page = ListParams::default().limit(limit);
            if !token.is_empty() {
                page = page.continue_token(&token);
            }
            let page = templates.list(&page).await.expect("a page");
            assert!(items(&page).len() <= limit as usize);
            seen.extend(names(&page));
            assert_eq!(
                *of.get_or_insert(version(&page)),
                version(&page),
                "all pages are of one version"
            );
            let left = page["metadata"]["remainingItemCount"].as_u64();
            token = page["metadata"]["continue"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            if token.is_empty() {
                assert_eq!(left, None);
                break;
            }
            assert_eq!(left, Some((OBJECTS - seen.len()) as u64));
        }
        assert_eq!(seen, names(&whole), "with {limit} a page");
    }
}

/// A server whose store is compacted every moment; upstream's waits five minutes.
pub async fn a_list_goes_on_after_its_version_was_compacted(_: &Cluster) {
    let cluster = Cluster::start(&["--etcd-compaction-interval", "300ms"]).await;
    let templates = forty_templates(&cluster).await;
    let first = ListParams::default().limit(4);
    let first = templates.list(&first).await.expect("a page");
    let token = text(&first, "/metadata/continue").to_owned();
    templates.delete("template-0010").await.expect("deleted");
    templates
        .create(&template("template-0010-b"))
        .await
        .expect("created");

    let next = ListParams::default().limit(4).continue_token(&token);
    let again = std::cell::RefCell::new(String::new());
    eventually("the end of the list's version", async || {
        // Only what is written is compacted.
        let mark = json!({"metadata": {"annotations": {"at": format!("{:?}", std::time::Instant::now())}}});
        templates
            .merge("template-0000", "", &mark)
            .await
            .expect("patched");
        match templates.list(&next).await {
            Ok(page) => {
                assert_eq!(version(&page), version(&first));
                assert_eq!(names(&page)[0], "template-0004");
                false
            }
            Err(kube::Error::Api(status)) => {
                assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
                assert!(
                    status
                        .message
                        .starts_with("The provided continue parameter is too old to display a consistent list result."),
                    "{}",
                    status.message
                );
                let token = status.metadata.and_then(|metadata| metadata.continue_);
                *again.borrow_mut() = token.expect("a token to go on with");
                true
            }
            Err(error) => panic!("{error}"),
        }
    })
    .await;

    let page = ListParams::default()
        .limit(4)
        .continue_token(&again.borrow());
    let page = templates.list(&page).await.expect("a page");
    assert!(version(&page) > version(&first));
    assert_eq!(names(&page)[0], "template-0004");
    assert!(page["metadata"]["remainingItemCount"].is_number());
    let rest = text(&page, "/metadata/continue");
    let rest = ListParams::default().continue_token(rest);
    let rest = templates.list(&rest).await.expect("the rest");
    assert_eq!(rest["metadata"].get("continue"), None);
    let all: BTreeSet<String> = [&first, &page, &rest].into_iter().flat_map(names).collect();
    assert_eq!(all.len(), OBJECTS);
    assert!(all.contains("template-0010-b") && !all.contains("template-0010"));
}
