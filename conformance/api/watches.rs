//! Watches of config maps: several at once, from a version, closed and opened again, with objects that come and go by label.

use serde_json::{Value, json};

use crate::cluster::{Cluster, text};
use crate::endpoint::{Endpoint, Watcher, version};
use crate::kinds::CONFIG_MAP;

/// How many watches are compared, and how many changes they see.
const WATCHES: usize = 10;
const CHANGES: usize = 20;

async fn make(maps: &Endpoint, name: &str, label: &str) -> Value {
    let map = json!({"metadata": {"name": name, "labels": {"watch-this-configmap": label}}});
    maps.create(&map).await.expect("created")
}

async fn mutate(maps: &Endpoint, name: &str, mutation: u32) -> Value {
    let change = json!({"data": {"mutation": mutation.to_string()}});
    maps.update(name, "", &change).await.expect("updated")
}

/// The next event is of `kind` and carries exactly `object`.
async fn sees(watcher: &mut Watcher, kind: &str, object: &Value) {
    assert_eq!(&watcher.expect(kind).await, object);
}

/// The next event says that `last` is gone: its last state, at a newer version.
async fn sees_the_end(watcher: &mut Watcher, last: &Value) {
    let mut gone = watcher.expect("DELETED").await;
    assert!(version(&gone) > version(last));
    gone["metadata"]["resourceVersion"] = last["metadata"]["resourceVersion"].clone();
    assert_eq!(&gone, last);
}

pub async fn several_watchers_each_see_their_own(cluster: &Cluster) {
    let maps = cluster.within(&cluster.namespace().await, CONFIG_MAP);
    let mut of_a = maps.watch("watch-this-configmap=a", "").await;
    let mut of_b = maps.watch("watch-this-configmap=b", "").await;
    let mut of_both = maps.watch("watch-this-configmap in (a,b)", "").await;
    let a = make(&maps, "a", "a").await;
    sees(&mut of_a, "ADDED", &a).await;
    sees(&mut of_both, "ADDED", &a).await;
    let mut last = a;
    for mutation in [1, 2] {
        last = mutate(&maps, "a", mutation).await;
        sees(&mut of_a, "MODIFIED", &last).await;
        sees(&mut of_both, "MODIFIED", &last).await;
    }
    maps.delete("a").await.expect("deleted");
    sees_the_end(&mut of_a, &last).await;
    sees_the_end(&mut of_both, &last).await;
    let b = make(&maps, "b", "b").await;
    // Its first event is this one: nothing of `a` came before.
    sees(&mut of_b, "ADDED", &b).await;
    sees(&mut of_both, "ADDED", &b).await;
    maps.delete("b").await.expect("deleted");
    sees_the_end(&mut of_b, &b).await;
    sees_the_end(&mut of_both, &b).await;
}

pub async fn a_watch_starts_behind_a_version(cluster: &Cluster) {
    let maps = cluster.within(&cluster.namespace().await, CONFIG_MAP);
    make(&maps, "map", "from-resource-version").await;
    let first = mutate(&maps, "map", 1).await;
    let second = mutate(&maps, "map", 2).await;
    maps.delete("map").await.expect("deleted");
    let from = version(&first).to_string();
    let mut watcher = maps
        .watch("watch-this-configmap=from-resource-version", &from)
        .await;
    sees(&mut watcher, "MODIFIED", &second).await;
    sees_the_end(&mut watcher, &second).await;
}

pub async fn a_watch_goes_on_where_another_ended(cluster: &Cluster) {
    let maps = cluster.within(&cluster.namespace().await, CONFIG_MAP);
    let selector = "watch-this-configmap=closed-and-restarted";
    let mut watcher = maps.watch(selector, "").await;
    let made = make(&maps, "map", "closed-and-restarted").await;
    sees(&mut watcher, "ADDED", &made).await;
    let first = mutate(&maps, "map", 1).await;
    sees(&mut watcher, "MODIFIED", &first).await;
    drop(watcher);
    let second = mutate(&maps, "map", 2).await;
    let mut watcher = maps.watch(selector, &version(&first).to_string()).await;
    maps.delete("map").await.expect("deleted");
    sees(&mut watcher, "MODIFIED", &second).await;
    sees_the_end(&mut watcher, &second).await;
}

