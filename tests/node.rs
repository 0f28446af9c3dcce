//! A node for real: `skiff kubelet` with containerd and runc against `skiff server`. Its pods share the machine's
//! network, so no CNI is needed. Skipped, with the reason printed, where containers cannot run.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use http::Method;
use integration::connection::Connection;
use integration::containerd::{self, Containerd, IMAGE};
use integration::process::{self, Server};
use serde_json::{Value, json};

const NODE: &str = "n1";
const PODS: &str = "/api/v1/namespaces/default/pods";
const PATIENCE: Duration = Duration::from_secs(30);

struct Node {
    containerd: Containerd,
    server: Server,
    api: Connection,
    kubelet: Child,
    port: u16,
}

impl Node {
    /// Server, runtime and kubelet; `None` where containers cannot run.
    async fn start() -> Option<Self> {
        if let Some(reason) = containerd::missing() {
            println!("skipped: {reason}");
            return None;
        }
        if !process::binary().exists() {
            println!("skipped: {} is not built", process::binary().display());
            return None;
        }
        process::install_crypto();
        let server = Server::start(&[]).await.expect("the server starts");
        let api = server.connect().await;
        let containerd = Containerd::start().expect("containerd starts");
        let port = process::free_port();
        let kubelet = kubelet(&server, &containerd, port);
        let node = Self {
            containerd,
            server,
            api,
            kubelet,
            port,
        };
        node.wait("the node registers", async |node| {
            node.get(&format!("/api/v1/nodes/{NODE}")).await["status"]["nodeInfo"]["kubeletVersion"]
                == "v1.37.0"
        })
        .await;
        Some(node)
    }

    async fn get(&self, path: &str) -> Value {
        self.api
            .json(Method::GET, path, &Value::Null)
            .await
            .expect("an answer")
            .1
    }

    async fn create(&self, path: &str, object: Value) {
        let (code, answer) = self
            .api
            .json(Method::POST, path, &object)
            .await
            .expect("an answer");
        assert_eq!(code, 201, "{answer}");
    }

    async fn pod(&self, name: &str) -> Value {
        self.get(&format!("{PODS}/{name}")).await
    }

    async fn log(&self, name: &str) -> String {
        let log = self.get(&format!("{PODS}/{name}/log")).await;
        log.as_str()
            .map(str::to_owned)
            .unwrap_or_else(|| log.to_string())
    }

    async fn wait(&self, what: &str, condition: impl AsyncFn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(self).await {
            assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn wait_phase(&self, name: &str, phase: &str) {
        let what = format!("pod {name} is {phase}");
        self.wait(&what, async |node| {
            node.pod(name).await["status"]["phase"] == phase
        })
        .await;
    }

    /// Kills the kubelet as the kernel would, and starts another.
    fn kill_kubelet(&mut self) {
        self.kubelet.kill().expect("killed");
        self.kubelet.wait().expect("dead");
        self.kubelet = kubelet(&self.server, &self.containerd, self.port);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.kubelet.kill();
        let _ = self.kubelet.wait();
    }
}

fn kubelet(server: &Server, containerd: &Containerd, port: u16) -> Child {
    let data = server.data_dir();
    let pki = data.join("pki");
    let file = |name: &str| pki.join(name).display().to_string();
    let root = containerd.folder().join("kubelet");
    let log = std::fs::OpenOptions::new();
    let log = log
        .clone()
        .create(true)
        .append(true)
        .open(containerd.folder().join("kubelet.log"));
    Command::new(process::binary())
        .arg("kubelet")
        .arg(format!(
            "--kubeconfig={}",
            data.join("admin.kubeconfig").display()
        ))
        .arg(format!("--hostname-override={NODE}"))
        .args(["--node-ip=127.0.0.1", "--address=127.0.0.1"])
        .arg(format!("--port={port}"))
        .arg(format!(
            "--container-runtime-endpoint=unix://{}",
            containerd.socket().display()
        ))
        .arg(format!("--root-dir={}", root.display()))
        .arg(format!("--client-ca-file={}", file("ca.crt")))
        .arg(format!("--tls-cert-file={}", file("apiserver.crt")))
        .arg(format!("--tls-private-key-file={}", file("apiserver.key")))
        .args([
            "--eviction-hard=nodefs.available<0%",
            "--image-gc-high-threshold=100",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.expect("a log"))
        .spawn()
        .expect("the kubelet starts")
}

fn mk_pod(name: &str, command: &str, more: Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "nodeName": NODE, "hostNetwork": true, "terminationGracePeriodSeconds": 5,
            "containers": [{"name": "c", "image": IMAGE, "command": ["sh", "-c", command]}],
        },
    });
    for (field, value) in more.as_object().cloned().unwrap_or_default() {
        match field.as_str() {
            "volumeMounts" | "env" => pod["spec"]["containers"][0][&field] = value,
            _ => pod["spec"][&field] = value,
        }
    }
    pod
}

