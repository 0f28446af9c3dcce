//! Asks the metrics APIs: metrics.k8s.io for resources of pods, custom.metrics.k8s.io for pods and objects,
//! external.metrics.k8s.io for the rest.

use std::time::Duration;

use apimachinery::{Value, time::parse};
use client::{Client, ClientError};

use super::{
    replicas::{Sample, Samples},
    view::milli,
};

const RESOURCE: &str = "/apis/metrics.k8s.io/v1beta1";
const CUSTOM: &str = "/apis/custom.metrics.k8s.io/v1beta2";
const EXTERNAL: &str = "/apis/external.metrics.k8s.io/v1beta1";
/// What a server answers for a path it knows nothing of.
const UNKNOWN_PATH: &str = "404 page not found";
const NO_CUSTOM: &str = "no custom metrics API (custom.metrics.k8s.io) registered";
/// Window of a sample that names none.
const WINDOW: Duration = Duration::from_secs(60);

/// What pods use of a resource: all containers of each, or the one named.
///
/// # Errors
/// A text that says why there are none.
pub async fn of_resource(
    client: &Client,
    namespace: &str,
    selector: &str,
    resource: &str,
    container: &str,
) -> Result<Samples, String> {
    let path = format!(
        "{RESOURCE}/namespaces/{namespace}/pods?labelSelector={}",
        encoded(selector)
    );
    let absent = missing("pods.metrics.k8s.io");
    let list: Value = get(client, &path, "resource metrics API", &absent).await?;
    let samples = pods_usage(&list, resource, container)?;
    if samples.is_empty() {
        return Err("no metrics returned from resource metrics API".into());
    }
    Ok(samples)
}

fn pods_usage(list: &Value, resource: &str, container: &str) -> Result<Samples, String> {
    let mut samples = Samples::new();
    for item in items(list) {
        let name = apimachinery::meta::name(item);
        let mut total = Some(0);
        let mut found = false;
        for one in item["containers"].as_array().into_iter().flatten() {
            if !container.is_empty() && one["name"] != container {
                continue;
            }
            found = true;
            let usage = one["usage"][resource].as_str().and_then(milli);
            total = total.zip(usage).map(|(total, usage)| total + usage);
        }
        if !found && !container.is_empty() {
            return Err(format!(
                "container {container} not present in metrics for pod {name}"
            ));
        }
        // A pod of which a container has no usage has no sample.
        if let (Some(value), Some(at)) = (total.filter(|_| found), time_of(item)) {
            let window = window(item);
            samples.insert(name.into(), Sample { value, at, window });
        }
    }
    Ok(samples)
}

/// A metric of pods.
///
/// # Errors
/// A text that says why there is none.
pub async fn of_pods(
    client: &Client,
    namespace: &str,
    selector: &str,
    metric: &str,
    metric_selector: &str,
) -> Result<Samples, String> {
    let path = format!(
        "{CUSTOM}/namespaces/{namespace}/pods/*/{metric}?labelSelector={}&metricLabelSelector={}",
        encoded(selector),
        encoded(metric_selector)
    );
    let list: Value = get(client, &path, "custom metrics API", NO_CUSTOM).await?;
    let mut samples = Samples::new();
    for item in items(&list) {
        let name = item["describedObject"]["name"].as_str().unwrap_or("");
        let value = item["value"].as_str().and_then(milli);
        if let (Some(value), Some(at)) = (value, time_of(item)) {
            let window = window(item);
            samples.insert(name.into(), Sample { value, at, window });
        }
    }
    if samples.is_empty() {
        return Err("no metrics returned from custom metrics API".into());
    }
    Ok(samples)
}

/// A metric of one object, given by its resource (`ingresses.networking.k8s.io`) and name, in thousandths.
///
/// # Errors
/// A text that says why there is none.
pub async fn of_object(
    client: &Client,
    namespace: &str,
    (resource, name): (&str, &str),
    metric: &str,
    metric_selector: &str,
) -> Result<i64, String> {
    let path = format!(
        "{CUSTOM}/namespaces/{namespace}/{resource}/{name}/{metric}?metricLabelSelector={}",
        encoded(metric_selector)
    );
    let list: Value = get(client, &path, "custom metrics API", NO_CUSTOM).await?;
    let first = items(&list)
        .next()
        .and_then(|item| item["value"].as_str().and_then(milli));
    first.ok_or_else(|| "no metrics returned from custom metrics API".into())
}

