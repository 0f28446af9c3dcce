//! HTTP extenders: programs of others that are asked about pods (`extenders` of KubeSchedulerConfiguration): which
//! nodes they allow, how good these are, whom to evict, and who binds.
//!
//! Their answers take time, so that they are asked without the scheduler's state locked; what they decide is checked
//! against the state again.

mod wire;

use std::{collections::BTreeMap, fmt, time::Duration};

use apimachinery::Value;
use base64::{Engine, engine::general_purpose::STANDARD};
use client::{
    RestConfig,
    config::{ConfigError, Source},
    http::Endpoint,
};
use serde::Deserialize;

use crate::{framework::MAX_SCORE, pod::Pod};
pub use wire::{Filtered, Victims};

/// The best score an extender gives (MaxExtenderPriority).
const MAX_PRIORITY: i64 = 10;

/// An entry of `extenders`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ExtenderConfig {
    pub url_prefix: String,
    pub filter_verb: String,
    pub preempt_verb: String,
    pub prioritize_verb: String,
    pub bind_verb: String,
    pub weight: i64,
    #[serde(rename = "enableHTTPS")]
    pub enable_https: bool,
    pub tls_config: Option<TlsConfig>,
    #[serde(rename = "httpTimeout")]
    pub http_timeout: Option<String>,
    /// It knows the nodes itself and is told their names only.
    pub node_cache_capable: bool,
    pub managed_resources: Vec<ManagedResource>,
    /// Pods are scheduled without it when it does not answer.
    pub ignorable: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ManagedResource {
    pub name: String,
    /// NodeResourcesFit does not count it.
    pub ignored_by_scheduler: bool,
}

/// Certificates as files, or in base64.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TlsConfig {
    pub insecure: bool,
    pub server_name: String,
    pub cert_file: String,
    pub key_file: String,
    #[serde(rename = "caFile")]
    pub ca_file: String,
    pub cert_data: String,
    pub key_data: String,
    #[serde(rename = "caData")]
    pub ca_data: String,
}

/// Without an answer within so long it has failed (DefaultExtenderTimeout).
const TIMEOUT: Duration = Duration::from_secs(5);

impl ExtenderConfig {
    /// How long an answer may take; `None` if it says nonsense.
    pub fn timeout(&self) -> Option<Duration> {
        let Some(text) = &self.http_timeout else {
            return Some(TIMEOUT);
        };
        let nanos = apimachinery::time::parse_go_duration(text)?;
        let nanos = u64::try_from(nanos).ok()?;
        Some(if nanos == 0 {
            TIMEOUT
        } else {
            Duration::from_nanos(nanos)
        })
    }

    fn rest(&self) -> Result<RestConfig, String> {
        let tls = self.tls_config.clone().unwrap_or_default();
        let source = |file: String, data: String| match (file.is_empty(), data.is_empty()) {
            (_, false) => STANDARD
                .decode(&data)
                .map(|bytes| Some(Source::Data(bytes)))
                .map_err(|_| "tlsConfig has data that is not base64".to_string()),
            (false, true) => Ok(Some(Source::File(file.into()))),
            (true, true) => Ok(None),
        };
        let ca = source(tls.ca_file, tls.ca_data)?;
        // As upstream has it: without an authority nobody is checked.
        let is_insecure = tls.insecure || (self.enable_https && ca.is_none());
        Ok(RestConfig {
            server: self.url_prefix.clone(),
            insecure_skip_tls_verify: is_insecure,
            ca: ca.filter(|_| !is_insecure),
            server_name: Some(tls.server_name).filter(|name| !name.is_empty()),
            client_certificate: source(tls.cert_file, tls.cert_data)?,
            client_key: source(tls.key_file, tls.key_data)?,
            token: None,
        })
    }
}

/// Why an extender cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ExtenderError {
    #[error("extender {url}: {source}")]
    Config { url: String, source: ConfigError },
    #[error("extender {url}: {problem}")]
    Tls { url: String, problem: String },
}

/// One extender, ready to be asked.
pub struct Extender {
    config: ExtenderConfig,
    endpoint: Endpoint,
    timeout: Duration,
}

impl fmt::Debug for Extender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Extender").field(&self.config).finish()
    }
}

