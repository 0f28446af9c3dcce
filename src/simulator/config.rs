//! What is simulated: how many nodes of which kind, and the rules their pods follow.

use std::{collections::BTreeMap, time::Duration};

use api::view::Taint;
use apimachinery::{name, quantity::Quantity, selector::LabelSelector, time::parse_go_duration};
use serde::{Deserialize, Deserializer, de::Error as _};

/// Most nodes of one simulator; their leases alone are 2,500 writes a second at the slowest.
const MAX_NODES: usize = 50_000;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration: {0}")]
    Syntax(String),
    #[error("{0}")]
    Invalid(String),
}

/// The whole of it, as the file has it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub nodes: Vec<Nodes>,
    /// The first that matches a pod holds for it; a pod that none matches follows `Rule::default`.
    pub rules: Vec<Rule>,
}

/// Nodes of one kind: `<prefix>-0`, `<prefix>-1` and so on.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Nodes {
    pub prefix: String,
    pub count: usize,
    /// The nodes are shared out among so many zones (`zone-0`, …); 0 is none.
    pub zones: usize,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// What each node has, and offers to pods.
    pub capacity: BTreeMap<String, String>,
}

impl Default for Nodes {
    fn default() -> Self {
        let capacity = [
            ("cpu", "32"),
            ("memory", "256Gi"),
            ("pods", "110"),
            ("ephemeral-storage", "1Ti"),
        ];
        Nodes {
            prefix: "simulated".into(),
            count: 0,
            zones: 0,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            capacity: capacity
                .map(|(name, amount)| (name.into(), amount.into()))
                .into(),
        }
    }
}

/// What becomes of the pods it matches.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Rule {
    pub name: String,
    pub r#match: Match,
    /// From having a node to Running. One that fails waits for ever with `reason`, `ImagePullBackOff` if not set.
    pub start: Stage,
    /// From Running to Ready. One that fails is never ready.
    pub ready: Stage,
    /// From Ready to the end of its containers. One that fails ends with `exitCode`. Not set: pods of Jobs end after a
    /// second, others never.
    pub finish: Option<Stage>,
    /// From the wish to delete it to being gone, never longer than its grace period.
    pub delete: Stage,
}

/// Which pods a rule is about; what is empty holds for all.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Match {
    pub namespaces: Vec<String>,
    /// A selector as kubectl takes it: `app=web,tier!=db`.
    #[serde(deserialize_with = "selector")]
    pub labels: Option<LabelSelector>,
    /// Kinds of the controlling owner: `Job`, `ReplicaSet`.
    pub owner_kinds: Vec<String>,
    /// Prefixes of nodes.
    pub node_prefixes: Vec<String>,
}

/// One step in a pod's life.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Stage {
    #[serde(deserialize_with = "duration")]
    pub after: Duration,
    /// Up to so much more, different for each pod.
    #[serde(deserialize_with = "duration")]
    pub jitter: Duration,
    /// The share of pods that fail here, 0 to 1.
    pub failures: f64,
    pub reason: String,
    pub exit_code: i32,
}

impl Default for Stage {
    fn default() -> Self {
        Stage {
            after: Duration::ZERO,
            jitter: Duration::ZERO,
            failures: 0.0,
            reason: String::new(),
            exit_code: 1,
        }
    }
}

impl Stage {
    /// Not before this time, and never failing.
    pub fn after(after: Duration) -> Self {
        Stage {
            after,
            ..Stage::default()
        }
    }
}

impl Config {
    /// `count` nodes of the default kind.
    pub fn of_nodes(count: usize) -> Self {
        Config {
            nodes: vec![Nodes {
                count,
                ..Nodes::default()
            }],
            rules: Vec::new(),
        }
    }

    /// Reads a configuration in YAML or JSON.
    ///
    /// # Errors
    ///
    /// Malformed text, unknown fields, and what `check` finds.
    pub fn read(text: &str) -> Result<Self, ConfigError> {
        let value = apimachinery::codec::yaml::decode(text.as_bytes());
        let value = value
            .map_err(|error| ConfigError::Syntax(error.to_string()))?
            .value;
        if value.is_null() {
            return Ok(Config::default());
        }
        serde_json::from_value(value).map_err(|error| ConfigError::Syntax(error.to_string()))
    }

