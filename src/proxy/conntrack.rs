//! Forgets UDP flows that conntrack would keep sending to endpoints that are gone.
//!
//! A UDP client that keeps its port has one conntrack entry for ever, and NAT decides only for new entries.
//! Owns the few messages of ctnetlink that listing and deleting entries takes, and the pure decision which
//! flows are stale. TCP needs none of it: a dead endpoint resets or times out.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    self, AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType,
};

use crate::endpoints::Endpoint;
use crate::model::{Family, Protocol};
use crate::plan::PortPlan;

/// The kernel fills at most 32 KiB per read of a dump.
const RECEIVE_BYTES: usize = 64 * 1024;
const NFGENMSG_BYTES: usize = 4;
const HEADER_BYTES: usize = 16;
const UDP: u8 = 17;

// linux/netlink.h, linux/netfilter/nfnetlink.h, linux/netfilter/nfnetlink_conntrack.h
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_ACK: u16 = 0x4;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const CT_GET: u16 = (1 << 8) | 1;
const CT_DELETE: u16 = (1 << 8) | 2;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_ZONE: u16 = 18;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const NLA_TYPE_MASK: u16 = 0x3fff;

/// Where UDP flows to Services may lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UdpTargets {
    services: BTreeMap<(IpAddr, u16), BTreeSet<Endpoint>>,
    node_ports: BTreeMap<u16, BTreeSet<Endpoint>>,
}

impl UdpTargets {
    /// Collects the UDP ports of a plan.
    pub fn of<'a>(ports: impl IntoIterator<Item = &'a PortPlan>) -> Self {
        let mut targets = Self::default();
        for port in ports.into_iter().filter(|p| p.protocol == Protocol::Udp) {
            let endpoints: BTreeSet<_> = port
                .endpoints
                .cluster
                .union(&port.endpoints.local)
                .copied()
                .collect();
            for ip in [port.cluster_ip]
                .iter()
                .chain(&port.external_ips)
                .chain(&port.load_balancer_ips)
            {
                targets.services.insert((*ip, port.port), endpoints.clone());
            }
            if port.node_port != 0 {
                targets
                    .node_ports
                    .entry(port.node_port)
                    .or_default()
                    .extend(endpoints);
            }
        }
        targets
    }

    /// Adds the addresses of `before` that are gone, with no endpoints: their flows end.
    pub fn with_removed(mut self, before: &Self) -> Self {
        for key in before.services.keys() {
            self.services.entry(*key).or_default();
        }
        for port in before.node_ports.keys() {
            self.node_ports.entry(*port).or_default();
        }
        self
    }

    /// Whether there is no UDP port at all.
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && self.node_ports.is_empty()
    }

    fn is_stale(&self, flow: &Flow, own_addresses: &BTreeSet<IpAddr>) -> bool {
        let allowed = match self
            .services
            .get(&(flow.destination.ip, flow.destination.port))
        {
            Some(allowed) => allowed,
            None if own_addresses.contains(&flow.destination.ip) => {
                match self.node_ports.get(&flow.destination.port) {
                    Some(allowed) => allowed,
                    None => return false,
                }
            }
            None => return false,
        };
        !allowed.contains(&flow.answers_from)
    }
}

/// A UDP entry of conntrack: where its first packet went, and who really answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flow {
    destination: Endpoint,
    answers_from: Endpoint,
}

/// Deletes the UDP flows of one family that lead where they no longer may. Blocks; returns how many.
///
/// # Errors
/// The netlink socket's errors; an entry that is gone already is none.
pub fn clean(family: Family, targets: &UdpTargets) -> io::Result<usize> {
    let own = own_addresses()?;
    let mut stale = Vec::new();
    let socket = Socket::open()?;
    socket.dump(family, |entry| {
        if read_flow(entry).is_some_and(|flow| targets.is_stale(&flow, &own)) {
            stale.push(identity(entry));
        }
    })?;
    let mut deleted = 0;
    for entry in stale {
        deleted += usize::from(socket.delete(family, &entry)?);
    }
    Ok(deleted)
}

