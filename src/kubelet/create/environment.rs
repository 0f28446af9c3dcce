//! A container's environment: envFrom, env with its sources and `$(VAR)`, and
//! the variables of services. Pure; the objects it needs come in.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::expand::expand;
use super::fields::{self, Addresses, FieldError};
use crate::k8s::{ConfigMap, Container, EnvVarSource, Node, Pod, Secret, Service};
use crate::pod::spec;

/// Upstream's `masterServices`: given to every pod, wherever it is.
const MASTER_SERVICE: &str = "kubernetes";
const MASTER_NAMESPACE: &str = "default";

/// Why a container cannot be given its environment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// A ConfigMap or Secret that is not there.
    #[error("{kind} {name:?} not found")]
    Missing {
        /// `configmap` or `secret`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A key that the object does not have.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    Key {
        /// `ConfigMap` or `Secret`.
        kind: &'static str,
        /// The key.
        key: String,
        /// The object's namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A field of the pod.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A source of a kind that this kubelet does not have.
    #[error("unsupported environment source of variable {0:?}")]
    Source(String),
}

/// ConfigMaps and Secrets by name; `None` is known not to exist.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// ConfigMaps.
    pub config_maps: BTreeMap<String, Option<Arc<ConfigMap>>>,
    /// Secrets.
    pub secrets: BTreeMap<String, Option<Arc<Secret>>>,
}

/// Names of the ConfigMaps and Secrets that a container's environment is made of.
pub fn references(container: &Container) -> (Vec<String>, Vec<String>) {
    let (mut config_maps, mut secrets) = (Vec::new(), Vec::new());
    for source in container.env_from.iter().flatten() {
        config_maps.extend(
            source
                .config_map_ref
                .iter()
                .map(|source| source.name.clone()),
        );
        secrets.extend(source.secret_ref.iter().map(|source| source.name.clone()));
    }
    let sources = container
        .env
        .iter()
        .flatten()
        .filter_map(|variable| variable.value_from.as_ref());
    for source in sources {
        config_maps.extend(
            source
                .config_map_key_ref
                .iter()
                .map(|source| source.name.clone()),
        );
        secrets.extend(
            source
                .secret_key_ref
                .iter()
                .map(|source| source.name.clone()),
        );
    }
    for names in [&mut config_maps, &mut secrets] {
        names.sort();
        names.dedup();
    }
    (config_maps, secrets)
}

/// What an environment is made from.
pub struct Input<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The container.
    pub container: &'a Container,
    /// Its node.
    pub node: &'a Node,
    /// Addresses of node and pod.
    pub addresses: Addresses<'a>,
    /// What it refers to.
    pub objects: &'a Objects,
    /// Every service of the cluster with an address.
    pub services: &'a [Arc<Service>],
}

/// The variables in order; a later one of the same name wins.
pub fn environment(input: &Input<'_>) -> Result<Vec<(String, String)>, EnvironmentError> {
    let services = service_variables(input);
    let mut variables: Vec<(String, String)> = Vec::new();
    for (name, value) in from_objects(input)? {
        set(&mut variables, name, value);
    }
    for variable in input.container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (_, Some(source)) => match sourced(input, &variable.name, source)? {
                Some(value) => value,
                None => continue,
            },
            (Some(value), None) => expand(value, |name| {
                let own = variables
                    .iter()
                    .find(|(own, _)| own == name)
                    .map(|(_, value)| value);
                own.or_else(|| services.get(name)).cloned()
            }),
            (None, None) => String::new(),
        };
        set(&mut variables, variable.name.clone(), value);
    }
    for (name, value) in services {
        if !variables.iter().any(|(own, _)| *own == name) {
            variables.push((name, value));
        }
    }
    Ok(variables)
}

fn set(variables: &mut Vec<(String, String)>, name: String, value: String) {
    match variables.iter_mut().find(|(own, _)| *own == name) {
        Some((_, old)) => *old = value,
        None => variables.push((name, value)),
    }
}

fn config_map(
    input: &Input<'_>,
    name: &str,
    optional: bool,
) -> Result<Option<Arc<ConfigMap>>, EnvironmentError> {
    match input.objects.config_maps.get(name).cloned().flatten() {
        None if !optional => Err(EnvironmentError::Missing {
            kind: "configmap",
            name: name.to_owned(),
        }),
        found => Ok(found),
    }
}

fn secret(
    input: &Input<'_>,
    name: &str,
    optional: bool,
) -> Result<Option<Arc<Secret>>, EnvironmentError> {
    match input.objects.secrets.get(name).cloned().flatten() {
        None if !optional => Err(EnvironmentError::Missing {
            kind: "secret",
            name: name.to_owned(),
        }),
        found => Ok(found),
    }
}

