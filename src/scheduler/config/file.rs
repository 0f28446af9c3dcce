//! Reads a KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1). Fields it does not know are errors, as
//! upstream's strict decoding has it.

use std::{collections::BTreeSet, time::Duration};

use apimachinery::{Value, time::parse_go_duration};
use serde::Deserialize;

use super::{SchedulerConfig, arguments, plugin_sets};
use crate::{extender::ExtenderConfig, profile::Profile};

const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
const KIND: &str = "KubeSchedulerConfiguration";

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration: {0}")]
    Syntax(String),
    #[error("no kind {kind:?} is registered for version {version:?}")]
    Kind { kind: String, version: String },
    #[error("strict decoding error: {0}")]
    Fields(String),
    #[error("{field}: {problem}")]
    Invalid { field: String, problem: String },
    #[error("creating profile for scheduler name {profile}: {problem}")]
    Profile { profile: String, problem: String },
}

impl ConfigError {
    pub(super) fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        ConfigError::Invalid {
            field: field.into(),
            problem: problem.into(),
        }
    }
}

/// A configuration file.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub config: SchedulerConfig,
    /// `clientConnection.kubeconfig`, empty if not set.
    pub kubeconfig: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    parallelism: Option<i64>,
    #[serde(default)]
    leader_election: LeaderElection,
    #[serde(default)]
    client_connection: ClientConnection,
    #[serde(default, rename = "enableProfiling")]
    _enable_profiling: Option<bool>,
    #[serde(default, rename = "enableContentionProfiling")]
    _enable_contention_profiling: Option<bool>,
    #[serde(default, rename = "delayCacheUntilActive")]
    _delay_cache_until_active: Option<bool>,
    #[serde(default)]
    percentage_of_nodes_to_score: Option<i64>,
    #[serde(default)]
    pod_initial_backoff_seconds: Option<i64>,
    #[serde(default)]
    pod_max_backoff_seconds: Option<i64>,
    #[serde(default)]
    profiles: Vec<RawProfile>,
    #[serde(default)]
    extenders: Vec<ExtenderConfig>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct LeaderElection {
    leader_elect: Option<bool>,
    lease_duration: Option<String>,
    renew_deadline: Option<String>,
    retry_period: Option<String>,
    resource_lock: Option<String>,
    resource_name: Option<String>,
    resource_namespace: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ClientConnection {
    kubeconfig: String,
    #[serde(rename = "acceptContentTypes")]
    _accept_content_types: String,
    #[serde(rename = "contentType")]
    _content_type: String,
    #[serde(rename = "qps")]
    _qps: Option<f64>,
    #[serde(rename = "burst")]
    _burst: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RawProfile {
    scheduler_name: Option<String>,
    percentage_of_nodes_to_score: Option<i64>,
    plugins: plugin_sets::Plugins,
    plugin_config: Vec<RawPluginConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPluginConfig {
    name: String,
    #[serde(default)]
    args: Value,
}

/// Reads a configuration in YAML or JSON.
///
/// # Errors
///
/// What upstream refuses, and what is asked for that is not there: plugins of other builds.
pub fn load(text: &str) -> Result<Loaded, ConfigError> {
    let value = apimachinery::codec::yaml::decode(text.as_bytes())
        .map_err(|error| ConfigError::Syntax(error.to_string()))?
        .value;
    let text = |name: &str| {
        value
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or("")
            .to_string()
    };
    let (version, kind) = (text("apiVersion"), text("kind"));
    if version != API_VERSION || kind != KIND {
        return Err(ConfigError::Kind { kind, version });
    }
    let file: File =
        serde_json::from_value(value).map_err(|error| ConfigError::Fields(strict(&error)))?;
    debug_assert!(file.api_version == API_VERSION && file.kind == KIND);
    if let Some(number) = file.parallelism.filter(|number| *number <= 0) {
        return Err(ConfigError::invalid(
            "parallelism",
            format!("Invalid value: {number}: should be an integer value greater than zero"),
        ));
    }
    check_extenders(&file.extenders)?;
    let defaults = SchedulerConfig::default();
    let percentage = percentage(
        "percentageOfNodesToScore",
        file.percentage_of_nodes_to_score,
    )?
    .unwrap_or(0);
    let initial = seconds(file.pod_initial_backoff_seconds).unwrap_or(defaults.pod_initial_backoff);
    let max = seconds(file.pod_max_backoff_seconds).unwrap_or(defaults.pod_max_backoff);
    if initial.is_zero() {
        return Err(ConfigError::invalid(
            "podInitialBackoffSeconds",
            "Invalid value: 0: must be greater than 0",
        ));
    }
    if max < initial {
        let problem = format!(
            "Invalid value: {}: must be greater than or equal to PodInitialBackoffSeconds",
            max.as_secs()
        );
        return Err(ConfigError::invalid("podMaxBackoffSeconds", problem));
    }
    let mut config = leader(file.leader_election, defaults)?;
    config.pod_initial_backoff = initial;
    config.pod_max_backoff = max;
    if !file.profiles.is_empty() {
        config.profiles = profiles(file.profiles)?;
    }
    for profile in &mut config.profiles {
        if profile.percentage_of_nodes_to_score == 0 {
            profile.percentage_of_nodes_to_score = percentage;
        }
    }
    let managed = file.extenders.iter().flat_map(|one| &one.managed_resources);
    let uncounted: Vec<&str> = managed
        .filter(|one| one.ignored_by_scheduler)
        .map(|one| one.name.as_str())
        .collect();
    for profile in &mut config.profiles {
        let ignored = &mut profile.args.fit.ignored_resources;
        ignored.extend(uncounted.iter().map(ToString::to_string));
    }
    config.extenders = file.extenders;
    Ok(Loaded {
        config,
        kubeconfig: file.client_connection.kubeconfig,
    })
}

/// What upstream's ValidateKubeSchedulerConfiguration refuses of extenders.
fn check_extenders(extenders: &[ExtenderConfig]) -> Result<(), ConfigError> {
    let mut binders = 0;
    let mut managed = BTreeSet::new();
    for (index, extender) in extenders.iter().enumerate() {
        let field = |name: &str| format!("extenders[{index}].{name}");
        if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
            let problem = format!(
                "Invalid value: {}: must have a positive weight applied to it",
                extender.weight
            );
            return Err(ConfigError::invalid(field("weight"), problem));
        }
        if extender.timeout().is_none() {
            return Err(ConfigError::invalid(field("httpTimeout"), "is no duration"));
        }
        binders += usize::from(!extender.bind_verb.is_empty());
        for resource in &extender.managed_resources {
            if !managed.insert(&resource.name) {
                let problem = format!(
                    "Invalid value: {:?}: duplicate extender managed resource name",
                    resource.name
                );
                return Err(ConfigError::invalid(field("managedResources"), problem));
            }
        }
    }
    if binders > 1 {
        let problem = format!(
            "Invalid value: found {binders} extenders implementing bind: only one extender can implement bind"
        );
        return Err(ConfigError::invalid("extenders", problem));
    }
    Ok(())
}

fn leader(raw: LeaderElection, defaults: SchedulerConfig) -> Result<SchedulerConfig, ConfigError> {
    if raw
        .resource_lock
        .as_deref()
        .is_some_and(|lock| lock != "leases")
    {
        return Err(ConfigError::invalid(
            "leaderElection.resourceLock",
            "supported values: \"leases\"",
        ));
    }
    let duration = |field: &str, text: Option<String>, default: Duration| match text {
        None => Ok(default),
        Some(text) => parse_go_duration(&text)
            .and_then(|nanos| u64::try_from(nanos).ok())
            .filter(|nanos| *nanos > 0)
            .map(Duration::from_nanos)
            .ok_or_else(|| {
                ConfigError::invalid(
                    format!("leaderElection.{field}"),
                    "must be greater than zero",
                )
            }),
    };
    let config = SchedulerConfig {
        leader_elect: raw.leader_elect.unwrap_or(defaults.leader_elect),
        leader_lease_duration: duration(
            "leaseDuration",
            raw.lease_duration,
            defaults.leader_lease_duration,
        )?,
        leader_renew_deadline: duration(
            "renewDeadline",
            raw.renew_deadline,
            defaults.leader_renew_deadline,
        )?,
        leader_retry_period: duration(
            "retryPeriod",
            raw.retry_period,
            defaults.leader_retry_period,
        )?,
        leader_namespace: raw
            .resource_namespace
            .unwrap_or_else(|| defaults.leader_namespace.clone()),
        leader_name: raw
            .resource_name
            .unwrap_or_else(|| defaults.leader_name.clone()),
        ..defaults
    };
    if config.leader_lease_duration <= config.leader_renew_deadline {
        return Err(ConfigError::invalid(
            "leaderElection.leaseDuration",
            "LeaseDuration must be greater than RenewDeadline",
        ));
    }
    Ok(config)
}

fn profiles(raw: Vec<RawProfile>) -> Result<Vec<Profile>, ConfigError> {
    let mut names = BTreeSet::new();
    let mut profiles = Vec::new();
    for (index, one) in raw.into_iter().enumerate() {
        let field = format!("profiles[{index}]");
        let name = one
            .scheduler_name
            .unwrap_or_else(|| "default-scheduler".into());
        if name.is_empty() {
            return Err(ConfigError::invalid(
                format!("{field}.schedulerName"),
                "Required value",
            ));
        }
        if !names.insert(name.clone()) {
            return Err(ConfigError::invalid(
                format!("{field}.schedulerName"),
                format!("Duplicate value: {name:?}"),
            ));
        }
        let in_profile = |problem: String| ConfigError::Profile {
            profile: name.clone(),
            problem,
        };
        let mut profile = Profile {
            name: name.clone(),
            ..Profile::default()
        };
        one.plugins.apply(&mut profile).map_err(in_profile)?;
        let mut seen = BTreeSet::new();
        for (index, config) in one.plugin_config.into_iter().enumerate() {
            let field = format!("{field}.pluginConfig[{index}]");
            if !seen.insert(config.name.clone()) {
                return Err(ConfigError::invalid(
                    field,
                    format!("Duplicate value: {:?}", config.name),
                ));
            }
            arguments::apply(&config.name, config.args, &mut profile.args).map_err(|problem| {
                match problem.strip_prefix("args") {
                    Some(problem) if problem.starts_with('.') => {
                        let (path, why) = problem.split_once(": ").unwrap_or((problem, ""));
                        ConfigError::invalid(format!("{field}.args{path}"), why)
                    }
                    _ => ConfigError::invalid(field, problem),
                }
            })?;
        }
        let field = format!("{field}.percentageOfNodesToScore");
        profile.percentage_of_nodes_to_score =
            percentage(&field, one.percentage_of_nodes_to_score)?.unwrap_or(0);
        profiles.push(profile);
    }
    Ok(profiles)
}

/// An unknown field as sigs.k8s.io/yaml tells it, without its path.
pub(super) fn strict(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let field = text.strip_prefix("unknown field `");
    let field = field.and_then(|rest| rest.split_once('`'));
    field.map_or(text.clone(), |(name, _)| format!("unknown field {name:?}"))
}

fn percentage(field: &str, number: Option<i64>) -> Result<Option<usize>, ConfigError> {
    let Some(number) = number else {
        return Ok(None);
    };
    let valid = usize::try_from(number).ok().filter(|number| *number <= 100);
    valid.map(Some).ok_or_else(|| {
        ConfigError::invalid(
            field,
            format!("Invalid value: {number}: not in valid range [0-100]"),
        )
    })
}

fn seconds(number: Option<i64>) -> Option<Duration> {
    number.map(|number| Duration::from_secs(u64::try_from(number).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Strategy;

    fn read(rest: &str) -> Result<Loaded, String> {
        load(&format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{rest}"))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_configuration_is_upstreams_default() {
        let loaded = read("").unwrap();
        assert_eq!(
            format!("{:?}", loaded.config),
            format!("{:?}", SchedulerConfig::default())
        );
    }

    #[test]
    fn profiles_differ_in_plugins_weights_and_arguments() {
        let loaded = read(
            "
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf
leaderElection:
  leaderElect: false
percentageOfNodesToScore: 30
podMaxBackoffSeconds: 20
profiles:
- schedulerName: default-scheduler
- schedulerName: packed
  percentageOfNodesToScore: 100
  plugins:
    multiPoint:
      enabled:
      - name: ImageLocality
        weight: 7
      disabled:
      - name: DefaultPreemption
    score:
      disabled:
      - name: '*'
      enabled:
      - name: NodeResourcesFit
        weight: 5
    filter:
      disabled:
      - name: TaintToleration
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: MostAllocated
        resources: [{name: cpu, weight: 3}, {name: example.com/gpu}]
  - name: InterPodAffinity
    args: {hardPodAffinityWeight: 50}
",
        )
        .unwrap();
        assert_eq!(loaded.kubeconfig, "/etc/kubernetes/scheduler.conf");
        assert!(!loaded.config.leader_elect);
        assert_eq!(loaded.config.pod_max_backoff, Duration::from_secs(20));
        let [default, packed] = loaded.config.profiles.as_slice() else {
            panic!("two profiles")
        };
        assert_eq!(
            (
                default.percentage_of_nodes_to_score,
                packed.percentage_of_nodes_to_score
            ),
            (30, 100)
        );
        assert!(default.preempts && !packed.preempts);
        let weights: Vec<_> = packed
            .scorers
            .iter()
            .map(|(one, weight)| (one.name(), *weight))
            .collect();
        assert_eq!(weights, [("NodeResourcesFit", 5)]);
        assert!(
            packed
                .filters
                .iter()
                .all(|one| one.name() != "TaintToleration")
        );
        assert_eq!(packed.filters.len() + 1, default.filters.len());
        assert_eq!(packed.args.fit.strategy, Strategy::MostAllocated);
        assert_eq!(packed.args.fit.resources[1].weight, 1);
        assert_eq!(packed.args.hard_pod_affinity_weight, 50);
    }

    #[test]
    fn extenders_are_read_and_what_they_count_is_not_counted_here() {
        let loaded = read(
            "
extenders:
- urlPrefix: https://extender.example:8443/scheduler
  filterVerb: filter
  prioritizeVerb: prioritize
  weight: 3
  enableHTTPS: true
  tlsConfig: {insecure: true}
  httpTimeout: 2s
  nodeCacheCapable: true
  ignorable: true
  managedResources:
  - {name: example.com/gpu, ignoredByScheduler: true}
  - {name: example.com/fpga}
",
        )
        .unwrap();
        let extender = &loaded.config.extenders[0];
        assert_eq!(
            (extender.weight, extender.timeout()),
            (3, Some(Duration::from_secs(2)))
        );
        assert!(extender.node_cache_capable && extender.ignorable);
        assert_eq!(
            loaded.config.profiles[0].args.fit.ignored_resources,
            ["example.com/gpu"]
        );
    }

    #[test]
    fn what_upstream_refuses_is_refused() {
        let plugins =
            |point: &str, what: &str| format!("profiles: [{{plugins: {{{point}: {what}}}}}]");
        for (rest, part) in [
            ("parallelism: 0".into(), "parallelism: Invalid value: 0: should be an integer value greater than zero"),
            ("percentageOfNodesToScore: 101".into(), "percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]"),
            ("podInitialBackoffSeconds: 0".into(), "podInitialBackoffSeconds: Invalid value: 0: must be greater than 0"),
            ("podInitialBackoffSeconds: 60".into(), "podMaxBackoffSeconds: Invalid value: 10: must be greater than or equal"),
            ("leaderElection: {leaseDuration: 5s}".into(), "LeaseDuration must be greater than RenewDeadline"),
            ("nonsense: 1".into(), "strict decoding error: unknown field \"nonsense\""),
            (
                "extenders: [{urlPrefix: http://x, prioritizeVerb: p}]".into(),
                "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it",
            ),
            (
                "extenders: [{urlPrefix: http://x, bindVerb: b}, {urlPrefix: http://y, bindVerb: b}]".into(),
                "found 2 extenders implementing bind",
            ),
            ("extenders: [{urlPrefix: http://x, httpTimeout: soon}]".into(), "httpTimeout"),
            ("profiles: [{schedulerName: a}, {schedulerName: a}]".into(), "Duplicate value: \"a\""),
            (plugins("filter", "{enabled: [{name: Foo}]}"), "filter plugin \"Foo\" does not exist"),
            (plugins("multiPoint", "{enabled: [{name: Foo}]}"), "multiPoint plugin \"Foo\" does not exist"),
            (plugins("queueSort", "{disabled: [{name: '*'}]}"), "queueSort"),
            (plugins("bind", "{disabled: [{name: DefaultBinder}]}"), "at least one bind plugin is needed"),
            (
                "profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]}]".into(),
                "profiles[0].pluginConfig[0].args.hardPodAffinityWeight: Invalid value: 101: not in valid range [0-100]",
            ),
            (
                "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: Odd}}}]}]".into(),
                "scoringStrategy.type",
            ),
        ] {
            let rest: String = rest;
            let error = read(&rest).map(drop).expect_err(&rest);
            assert!(error.contains(part), "{rest}: {error}");
        }
        let error = load("apiVersion: v1\nkind: Pod\n").map(drop).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no kind \"Pod\" is registered for version \"v1\""
        );
    }
}
