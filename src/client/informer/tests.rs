//! The informer against a server in memory: what it asks for, and what its users see.

use std::time::Duration;

use api::r::PODS;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Factory, Informer, Selectors};
use crate::fake::Server;

fn pod(name: &str, node: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"nodeName": node}})
}

async fn start(server: &Server) -> (Factory, Informer<Value>) {
    let factory = Factory::new(server.client(), CancellationToken::new());
    let informer = factory.informer::<Value>(&PODS, "", Selectors::default());
    informer.wait_synced().await;
    (factory, informer)
}

fn lists_and_watches(server: &Server) -> (usize, usize) {
    let gets = server.requests_of("GET", "/api/v1/pods");
    let watches = gets.iter().filter(|call| call.path.contains("watch=true"));
    let watches = watches.count();
    (gets.len() - watches, watches)
}

#[tokio::test(start_paused = true)]
async fn one_watch_brings_the_state_and_every_change() {
    let server = Server::default();
    server.put(&PODS, pod("a", "n1"));
    let (_factory, informer) = start(&server).await;
    informer.add_index("node", |pod| {
        vec![pod["spec"]["nodeName"].as_str().unwrap_or("").into()]
    });
    let mut changes = informer.subscribe();
    assert!(changes.recv().await.is_added());
    server.put(&PODS, pod("b", "n1"));
    assert_eq!(&*changes.recv().await.key, "default/b");
    assert_eq!(informer.by_index("node", "n1").len(), 2);
    server.remove(&PODS, "default/a");
    assert!(changes.recv().await.is_deleted());
    assert!(informer.get("default/a").is_none());
    assert_eq!(lists_and_watches(&server), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_broken_watch_resumes_without_a_list_and_misses_nothing() {
    let server = Server::default();
    server.put(&PODS, pod("a", "n1"));
    let (_factory, informer) = start(&server).await;
    let mut changes = informer.subscribe();
    changes.recv().await;
    server.set_down(true);
    server.put(&PODS, pod("b", "n1"));
    server.remove(&PODS, "default/a");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(informer.in_contact_since().is_none());
    server.set_down(false);
    let (first, second) = (changes.recv().await, changes.recv().await);
    assert!(first.is_added() && &*first.key == "default/b");
    assert!(second.is_deleted() && &*second.key == "default/a");
    let since = informer.in_contact_since().unwrap();
    assert!(since.elapsed() < Duration::from_secs(1));
    tokio::time::sleep(Duration::from_secs(60)).await;
    server.break_watches();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(informer.in_contact_since(), Some(since));
    assert_eq!(lists_and_watches(&server), (0, 3));
    let last = server
        .requests_of("GET", "/api/v1/pods")
        .pop()
        .unwrap()
        .path;
    assert!(last.contains("resourceVersion=3&"), "{last}");
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_too_old_lists_anew_and_tells_only_the_difference() {
    let server = Server::default();
    server.put(&PODS, pod("a", "n1"));
    server.put(&PODS, pod("b", "n1"));
    let (_factory, informer) = start(&server).await;
    let mut changes = informer.subscribe();
    (changes.recv().await, changes.recv().await);
    server.set_down(true);
    server.remove(&PODS, "default/a");
    server.put(&PODS, pod("c", "n1"));
    server.compact();
    server.set_down(false);
    let (first, second) = (changes.recv().await, changes.recv().await);
    assert!(first.is_deleted() && &*first.key == "default/a");
    assert!(second.is_added() && &*second.key == "default/c");
    assert!(changes.try_recv().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_server_without_watch_list_is_listed_and_watched() {
    let server = Server::default();
    server.refuse_watch_list();
    server.put(&PODS, pod("a", "n1"));
    let (_factory, informer) = start(&server).await;
    let mut changes = informer.subscribe();
    changes.recv().await;
    server.put(&PODS, pod("b", "n1"));
    changes.recv().await;
    server.break_watches();
    server.put(&PODS, pod("c", "n1"));
    changes.recv().await;
    assert_eq!(informer.len(), 3);
    assert_eq!(lists_and_watches(&server), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn informers_of_the_same_selection_share_one_watch() {
    let server = Server::default();
    let (factory, _informer) = start(&server).await;
    let again = factory.informer::<Value>(&PODS, "", Selectors::default());
    again.wait_synced().await;
    let other = factory.informer::<Value>(&PODS, "", Selectors::fields("spec.nodeName=n2"));
    other.wait_synced().await;
    server.put(&PODS, pod("a", "n1"));
    server.put(&PODS, pod("b", "n2"));
    let mut changes = other.subscribe();
    assert_eq!(&*changes.recv().await.key, "default/b");
    assert_eq!(lists_and_watches(&server), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_does_not_fit_is_left_out() {
    #[derive(serde::Deserialize)]
    struct Slim {
        #[allow(dead_code)]
        spec: Spec,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Spec {
        #[allow(dead_code)]
        node_name: String,
    }
    let server = Server::default();
    server.put(
        &PODS,
        json!({"metadata": {"name": "odd"}, "spec": {"nodeName": 7}}),
    );
    server.put(&PODS, pod("a", "n1"));
    let factory = Factory::new(server.client(), CancellationToken::new());
    let informer = factory.informer::<Slim>(&PODS, "", Selectors::default());
    informer.wait_synced().await;
    assert_eq!(informer.keys(), ["default/a".into()]);
}

#[tokio::test(start_paused = true)]
async fn a_panicking_handler_is_seen_by_join() {
    let server = Server::default();
    let (factory, informer) = start(&server).await;
    informer.add_handler(|_| panic!("handler"));
    server.put(&PODS, pod("a", "n1"));
    assert!(factory.join().await.is_err());
}
