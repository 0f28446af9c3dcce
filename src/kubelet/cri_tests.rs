//! The CRI layer against a real containerd with runc: started here in a folder
//! of its own, without any network, and ended by its process id. Skipped, with
//! the reason printed, where there is no containerd or no root.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::create::{container, sandbox, security};
use crate::cri::{Runtime, labels, v1};
use crate::k8s::Pod;
use crate::paths::PodPaths;
use crate::pod::observe::observe;
use crate::pod::spec;
use crate::pod::view::{PodView, State};
use crate::volumes::mounts;

const IMAGE: &str = "docker.io/skiff-test/busybox:1";
const STARTUP: Duration = Duration::from_secs(20);

/// A containerd in a folder of its own.
struct Containerd {
    folder: PathBuf,
    child: Child,
    runtime: Runtime,
}

impl Containerd {
    /// Starts one with an image of busybox; `None` where that cannot be.
    fn start() -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if let Some(reason) = missing() {
            println!("skipped: {reason}");
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = PathBuf::from(format!("/tmp/skiff-cri-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let config = folder.join("config.toml");
        fs::write(&config, configuration(&folder)).expect("a configuration");
        let log = fs::File::create(folder.join("log")).expect("a log");
        let child = Command::new("containerd")
            .arg("--config")
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("containerd starts");
        let socket = folder.join("sock");
        let containerd = Self {
            runtime: Runtime::new(&socket.display().to_string()),
            folder,
            child,
        };
        containerd.import_image();
        Some(containerd)
    }

    fn import_image(&self) {
        let archive = image_archive(&self.folder);
        let socket = self.folder.join("sock");
        let deadline = Instant::now() + STARTUP;
        loop {
            let imported = Command::new("ctr")
                .args([
                    "--address",
                    &socket.display().to_string(),
                    "-n",
                    "k8s.io",
                    "images",
                    "import",
                ])
                .arg(&archive)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            if imported.is_ok_and(|status| status.success()) {
                return;
            }
            assert!(Instant::now() < deadline, "containerd takes no image");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.child.id().try_into().unwrap_or(i32::MAX)),
            nix::sys::signal::Signal::SIGTERM,
        );
        let _ = self.child.wait();
        let _ = crate::volumes::tmpfs::unmount_below(&self.folder);
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn missing() -> Option<&'static str> {
    let found = |program: &str| {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).any(|folder| folder.join(program).exists())
    };
    if !nix::unistd::geteuid().is_root() {
        return Some("a container runtime needs root");
    }
    let programs = ["containerd", "ctr", "runc", "tar"];
    if !programs.iter().all(|program| found(program)) {
        return Some("containerd, ctr, runc or tar is not installed");
    }
    (!Path::new("/bin/busybox").exists()).then_some("busybox-static is not installed")
}

fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "version = 2\nroot = \"{folder}/root\"\nstate = \"{folder}/state\"\n\
         [grpc]\n  address = \"{folder}/sock\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\n\
           sandbox_image = \"{IMAGE}\"\n  restrict_oom_score_adj = true\n\
           stream_server_address = \"127.0.0.1\"\n  stream_server_port = \"0\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\n\
           bin_dir = \"{folder}/cni\"\n  conf_dir = \"{folder}/cni\"\n\
         [plugins.\"io.containerd.internal.v1.opt\"]\n  path = \"{folder}/opt\"\n"
    )
}

/// An archive as `docker save` writes it: one layer with busybox in it. Its
/// default command sleeps, so that it serves as the sandbox image too.
fn image_archive(folder: &Path) -> PathBuf {
    let (rootfs, image) = (folder.join("rootfs"), folder.join("image"));
    for made in ["bin", "etc", "tmp", "proc", "sys", "dev"] {
        fs::create_dir_all(rootfs.join(made)).expect("a folder");
    }
    fs::create_dir_all(&image).expect("a folder");
    fs::copy("/bin/busybox", rootfs.join("bin/busybox")).expect("busybox");
    for name in ["sh", "sleep", "cat", "id", "kill", "env"] {
        std::os::unix::fs::symlink("busybox", rootfs.join("bin").join(name)).expect("a link");
    }
    tar(&rootfs, &image.join("layer.tar"), ".");
    let layer = fs::read(image.join("layer.tar")).expect("the layer");
    let digest: String = Sha256::digest(&layer)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["sleep", "1000000"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
        "history": [],
    });
    let manifest = json!([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]);
    fs::write(image.join("config.json"), config.to_string()).expect("written");
    fs::write(image.join("manifest.json"), manifest.to_string()).expect("written");
    let archive = folder.join("image.tar");
    tar(&image, &archive, "manifest.json config.json layer.tar");
    archive
}

