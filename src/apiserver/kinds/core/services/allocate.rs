//! Addresses and node ports of one write: families first, then what must be taken, then what is given back.

use std::net::IpAddr;

use apimachinery::field::{Error, ErrorList, Path};
use apimachinery::{Status, Value, meta};
use serde_json::json;
use store::{Compare, CompareOp, Op};

use super::super::super::tree::{at, items, items_mut, object_mut, text};
use super::addresses::{self, Cidr, Family};
use super::families;
use super::ports::{NodePorts, PortError};
use super::{
    cluster_ips, is_headless, needs_address, needs_health_port, needs_node_ports, write_addresses,
};
use crate::registry::strategy::{Change, Companions};

/// What a write of a service takes along. `new` is `None` when the service goes away.
pub async fn companions(
    change: &Change<'_>,
    new: Option<&mut Value>,
    old: Option<&Value>,
) -> Result<Companions, Status> {
    let mut companions = Companions::default();
    let name = new
        .as_deref()
        .or(old)
        .map(|service| meta::name(service).to_owned())
        .unwrap_or_default();
    let had: Vec<String> = old.map(taken_addresses).unwrap_or_default();
    let mut keeps: Vec<String> = Vec::new();
    let mut new = new;
    if let Some(new) = new.as_deref_mut() {
        let errors = families::settle(new, old, &configured(change));
        if !errors.is_empty() {
            return Err(invalid(&name, errors));
        }
        keeps = allocate_addresses(change, new, &name, &had, &mut companions).await?;
    }
    for address in had.iter().filter(|address| !keeps.contains(address)) {
        give_back(change, address, &name, &mut companions).await?;
    }
    allocate_ports(change, new, old, &name, &mut companions).await?;
    Ok(companions)
}

fn invalid(name: &str, errors: ErrorList) -> Status {
    Status::invalid("", "Service", name, errors)
}

fn taken_addresses(service: &Value) -> Vec<String> {
    if !needs_address(service) {
        return Vec::new();
    }
    cluster_ips(service)
        .into_iter()
        .filter(|address| address.parse::<IpAddr>().is_ok())
        .map(str::to_owned)
        .collect()
}

/// The families that addresses of services can have, the default first.
fn configured(change: &Change<'_>) -> Vec<Family> {
    let mut found: Vec<Family> = Vec::new();
    for range in addresses::configured(change.registry) {
        if !found.contains(&range.family()) {
            found.push(range.family());
        }
    }
    found
}

/// Fills in the addresses that are not named and takes all that the service did not have. Answers with all it has.
async fn allocate_addresses(
    change: &Change<'_>,
    service: &mut Value,
    name: &str,
    had: &[String],
    companions: &mut Companions,
) -> Result<Vec<String>, Status> {
    if is_headless(service) {
        write_addresses(service, "None", vec!["None".to_owned()]);
        return Ok(Vec::new());
    }
    if !needs_address(service) {
        return Ok(Vec::new());
    }
    let ranges = addresses::ranges(change.registry).await?;
    let families: Vec<Family> = items(service, &["spec", "ipFamilies"])
        .iter()
        .filter_map(|family| Family::parse(family.as_str()?))
        .collect();
    let named: Vec<String> = cluster_ips(service)
        .into_iter()
        .map(str::to_owned)
        .collect();
    let mut all: Vec<String> = Vec::new();
    for (at, family) in families.iter().enumerate() {
        let address = match named.get(at) {
            Some(address) if had.contains(address) => address.clone(),
            Some(address) => {
                check_named(&ranges, address)
                    .map_err(|why| refused(name, &named, address, &why))?;
                take(change, address, name, companions)
                    .await?
                    .map_err(|why| refused(name, &named, address, why))?;
                address.clone()
            }
            None => {
                let address = choose(change, &ranges, *family).await?.ok_or_else(|| {
                    Status::internal(format!(
                        "failed to allocate a serviceIP: range is full ({})",
                        family.as_str()
                    ))
                })?;
                let address = address.to_string();
                let taken = take(change, &address, name, companions).await?;
                taken.map_err(Status::internal)?;
                address
            }
        };
        all.push(address);
    }
    let first = all.first().cloned().unwrap_or_default();
    write_addresses(service, &first, all.clone());
    Ok(all)
}

fn refused(name: &str, named: &[String], address: &str, why: &str) -> Status {
    let error = Error::invalid(
        &Path::new("spec.clusterIPs"),
        json!(named),
        format!("failed to allocate IP {address}: {why}"),
    );
    invalid(name, error.into())
}

fn check_named(ranges: &[Cidr], address: &str) -> Result<(), String> {
    let parsed: IpAddr = address.parse().map_err(|_| "not a valid IP".to_owned())?;
    if ranges.iter().any(|range| range.offers(parsed)) {
        return Ok(());
    }
    let list: Vec<String> = ranges.iter().map(Cidr::to_string).collect();
    Err(format!(
        "the provided IP ({address}) is not in the valid range. The range of valid IPs is {}",
        list.join(",")
    ))
}

async fn choose(
    change: &Change<'_>,
    ranges: &[Cidr],
    family: Family,
) -> Result<Option<IpAddr>, Status> {
    let registry = change.registry;
    let Some(kind) = registry.kind("networking.k8s.io", "ipaddresses") else {
        return Ok(None);
    };
    let cache = kind.cache(registry);
    cache
        .filled()
        .await
        .map_err(crate::registry::cache_status)?;
    let taken = cache.snapshot();
    Ok(ranges
        .iter()
        .filter(|range| range.family() == family)
        .find_map(|range| {
            range.choose(|address| taken.get(&kind.key("", &address.to_string())).is_some())
        }))
}