pub async fn an_object_that_loses_its_label_is_gone(cluster: &Cluster) {
    let maps = cluster.within(&cluster.namespace().await, CONFIG_MAP);
    let labelled = |label: &str| json!({"metadata": {"labels": {"watch-this-configmap": label}}});
    let selector = "watch-this-configmap=label-changed";
    let mut watcher = maps.watch(selector, "").await;
    let made = make(&maps, "map", "label-changed").await;
    sees(&mut watcher, "ADDED", &made).await;
    let first = mutate(&maps, "map", 1).await;
    sees(&mut watcher, "MODIFIED", &first).await;
    let other = maps.update("map", "", &labelled("other")).await;
    let gone = watcher.expect("DELETED").await;
    assert_eq!(
        version(&gone),
        version(&other.expect("updated")),
        "as of the change"
    );
    assert_eq!(
        text(&gone, "/metadata/labels/watch-this-configmap"),
        "label-changed"
    );
    // Not seen: the next event is the label's return.
    mutate(&maps, "map", 2).await;
    let back = maps.update("map", "", &labelled("label-changed")).await;
    sees(&mut watcher, "ADDED", &back.expect("updated")).await;
    let third = mutate(&maps, "map", 3).await;
    sees(&mut watcher, "MODIFIED", &third).await;
    maps.delete("map").await.expect("deleted");
    sees_the_end(&mut watcher, &third).await;
}

/// Creates, changes and deletes while watches open: each sees the same events in the same order from its start on.
pub async fn watchers_see_one_order(cluster: &Cluster) {
    let maps = cluster.within(&cluster.namespace().await, CONFIG_MAP);
    // The namespace's own map with the cluster's authority comes when it comes.
    let selector = "watch-this-configmap=consistency";
    let start = maps.labelled(selector).await.expect("a list");
    let mut first = maps.watch(selector, &version(&start).to_string()).await;
    let changes = async {
        let mut versions = Vec::new();
        for number in 0..CHANGES {
            let name = format!("map-{}", number % 4);
            let gone = maps.delete(&name).await.is_ok();
            let made = make(&maps, &name, "consistency").await;
            let changed = mutate(&maps, &name, number as u32).await;
            versions.push((gone, version(&made), version(&changed)));
        }
        versions
    };
    let watch = async {
        let (mut seen, mut others) = (Vec::new(), Vec::new());
        // Four maps are made once and remade sixteen times: each time a create, a change and, when remade, a deletion.
        while seen.len() < 3 * CHANGES - 4 {
            let (kind, object) = first.next().await;
            seen.push((kind, version(&object)));
            if seen.len() % 5 == 0 && others.len() < WATCHES {
                let from = version(&object);
                others.push((seen.len(), maps.watch(selector, &from.to_string()).await));
            }
        }
        (seen, others)
    };
    let (versions, (seen, others)) = tokio::join!(changes, watch);
    assert!(seen.is_sorted_by_key(|(_, version)| *version), "{seen:?}");
    let written = versions
        .iter()
        .flat_map(|(_, made, changed)| [*made, *changed]);
    let told = seen.iter().filter(|(kind, _)| *kind != "DELETED");
    assert!(written.eq(told.map(|(_, version)| *version)));
    assert_eq!(
        versions.iter().filter(|(gone, ..)| *gone).count(),
        seen.iter().filter(|(kind, _)| *kind == "DELETED").count()
    );
    assert_eq!(others.len(), WATCHES);
    for (behind, mut watcher) in others {
        for expected in &seen[behind..] {
            let (kind, object) = watcher.next().await;
            assert_eq!((kind, version(&object)), *expected);
        }
    }
}