fn own_addresses() -> io::Result<BTreeSet<IpAddr>> {
    let interfaces = nix::ifaddrs::getifaddrs()?;
    Ok(interfaces
        .filter_map(|i| i.address)
        .filter_map(|a| {
            let v4 = a.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
            v4.or_else(|| a.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
        })
        .collect())
}

struct Socket(OwnedFd);

impl Socket {
    fn open() -> io::Result<Self> {
        let fd = socket::socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkNetFilter,
        )?;
        socket::bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        Ok(Self(fd))
    }

    fn send(&self, kind: u16, flags: u16, family: Family, attributes: &[u8]) -> io::Result<()> {
        let length = HEADER_BYTES + NFGENMSG_BYTES + attributes.len();
        let mut message = Vec::with_capacity(length);
        let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
        message.extend(u32::try_from(length).map_err(too_long)?.to_ne_bytes());
        message.extend(kind.to_ne_bytes());
        message.extend((flags | NLM_F_REQUEST).to_ne_bytes());
        message.extend([0; 8]); // sequence and port: one request is in flight at a time
        let family = match family {
            Family::V4 => AddressFamily::Inet as u8,
            Family::V6 => AddressFamily::Inet6 as u8,
        };
        message.extend([family, 0, 0, 0]);
        message.extend(attributes);
        socket::send(self.0.as_raw_fd(), &message, MsgFlags::empty())?;
        Ok(())
    }

    /// Hands each message of the answer to `each` until the answer ends; an error in it is returned as errno.
    fn receive(&self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        let mut buffer = vec![0; RECEIVE_BYTES];
        loop {
            let count = socket::recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            let mut rest = &buffer[..count];
            while rest.len() >= HEADER_BYTES {
                let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
                if length < HEADER_BYTES || length > rest.len() {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                let (message, after) = rest.split_at(length);
                match u16::from_ne_bytes([message[4], message[5]]) {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => {
                        let code = message
                            .get(16..20)
                            .map_or(0, |b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
                        return if code == 0 {
                            Ok(())
                        } else {
                            Err(io::Error::from_raw_os_error(-code))
                        };
                    }
                    _ => each(
                        message
                            .get(HEADER_BYTES + NFGENMSG_BYTES..)
                            .unwrap_or_default(),
                    ),
                }
                rest = after
                    .get((length.next_multiple_of(4) - length).min(after.len())..)
                    .unwrap_or_default();
            }
        }
    }

    fn dump(&self, family: Family, each: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(CT_GET, NLM_F_DUMP, family, &[])?;
        self.receive(each)
    }

    fn delete(&self, family: Family, identity: &[u8]) -> io::Result<bool> {
        self.send(CT_DELETE, NLM_F_ACK, family, identity)?;
        match self.receive(|_| {}) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Attributes of a buffer: type, whole attribute with header, value.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8], &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes([*rest.first()?, *rest.get(1)?]));
        let kind = u16::from_ne_bytes([*rest.get(2)?, *rest.get(3)?]) & NLA_TYPE_MASK;
        let whole = rest.get(..length).filter(|_| length >= 4)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, whole, &whole[4..]))
    })
}

/// What names an entry in a delete request: its original tuple and its zone, copied as they came.
fn identity(entry: &[u8]) -> Vec<u8> {
    let mut identity = Vec::new();
    for (_, whole, _) in
        attributes(entry).filter(|(kind, ..)| matches!(*kind, CTA_TUPLE_ORIG | CTA_ZONE))
    {
        identity.extend_from_slice(whole);
        identity.resize(identity.len().next_multiple_of(4), 0);
    }
    identity
}

fn read_flow(entry: &[u8]) -> Option<Flow> {
    let mut destination = None;
    let mut answers_from = None;
    for (kind, _, value) in attributes(entry) {
        match kind {
            CTA_TUPLE_ORIG => destination = Some(read_tuple(value)?.1),
            CTA_TUPLE_REPLY => answers_from = Some(read_tuple(value)?.0),
            _ => {}
        }
    }
    Some(Flow {
        destination: destination?,
        answers_from: answers_from?,
    })
}