    /// Finds what cannot be: no or too many nodes, two of a name, shares that are none.
    pub fn check(&self) -> Result<(), ConfigError> {
        let invalid = |text: String| Err(ConfigError::Invalid(text));
        let count: usize = self.nodes.iter().map(|nodes| nodes.count).sum();
        if count == 0 {
            return invalid("there is no node to simulate".into());
        }
        if count > MAX_NODES {
            return invalid(format!("{count} nodes are more than {MAX_NODES}"));
        }
        for (index, nodes) in self.nodes.iter().enumerate() {
            if nodes.prefix.is_empty()
                || self.nodes[..index]
                    .iter()
                    .any(|other| other.prefix == nodes.prefix)
            {
                return invalid(format!(
                    "nodes[{index}]: the prefix {:?} is empty or taken",
                    nodes.prefix
                ));
            }
        }
        for (index, nodes) in self.nodes.iter().enumerate() {
            nodes
                .check()
                .map_err(|why| ConfigError::Invalid(format!("nodes[{index}].{why}")))?;
        }
        for rule in &self.rules {
            let finish = rule.finish.iter();
            let stages = [&rule.start, &rule.ready, &rule.delete]
                .into_iter()
                .chain(finish);
            for stage in stages {
                if !(0.0..=1.0).contains(&stage.failures) {
                    return invalid(format!(
                        "rule {:?}: failures are a share from 0 to 1",
                        rule.name
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Nodes {
    /// What a server would refuse of each node, told before any is made.
    fn check(&self) -> Result<(), String> {
        let Nodes {
            prefix,
            count: _,
            zones: _,
            labels,
            taints,
            capacity,
        } = self;
        if let Some(why) = name::dns_1123_subdomain(&format!("{prefix}-0")).first() {
            return Err(format!("prefix: {prefix:?}: {why}"));
        }
        for (key, value) in labels {
            let problems = [name::qualified_name(key), name::label_value(value)];
            if let Some(why) = problems.iter().flatten().next() {
                return Err(format!("labels: {key}={value}: {why}"));
            }
        }
        for taint in taints {
            let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
            if !effects.contains(&taint.effect.as_str()) {
                let effect = &taint.effect;
                return Err(format!(
                    "taints: {effect:?} is no effect, which are {effects:?}"
                ));
            }
        }
        for (resource, amount) in capacity {
            if amount.parse::<Quantity>().is_err() {
                return Err(format!("capacity: {resource}: {amount:?} is no quantity"));
            }
        }
        if !capacity.contains_key("pods") {
            return Err("capacity: without pods a node takes none".into());
        }
        Ok(())
    }
}

/// Go's durations.
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    let nanos = parse_go_duration(&text).and_then(|nanos| u64::try_from(nanos).ok());
    nanos
        .map(Duration::from_nanos)
        .ok_or_else(|| D::Error::custom(format!("{text:?} is no duration")))
}

fn selector<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<LabelSelector>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| LabelSelector::parse(&text).map_err(D::Error::custom))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_and_what_cannot_be_is_refused() {
        let config = Config::read(
            "
nodes:
- prefix: big
  count: 2
  zones: 3
  capacity: {cpu: '64', memory: 512Gi, pods: '250'}
  taints: [{key: simulated, effect: NoSchedule}]
rules:
- name: flaky
  match: {namespaces: [ci], labels: 'app=web,tier!=db', ownerKinds: [Job]}
  start: {after: 500ms, jitter: 1s}
  finish: {after: 1m30s, failures: 0.25, exitCode: 3}
",
        )
        .unwrap();
        config.check().unwrap();
        assert_eq!(config.nodes[0].capacity["pods"], "250");
        let finish = config.rules[0].finish.clone().unwrap();
        assert_eq!(
            (finish.after, finish.exit_code),
            (Duration::from_secs(90), 3)
        );
        for (text, part) in [
            ("nodes: [{count: 1, size: 3}]", "unknown field `size`"),
            ("rules: [{start: {after: soon}}]", "no duration"),
            ("rules: [{match: {labels: 'a b'}}]", "rror"),
            ("", "there is no node"),
            ("nodes: [{count: 60000}]", "more than"),
            ("nodes: [{count: 1}, {count: 1}]", "taken"),
            (
                "nodes: [{count: 1, prefix: Big_}]",
                "nodes[0].prefix: \"Big_\"",
            ),
            (
                "nodes: [{count: 1, capacity: {pods: many}}]",
                "\"many\" is no quantity",
            ),
            ("nodes: [{count: 1, capacity: {cpu: '1'}}]", "without pods"),
            (
                "nodes: [{count: 1, taints: [{key: a, effect: Never}]}]",
                "\"Never\" is no effect",
            ),
            ("nodes: [{count: 1, labels: {'a b': c}}]", "labels: a b=c"),
            (
                "nodes: [{count: 1}]\nrules: [{start: {failures: 2}}]",
                "share",
            ),
        ] {
            let read = Config::read(text).and_then(|config| config.check());
            let error = read.expect_err(text).to_string();
            assert!(error.contains(part) || part == "rror", "{text}: {error}");
        }
    }
}
