//! Cluster IPs: the ranges they come from (ServiceCIDR objects) and choosing a free one. A taken address is an
//! IPAddress object of that name.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use apimachinery::{Status, Value, meta};
use rand::Rng;
use serde_json::json;

use super::super::super::tree::items;
use crate::registry::Registry;

/// The lower part of a range is left for people to choose from (KEP-3070).
const STATIC_SHARE: u128 = 16;
const STATIC_MIN: u128 = 16;
const STATIC_MAX: u128 = 256;
/// Largest range that addresses are chosen from (upstream: /64 for IPv6 is cut to 2^16 … we look no further).
const MAX_HOST_BITS: u32 = 20;

/// A family, as `spec.ipFamilies` spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() {
            Self::V4
        } else {
            Self::V6
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "IPv4" => Some(Self::V4),
            "IPv6" => Some(Self::V6),
            _ => None,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    pub const fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }
}

/// An IP range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    base: u128,
    bits: u32,
    family: Family,
}

impl Cidr {
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let bits: u32 = bits.parse().ok()?;
        let family = Family::of(address);
        let width = width(family);
        let host = width.checked_sub(bits)?;
        let base = number(address);
        let base = if host >= 128 { 0 } else { base >> host << host };
        Some(Self { base, bits, family })
    }

    pub fn family(&self) -> Family {
        self.family
    }

    /// Whether `inner` is a smaller range within this one.
    pub fn strictly_covers(&self, inner: &Self) -> bool {
        inner.family == self.family
            && inner.bits > self.bits
            && (self.base..=self.last()).contains(&inner.base)
    }

    /// Addresses in the range, capped.
    fn size(&self) -> u128 {
        1 << (width(self.family) - self.bits).min(MAX_HOST_BITS)
    }

    fn last(&self) -> u128 {
        let host = width(self.family) - self.bits;
        self.base | (1u128.checked_shl(host).unwrap_or(0)).wrapping_sub(1)
    }

    /// Whether a service may have the address: the first one, and IPv4's last, are not hosts'.
    pub fn offers(&self, address: IpAddr) -> bool {
        let value = number(address);
        Family::of(address) == self.family
            && value > self.base
            && (value < self.last() || (self.family == Family::V6 && value == self.last()))
    }

    /// The first address that can be had: the API server's own.
    pub fn first(&self) -> IpAddr {
        self.address(1)
    }

    fn address(&self, offset: u128) -> IpAddr {
        match self.family {
            Family::V4 => Ipv4Addr::from((self.base + offset) as u32).into(),
            Family::V6 => Ipv6Addr::from(self.base + offset).into(),
        }
    }

    /// A free address, from the upper part of the range while that has one.
    pub fn choose(&self, is_taken: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let end = match self.family {
            Family::V4 => self.size() - 1,
            Family::V6 => self.size(),
        };
        let reserved = match self.size() {
            0..STATIC_MIN => 0,
            size => (size / STATIC_SHARE).clamp(STATIC_MIN, STATIC_MAX),
        };
        self.find(reserved.max(1), end, &is_taken)
            .or_else(|| self.find(1, reserved.min(end), &is_taken))
    }

    fn find(&self, from: u128, to: u128, is_taken: &impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let size = to.checked_sub(from).filter(|size| *size > 0)?;
        let start = rand::rng().random_range(0..size);
        (0..size)
            .map(|step| self.address(from + (start + step) % size))
            .find(|address| !is_taken(*address))
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address(0), self.bits)
    }
}

const fn width(family: Family) -> u32 {
    match family {
        Family::V4 => 32,
        Family::V6 => 128,
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// The configured ranges: they say which families the cluster has, the first being the default.
pub fn configured(registry: &Registry) -> Vec<Cidr> {
    registry
        .options
        .service_cidrs
        .iter()
        .filter_map(|text| Cidr::parse(text))
        .collect()
}

/// All ranges addresses may come from: the configured ones and every ServiceCIDR that is not going away.
pub async fn ranges(registry: &Registry) -> Result<Vec<Cidr>, Status> {
    let mut ranges = configured(registry);
    let objects = registry
        .cached_values("networking.k8s.io", "servicecidrs")
        .await?;
    for object in objects.iter().filter(|object| !meta::is_deleting(object)) {
        for text in items(object, &["spec", "cidrs"]) {
            if let Some(range) = text.as_str().and_then(Cidr::parse)
                && !ranges.contains(&range)
            {
                ranges.push(range);
            }
        }
    }
    Ok(ranges)
}

/// The IPAddress object of a service's address.
pub fn object(address: IpAddr, namespace: &str, service: &str) -> Value {
    json!({
        "kind": "IPAddress",
        "apiVersion": "networking.k8s.io/v1",
        "metadata": {
            "name": address.to_string(),
            "labels": {
                "ipaddress.kubernetes.io/ip-family": Family::of(address).as_str(),
                "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
            },
        },
        "spec": {"parentRef": {"resource": "services", "namespace": namespace, "name": service}},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_offers_hosts_only() {
        let range = Cidr::parse("10.96.0.0/16").unwrap();
        let offers = |text: &str| range.offers(text.parse().unwrap());
        assert!(offers("10.96.0.1") && offers("10.96.255.254"));
        assert!(
            !offers("10.96.0.0")
                && !offers("10.96.255.255")
                && !offers("10.97.0.1")
                && !offers("fd00::1")
        );
        assert_eq!(range.first().to_string(), "10.96.0.1");
        assert_eq!(range.to_string(), "10.96.0.0/16");
        assert!(Cidr::parse("10.0.0.0/33").is_none());
    }

    #[test]
    fn addresses_come_from_the_upper_part_until_it_is_full() {
        let range = Cidr::parse("10.0.0.0/24").unwrap();
        for _ in 0..200 {
            let chosen = range.choose(|_| false).unwrap();
            assert!(range.offers(chosen));
            assert!(number(chosen) - range.base >= 16);
        }
        let low = range
            .choose(|address| number(address) - range.base >= 16)
            .unwrap();
        assert!((1..16).contains(&(number(low) - range.base)));
        assert_eq!(range.choose(|_| true), None);
    }
}