/// Source and destination of a UDP tuple.
fn read_tuple(tuple: &[u8]) -> Option<(Endpoint, Endpoint)> {
    let (mut ips, mut ports, mut protocol) = ([None; 2], [None; 2], None);
    for (kind, _, value) in attributes(tuple) {
        for (inner, _, value) in attributes(value) {
            match (kind, inner) {
                (CTA_TUPLE_IP, 1..=4) => ips[usize::from((inner - 1) % 2)] = Some(read_ip(value)?),
                (CTA_TUPLE_PROTO, 1) => protocol = value.first().copied(),
                (CTA_TUPLE_PROTO, 2 | 3) => {
                    ports[usize::from(inner - 2)] =
                        Some(u16::from_be_bytes([*value.first()?, *value.get(1)?]));
                }
                _ => {}
            }
        }
    }
    if protocol? != UDP {
        return None;
    }
    Some((
        Endpoint {
            ip: ips[0]?,
            port: ports[0]?,
        },
        Endpoint {
            ip: ips[1]?,
            port: ports[1]?,
        },
    ))
}

fn read_ip(value: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(value) {
        return Some(Ipv4Addr::from(v4).into());
    }
    <[u8; 16]>::try_from(value)
        .ok()
        .map(|v6| Ipv6Addr::from(v6).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        let address: std::net::SocketAddr = text.parse().unwrap();
        Endpoint {
            ip: address.ip(),
            port: address.port(),
        }
    }

    #[track_caller]
    fn check(destination: &str, answers_from: &str, stale: bool) {
        let mut targets = UdpTargets::default();
        targets.services.insert(
            ("10.96.0.10".parse().unwrap(), 53),
            [endpoint("10.244.0.2:53")].into(),
        );
        targets
            .services
            .insert(("10.96.0.11".parse().unwrap(), 53), BTreeSet::new());
        targets
            .node_ports
            .insert(30053, [endpoint("10.244.0.2:53")].into());
        let flow = Flow {
            destination: endpoint(destination),
            answers_from: endpoint(answers_from),
        };
        let own = BTreeSet::from(["172.30.0.2".parse().unwrap()]);
        assert_eq!(targets.is_stale(&flow, &own), stale);
    }

    #[test]
    fn a_flow_is_stale_if_its_endpoint_is_no_longer_among_the_service_s() {
        check("10.96.0.10:53", "10.244.0.2:53", false);
        check("10.96.0.10:53", "10.244.0.3:53", true);
        check("10.96.0.10:53", "10.96.0.10:53", true);
        check("10.96.0.11:53", "10.244.0.2:53", true);
        check("172.30.0.2:30053", "10.244.0.2:53", false);
        check("172.30.0.2:30053", "172.30.0.2:30053", true);
    }

    #[test]
    fn flows_that_are_no_service_s_are_left_alone() {
        check("8.8.8.8:53", "8.8.8.8:53", false);
        check("8.8.8.8:30053", "8.8.8.8:30053", false);
        check("172.30.0.2:5353", "172.30.0.2:5353", false);
    }

    #[test]
    fn a_removed_service_keeps_no_flow() {
        let mut before = UdpTargets::default();
        before.services.insert(
            ("10.96.0.10".parse().unwrap(), 53),
            [endpoint("10.244.0.2:53")].into(),
        );
        let now = UdpTargets::default().with_removed(&before);
        let flow = Flow {
            destination: endpoint("10.96.0.10:53"),
            answers_from: endpoint("10.244.0.2:53"),
        };
        assert!(now.is_stale(&flow, &BTreeSet::new()));
    }

    #[test]
    fn broken_attributes_end_the_reading() {
        assert_eq!(attributes(&[1, 0, 1, 0]).count(), 0);
        assert_eq!(attributes(&[255, 255, 1, 0, 9]).count(), 0);
        assert_eq!(attributes(&[5, 0, 1, 0, 9]).count(), 1);
        assert_eq!(attributes(&[3]).count(), 0);
        assert_eq!(read_flow(&[8, 0, 1, 0, 4, 0, 1, 0]), None);
    }
}
