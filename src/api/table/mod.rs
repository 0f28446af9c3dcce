//! Objects as rows of a Table: what `kubectl get` shows, with upstream's words (`pkg/printers/internalversion`).
//!
//! The columns are data of each `Resource`; `row` fills them. Each kind's cells are one function in the file of its
//! group; a kind without one shows its name and age, and `<unknown>` in anything else.

mod apps;
mod cluster;
mod core;
mod pod;
#[cfg(test)]
mod tests;

use apimachinery::Value;
use apimachinery::time::{self, Time};

use crate::{Column, Resource};

const NONE: &str = "<none>";
const UNKNOWN: &str = "<unknown>";
const UNSET: &str = "<unset>";

/// The columns of a resource's table, wide ones included.
pub fn columns(resource: &Resource) -> &'static [Column] {
    resource.columns
}

/// The cells of one object, one for each of `columns`.
pub fn row(resource: &Resource, object: &Value, now: Time) -> Vec<Value> {
    let cells = Cells { object, now };
    let made = of_kind(resource.kind, &cells);
    match made {
        Some(row) if row.len() == resource.columns.len() => row,
        _ => resource
            .columns
            .iter()
            .map(|column| cells.by_name(column.name))
            .collect(),
    }
}

fn of_kind(kind: &str, cells: &Cells) -> Option<Vec<Value>> {
    Some(match kind {
        "Pod" => pod::pod(cells),
        "Service" => core::service(cells),
        "Endpoints" => core::endpoints(cells),
        "EndpointSlice" => core::endpoint_slice(cells),
        "Event" => core::event(cells),
        "Namespace" => core::namespace(cells),
        "ConfigMap" => core::config_map(cells),
        "Secret" => core::secret(cells),
        "ResourceQuota" => core::resource_quota(cells),
        "PodTemplate" => core::pod_template(cells),
        "Lease" => core::lease(cells),
        "Node" => cluster::node(cells),
        "ComponentStatus" => cluster::component_status(cells),
        "PersistentVolume" => cluster::persistent_volume(cells),
        "PersistentVolumeClaim" => cluster::persistent_volume_claim(cells),
        "StorageClass" => cluster::storage_class(cells),
        "PriorityClass" => cluster::priority_class(cells),
        "CertificateSigningRequest" => cluster::certificate_signing_request(cells),
        "ClusterRoleBinding" | "RoleBinding" => cluster::role_binding(cells),
        "ServiceCIDR" => cluster::service_cidr(cells),
        "IPAddress" => cluster::ip_address(cells),
        "RuntimeClass" => cluster::runtime_class(cells),
        "CSINode" => cluster::csi_node(cells),
        "VolumeAttachment" => cluster::volume_attachment(cells),
        "APIService" => cluster::api_service(cells),
        "FlowSchema" => cluster::flow_schema(cells),
        "PriorityLevelConfiguration" => cluster::priority_level(cells),
        "IngressClass" => cluster::ingress_class(cells),
        "Deployment" => apps::deployment(cells),
        "ReplicaSet" | "ReplicationController" => apps::replica_set(cells),
        "DaemonSet" => apps::daemon_set(cells),
        "StatefulSet" => apps::stateful_set(cells),
        "ControllerRevision" => apps::controller_revision(cells),
        "Job" => apps::job(cells),
        "CronJob" => apps::cron_job(cells),
        "HorizontalPodAutoscaler" => apps::horizontal_pod_autoscaler(cells),
        "PodDisruptionBudget" => apps::pod_disruption_budget(cells),
        "Ingress" => apps::ingress(cells),
        "NetworkPolicy" => apps::network_policy(cells),
        _ => return None,
    })
}

/// An object and the time its ages are counted to.
struct Cells<'a> {
    object: &'a Value,
    now: Time,
}