fn from_objects(input: &Input<'_>) -> Result<Vec<(String, String)>, EnvironmentError> {
    let mut variables = Vec::new();
    for source in input.container.env_from.iter().flatten() {
        let prefix = source.prefix.clone().unwrap_or_default();
        if let Some(reference) = &source.config_map_ref {
            let found = config_map(input, &reference.name, reference.optional.unwrap_or(false))?;
            let data = found
                .and_then(|found| found.data.clone())
                .unwrap_or_default();
            variables.extend(
                data.into_iter()
                    .map(|(key, value)| (format!("{prefix}{key}"), value)),
            );
        }
        if let Some(reference) = &source.secret_ref {
            let found = secret(input, &reference.name, reference.optional.unwrap_or(false))?;
            let data = found
                .and_then(|found| found.data.clone())
                .unwrap_or_default();
            variables.extend(data.into_iter().map(|(key, value)| {
                (
                    format!("{prefix}{key}"),
                    String::from_utf8_lossy(&value.0).into_owned(),
                )
            }));
        }
    }
    Ok(variables)
}

fn sourced(
    input: &Input<'_>,
    variable: &str,
    source: &EnvVarSource,
) -> Result<Option<String>, EnvironmentError> {
    if let Some(reference) = &source.field_ref {
        return Ok(Some(fields::field(
            input.pod,
            &input.addresses,
            &reference.field_path,
        )?));
    }
    if let Some(selector) = &source.resource_field_ref {
        let name = &input.container.name;
        return Ok(Some(fields::resource(
            input.pod, input.node, name, selector,
        )?));
    }
    let key_error = |kind, key: &str, name: &str| EnvironmentError::Key {
        kind,
        key: key.to_owned(),
        namespace: spec::namespace(input.pod).to_owned(),
        name: name.to_owned(),
    };
    if let Some(reference) = &source.config_map_key_ref {
        let optional = reference.optional.unwrap_or(false);
        let Some(found) = config_map(input, &reference.name, optional)? else {
            return Ok(None);
        };
        let value = found
            .data
            .as_ref()
            .and_then(|data| data.get(&reference.key))
            .cloned();
        return match value {
            None if !optional => Err(key_error("ConfigMap", &reference.key, &reference.name)),
            value => Ok(value),
        };
    }
    if let Some(reference) = &source.secret_key_ref {
        let optional = reference.optional.unwrap_or(false);
        let Some(found) = secret(input, &reference.name, optional)? else {
            return Ok(None);
        };
        let value = found
            .data
            .as_ref()
            .and_then(|data| data.get(&reference.key));
        return match value {
            None if !optional => Err(key_error("Secret", &reference.key, &reference.name)),
            value => Ok(value.map(|value| String::from_utf8_lossy(&value.0).into_owned())),
        };
    }
    Err(EnvironmentError::Source(variable.to_owned()))
}

/// `NGINX_SERVICE_HOST`, `NGINX_PORT_80_TCP`, … of the services in the pod's
/// namespace, and of the API server's wherever the pod is.
fn service_variables(input: &Input<'_>) -> BTreeMap<String, String> {
    let links = spec::spec(input.pod).enable_service_links.unwrap_or(true);
    let namespace = spec::namespace(input.pod);
    let mut chosen: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in input.services {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let of = service.metadata.namespace.as_deref().unwrap_or_default();
        let own = links && of == namespace;
        let master = of == MASTER_NAMESPACE && name == MASTER_SERVICE;
        if own || (master && !chosen.contains_key(name)) {
            chosen.insert(name, service);
        }
    }
    chosen
        .into_iter()
        .flat_map(|(name, service)| variables_of(name, service))
        .collect()
}

fn variables_of(name: &str, service: &Service) -> Vec<(String, String)> {
    let Some(spec) = &service.spec else {
        return Vec::new();
    };
    let host = spec.cluster_ip.as_deref().unwrap_or_default();
    let ports = spec.ports.as_deref().unwrap_or_default();
    let Some(first) = ports.first() else {
        return Vec::new();
    };
    if host.is_empty() || host == "None" {
        return Vec::new();
    }
    let prefix = variable_name(name);
    let mut variables = vec![
        (format!("{prefix}_SERVICE_HOST"), host.to_owned()),
        (format!("{prefix}_SERVICE_PORT"), first.port.to_string()),
    ];
    for port in ports {
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            let name = variable_name(name);
            variables.push((
                format!("{prefix}_SERVICE_PORT_{name}"),
                port.port.to_string(),
            ));
        }
    }
    for (index, port) in ports.iter().enumerate() {
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let lower = protocol.to_lowercase();
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        let url = format!("{lower}://{host}:{}", port.port);
        if index == 0 {
            variables.push((format!("{prefix}_PORT"), url.clone()));
        }
        let port_prefix = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
        variables.push((port_prefix.clone(), url));
        variables.push((format!("{port_prefix}_PROTO"), lower));
        variables.push((format!("{port_prefix}_PORT"), port.port.to_string()));
        variables.push((
            format!("{port_prefix}_ADDR"),
            host.trim_matches(['[', ']']).to_owned(),
        ));
    }
    variables
}

