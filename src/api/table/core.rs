//! Rows of the core group's namespaced kinds, endpoint slices and leases.

use apimachinery::Value;
use apimachinery::time;

use super::{Cells, NONE, UNKNOWN, UNSET, first_of};

/// Most addresses or ports a cell shows.
const MOST: usize = 3;

/// Name, Type, Cluster-IP, External-IP, Port(s), Age, Selector.
pub(super) fn service(cells: &Cells) -> Vec<Value> {
    let cluster_ip = match cells.text("/spec/clusterIPs/0") {
        "" => cells.text_or("/spec/clusterIP", NONE),
        ip => ip.into(),
    };
    vec![
        cells.name(),
        cells.text("/spec/type").into(),
        cluster_ip,
        external_ip(cells).into(),
        ports(cells).into(),
        cells.age(),
        cells.labels("/spec/selector").into(),
    ]
}

fn external_ip(cells: &Cells) -> String {
    let mut addresses: Vec<&str> = Vec::new();
    let none = match cells.text("/spec/type") {
        "ExternalName" => return cells.text("/spec/externalName").to_owned(),
        "LoadBalancer" => {
            for ingress in cells.list("/status/loadBalancer/ingress") {
                let address = ingress.get("ip").or_else(|| ingress.get("hostname"));
                addresses.extend(address.and_then(Value::as_str));
            }
            "<pending>"
        }
        _ => NONE,
    };
    addresses.extend(
        cells
            .list("/spec/externalIPs")
            .iter()
            .filter_map(Value::as_str),
    );
    if addresses.is_empty() {
        none.to_owned()
    } else {
        addresses.join(",")
    }
}

fn ports(cells: &Cells) -> String {
    let texts: Vec<String> = cells
        .list("/spec/ports")
        .iter()
        .map(|port| {
            let number = port.get("port").and_then(Value::as_i64).unwrap_or(0);
            let protocol = port
                .get("protocol")
                .and_then(Value::as_str)
                .unwrap_or("TCP");
            match port.get("nodePort").and_then(Value::as_i64).unwrap_or(0) {
                0 => format!("{number}/{protocol}"),
                node_port => format!("{number}:{node_port}/{protocol}"),
            }
        })
        .collect();
    if texts.is_empty() {
        NONE.to_owned()
    } else {
        texts.join(",")
    }
}

/// Name, Endpoints, Age.
pub(super) fn endpoints(cells: &Cells) -> Vec<Value> {
    let mut texts = Vec::new();
    for subset in cells.list("/subsets") {
        let list = |field: &str| {
            subset
                .get(field)
                .and_then(Value::as_array)
                .map(Vec::as_slice)
                .unwrap_or_default()
        };
        let addresses = || {
            list("addresses")
                .iter()
                .filter_map(|address| address.get("ip")?.as_str())
        };
        if list("ports").is_empty() {
            texts.extend(addresses().map(str::to_owned));
        }
        for port in list("ports") {
            let number = port.get("port").and_then(Value::as_i64).unwrap_or(0);
            texts.extend(addresses().map(|ip| match ip.contains(':') {
                true => format!("[{ip}]:{number}"),
                false => format!("{ip}:{number}"),
            }));
        }
    }
    vec![
        cells.name(),
        first_of(&texts, MOST, NONE).into(),
        cells.age(),
    ]
}

/// Name, AddressType, Ports, Endpoints, Age.
pub(super) fn endpoint_slice(cells: &Cells) -> Vec<Value> {
    let number = |port: &Value| {
        port.get("port")
            .and_then(Value::as_i64)
            .map_or("*".to_owned(), |port| port.to_string())
    };
    let ports: Vec<String> = cells.list("/ports").iter().map(number).collect();
    let addresses: Vec<String> = cells
        .list("/endpoints")
        .iter()
        .filter_map(|endpoint| endpoint.get("addresses")?.as_array())
        .flatten()
        .filter_map(|address| address.as_str().map(str::to_owned))
        .collect();
    vec![
        cells.name(),
        cells.text("/addressType").into(),
        first_of(&ports, MOST, UNSET).into(),
        first_of(&addresses, MOST, UNSET).into(),
        cells.age(),
    ]
}

