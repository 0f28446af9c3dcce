//! A containerd in a folder of its own, with one image of busybox and no network: enough for pods on the host's.
//!
//! Dropping it ends what it runs and removes the folder. `missing` says why there can be none.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::Context;
use serde_json::json;
use sha2::{Digest, Sha256};

/// The image every pod of a test is made of.
pub const IMAGE: &str = "docker.io/skiff-test/busybox:1";
const STARTUP: Duration = Duration::from_secs(20);

/// What this machine lacks to run containers, if anything.
pub fn missing() -> Option<&'static str> {
    let found = |program: &str| {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).any(|folder| folder.join(program).exists())
    };
    if !nix::unistd::geteuid().is_root() {
        return Some("containers need root");
    }
    if !["containerd", "ctr", "runc", "tar"].into_iter().all(found) {
        return Some("containerd, ctr, runc or tar is not installed");
    }
    (!Path::new("/bin/busybox").exists()).then_some("busybox-static is not installed")
}

pub struct Containerd {
    process: Child,
    folder: tempfile::TempDir,
}

impl Containerd {
    /// Starts one, and waits until it has the image.
    pub fn start() -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("skiff-cri")
            .tempdir_in("/tmp")?;
        let path = folder.path();
        fs::write(path.join("config.toml"), configuration(path))?;
        let log = fs::File::create(path.join("log"))?;
        let process = Command::new("containerd")
            .arg("--config")
            .arg(path.join("config.toml"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("start containerd")?;
        let containerd = Self { process, folder };
        let archive = image(containerd.folder.path())?;
        let deadline = Instant::now() + STARTUP;
        while !containerd.ctr(&["images", "import", &archive.display().to_string()]) {
            anyhow::ensure!(Instant::now() < deadline, "containerd takes no image");
            thread::sleep(Duration::from_millis(100));
        }
        Ok(containerd)
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("sock")
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("ctr");
        command
            .arg("--address")
            .arg(self.socket())
            .args(["-n", "k8s.io"]);
        command.args(arguments).stderr(Stdio::null());
        command
    }

    fn ctr(&self, arguments: &[&str]) -> bool {
        let status = self.command(arguments).stdout(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// Ids of the running tasks, sandboxes included.
    pub fn tasks(&self) -> BTreeSet<String> {
        let output = self.command(&["tasks", "ls", "-q"]).output();
        let text = output.map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&text)
            .lines()
            .map(str::to_owned)
            .collect()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        for task in self.tasks() {
            self.ctr(&["tasks", "kill", "--signal", "9", "--all", &task]);
            self.ctr(&["tasks", "delete", "--force", &task]);
        }
        let pid = i32::try_from(self.process.id()).unwrap_or(i32::MAX);
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGTERM);
        let _ = self.process.wait();
        unmount_below(self.folder.path());
    }
}

fn unmount_below(folder: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let points: Vec<_> = points
        .filter(|point| Path::new(point).starts_with(folder))
        .collect();
    for point in points.into_iter().rev() {
        let _ = nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH);
    }
}

fn configuration(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "version = 2\nroot = \"{folder}/root\"\nstate = \"{folder}/state\"\n\
         [grpc]\n  address = \"{folder}/sock\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\n  sandbox_image = \"{IMAGE}\"\n  restrict_oom_score_adj = true\n\
           stream_server_address = \"127.0.0.1\"\n  stream_server_port = \"0\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\n  bin_dir = \"{folder}/cni\"\n  conf_dir = \"{folder}/cni\"\n\
         [plugins.\"io.containerd.internal.v1.opt\"]\n  path = \"{folder}/opt\"\n"
    )
}

/// An archive as `docker save` writes it. The image sleeps by default, so that it is good for sandboxes too.
fn image(folder: &Path) -> anyhow::Result<PathBuf> {
    let (rootfs, image) = (folder.join("rootfs"), folder.join("image"));
    for made in ["bin", "etc", "tmp", "proc", "sys", "dev"] {
        fs::create_dir_all(rootfs.join(made))?;
    }
    fs::create_dir_all(&image)?;
    fs::copy("/bin/busybox", rootfs.join("bin/busybox"))?;
    for name in ["sh", "sleep", "cat", "env", "touch", "test"] {
        symlink("busybox", rootfs.join("bin").join(name))?;
    }
    tar(&rootfs, &image.join("layer.tar"), &["."])?;
    let layer = Sha256::digest(fs::read(image.join("layer.tar"))?);
    let layer: String = layer.iter().map(|byte| format!("{byte:02x}")).collect();
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": ["sleep", "1000000"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
        "history": [],
    });
    let manifest = json!([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]);
    fs::write(image.join("config.json"), config.to_string())?;
    fs::write(image.join("manifest.json"), manifest.to_string())?;
    let archive = folder.join("image.tar");
    tar(
        &image,
        &archive,
        &["manifest.json", "config.json", "layer.tar"],
    )?;
    Ok(archive)
}

fn tar(folder: &Path, archive: &Path, what: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new("tar");
    command
        .arg("-C")
        .arg(folder)
        .arg("-cf")
        .arg(archive)
        .args(what);
    anyhow::ensure!(command.status()?.success(), "tar failed");
    Ok(())
}
