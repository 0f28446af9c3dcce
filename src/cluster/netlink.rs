//! Links, addresses and routes of the network namespace this thread was in when `Netlink::open` was called.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};

use futures::TryStreamExt;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkAttribute};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteProtocol, RouteType,
};
use rtnetlink::{
    Handle, LinkBridge, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
};

/// Marks the routes that skiff made (`ip route show proto 107`).
const PROTOCOL: u8 = 107;

#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    #[error("cannot open a netlink socket: {0}")]
    Open(std::io::Error),
    #[error("there is no network interface {0}")]
    NoLink(String),
    #[error("cannot {action}: {source}")]
    Request {
        action: String,
        source: rtnetlink::Error,
    },
}

fn refused(action: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> NetlinkError {
    let action = action.into();
    move |source| NetlinkError::Request { action, source }
}

/// An IPv4 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Network {
    pub address: Ipv4Addr,
    pub prefix: u8,
}

impl Network {
    pub const fn new(address: Ipv4Addr, prefix: u8) -> Self {
        Self { address, prefix }
    }

    fn mask(self) -> u32 {
        u32::MAX
            .checked_shl(32 - u32::from(self.prefix))
            .unwrap_or(0)
    }

    /// Whether the two share an address.
    pub fn overlaps(self, other: Self) -> bool {
        let mask = self.mask() & other.mask();
        u32::from(self.address) & mask == u32::from(other.address) & mask
    }

    /// The `nth` address of the network.
    pub fn nth(self, nth: u32) -> Ipv4Addr {
        Ipv4Addr::from((u32::from(self.address) & self.mask()).wrapping_add(nth))
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.address, self.prefix)
    }
}

/// A connection to the kernel's routing tables. It ends when this is dropped.
pub struct Netlink {
    handle: Handle,
    connection: tokio::task::JoinHandle<()>,
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Netlink {
    pub fn open() -> Result<Self, NetlinkError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(NetlinkError::Open)?;
        Ok(Self {
            handle,
            connection: tokio::spawn(connection),
        })
    }