/// Last Seen, Type, Reason, Object, Subobject, Source, Message, First Seen, Count, Name; of both event APIs.
pub(super) fn event(cells: &Cells) -> Vec<Value> {
    let either = |core: &str, events: &str| match cells.text(core) {
        "" => cells.text(events).to_owned(),
        text => text.to_owned(),
    };
    let age = |text: &str| {
        if text.is_empty() {
            UNKNOWN.to_owned()
        } else {
            time::age(text, cells.now)
        }
    };
    let event_time = cells.text("/eventTime");
    let first = match either("/firstTimestamp", "/deprecatedFirstTimestamp") {
        text if text.is_empty() => age(event_time),
        text => age(&text),
    };
    let (last, count) = if cells.at("/series").is_some_and(Value::is_object) {
        (
            age(cells.text("/series/lastObservedTime")),
            cells.number("/series/count"),
        )
    } else {
        let last = match either("/lastTimestamp", "/deprecatedLastTimestamp") {
            text if text.is_empty() => first.clone(),
            text => age(&text),
        };
        (
            last,
            cells
                .number("/count")
                .max(cells.number("/deprecatedCount"))
                .max(1),
        )
    };
    let kind = either("/involvedObject/kind", "/regarding/kind").to_lowercase();
    let object = match either("/involvedObject/name", "/regarding/name") {
        name if name.is_empty() => kind,
        name => format!("{kind}/{name}"),
    };
    vec![
        last.into(),
        cells.text("/type").into(),
        cells.text("/reason").into(),
        object.into(),
        either("/involvedObject/fieldPath", "/regarding/fieldPath").into(),
        event_source(cells).into(),
        either("/message", "/note").trim().into(),
        first.into(),
        count.into(),
        cells.name(),
    ]
}

fn event_source(cells: &Cells) -> String {
    let first = |pointers: [&str; 4]| {
        pointers
            .into_iter()
            .map(|pointer| cells.text(pointer))
            .find(|text| !text.is_empty())
    };
    let component = first([
        "/source/component",
        "/deprecatedSource/component",
        "/reportingComponent",
        "/reportingController",
    ]);
    let host = first([
        "/source/host",
        "/deprecatedSource/host",
        "/reportingInstance",
        "/reportingInstance",
    ]);
    match (component.unwrap_or_default(), host) {
        (component, Some(host)) => format!("{component}, {host}"),
        (component, None) => component.to_owned(),
    }
}

/// Name, Status, Age.
pub(super) fn namespace(cells: &Cells) -> Vec<Value> {
    vec![
        cells.name(),
        cells.text("/status/phase").into(),
        cells.age(),
    ]
}

/// Name, Data, Age.
pub(super) fn config_map(cells: &Cells) -> Vec<Value> {
    let entries = cells.len("/data") + cells.len("/binaryData");
    vec![cells.name(), entries.into(), cells.age()]
}

/// Name, Type, Data, Age.
pub(super) fn secret(cells: &Cells) -> Vec<Value> {
    vec![
        cells.name(),
        cells.text("/type").into(),
        cells.len("/data").into(),
        cells.age(),
    ]
}

/// Name, Request, Limit, Age.
pub(super) fn resource_quota(cells: &Cells) -> Vec<Value> {
    let mut requests = Vec::new();
    let mut limits = Vec::new();
    for (resource, hard) in cells
        .at("/status/hard")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let used = cells
            .at("/status/used")
            .and_then(|used| used.get(resource)?.as_str())
            .unwrap_or("0");
        let text = format!("{resource}: {used}/{}", hard.as_str().unwrap_or_default());
        if resource.starts_with("limits.") {
            limits.push(text)
        } else {
            requests.push(text)
        }
    }
    vec![
        cells.name(),
        requests.join(", ").into(),
        limits.join(", ").into(),
        cells.age(),
    ]
}

/// Name, Containers, Images, Pod Labels.
pub(super) fn pod_template(cells: &Cells) -> Vec<Value> {
    let [names, images] = cells.containers("/template/spec/containers");
    vec![
        cells.name(),
        names,
        images,
        cells.labels("/template/metadata/labels").into(),
    ]
}

/// Name, Holder, Age.
pub(super) fn lease(cells: &Cells) -> Vec<Value> {
    vec![
        cells.name(),
        cells.text("/spec/holderIdentity").into(),
        cells.age(),
    ]
}