fn tar(folder: &Path, archive: &Path, what: &str) {
    let status = Command::new("tar")
        .arg("-C")
        .arg(folder)
        .arg("-cf")
        .arg(archive)
        .args(what.split(' '))
        .status()
        .expect("tar runs");
    assert!(status.success());
}

/// A pod on the host's network, which needs no CNI.
fn mk_pod(containers: serde_json::Value) -> Pod {
    let uid = format!("{:08x}", rand::random::<u32>());
    let pod = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": uid},
        "spec": {"hostNetwork": true, "restartPolicy": "Never", "containers": containers},
    });
    serde_json::from_value(pod).expect("a pod")
}

struct Started {
    sandbox: String,
    config: v1::PodSandboxConfig,
}

async fn run_sandbox(containerd: &Containerd, pod: &Pod) -> Started {
    let paths = PodPaths::new(&containerd.folder, &containerd.folder.join("logs"), pod);
    let config = sandbox::config(sandbox::Input {
        pod,
        paths: &paths,
        dns: v1::DnsConfig::default(),
        cluster_domain: "cluster.local",
        cgroup_parent: String::new(),
        attempt: 0,
    });
    let sandbox = containerd
        .runtime
        .run_sandbox(config.clone(), "")
        .await
        .expect("a sandbox");
    Started { sandbox, config }
}

async fn run_container(
    containerd: &Containerd,
    pod: &Pod,
    name: &str,
    restart_count: u32,
    started: &Started,
) -> String {
    let paths = PodPaths::new(&containerd.folder, &containerd.folder.join("logs"), pod);
    let slot = spec::slot(pod, name).expect("the container is in the spec");
    let mounts = mounts::mounts(&mounts::Input {
        slot: &slot,
        paths: &paths,
        volumes: &BTreeMap::new(),
        environment: &[],
        etc_hosts: None,
    })
    .expect("mounts");
    let config = container::config(container::Input {
        pod,
        slot: &slot,
        restart_count,
        image: v1::ImageSpec {
            image: IMAGE.to_owned(),
            ..Default::default()
        },
        image_user: security::ImageUser::default(),
        environment: vec![("GREETING".to_owned(), "hello".to_owned())],
        mounts,
        target: None,
        memory_capacity: 1 << 30,
    })
    .expect("a configuration");
    fs::create_dir_all(paths.logs().join(name)).expect("a log folder");
    let runtime = &containerd.runtime;
    let id = runtime
        .create_container(&started.sandbox, config, started.config.clone())
        .await;
    let id = id.expect("created");
    runtime.start_container(&id).await.expect("started");
    id
}

async fn end(containerd: &Containerd, view: &PodView) {
    for container in &view.containers {
        containerd
            .runtime
            .stop_container(&container.id, 0)
            .await
            .expect("stopped");
        containerd
            .runtime
            .remove_container(&container.id)
            .await
            .expect("removed");
    }
    for sandbox in &view.sandboxes {
        containerd
            .runtime
            .stop_sandbox(&sandbox.id)
            .await
            .expect("stopped");
        containerd
            .runtime
            .remove_sandbox(&sandbox.id)
            .await
            .expect("removed");
    }
}

