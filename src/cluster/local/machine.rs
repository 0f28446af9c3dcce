//! What a cluster needs on the machine outside its nodes: the bridge, the way out, and the routes that keep its
//! addresses in.
//!
//! **Invariant:** the cluster's ranges are unreachable on the machine, so a packet to an address that no node has never
//! leaves it. The routes' priority is the cluster's own, so that each cluster adds and removes its own.

use std::path::PathBuf;

use super::state::{Cluster, PODS, SERVICES, bridge_name};
use crate::netlink::{Netlink, NetlinkError, Network};
use crate::node::network::{NetworkError, nft};

/// Above any route of the machine's own, so that those win.
const ROUTE_PRIORITY: u32 = 32_000;
const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";

#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("cannot turn on {FORWARDING}: {0}")]
    Forwarding(std::io::Error),
    #[error("every subnet 172.30.0.0/24 to 172.30.255.0/24 is in use on this machine")]
    NoSubnet,
}

/// A number whose subnet neither another cluster nor any route of the machine uses.
pub async fn choose_subnet(netlink: &Netlink, taken: &[u8]) -> Result<(u8, Network), MachineError> {
    let routed = netlink.destinations().await?;
    (0..=u8::MAX)
        .filter(|number| !taken.contains(number))
        .map(|number| (number, Network::new([172, 30, number, 0].into(), 24)))
        .find(|(_, subnet)| {
            !routed
                .iter()
                .any(|network| network.prefix > 0 && network.overlaps(*subnet))
        })
        .ok_or(MachineError::NoSubnet)
}

/// Makes what is missing. Records in `cluster` what `tear_down` puts back.
pub async fn set_up(netlink: &Netlink, cluster: &mut Cluster) -> Result<(), MachineError> {
    netlink
        .ensure_bridge(
            &cluster.bridge(),
            cluster.gateway(),
            cluster.subnet.prefix,
            cluster.mtu,
        )
        .await?;
    for network in [PODS, SERVICES] {
        netlink
            .ensure_unreachable(network, priority(cluster))
            .await?;
    }
    let forwarding = std::fs::read_to_string(FORWARDING).unwrap_or_default();
    if forwarding.trim() != "1" {
        std::fs::write(FORWARDING, "1").map_err(MachineError::Forwarding)?;
        cluster.forwarding_before = Some(forwarding.trim().into());
    }
    nft(&format!(
        "add table ip {0}\ndelete table ip {0}\n{1}",
        cluster.bridge(),
        rules(cluster)
    ))?;
    Ok(())
}

/// Nodes reach the world under the machine's address.
fn rules(cluster: &Cluster) -> String {
    let (name, subnet) = (cluster.bridge(), cluster.subnet);
    format!(
        "table ip {name} {{\n\
         \tchain postrouting {{\n\
         \t\ttype nat hook postrouting priority srcnat; policy accept;\n\
         \t\tip saddr {subnet} oifname != \"{name}\" masquerade\n\
         \t}}\n\
         }}\n"
    )
}

/// Removes everything that `set_up` made; what is not there is no error.
pub async fn tear_down(
    netlink: &Netlink,
    cluster: &Cluster,
    others_remain: bool,
) -> Result<(), MachineError> {
    for node in &cluster.nodes {
        netlink
            .delete_link(&super::state::link_name(&cluster.name, &node.name))
            .await?;
    }
    netlink.delete_link(&cluster.bridge()).await?;
    for network in [PODS, SERVICES] {
        netlink
            .delete_unreachable(network, priority(cluster))
            .await?;
    }
    remove_rules(&cluster.name)?;
    if let Some(before) = cluster
        .forwarding_before
        .as_ref()
        .filter(|_| !others_remain)
    {
        std::fs::write(FORWARDING, before).map_err(MachineError::Forwarding)?;
    }
    Ok(())
}

/// Removes the routes of clusters that are no more: of those whose record was deleted by hand nothing else tells.
/// `kept` are the numbers of the clusters there are.
pub async fn remove_stray_routes(netlink: &Netlink, kept: &[u8]) -> Result<(), MachineError> {
    for (network, priority) in netlink.unreachables().await? {
        if is_stray(priority, kept) {
            netlink.delete_unreachable(network, priority).await?;
        }
    }
    Ok(())
}

fn is_stray(priority: u32, kept: &[u8]) -> bool {
    let number = priority.checked_sub(ROUTE_PRIORITY);
    let number = number.and_then(|number| u8::try_from(number).ok());
    number.is_some_and(|number| !kept.contains(&number))
}

/// Removes a cluster's nft table. Without nft on the machine there is none.
pub fn remove_rules(cluster: &str) -> Result<(), NetworkError> {
    if nft("").is_err() {
        return Ok(());
    }
    // `add` first: deleting a table that is not there is an error.
    nft(&format!(
        "add table ip {0}\ndelete table ip {0}\n",
        bridge_name(cluster)
    ))
}

fn priority(cluster: &Cluster) -> u32 {
    ROUTE_PRIORITY + u32::from(cluster.number)
}

/// Where a program of `$PATH` is.
pub fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_routes_of_clusters_that_are_no_more_are_stray() {
        let cases = [
            (ROUTE_PRIORITY, false),
            (ROUTE_PRIORITY + 1, true),
            (ROUTE_PRIORITY + 2, false),
            (ROUTE_PRIORITY + 255, true),
            (ROUTE_PRIORITY + 256, false),
            (100, false),
        ];
        for (priority, stray) in cases {
            assert_eq!(is_stray(priority, &[0, 2]), stray, "{priority}");
        }
    }
}
