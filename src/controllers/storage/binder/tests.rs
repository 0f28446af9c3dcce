//! Claims and volumes against an API server in memory.

use crate::testing::seconds;
use client::fake::Server;

use super::*;

#[tokio::test(start_paused = true)]
async fn two_claims_get_two_volumes_and_a_deleted_ones_is_released() {
    let server = Server::default();
    let _guard = crate::testing::start(&server, &["persistentvolume-binder-controller"]);
    let (claims, volumes) = (&PERSISTENTVOLUMECLAIMS, &PERSISTENTVOLUMES);
    for name in ["a", "b"] {
        server.put(claims, json!({"metadata": {"name": name, "namespace": "n"},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}}));
    }
    seconds(2).await;
    assert_eq!(
        server.get(claims, "n/a").unwrap()["status"]["phase"],
        "Pending"
    );
    for name in ["v1", "v2", "v3"] {
        server.put(
            volumes,
            json!({"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Retain"}}),
        );
    }
    seconds(5).await;
    let mut taken: Vec<String> = ["n/a", "n/b"]
        .iter()
        .map(|key| {
            let claim = server.get(claims, key).unwrap();
            assert_eq!(claim["status"]["phase"], "Bound");
            assert_eq!(claim["metadata"]["annotations"][BIND_COMPLETED], "yes");
            claim["spec"]["volumeName"].as_str().unwrap().to_string()
        })
        .collect();
    let of_a = taken[0].clone();
    taken.sort();
    taken.dedup();
    assert_eq!(taken.len(), 2);
    let phases = |server: &Server| {
        let mut all: Vec<String> = server
            .list(volumes)
            .iter()
            .map(|volume| volume["status"]["phase"].as_str().unwrap().to_string())
            .collect();
        all.sort();
        all
    };
    assert_eq!(phases(&server), ["Available", "Bound", "Bound"]);
    server.remove(claims, "n/a");
    seconds(5).await;
    assert_eq!(
        server.get(volumes, &of_a).unwrap()["status"]["phase"],
        "Released"
    );
    server.remove(
        volumes,
        &taken.into_iter().find(|name| *name != of_a).unwrap(),
    );
    seconds(5).await;
    assert_eq!(
        server.get(claims, "n/b").unwrap()["status"]["phase"],
        "Lost"
    );
}