impl Extender {
    /// # Errors
    /// An address or certificates that cannot be used.
    pub fn new(config: ExtenderConfig) -> Result<Self, ExtenderError> {
        let url = config.url_prefix.clone();
        let rest = config.rest().map_err(|problem| ExtenderError::Tls {
            url: url.clone(),
            problem,
        })?;
        let endpoint =
            Endpoint::new(rest).map_err(|source| ExtenderError::Config { url, source })?;
        let timeout = config.timeout().unwrap_or(TIMEOUT);
        Ok(Extender {
            config,
            endpoint,
            timeout,
        })
    }

    pub fn name(&self) -> &str {
        &self.config.url_prefix
    }

    pub fn is_ignorable(&self) -> bool {
        self.config.ignorable
    }

    /// Whether it wants whole nodes, not their names.
    pub fn needs_nodes(&self) -> bool {
        !self.config.node_cache_capable
    }

    /// Whether the pod asks for one of its resources, if it has any (IsInterested).
    pub fn is_interested(&self, pod: &Pod) -> bool {
        let managed = &self.config.managed_resources;
        managed.is_empty()
            || managed
                .iter()
                .any(|one| pod.requests.scalars.contains_key(one.name.as_str()))
    }

    pub fn filters(&self) -> bool {
        !self.config.filter_verb.is_empty()
    }

    pub fn prioritizes(&self) -> bool {
        !self.config.prioritize_verb.is_empty()
    }

    pub fn preempts(&self) -> bool {
        !self.config.preempt_verb.is_empty()
    }

    pub fn binds(&self) -> bool {
        !self.config.bind_verb.is_empty()
    }

    async fn ask(&self, verb: &str, body: &Value) -> Result<Value, String> {
        let answer = self.endpoint.post(verb, body, self.timeout).await;
        let answer =
            answer.map_err(|error| format!("{verb} at extender {}: {error}", self.name()))?;
        match wire::field(&answer, "Error").as_str() {
            Some(error) if !error.is_empty() => Err(error.to_string()),
            _ => Ok(answer),
        }
    }

    /// Which of the nodes are right.
    ///
    /// # Errors
    /// It does not answer, or says that it cannot.
    pub async fn filter(
        &self,
        pod: &Value,
        nodes: &[String],
        whole: &[Value],
    ) -> Result<Filtered, String> {
        let body = wire::arguments(pod, nodes, whole, self.needs_nodes());
        let answer = self.ask(&self.config.filter_verb, &body).await?;
        let filtered = Filtered::read(&answer, self.needs_nodes());
        match filtered.nodes.iter().find(|name| !nodes.contains(name)) {
            Some(name) => Err(format!(
                "extender {:?} claims a filtered node {name:?} which is not found in the input node list",
                self.name()
            )),
            None => Ok(filtered),
        }
    }

    /// What is added to the score of each node.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn prioritize(
        &self,
        pod: &Value,
        nodes: &[String],
        whole: &[Value],
    ) -> Result<BTreeMap<String, i64>, String> {
        let body = wire::arguments(pod, nodes, whole, self.needs_nodes());
        let answer = self.ask(&self.config.prioritize_verb, &body).await?;
        let factor = self.config.weight.saturating_mul(MAX_SCORE / MAX_PRIORITY);
        let scores = wire::scores(&answer).into_iter();
        Ok(scores
            .map(|(node, score)| (node, score.saturating_mul(factor)))
            .collect())
    }

    /// Which victims are left on which nodes, by uid.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn preempt(
        &self,
        pod: &Value,
        candidates: &BTreeMap<String, Victims>,
    ) -> Result<BTreeMap<String, Vec<String>>, String> {
        let body = wire::preemption(pod, candidates, self.needs_nodes());
        let answer = self.ask(&self.config.preempt_verb, &body).await?;
        Ok(wire::remaining(&answer))
    }

    /// Binds the pod.
    ///
    /// # Errors
    /// It does not answer, or could not.
    pub async fn bind(&self, pod: &Pod, node: &str) -> Result<(), String> {
        self.ask(&self.config.bind_verb, &wire::binding(pod, node))
            .await
            .map(drop)
    }
}

#[cfg(test)]
mod tests;