impl<'a> Cells<'a> {
    /// The value at a JSON pointer.
    fn at(&self, pointer: &str) -> Option<&'a Value> {
        self.object.pointer(pointer)
    }

    /// Text at a pointer, "" when there is none.
    fn text(&self, pointer: &str) -> &'a str {
        self.at(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// Text at a pointer as a cell, `otherwise` when there is none.
    fn text_or(&self, pointer: &str, otherwise: &str) -> Value {
        let text = self.text(pointer);
        Value::from(if text.is_empty() { otherwise } else { text })
    }

    fn number(&self, pointer: &str) -> i64 {
        self.at(pointer).and_then(Value::as_i64).unwrap_or(0)
    }

    fn list(&self, pointer: &str) -> &'a [Value] {
        self.at(pointer)
            .and_then(Value::as_array)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    fn name(&self) -> Value {
        Value::from(self.text("/metadata/name"))
    }

    fn age(&self) -> Value {
        self.age_of("/metadata/creationTimestamp", UNKNOWN)
    }

    /// The time since the one at a pointer.
    fn age_of(&self, pointer: &str, otherwise: &str) -> Value {
        match self.text(pointer) {
            "" => Value::from(otherwise),
            text => Value::from(time::age(text, self.now)),
        }
    }

    /// Number of entries of the map or list at a pointer.
    fn len(&self, pointer: &str) -> i64 {
        let length = match self.at(pointer) {
            Some(Value::Object(map)) => map.len(),
            Some(Value::Array(items)) => items.len(),
            _ => 0,
        };
        i64::try_from(length).unwrap_or(i64::MAX)
    }

    /// Labels as `a=b,c=d`.
    fn labels(&self, pointer: &str) -> String {
        let Some(Value::Object(map)) = self.at(pointer) else {
            return NONE.to_owned();
        };
        if map.is_empty() {
            return NONE.to_owned();
        }
        let pairs: Vec<String> = map
            .iter()
            .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
            .collect();
        pairs.join(",")
    }

    /// A metav1.LabelSelector as text.
    fn selector(&self, pointer: &str) -> String {
        match self.at(pointer) {
            Some(selector) => selector_text(selector),
            None => NONE.to_owned(),
        }
    }

    /// One field of every item of a list, joined by commas.
    fn joined(&self, pointer: &str, field: &str) -> String {
        let texts: Vec<&str> = self
            .list(pointer)
            .iter()
            .filter_map(|item| item.get(field)?.as_str())
            .collect();
        texts.join(",")
    }

    /// What can be told of a column by its name alone.
    fn by_name(&self, column: &str) -> Value {
        match column {
            "Name" => self.name(),
            "Age" => self.age(),
            "Created At" => self.text_or("/metadata/creationTimestamp", UNKNOWN),
            "Webhooks" => self.len("/webhooks").into(),
            "Validations" => self.len("/spec/validations").into(),
            "Mutations" => self.len("/spec/mutations").into(),
            "PolicyName" => self.text_or("/spec/policyName", UNSET),
            "Driver" => self.text_or("/spec/driver", UNSET),
            "DriverName" => self.text_or("/driverName", UNSET),
            "Node" => self.text_or("/spec/nodeName", UNSET),
            "Pool" => self.text_or("/spec/pool/name", UNSET),
            "ParamKind" | "ParamRef" => UNSET.into(),
            "AttachRequired" => self.flag("/spec/attachRequired"),
            "PodInfoOnMount" => self.flag("/spec/podInfoOnMount"),
            "StorageCapacity" => self.flag("/spec/storageCapacity"),
            "RequiresRepublish" => self.flag("/spec/requiresRepublish"),
            "TokenRequests" => self.text_or("/spec/tokenRequests/0/audience", UNSET),
            "Modes" => match self.list("/spec/volumeLifecycleModes") {
                [] => NONE.into(),
                modes => modes
                    .iter()
                    .filter_map(Value::as_str)
                    .collect::<Vec<_>>()
                    .join(",")
                    .into(),
            },
            "LeaseName" => self.text_or("/spec/leaseName", NONE),
            "BinaryVersion" => self.text_or("/spec/binaryVersion", NONE),
            "EmulationVersion" => self.text_or("/spec/emulationVersion", NONE),
            "State" => if self.at("/status/allocation").is_some() {
                "allocated"
            } else {
                "pending"
            }
            .into(),
            _ => UNKNOWN.into(),
        }
    }

    fn flag(&self, pointer: &str) -> Value {
        match self.at(pointer).and_then(Value::as_bool) {
            Some(true) => true.into(),
            _ => false.into(),
        }
    }

    /// Names and images of the containers of a pod template.
    fn containers(&self, pointer: &str) -> [Value; 2] {
        [
            self.joined(pointer, "name").into(),
            self.joined(pointer, "image").into(),
        ]
    }

    /// Status of the condition of this type.
    fn condition(&self, ty: &str) -> Option<&'a str> {
        condition(self.list("/status/conditions"), ty)
    }
}

/// Status of the condition of this type.
fn condition<'a>(conditions: &'a [Value], ty: &str) -> Option<&'a str> {
    let found = conditions
        .iter()
        .find(|condition| condition.get("type").and_then(Value::as_str) == Some(ty))?;
    found.get("status").and_then(Value::as_str)
}

/// `a=b,c in (d,e)`, `<none>` when it selects everything, as metav1.FormatLabelSelector.
fn selector_text(selector: &Value) -> String {
    let mut parts = Vec::new();
    if let Some(labels) = selector.get("matchLabels").and_then(Value::as_object) {
        parts.extend(
            labels
                .iter()
                .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())),
        );
    }
    for expression in selector
        .get("matchExpressions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let key = expression
            .get("key")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let values: Vec<&str> = expression
            .get("values")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let values = values.join(",");
        parts.push(match expression.get("operator").and_then(Value::as_str) {
            Some("In") => format!("{key} in ({values})"),
            Some("NotIn") => format!("{key} notin ({values})"),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    if parts.is_empty() {
        NONE.to_owned()
    } else {
        parts.join(",")
    }
}

/// The first `most` texts joined by commas, and how many more there are; `none` when there are none.
fn first_of(texts: &[String], most: usize, none: &str) -> String {
    if texts.is_empty() {
        return none.to_owned();
    }
    let shown = texts.get(..most).unwrap_or(texts).join(",");
    match texts.len().saturating_sub(most) {
        0 => shown,
        more => format!("{shown} + {more} more..."),
    }
}