    /// The index and MTU of a link, or `None`.
    pub async fn link(&self, name: &str) -> Option<(u32, u32)> {
        let mut links = self.handle.link().get().match_name(name).execute();
        let link = links.try_next().await.ok()??;
        let mtu = link
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                LinkAttribute::Mtu(mtu) => Some(*mtu),
                _ => None,
            });
        Some((link.header.index, mtu.unwrap_or(1500)))
    }

    async fn index(&self, name: &str) -> Result<u32, NetlinkError> {
        self.link(name)
            .await
            .map(|(index, _)| index)
            .ok_or_else(|| NetlinkError::NoLink(name.into()))
    }

    /// Creates a bridge unless it is there, gives it the address and starts it.
    pub async fn ensure_bridge(
        &self,
        name: &str,
        address: Ipv4Addr,
        prefix: u8,
        mtu: u32,
    ) -> Result<(), NetlinkError> {
        if self.link(name).await.is_none() {
            let bridge = LinkBridge::new(name).mtu(mtu).build();
            self.handle
                .link()
                .add(bridge)
                .execute()
                .await
                .map_err(refused(format!("create bridge {name}")))?;
        }
        self.set_up(name).await?;
        self.ensure_address(name, address, prefix).await
    }

    pub async fn set_up(&self, name: &str) -> Result<(), NetlinkError> {
        let index = self.index(name).await?;
        let up = LinkUnspec::new_with_index(index).up().build();
        self.handle
            .link()
            .set(up)
            .execute()
            .await
            .map_err(refused(format!("start {name}")))
    }

    pub async fn ensure_address(
        &self,
        name: &str,
        address: Ipv4Addr,
        prefix: u8,
    ) -> Result<(), NetlinkError> {
        let index = self.index(name).await?;
        let request = self
            .handle
            .address()
            .add(index, address.into(), prefix)
            .replace();
        request
            .execute()
            .await
            .map_err(refused(format!("give {name} the address {address}")))
    }

    /// Creates a pair of linked interfaces: `name` here, on `bridge`, and `peer` in another namespace. One of
    /// the same name that was left over is replaced.
    pub async fn add_pair(
        &self,
        name: &str,
        bridge: &str,
        peer: &str,
        namespace: BorrowedFd<'_>,
        mtu: u32,
    ) -> Result<(), NetlinkError> {
        self.delete_link(name).await?;
        let bridge = self.index(bridge).await?;
        let far = LinkMessageBuilder::<LinkUnspec>::new()
            .name(peer)
            .mtu(mtu)
            .setns_by_fd(namespace.as_raw_fd())
            .build();
        let near = LinkVeth::new(name, peer)
            .mtu(mtu)
            .controller(bridge)
            .up()
            .set_info_data(InfoData::Veth(InfoVeth::Peer(far)));
        self.handle
            .link()
            .add(near.build())
            .execute()
            .await
            .map_err(refused(format!("create the link {name}")))
    }

    /// Deletes a link; one that is not there is no error.
    pub async fn delete_link(&self, name: &str) -> Result<(), NetlinkError> {
        let Some((index, _)) = self.link(name).await else {
            return Ok(());
        };
        match self.handle.link().del(index).execute().await {
            // It went with its other end's namespace meanwhile.
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::ENODEV => {
                Ok(())
            }
            other => other.map_err(refused(format!("delete {name}"))),
        }
    }

    /// A route by a gateway.
    pub async fn ensure_route(&self, to: Network, via: Ipv4Addr) -> Result<(), NetlinkError> {
        let route = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(to.address, to.prefix)
            .gateway(via)
            .protocol(RouteProtocol::Other(PROTOCOL));
        let request = self.handle.route().add(route.build()).replace();
        request
            .execute()
            .await
            .map_err(refused(format!("add a route to {to} by {via}")))
    }

    fn unreachable(to: Network, priority: u32) -> RouteMessage {
        RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(to.address, to.prefix)
            .kind(RouteType::Unreachable)
            .priority(priority)
            .protocol(RouteProtocol::Other(PROTOCOL))
            .build()
    }

    /// Makes a network unreachable where no better route leads to it. `priority` tells the owner.
    pub async fn ensure_unreachable(&self, to: Network, priority: u32) -> Result<(), NetlinkError> {
        let request = self
            .handle
            .route()
            .add(Self::unreachable(to, priority))
            .replace();
        request
            .execute()
            .await
            .map_err(refused(format!("make {to} unreachable")))
    }

    /// Takes back `ensure_unreachable`; a route that is not there is no error.
    pub async fn delete_unreachable(&self, to: Network, priority: u32) -> Result<(), NetlinkError> {
        match self
            .handle
            .route()
            .del(Self::unreachable(to, priority))
            .execute()
            .await
        {
            Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::ESRCH => {
                Ok(())
            }
            other => other.map_err(refused(format!("delete the route to {to}"))),
        }
    }

    /// Every network that `ensure_unreachable` closed, with the priority.
    pub async fn unreachables(&self) -> Result<Vec<(Network, u32)>, NetlinkError> {
        let routes = self.routes().await?;
        let own = routes.iter().filter(|route| {
            route.header.kind == RouteType::Unreachable
                && route.header.protocol == RouteProtocol::Other(PROTOCOL)
        });
        let priority = |route: &RouteMessage| {
            route
                .attributes
                .iter()
                .find_map(|attribute| match attribute {
                    RouteAttribute::Priority(priority) => Some(*priority),
                    _ => None,
                })
        };
        Ok(own
            .filter_map(|route| Some((destination(route)?, priority(route)?)))
            .collect())
    }

    /// Every IPv4 destination that has a route of its own, with its interface's index where it has one.
    pub async fn destinations(&self) -> Result<Vec<Network>, NetlinkError> {
        let routes = self.routes().await?;
        Ok(routes.iter().filter_map(destination).collect())
    }

    async fn routes(&self) -> Result<Vec<RouteMessage>, NetlinkError> {
        let mut filter = RouteMessage::default();
        filter.header.address_family = AddressFamily::Inet;
        let routes = self.handle.route().get(filter).execute();
        routes
            .try_collect()
            .await
            .map_err(refused("read the routes"))
    }

    /// The MTU of the interface that the default route leaves by.
    pub async fn default_mtu(&self) -> Option<u32> {
        let routes = self.routes().await.ok()?;
        let default = routes.iter().find(|route| {
            route.header.destination_prefix_length == 0 && route.header.kind == RouteType::Unicast
        })?;
        let index = default
            .attributes
            .iter()
            .find_map(|attribute| match attribute {
                RouteAttribute::Oif(index) => Some(*index),
                _ => None,
            })?;
        let mut links = self.handle.link().get().match_index(index).execute();
        let link = links.try_next().await.ok()??;
        link.attributes
            .iter()
            .find_map(|attribute| match attribute {
                LinkAttribute::Mtu(mtu) => Some(*mtu),
                _ => None,
            })
    }
}

fn destination(route: &RouteMessage) -> Option<Network> {
    route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(Network::new(
                *address,
                route.header.destination_prefix_length,
            )),
            _ => None,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_networks_are_found_with_their_priority() {
        use nix::sched::{CloneFlags, unshare};
        // A thread moves into a network of its own, and with it a runtime that has no other.
        let alone = std::thread::spawn(|| {
            if unshare(CloneFlags::CLONE_NEWNET).is_err() {
                eprintln!("skipped: making a network namespace takes root");
                return;
            }
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(close_and_find());
        });
        alone.join().expect("it holds");
    }

    async fn close_and_find() {
        let netlink = Netlink::open().expect("a socket");
        let pods = Network::new(Ipv4Addr::new(10, 244, 0, 0), 16);
        for priority in [32_000, 32_001] {
            netlink
                .ensure_unreachable(pods, priority)
                .await
                .expect("added");
        }
        let found = netlink.unreachables().await.expect("read");
        assert_eq!(found, [(pods, 32_000), (pods, 32_001)]);
        netlink
            .delete_unreachable(pods, 32_000)
            .await
            .expect("removed");
        let found = netlink.unreachables().await.expect("read");
        assert_eq!(found, [(pods, 32_001)]);
    }

    #[test]
    fn networks_overlap_when_one_contains_the_other() {
        let network = |text: &str, prefix| Network::new(text.parse().expect("an address"), prefix);
        assert!(network("172.30.0.0", 24).overlaps(network("172.30.0.128", 25)));
        assert!(network("172.16.0.0", 12).overlaps(network("172.30.1.0", 24)));
        assert!(!network("172.30.0.0", 24).overlaps(network("172.30.1.0", 24)));
        assert!(network("0.0.0.0", 0).overlaps(network("1.2.3.4", 32)));
        assert_eq!(
            network("172.30.3.0", 24).nth(2),
            Ipv4Addr::new(172, 30, 3, 2)
        );
    }
}