/// The sum of an external metric, in thousandths.
///
/// # Errors
/// A text that says why there is none.
pub async fn of_external(
    client: &Client,
    namespace: &str,
    metric: &str,
    metric_selector: &str,
) -> Result<i64, String> {
    let path = format!(
        "{EXTERNAL}/namespaces/{namespace}/{metric}?labelSelector={}",
        encoded(metric_selector)
    );
    let absent = missing(&format!("{metric}.external.metrics.k8s.io"));
    let list: Value = get(client, &path, "external metrics API", &absent).await?;
    let values: Vec<i64> = items(&list)
        .filter_map(|item| item["value"].as_str().and_then(milli))
        .collect();
    if values.is_empty() {
        return Err("no metrics returned from external metrics API".into());
    }
    Ok(values.iter().sum())
}

/// `absent` is what is said when nobody serves the API.
async fn get(client: &Client, path: &str, api: &str, absent: &str) -> Result<Value, String> {
    client.get_path(path).await.map_err(|error: ClientError| {
        let why = match error.to_string() {
            why if error.is_not_found() && why.trim_end() == UNKNOWN_PATH => absent.to_string(),
            why => why,
        };
        format!("unable to fetch metrics from {api}: {why}")
    })
}

/// As client-go says it of a resource whose path is unknown.
fn missing(resource: &str) -> String {
    format!("the server could not find the requested resource (get {resource})")
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

fn time_of(item: &Value) -> Option<apimachinery::time::Time> {
    item["timestamp"].as_str().and_then(parse)
}

fn window(item: &Value) -> Duration {
    let text = item["window"].as_str().map(ToString::to_string);
    let seconds = item["windowSeconds"].as_u64().map(Duration::from_secs);
    let parsed = text.and_then(|text| apimachinery::time::parse_go_duration(&text));
    let parsed = parsed
        .and_then(|nanos| u64::try_from(nanos).ok())
        .map(Duration::from_nanos);
    parsed.or(seconds).unwrap_or(WINDOW)
}

/// Percent-encodes a selector for a query.
fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// A LabelSelector as text; everything is empty.
pub fn selector_text(selector: &Value) -> String {
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let labels = labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")));
    let expressions = selector["matchExpressions"]
        .as_array()
        .into_iter()
        .flatten();
    let expressions = expressions.map(|one| {
        let key = one["key"].as_str().unwrap_or("");
        let values = one["values"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        let values = values.collect::<Vec<_>>().join(",");
        match one["operator"].as_str() {
            Some("In") => format!("{key} in ({values})"),
            Some("NotIn") => format!("{key} notin ({values})"),
            Some("DoesNotExist") => format!("!{key}"),
            _ => key.to_string(),
        }
    });
    labels.chain(expressions).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pods_usage_is_that_of_its_containers() {
        let list = json!({"items": [
            {"metadata": {"name": "a"}, "timestamp": "2026-01-01T00:00:00Z", "window": "15.5s",
             "containers": [{"name": "x", "usage": {"cpu": "100m"}}, {"name": "y", "usage": {"cpu": "0.3"}}]},
            {"metadata": {"name": "b"}, "timestamp": "2026-01-01T00:00:00Z", "containers": [{"name": "x", "usage": {}}]},
        ]});
        let all = pods_usage(&list, "cpu", "").unwrap();
        assert_eq!(all.len(), 1);
        assert_eq!(
            (all["a"].value, all["a"].window),
            (400, Duration::from_millis(15500))
        );
        assert_eq!(pods_usage(&list, "cpu", "x").unwrap()["a"].value, 100);
        assert!(pods_usage(&list, "cpu", "z").is_err());
    }

    #[test]
    fn selectors_are_written_and_encoded_for_a_query() {
        let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [
            {"key": "c", "operator": "In", "values": ["d", "e"]}, {"key": "f", "operator": "DoesNotExist"}]});
        assert_eq!(selector_text(&selector), "a=b,c in (d,e),!f");
        assert_eq!(encoded("a=b,c in (d)"), "a%3Db%2Cc%20in%20%28d%29");
    }
}
