//! A node's network: its link to the bridge, made from the machine's side, and what is set up inside.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, setns, unshare};

use super::spec::NodeNetwork;
use crate::netlink::{Netlink, NetlinkError, Network};

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error("cannot {0} network namespace: {1}")]
    Namespace(&'static str, nix::Error),
    #[error("cannot open {0}: {1}")]
    Open(&'static str, std::io::Error),
    #[error("cannot start the event loop: {0}")]
    Runtime(std::io::Error),
    #[error("cannot set {0}: {1}")]
    Sysctl(&'static str, std::io::Error),
    #[error("nft: {0}")]
    Nft(String),
}

const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// Moves this thread into a new network namespace whose `eth0` hangs on the bridge outside.
/// Returns the namespace it came from.
pub fn enter_new(network: &NodeNetwork) -> Result<File, NetworkError> {
    let open = || {
        File::open(OWN_NAMESPACE)
            .map_err(|error| NetworkError::Open("the network namespace", error))
    };
    let outside = open()?;
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|error| NetworkError::Namespace("create a", error))?;
    let inside = open()?;
    // The link is made from outside: its peer is put into the new namespace as it is created.
    setns(&outside, CloneFlags::CLONE_NEWNET)
        .map_err(|error| NetworkError::Namespace("leave the", error))?;
    runtime()?.block_on(async {
        let netlink = Netlink::open()?;
        netlink
            .add_pair(
                &network.link,
                &network.bridge,
                "eth0",
                inside.as_fd(),
                network.mtu,
            )
            .await
    })?;
    setns(&inside, CloneFlags::CLONE_NEWNET)
        .map_err(|error| NetworkError::Namespace("enter the", error))?;
    Ok(outside)
}

/// A runtime on this thread alone: another thread could be in another namespace.
fn runtime() -> Result<tokio::runtime::Runtime, NetworkError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(NetworkError::Runtime)
}

/// Addresses, routes, forwarding and masquerading inside the node.
pub async fn set_up(network: &NodeNetwork) -> Result<(), NetworkError> {
    let NodeNetwork {
        bridge: _,
        link: _,
        address,
        prefix,
        gateway,
        mtu: _,
        pods,
        routes,
    } = network;
    let netlink = Netlink::open()?;
    netlink.set_up("lo").await?;
    netlink.ensure_address("eth0", *address, *prefix).await?;
    netlink.set_up("eth0").await?;
    netlink
        .ensure_route(Network::new([0, 0, 0, 0].into(), 0), *gateway)
        .await?;
    for route in routes {
        netlink.ensure_route(route.to, route.via).await?;
    }
    sysctl("/proc/sys/net/ipv4/ip_forward", "1")?;
    nft(&masquerade(*pods))
}

/// Pods reach what is not a pod under their node's address, since nothing else knows a way back to them.
fn masquerade(pods: Network) -> String {
    format!(
        "table ip skiff-egress {{\n\
         \tchain postrouting {{\n\
         \t\ttype nat hook postrouting priority srcnat + 10; policy accept;\n\
         \t\tip saddr {pods} ip daddr != {pods} oifname \"eth0\" masquerade\n\
         \t}}\n\
         }}\n"
    )
}

pub fn sysctl(path: &'static str, value: &str) -> Result<(), NetworkError> {
    std::fs::write(Path::new(path), value).map_err(|error| NetworkError::Sysctl(path, error))
}

/// Runs an nft script in the network namespace this thread is in.
pub fn nft(script: &str) -> Result<(), NetworkError> {
    let failed = |error: std::io::Error| NetworkError::Nft(error.to_string());
    let mut command = Command::new("nft");
    command
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(script.as_bytes()).map_err(failed)?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    Err(NetworkError::Nft(
        String::from_utf8_lossy(&output.stderr).trim().to_string(),
    ))
}
