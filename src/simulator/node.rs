//! The Node objects: registered once, and said to be Ready whenever someone says they are not.

use std::{collections::HashMap, sync::Arc};

use api::{r::NODES, view::ObjectMeta};
use apimachinery::{Value, time::now_text};
use client::{Client, ClientError, Patch, WriteOptions};
use serde::Deserialize;
use serde_json::json;

use crate::{
    config::{Config, Nodes},
    status::node_address,
};

const VERSION: &str = "v1.37.0";
/// Tells simulated nodes from others.
const LABEL: &str = "simulated-node";

/// A Node of the API as far as it matters here.
#[derive(Debug, Deserialize)]
#[serde(from = "Raw")]
pub struct Node {
    pub uid: Box<str>,
    pub is_ready: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Raw {
    metadata: ObjectMeta,
    status: RawStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawStatus {
    conditions: Vec<RawCondition>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawCondition {
    r#type: String,
    status: String,
}

impl From<Raw> for Node {
    fn from(raw: Raw) -> Self {
        let is_ready = raw
            .status
            .conditions
            .iter()
            .any(|one| one.r#type == "Ready" && one.status == "True");
        Node {
            uid: raw.metadata.uid.into(),
            is_ready,
        }
    }
}

/// The nodes of one simulator by name.
pub struct Ours {
    kinds: Vec<Nodes>,
    names: Vec<Arc<str>>,
    /// Which number and kind each is of.
    places: HashMap<Arc<str>, (u32, usize)>,
}

impl Ours {
    pub fn new(config: &Config) -> Self {
        let mut ours = Ours {
            kinds: config.nodes.clone(),
            names: Vec::new(),
            places: HashMap::new(),
        };
        for (kind, nodes) in config.nodes.iter().enumerate() {
            for index in 0..nodes.count {
                let name: Arc<str> = format!("{}-{index}", nodes.prefix).into();
                let number = u32::try_from(ours.names.len()).unwrap_or(u32::MAX) + 1;
                ours.places.insert(name.clone(), (number, kind));
                ours.names.push(name);
            }
        }
        ours
    }

    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// The address of a node of these.
    pub fn address(&self, name: &str) -> String {
        node_address(self.places.get(name).map_or(0, |(number, _)| *number))
    }

    fn object(&self, name: &str) -> Option<Value> {
        let (number, kind) = self.places.get(name)?;
        let nodes = &self.kinds[*kind];
        let mut labels = json!({
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
            "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
            "node.kubernetes.io/instance-type": LABEL,
        });
        if let Some(zone) = usize::try_from(*number)
            .unwrap_or(0)
            .checked_rem(nodes.zones)
        {
            labels["topology.kubernetes.io/zone"] = json!(format!("zone-{zone}"));
            labels["topology.kubernetes.io/region"] = json!("region-0");
        }
        for (key, value) in &nodes.labels {
            labels[key] = json!(value);
        }
        Some(json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": labels, "annotations": {"node.alpha.kubernetes.io/ttl": "0"}},
            "spec": {"taints": nodes.taints},
            "status": self.status(name, nodes),
        }))
    }

    fn status(&self, name: &str, nodes: &Nodes) -> Value {
        let address = self.address(name);
        json!({
            "capacity": nodes.capacity, "allocatable": nodes.capacity,
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "conditions": conditions(),
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "osImage": "simulated", "kernelVersion": "",
                "containerRuntimeVersion": "simulated://1", "kubeletVersion": VERSION, "kubeProxyVersion": VERSION,
                "machineID": "", "systemUUID": "", "bootID": "",
            },
        })
    }
}

fn conditions() -> Value {
    let now = now_text();
    let condition = |(kind, holds, reason, message): (&str, &str, &str, &str)| {
        json!({
            "type": kind, "status": holds, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        })
    };
    [
        (
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
        (
            "DiskPressure",
            "False",
            "KubeletHasNoDiskPressure",
            "kubelet has no disk pressure",
        ),
        (
            "PIDPressure",
            "False",
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
        ),
        (
            "Ready",
            "True",
            "KubeletReady",
            "kubelet is posting ready status",
        ),
    ]
    .into_iter()
    .map(condition)
    .collect()
}

/// Creates the Node; one that is there already, of an earlier run, is as good.
pub async fn register(client: &Client, ours: &Ours, name: &str) -> Result<(), ClientError> {
    let Some(object) = ours.object(name) else {
        return Ok(());
    };
    let created = client
        .create::<_, Value>(&NODES, "", &object, &WriteOptions::default())
        .await;
    match created {
        Ok(_) => Ok(()),
        Err(error) if error.is_already_exists() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Says that the node is Ready.
pub async fn post(client: &Client, name: &str) -> Result<(), ClientError> {
    let patch = Patch::Strategic(json!({"status": {"conditions": conditions()}}));
    client
        .patch::<Value>(&NODES, "", name, "status", &patch, &WriteOptions::default())
        .await
        .map(drop)
}