fn container(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_lives_through_a_killed_kubelet_and_goes_when_it_is_deleted() {
    let Some(mut node) = Node::start().await else {
        return;
    };
    let config = json!({"metadata": {"name": "config"}, "data": {"word": "first"}});
    node.create("/api/v1/namespaces/default/configmaps", config)
        .await;
    let script = "trap 'echo bye; exit 0' TERM; while true; do cat /config/word; echo \" $WORD\"; sleep 0.2; done";
    let more = json!({
        "env": [{"name": "WORD", "valueFrom": {"configMapKeyRef": {"name": "config", "key": "word"}}}],
        "volumeMounts": [{"name": "config", "mountPath": "/config"}],
        "volumes": [{"name": "config", "configMap": {"name": "config"}}],
    });
    node.create(PODS, mk_pod("web", script, more)).await;
    node.wait_phase("web", "Running").await;
    node.wait("its log is readable", async |node| {
        node.log("web").await.contains("first first")
    })
    .await;

    let patch = json!({"data": {"word": "second"}});
    let path = "/api/v1/namespaces/default/configmaps/config";
    let headers = [("content-type", "application/merge-patch+json")];
    node.api
        .call(Method::PATCH, path, &headers, patch.to_string().into())
        .await
        .expect("patched");
    node.wait("the volume follows", async |node| {
        node.log("web").await.contains("second first")
    })
    .await;

    let before = node.pod("web").await;
    let tasks = node.containerd.tasks();
    node.kill_kubelet();
    node.wait("the new kubelet answers for the pod", async |node| {
        node.log("web").await.contains("second first")
    })
    .await;
    assert_eq!(node.containerd.tasks(), tasks, "nothing was restarted");
    let after = node.pod("web").await;
    assert_eq!(
        container(&after)["containerID"],
        container(&before)["containerID"]
    );
    assert_eq!(container(&after)["restartCount"], 0);

    let (code, _) = node
        .api
        .json(Method::DELETE, &format!("{PODS}/web"), &Value::Null)
        .await
        .expect("answered");
    assert_eq!(code, 200);
    node.wait("the pod is gone", async |node| {
        node.pod("web").await["code"] == 404
    })
    .await;
    node.wait("nothing of it runs", async |node| {
        node.containerd.tasks().is_empty()
    })
    .await;
    let folder = node.containerd.folder().join("kubelet/pods");
    node.wait("its folder is removed", async |_| {
        std::fs::read_dir(&folder).is_ok_and(|mut pods| pods.next().is_none())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_are_restarted_as_their_pod_says_and_counted_over_a_killed_kubelet() {
    let Some(mut node) = Node::start().await else {
        return;
    };
    node.create(
        PODS,
        mk_pod(
            "loop",
            "echo bye > /dev/termination-log; exit 3",
            Value::Null,
        ),
    )
    .await;
    node.create(
        PODS,
        mk_pod("once", "echo done", json!({"restartPolicy": "Never"})),
    )
    .await;
    node.create(
        PODS,
        mk_pod("fail", "exit 4", json!({"restartPolicy": "Never"})),
    )
    .await;
    node.wait_phase("once", "Succeeded").await;
    node.wait_phase("fail", "Failed").await;
    node.wait("the crash loop backs off", async |node| {
        let pod = node.pod("loop").await;
        container(&pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    })
    .await;
    let pod = node.pod("loop").await;
    let last = &container(&pod)["lastState"]["terminated"];
    assert_eq!(
        (&last["exitCode"], &last["message"]),
        (&json!(3), &json!("bye\n"))
    );
    let count = container(&pod)["restartCount"].as_i64().expect("a count");
    assert!(count >= 1);

    node.kill_kubelet();
    node.wait("the count goes on", async |node| {
        let pod = node.pod("loop").await;
        container(&pod)["restartCount"]
            .as_i64()
            .is_some_and(|now| now > count)
    })
    .await;
    assert_eq!(node.pod("once").await["status"]["phase"], "Succeeded");
    assert_eq!(node.log("once").await, "done\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn init_containers_sidecars_and_probes_hold_a_pod_back_until_they_are_done() {
    let Some(node) = Node::start().await else {
        return;
    };
    let volume = json!([{"name": "shared", "mountPath": "/shared"}]);
    let mut pod = mk_pod(
        "web",
        "touch /shared/began; sleep 1000",
        json!({
            "volumes": [{"name": "shared", "emptyDir": {}}],
            "volumeMounts": volume,
            "initContainers": [
                {"name": "first", "image": IMAGE, "command": ["touch", "/shared/first"], "volumeMounts": volume},
                {"name": "side", "image": IMAGE, "restartPolicy": "Always", "volumeMounts": volume,
                    "command": ["sh", "-c", "test -e /shared/first && touch /shared/side; sleep 1000"],
                    "startupProbe": {"exec": {"command": ["test", "-e", "/shared/side"]}, "periodSeconds": 1}},
            ],
            "terminationGracePeriodSeconds": 0,
        }),
    );
    pod["spec"]["containers"][0]["readinessProbe"] =
        json!({"exec": {"command": ["test", "-e", "/shared/ready"]}, "periodSeconds": 1});
    node.create(PODS, pod).await;
    node.wait_phase("web", "Running").await;
    let pod = node.pod("web").await;
    assert_eq!(container(&pod)["ready"], false);
    let uid = pod["metadata"]["uid"].as_str().expect("a uid");
    let shared = format!("kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/shared");
    std::fs::write(node.containerd.folder().join(shared).join("ready"), "").expect("written");
    node.wait("the pod is ready", async |node| {
        let pod = node.pod("web").await;
        let conditions = pod["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        conditions
            .iter()
            .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    })
    .await;
}