fn variable_name(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::spec::tests::mk_pod;

    fn mk_service(namespace: &str, name: &str, ip: &str) -> Arc<Service> {
        let service = json!({
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": ip, "ports": [{"name": "web", "port": 80, "protocol": "TCP"}]},
        });
        Arc::new(serde_json::from_value(service).expect("a service"))
    }

    fn mk(
        container: Value,
        objects: &Objects,
        services: &[Arc<Service>],
    ) -> Result<BTreeMap<String, String>, EnvironmentError> {
        let pod = mk_pod(json!({"containers": [container]}));
        let slot = spec::slot(&pod, "c").expect("c exists");
        let variables = environment(&Input {
            pod: &pod,
            container: &slot.container,
            node: &Node::default(),
            addresses: Addresses::default(),
            objects,
            services,
        })?;
        Ok(variables.into_iter().collect())
    }

    fn mk_objects() -> Objects {
        let config_map: ConfigMap =
            serde_json::from_value(json!({"data": {"K": "v"}})).expect("a config map");
        let secret: Secret =
            serde_json::from_value(json!({"data": {"S": "c2VjcmV0"}})).expect("a secret");
        Objects {
            config_maps: BTreeMap::from([("cm".to_owned(), Some(Arc::new(config_map)))]),
            secrets: BTreeMap::from([("se".to_owned(), Some(Arc::new(secret)))]),
        }
    }

    #[test]
    fn variables_refer_to_earlier_ones_and_to_services() {
        let services = [mk_service("ns", "my-db", "10.96.0.5")];
        let container = json!({"name": "c", "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)-$(C)-$(MY_DB_SERVICE_HOST)"},
            {"name": "C", "value": "late"},
        ]});
        let env = mk(container, &Objects::default(), &services).expect("an environment");
        assert_eq!(env["B"], "1-$(C)-10.96.0.5");
        assert_eq!(env["MY_DB_PORT_80_TCP_ADDR"], "10.96.0.5");
        assert_eq!(env["MY_DB_SERVICE_PORT_WEB"], "80");
        assert_eq!(env["MY_DB_PORT"], "tcp://10.96.0.5:80");
    }

    #[test]
    fn every_pod_knows_the_api_server_and_only_its_own_namespaces_services() {
        let services = [
            mk_service("default", "kubernetes", "10.96.0.1"),
            mk_service("other", "x", "10.96.0.2"),
        ];
        let env = mk(json!({"name": "c"}), &Objects::default(), &services).expect("an environment");
        assert_eq!(env["KUBERNETES_SERVICE_HOST"], "10.96.0.1");
        assert!(!env.contains_key("X_SERVICE_HOST"));
    }

    #[test]
    fn objects_give_all_their_keys_or_one() {
        let container = json!({"name": "c",
            "envFrom": [{"prefix": "P_", "configMapRef": {"name": "cm"}}, {"secretRef": {"name": "se"}}],
            "env": [{"name": "ONE", "valueFrom": {"secretKeyRef": {"name": "se", "key": "S"}}}],
        });
        let env = mk(container, &mk_objects(), &[]).expect("an environment");
        assert_eq!(
            (env["P_K"].as_str(), env["S"].as_str(), env["ONE"].as_str()),
            ("v", "secret", "secret")
        );
    }

    #[test]
    fn what_is_missing_is_named_unless_it_is_optional() {
        let one = |optional: bool, name: &str, key: &str| {
            json!({"name": "c", "env": [{"name": "X", "valueFrom": {
                "configMapKeyRef": {"name": name, "key": key, "optional": optional},
            }}]})
        };
        let error = |container| {
            mk(container, &mk_objects(), &[])
                .expect_err("missing")
                .to_string()
        };
        assert_eq!(
            error(one(false, "none", "K")),
            "configmap \"none\" not found"
        );
        assert_eq!(
            error(one(false, "cm", "Z")),
            "couldn't find key Z in ConfigMap ns/cm"
        );
        assert!(
            mk(one(true, "none", "K"), &mk_objects(), &[])
                .expect("optional")
                .is_empty()
        );
        assert!(
            mk(one(true, "cm", "Z"), &mk_objects(), &[])
                .expect("optional")
                .is_empty()
        );
    }
}