async fn wait_for_exit(containerd: &Containerd, uid: &str) -> PodView {
    let deadline = Instant::now() + STARTUP;
    let mut view = PodView::default();
    loop {
        view = observe(&containerd.runtime, uid, &view)
            .await
            .expect("observed");
        if view
            .containers
            .iter()
            .all(|container| container.state == State::Exited)
        {
            return view;
        }
        assert!(Instant::now() < deadline, "the container does not end");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_run_answer_and_end_as_their_view_says() {
    let Some(containerd) = Containerd::start() else {
        return;
    };
    let pod = mk_pod(json!([{
        "name": "c", "image": IMAGE,
        "command": ["sh", "-c", "echo $GREETING; trap 'echo bye > /dev/termination-log; exit 7' TERM; while true; do sleep 0.1; done"],
        "resources": {"limits": {"memory": "32Mi", "cpu": "100m"}},
    }]));
    let uid = spec::uid(&pod);
    let started = run_sandbox(&containerd, &pod).await;
    let id = run_container(&containerd, &pod, "c", 3, &started).await;

    let view = observe(&containerd.runtime, uid, &PodView::default())
        .await
        .expect("observed");
    let sandbox = view.ready_sandbox().expect("a ready sandbox");
    assert!(sandbox.host_network && sandbox.ips.is_empty());
    let container = view.latest("c").expect("the container");
    assert_eq!(
        (container.state, container.restart_count),
        (State::Running, 3)
    );
    assert_eq!(
        container.hash,
        spec::hash(&spec::slot(&pod, "c").expect("c").container)
    );

    let runtime = &containerd.runtime;
    let command = ["sh", "-c", "echo $GREETING; exit 4"]
        .map(str::to_owned)
        .to_vec();
    let answer = runtime
        .exec_sync(&id, command, Duration::from_secs(5))
        .await
        .expect("answered");
    assert_eq!(
        (answer.stdout.as_slice(), answer.exit_code),
        (b"hello\n".as_slice(), 4)
    );

    runtime.stop_container(&id, 10).await.expect("stopped");
    let view = observe(runtime, uid, &view).await.expect("observed");
    let container = view.latest("c").expect("the container");
    assert_eq!((container.state, container.exit_code), (State::Exited, 7));
    assert_eq!(
        (container.reason.as_str(), container.message.as_str()),
        ("Error", "bye\n")
    );
    let log = fs::read_to_string(&container.log_path).expect("a log");
    assert!(log.contains("stdout F hello"), "{log}");

    end(&containerd, &view).await;
    let view = observe(runtime, uid, &view).await.expect("observed");
    assert!(view.is_empty());
    runtime
        .stop_sandbox("gone")
        .await
        .expect("a sandbox that is gone is stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_container_explains_itself_by_its_log() {
    let Some(containerd) = Containerd::start() else {
        return;
    };
    let pod = mk_pod(json!([{
        "name": "c", "image": IMAGE, "command": ["sh", "-c", "echo one; echo two >&2; exit 2"],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }]));
    let uid = spec::uid(&pod);
    let started = run_sandbox(&containerd, &pod).await;
    run_container(&containerd, &pod, "c", 0, &started).await;
    let view = wait_for_exit(&containerd, uid).await;
    let container = view.latest("c").expect("the container");
    assert_eq!(
        (container.exit_code, container.message.as_str()),
        (2, "one\ntwo\n")
    );
    assert_eq!(
        container.annotation(labels::TERMINATION_MESSAGE_POLICY),
        "FallbackToLogsOnError"
    );
    end(&containerd, &view).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_was_killed_is_dialled_again_and_has_kept_its_containers() {
    let Some(mut containerd) = Containerd::start() else {
        return;
    };
    let pod = mk_pod(json!([{"name": "c", "image": IMAGE, "command": ["sleep", "1000"]}]));
    let uid = spec::uid(&pod).to_owned();
    let started = run_sandbox(&containerd, &pod).await;
    run_container(&containerd, &pod, "c", 1, &started).await;
    let before = observe(&containerd.runtime, &uid, &PodView::default())
        .await
        .expect("observed");

    containerd.child.kill().expect("killed");
    containerd.child.wait().expect("dead");
    assert!(
        observe(&containerd.runtime, &uid, &before).await.is_err(),
        "nobody answers"
    );
    containerd.child = Command::new("containerd")
        .arg("--config")
        .arg(containerd.folder.join("config.toml"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("containerd starts");
    let deadline = Instant::now() + STARTUP;
    let after = loop {
        match observe(&containerd.runtime, &uid, &PodView::default()).await {
            Ok(view) if !view.is_empty() => break view,
            _ => assert!(Instant::now() < deadline, "the runtime does not come back"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(
        after, before,
        "what a view says does not depend on who looks"
    );
    end(&containerd, &after).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_without_events_says_so() {
    let Some(containerd) = Containerd::start() else {
        return;
    };
    match containerd.runtime.container_events().await {
        Ok(_) => println!("this runtime has container events"),
        Err(error) => assert!(error.is_unimplemented(), "{error}"),
    }
    assert_eq!(
        containerd
            .runtime
            .sandbox_image()
            .await
            .expect("told")
            .as_deref(),
        Some(IMAGE)
    );
}
