//! Rows of the cluster's own kinds: nodes, volumes, classes, bindings, certificates.

use apimachinery::Value;
use apimachinery::time;

use super::{Cells, NONE, UNKNOWN, UNSET};

/// Name, Status, Roles, Age, Version, Internal-IP, External-IP, OS-Image, Kernel-Version, Container-Runtime.
pub(super) fn node(cells: &Cells) -> Vec<Value> {
    let ready = match cells.condition("Ready") {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let unschedulable = cells.at("/spec/unschedulable").and_then(Value::as_bool) == Some(true);
    let address = |ty: &str| {
        let found = cells
            .list("/status/addresses")
            .iter()
            .find(|address| address.get("type").and_then(Value::as_str) == Some(ty));
        found
            .and_then(|address| address.get("address")?.as_str())
            .unwrap_or(NONE)
    };
    vec![
        cells.name(),
        format!(
            "{ready}{}",
            if unschedulable {
                ",SchedulingDisabled"
            } else {
                ""
            }
        )
        .into(),
        roles(cells).into(),
        cells.age(),
        cells.text("/status/nodeInfo/kubeletVersion").into(),
        address("InternalIP").into(),
        address("ExternalIP").into(),
        cells.text_or("/status/nodeInfo/osImage", UNKNOWN),
        cells.text_or("/status/nodeInfo/kernelVersion", UNKNOWN),
        cells.text_or("/status/nodeInfo/containerRuntimeVersion", UNKNOWN),
    ]
}

/// Name, Status, Message, Error.
pub(super) fn component_status(cells: &Cells) -> Vec<Value> {
    let text = |condition: &Value, field: &str| condition.get(field)?.as_str().map(String::from);
    let healthy = cells
        .list("/conditions")
        .iter()
        .find(|condition| text(condition, "type").as_deref() == Some("Healthy"));
    let status = healthy.map(|condition| text(condition, "status").as_deref() == Some("True"));
    let told = |field| {
        let told = healthy.and_then(|condition| text(condition, field));
        told.unwrap_or_default().into()
    };
    let status = match status {
        Some(true) => "Healthy",
        Some(false) => "Unhealthy",
        None => "Unknown",
    };
    vec![cells.name(), status.into(), told("message"), told("error")]
}

fn roles(cells: &Cells) -> String {
    let mut roles = Vec::new();
    for (label, value) in cells
        .at("/metadata/labels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        match label.strip_prefix("node-role.kubernetes.io/") {
            Some(role) if !role.is_empty() => roles.push(role),
            _ if label == "kubernetes.io/role" => {
                roles.extend(value.as_str().filter(|role| !role.is_empty()))
            }
            _ => {}
        }
    }
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() {
        NONE.to_owned()
    } else {
        roles.join(",")
    }
}

fn access_modes(modes: &[Value]) -> String {
    let short = [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ];
    let has = |mode: &str| modes.iter().any(|have| have.as_str() == Some(mode));
    short
        .iter()
        .filter(|(mode, _)| has(mode))
        .map(|(_, short)| *short)
        .collect::<Vec<_>>()
        .join(",")
}

fn volume_phase<'a>(cells: &Cells<'a>) -> &'a str {
    if cells.text("/metadata/deletionTimestamp").is_empty() {
        cells.text("/status/phase")
    } else {
        "Terminating"
    }
}

/// Name, Capacity, Access Modes, Reclaim Policy, Status, Claim, StorageClass, VolumeAttributesClass, Reason, Age, VolumeMode.
pub(super) fn persistent_volume(cells: &Cells) -> Vec<Value> {
    let claim = match cells.text("/spec/claimRef/name") {
        "" => String::new(),
        name => format!("{}/{name}", cells.text("/spec/claimRef/namespace")),
    };
    vec![
        cells.name(),
        cells.text("/spec/capacity/storage").into(),
        access_modes(cells.list("/spec/accessModes")).into(),
        cells.text("/spec/persistentVolumeReclaimPolicy").into(),
        volume_phase(cells).into(),
        claim.into(),
        cells.text("/spec/storageClassName").into(),
        cells.text_or("/spec/volumeAttributesClassName", UNSET),
        cells.text("/status/reason").into(),
        cells.age(),
        cells.text_or("/spec/volumeMode", UNSET),
    ]
}

