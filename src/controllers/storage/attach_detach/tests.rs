//! The life of a volume that moves from one node to another, on a paused clock.

use client::fake::Server;
use serde_json::{Value, json};

use super::*;
use crate::testing::{seconds, start};

fn put_node(server: &Server, name: &str, ready: &str, in_use: &[&str]) {
    let managed = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
    let mut node = json!({
        "metadata": {"name": name, "uid": name, "annotations": managed},
        "status": {"conditions": [{"type": "Ready", "status": ready}], "volumesInUse": in_use},
    });
    let old = server.get(&NODES, name).unwrap_or_default();
    if old["status"]["volumesAttached"].is_array() {
        node["status"]["volumesAttached"] = old["status"]["volumesAttached"].clone();
    }
    server.put(&NODES, node);
}

fn put_pod(server: &Server, name: &str, node: &str) {
    server.put(
        &PODS,
        json!({"metadata": {"name": name, "namespace": "x", "uid": name}, "spec": {"nodeName": node,
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}}),
    );
}

fn set_up(server: &Server) {
    server.put(
        &PERSISTENTVOLUMECLAIMS,
        json!({"metadata": {"name": "c", "namespace": "x", "uid": "c"},
        "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}}),
    );
    server.put(&PERSISTENTVOLUMES, json!({"metadata": {"name": "pv"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "claimRef": {"namespace": "x", "name": "c", "uid": "c"}, "csi": {"driver": "d", "volumeHandle": "h"}}}));
    put_node(server, "n1", "True", &[]);
    put_node(server, "n2", "True", &[]);
}

/// What the driver does.
fn answer(server: &Server, status: Value) {
    for mut attachment in server.list(&VOLUMEATTACHMENTS) {
        attachment["status"] = status.clone();
        server.put(&VOLUMEATTACHMENTS, attachment);
    }
}

fn on(server: &Server) -> Vec<String> {
    let all = server.list(&VOLUMEATTACHMENTS);
    all.iter()
        .filter_map(|one| Some(one["spec"]["nodeName"].as_str()?.to_string()))
        .collect()
}

fn said(server: &Server, pod: &str, reason: &str, message: &str) -> bool {
    server.list(&api::r::EVENTS).iter().any(|event| {
        event["involvedObject"]["name"] == pod
            && event["reason"] == reason
            && event["message"] == message
    })
}

const UNIQUE: &str = "kubernetes.io/csi/d^h";

#[tokio::test(start_paused = true)]
async fn a_volume_follows_its_pod_once_the_old_node_has_let_go() {
    let server = Server::default();
    set_up(&server);
    let _guard = start(&server, &["attachdetach"]);
    put_pod(&server, "p1", "n1");
    seconds(2).await;
    assert_eq!(on(&server), ["n1"]);
    let name = server.list(&VOLUMEATTACHMENTS)[0]["metadata"]["name"].clone();
    assert_eq!(name, attachment_name("d", "h", "n1"));
    answer(
        &server,
        json!({"attached": false, "attachError": {"message": "full", "time": "t1"}}),
    );
    seconds(2).await;
    assert!(said(
        &server,
        "p1",
        "FailedAttachVolume",
        "AttachVolume.Attach failed for volume \"pv\" : full"
    ));
    answer(&server, json!({"attached": true}));
    seconds(2).await;
    let attached =
        |node: &str| server.get(&NODES, node).unwrap()["status"]["volumesAttached"].clone();
    assert_eq!(attached("n1"), json!([{"name": UNIQUE, "devicePath": ""}]));
    assert!(said(
        &server,
        "p1",
        "SuccessfulAttachVolume",
        "AttachVolume.Attach succeeded for volume \"pv\" "
    ));

    put_node(&server, "n1", "True", &[UNIQUE]);
    put_pod(&server, "p2", "n2");
    seconds(2).await;
    let why = "Multi-Attach error for volume \"pv\" Volume is already used by pod(s) p1";
    assert!(said(&server, "p2", "FailedAttachVolume", why));
    server.remove(&PODS, "x/p1");
    seconds(3600).await;
    assert_eq!(
        on(&server),
        ["n1"],
        "a healthy node that has it mounted keeps it"
    );
    put_node(&server, "n1", "True", &[]);
    seconds(2).await;
    assert_eq!(on(&server), ["n2"]);
    assert_eq!(attached("n1"), Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_silent_for_six_minutes_loses_its_volumes() {
    let server = Server::default();
    set_up(&server);
    put_node(&server, "n1", "Unknown", &[UNIQUE]);
    put_pod(&server, "p1", "n1");
    let _guard = start(&server, &["attachdetach"]);
    seconds(2).await;
    answer(&server, json!({"attached": true}));
    server.remove(&PODS, "x/p1");
    put_pod(&server, "p2", "n2");
    seconds(350).await;
    assert_eq!(on(&server), ["n1"]);
    seconds(20).await;
    assert_eq!(on(&server), ["n2"]);
}

#[tokio::test(start_paused = true)]
async fn a_controller_started_anew_detaches_what_was_left_behind() {
    let server = Server::default();
    set_up(&server);
    // Of a node that is gone, of one where no pod needs it, of a driver that never answered.
    for node in ["gone", "n1"] {
        put_attachment(&server, &attachment_name("d", "h", node), node);
    }
    let _guard = start(&server, &["attachdetach"]);
    seconds(2).await;
    assert!(on(&server).is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_others_attached_is_theirs() {
    let server = Server::default();
    set_up(&server);
    put_attachment(&server, "by-hand", "n2");
    put_pod(&server, "p1", "n1");
    let _guard = start(&server, &["attachdetach"]);
    seconds(2).await;
    answer(&server, json!({"attached": true}));
    seconds(3600).await;
    let mut nodes = on(&server);
    nodes.sort();
    assert_eq!(nodes, ["n1", "n2"]);
}

fn put_attachment(server: &Server, name: &str, node: &str) {
    server.put(
        &VOLUMEATTACHMENTS,
        json!({"metadata": {"name": name}, "spec": {
        "attacher": "d", "nodeName": node, "source": {"persistentVolumeName": "pv"}}}),
    );
}

#[tokio::test(start_paused = true)]
async fn a_kubelets_late_word_that_it_uses_a_volume_is_heard() {
    let server = Server::default();
    set_up(&server);
    put_pod(&server, "p1", "n1");
    let _guard = start(&server, &["attachdetach"]);
    seconds(2).await;
    answer(&server, json!({"attached": true}));
    seconds(2).await;
    // The cache does not know yet that the kubelet mounted it when the pod goes.
    server.set_lag(&NODES, Duration::from_secs(10));
    put_node(&server, "n1", "True", &[UNIQUE]);
    server.remove(&PODS, "x/p1");
    seconds(5).await;
    assert_eq!(on(&server), ["n1"]);
    put_node(&server, "n1", "True", &[]);
    seconds(20).await;
    assert!(on(&server).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_needs_no_attaching_gets_none() {
    let server = Server::default();
    set_up(&server);
    server.put(
        &CSIDRIVERS,
        json!({"metadata": {"name": "d"}, "spec": {"attachRequired": false}}),
    );
    put_pod(&server, "p1", "n1");
    let _guard = start(&server, &["attachdetach"]);
    seconds(2).await;
    assert!(on(&server).is_empty());
}