/// Makes the address's object part of the transaction, under the condition that nobody has it.
async fn take(
    change: &Change<'_>,
    address: &str,
    name: &str,
    companions: &mut Companions,
) -> Result<Result<(), &'static str>, Status> {
    let registry = change.registry;
    let Some(kind) = registry.kind("networking.k8s.io", "ipaddresses") else {
        return Ok(Ok(()));
    };
    let Ok(parsed) = address.parse::<IpAddr>() else {
        return Ok(Err("not a valid IP"));
    };
    let key = kind.key("", &parsed.to_string());
    if registry.read_raw(&key).await?.is_some() {
        return Ok(Err("provided IP is already allocated"));
    }
    let object = addresses::object(parsed, change.namespace, name);
    let value = registry.system_object(&kind, object, "kube-apiserver");
    companions
        .compare
        .push(Compare::ModRevision(key.clone(), CompareOp::Equal, 0));
    companions.ops.push(Op::Put {
        key,
        value,
        lease: 0,
    });
    Ok(Ok(()))
}

/// Deletes the address's object, if it is this service's.
async fn give_back(
    change: &Change<'_>,
    address: &str,
    name: &str,
    companions: &mut Companions,
) -> Result<(), Status> {
    let registry = change.registry;
    let object = registry
        .stored_value("networking.k8s.io", "ipaddresses", "", address)
        .await?;
    let (Some(object), Some(kind)) = (object, registry.kind("networking.k8s.io", "ipaddresses"))
    else {
        return Ok(());
    };
    let parent = |field: &str| text(&object, &["spec", "parentRef", field]);
    if parent("name") == name && parent("namespace") == change.namespace {
        companions.ops.push(Op::Delete {
            key: kind.key("", address),
            range_end: None,
            prev_kv: false,
        });
    }
    Ok(())
}

/// Every node port a service has, the health check's included.
pub fn node_ports(service: &Value) -> Vec<i64> {
    let mut ports: Vec<i64> = items(service, &["spec", "ports"])
        .iter()
        .filter_map(|port| at(port, &["nodePort"]).as_i64())
        .filter(|port| *port != 0)
        .collect();
    if let Some(port) = at(service, &["spec", "healthCheckNodePort"])
        .as_i64()
        .filter(|port| *port != 0)
    {
        ports.push(port);
    }
    ports.sort_unstable();
    // TCP and UDP may share a number.
    ports.dedup();
    ports
}

async fn allocate_ports(
    change: &Change<'_>,
    new: Option<&mut Value>,
    old: Option<&Value>,
    name: &str,
    companions: &mut Companions,
) -> Result<(), Status> {
    let had = old.map(node_ports).unwrap_or_default();
    let named = new.as_deref().map(node_ports).unwrap_or_default();
    let wants = new.as_deref().is_some_and(|service| {
        needs_node_ports(service) || needs_health_port(service) || !named.is_empty()
    });
    if had.is_empty() && !wants {
        return Ok(());
    }
    let mut ports = NodePorts::read(change.registry).await?;
    let mut has = Vec::new();
    if let Some(service) = new {
        take_ports(service, name, &had, &mut ports)?;
        has = node_ports(service);
    }
    for port in had.iter().filter(|port| !has.contains(port)) {
        ports.release(*port);
    }
    ports.write(companions);
    Ok(())
}

fn take_ports(
    service: &mut Value,
    name: &str,
    had: &[i64],
    ports: &mut NodePorts,
) -> Result<(), Status> {
    let refused = |path: &Path, port: i64, why: PortError| {
        invalid(name, Error::invalid(path, port, why.to_string()).into())
    };
    let wants = needs_node_ports(service);
    let mut taken: Vec<(i64, String)> = Vec::new();
    let list = Path::new("spec.ports");
    // Named ports first, so that a port made up here is not one named further down.
    for pass in [true, false] {
        for (at, port) in items_mut(service, &["spec", "ports"])
            .iter_mut()
            .enumerate()
        {
            let number = port["nodePort"].as_i64().unwrap_or(0);
            let protocol = text(port, &["protocol"]).to_owned();
            let path = list.index(at).child("nodePort");
            if pass && number != 0 {
                let shared = taken
                    .iter()
                    .any(|(have, other)| *have == number && *other != protocol);
                if !shared && !had.contains(&number) {
                    ports
                        .take(number)
                        .map_err(|why| refused(&path, number, why))?;
                }
                taken.push((number, protocol));
            } else if !pass && number == 0 && wants {
                let made = ports.take_any().map_err(|why| {
                    Status::internal(format!("failed to allocate a nodePort: {why}"))
                })?;
                if let Some(map) = port.as_object_mut() {
                    map.insert("nodePort".to_owned(), made.into());
                }
            }
        }
    }
    if needs_health_port(service) {
        let number = at(service, &["spec", "healthCheckNodePort"])
            .as_i64()
            .unwrap_or(0);
        if number == 0 {
            let made = ports.take_any().map_err(|why| {
                Status::internal(format!("failed to allocate a HealthCheck NodePort: {why}"))
            })?;
            object_mut(service, &["spec"]).insert("healthCheckNodePort".to_owned(), made.into());
        } else if !had.contains(&number) {
            ports.take(number).map_err(|why| {
                Status::internal(format!(
                    "failed to allocate requested HealthCheck NodePort {number}: {why}"
                ))
            })?;
        }
    }
    Ok(())
}