/// Name, Status, Volume, Capacity, Access Modes, StorageClass, VolumeAttributesClass, Age, VolumeMode.
pub(super) fn persistent_volume_claim(cells: &Cells) -> Vec<Value> {
    let is_bound = !cells.text("/spec/volumeName").is_empty();
    vec![
        cells.name(),
        volume_phase(cells).into(),
        cells.text("/spec/volumeName").into(),
        if is_bound {
            cells.text("/status/capacity/storage")
        } else {
            ""
        }
        .into(),
        if is_bound {
            access_modes(cells.list("/status/accessModes"))
        } else {
            String::new()
        }
        .into(),
        cells.text("/spec/storageClassName").into(),
        cells.text_or("/spec/volumeAttributesClassName", UNSET),
        cells.age(),
        cells.text_or("/spec/volumeMode", UNSET),
    ]
}

/// Name, Provisioner, ReclaimPolicy, VolumeBindingMode, AllowVolumeExpansion, Age.
pub(super) fn storage_class(cells: &Cells) -> Vec<Value> {
    let is_default = cells
        .at("/metadata/annotations")
        .and_then(|annotations| annotations.get("storageclass.kubernetes.io/is-default-class"));
    let mark = if is_default.and_then(Value::as_str) == Some("true") {
        " (default)"
    } else {
        ""
    };
    vec![
        format!("{}{mark}", cells.text("/metadata/name")).into(),
        cells.text("/provisioner").into(),
        cells.text_or("/reclaimPolicy", "Delete"),
        cells.text_or("/volumeBindingMode", "Immediate"),
        cells.flag("/allowVolumeExpansion"),
        cells.age(),
    ]
}

/// Name, Value, Global-Default, Age, PreemptionPolicy.
pub(super) fn priority_class(cells: &Cells) -> Vec<Value> {
    vec![
        cells.name(),
        cells.number("/value").into(),
        cells.flag("/globalDefault"),
        cells.age(),
        cells.text("/preemptionPolicy").into(),
    ]
}

/// Name, Age, SignerName, Requestor, RequestedDuration, Condition.
pub(super) fn certificate_signing_request(cells: &Cells) -> Vec<Value> {
    let requested = cells.at("/spec/expirationSeconds").and_then(Value::as_u64);
    let duration = requested.map_or(NONE.to_owned(), |seconds| {
        time::human(std::time::Duration::from_secs(seconds))
    });
    let has = |ty: &str| cells.condition(ty).is_some();
    let mut words = if has("Denied") {
        "Denied"
    } else if has("Approved") {
        "Approved"
    } else {
        "Pending"
    }
    .to_owned();
    if has("Failed") {
        words.push_str(",Failed");
    }
    if !cells.text("/status/certificate").is_empty() {
        words.push_str(",Issued");
    }
    vec![
        cells.name(),
        cells.age(),
        cells.text_or("/spec/signerName", NONE),
        cells.text("/spec/username").into(),
        duration.into(),
        words.into(),
    ]
}

