//! The quality-of-service class of a pod (`pkg/apis/core/v1/helper/qos`).

use apimachinery::Value;
use apimachinery::quantity::Quantity;
use std::collections::BTreeMap;

use super::super::tree::{has, items, map};

const COMPUTE: [&str; 2] = ["cpu", "memory"];

/// `Guaranteed` when every container's limits of CPU and memory equal its requests, `BestEffort` when none has
/// any, else `Burstable`.
pub fn class(pod: &Value) -> &'static str {
    let mut requests: BTreeMap<&str, Quantity> = BTreeMap::new();
    let mut limits: BTreeMap<&str, Quantity> = BTreeMap::new();
    let mut guaranteed = true;
    let pod_level =
        has(pod, &["spec", "resources", "requests"]) || has(pod, &["spec", "resources", "limits"]);
    if pod_level {
        guaranteed &= add(&pod["spec"], &mut requests, &mut limits);
    } else {
        for list in ["containers", "initContainers"] {
            for container in items(pod, &["spec", list]) {
                guaranteed &= add(container, &mut requests, &mut limits);
            }
        }
    }
    if requests.is_empty() && limits.is_empty() {
        return "BestEffort";
    }
    if guaranteed
        && limits.len() == requests.len()
        && requests
            .iter()
            .all(|(name, amount)| limits.get(name) == Some(amount))
    {
        return "Guaranteed";
    }
    "Burstable"
}

/// Sums one holder's resources; whether it limits both CPU and memory.
fn add<'a>(
    holder: &'a Value,
    requests: &mut BTreeMap<&'a str, Quantity>,
    limits: &mut BTreeMap<&'a str, Quantity>,
) -> bool {
    let mut limited = 0;
    for (field, sums) in [("requests", requests), ("limits", limits)] {
        for name in COMPUTE {
            let amount = map(holder, &["resources", field])
                .and_then(|list| list.get_key_value(name))
                .and_then(|(name, amount)| {
                    Some((name, amount.as_str()?.parse::<Quantity>().ok()?))
                });
            let Some((name, amount)) = amount else {
                continue;
            };
            if amount.sign() <= 0 {
                continue;
            }
            if field == "limits" {
                limited += 1;
            }
            sums.entry(name.as_str())
                .and_modify(|sum| sum.add(&amount))
                .or_insert(amount);
        }
    }
    limited == COMPUTE.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(resources: Value, class: &str) {
        let pod = json!({"spec": {"containers": [{ "resources": resources }]}});
        assert_eq!(super::class(&pod), class);
    }

    #[test]
    fn classes_follow_requests_and_limits() {
        check(json!({}), "BestEffort");
        check(json!({"requests": {"cpu": "1"}}), "Burstable");
        check(
            json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1000m", "memory": "1Gi"}}),
            "Guaranteed",
        );
        check(
            json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}),
            "Burstable",
        );
        check(
            json!({"requests": {"ephemeral-storage": "1Gi"}}),
            "BestEffort",
        );
    }
}