/// Name, Role, Age, Users, Groups, ServiceAccounts.
pub(super) fn role_binding(cells: &Cells) -> Vec<Value> {
    let (mut users, mut groups, mut accounts) = (Vec::new(), Vec::new(), Vec::new());
    for subject in cells.list("/subjects") {
        let text = |field: &str| {
            subject
                .get(field)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        match text("kind") {
            "User" => users.push(text("name").to_owned()),
            "Group" => groups.push(text("name").to_owned()),
            "ServiceAccount" => accounts.push(format!("{}/{}", text("namespace"), text("name"))),
            _ => {}
        }
    }
    vec![
        cells.name(),
        format!(
            "{}/{}",
            cells.text("/roleRef/kind"),
            cells.text("/roleRef/name")
        )
        .into(),
        cells.age(),
        users.join(", ").into(),
        groups.join(", ").into(),
        accounts.join(", ").into(),
    ]
}

/// Name, CIDRs, Age.
pub(super) fn service_cidr(cells: &Cells) -> Vec<Value> {
    let cidrs: Vec<&str> = cells
        .list("/spec/cidrs")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    vec![cells.name(), cidrs.join(",").into(), cells.age()]
}

/// Name, ParentRef.
pub(super) fn ip_address(cells: &Cells) -> Vec<Value> {
    let parts = ["group", "resource", "namespace", "name"]
        .map(|part| cells.text(&format!("/spec/parentRef/{part}")));
    let parent = parts
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("/");
    vec![cells.name(), parent.into()]
}

/// Name, Handler, Age.
pub(super) fn runtime_class(cells: &Cells) -> Vec<Value> {
    vec![cells.name(), cells.text("/handler").into(), cells.age()]
}

/// Name, Drivers, Age.
pub(super) fn csi_node(cells: &Cells) -> Vec<Value> {
    vec![cells.name(), cells.len("/spec/drivers").into(), cells.age()]
}

/// Name, Attacher, PV, Node, Attached, Age.
pub(super) fn volume_attachment(cells: &Cells) -> Vec<Value> {
    vec![
        cells.name(),
        cells.text("/spec/attacher").into(),
        cells.text("/spec/source/persistentVolumeName").into(),
        cells.text("/spec/nodeName").into(),
        cells.flag("/status/attached"),
        cells.age(),
    ]
}

/// Name, Service, Available, Age.
pub(super) fn api_service(cells: &Cells) -> Vec<Value> {
    let service = match cells.text("/spec/service/name") {
        "" => "Local".to_owned(),
        name => format!("{}/{name}", cells.text("/spec/service/namespace")),
    };
    let conditions = cells.list("/status/conditions");
    let available = conditions
        .iter()
        .find(|condition| condition.get("type").and_then(Value::as_str) == Some("Available"));
    let available = available.map_or(UNKNOWN.to_owned(), |condition| {
        let text = |field: &str| {
            condition
                .get(field)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        match text("status") {
            "True" => "True".to_owned(),
            status => format!("{status} ({})", text("reason")),
        }
    });
    vec![cells.name(), service.into(), available.into(), cells.age()]
}

/// Name, PriorityLevel, MatchingPrecedence, DistinguisherMethod, Age, MissingPL.
pub(super) fn flow_schema(cells: &Cells) -> Vec<Value> {
    let dangling = cells.condition("Dangling").unwrap_or("?");
    vec![
        cells.name(),
        cells.text("/spec/priorityLevelConfiguration/name").into(),
        cells.number("/spec/matchingPrecedence").into(),
        cells.text_or("/spec/distinguisherMethod/type", NONE),
        cells.age(),
        dangling.into(),
    ]
}

/// Name, Type, NominalConcurrencyShares, Queues, HandSize, QueueLengthLimit, Age.
pub(super) fn priority_level(cells: &Cells) -> Vec<Value> {
    let number = |pointer: &str| {
        cells
            .at(pointer)
            .and_then(Value::as_i64)
            .map_or(NONE.to_owned(), |number| number.to_string())
    };
    let shares = match cells.text("/spec/type") {
        "Exempt" => number("/spec/exempt/nominalConcurrencyShares"),
        _ => number("/spec/limited/nominalConcurrencyShares"),
    };
    let queuing = "/spec/limited/limitResponse/queuing";
    vec![
        cells.name(),
        cells.text("/spec/type").into(),
        shares.into(),
        number(&format!("{queuing}/queues")).into(),
        number(&format!("{queuing}/handSize")).into(),
        number(&format!("{queuing}/queueLengthLimit")).into(),
        cells.age(),
    ]
}

/// Name, Controller, Parameters, Age.
pub(super) fn ingress_class(cells: &Cells) -> Vec<Value> {
    let parameters = match cells.text("/spec/parameters/name") {
        "" => NONE.to_owned(),
        name => {
            let kind = cells.text("/spec/parameters/kind");
            match cells.text("/spec/parameters/apiGroup") {
                "" => format!("{kind}/{name}"),
                group => format!("{kind}.{group}/{name}"),
            }
        }
    };
    vec![
        cells.name(),
        cells.text("/spec/controller").into(),
        parameters.into(),
        cells.age(),
    ]
}
