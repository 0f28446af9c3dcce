//! Registry credentials from a pod's imagePullSecrets. Pure.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::reference::Reference;
use crate::cri::v1::AuthConfig;
use crate::k8s::Secret;

#[derive(Deserialize)]
struct DockerConfigJson {
    #[serde(default)]
    auths: BTreeMap<String, DockerAuth>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct DockerAuth {
    username: String,
    password: String,
    auth: String,
}

/// The credentials that fit the image, the most specific first. No secrets, or
/// none that fit, is an empty list: the pull is anonymous.
pub fn matching(secrets: &[std::sync::Arc<Secret>], image: &Reference) -> Vec<AuthConfig> {
    let mut found: Vec<(usize, AuthConfig)> = secrets
        .iter()
        .flat_map(|secret| entries(secret))
        .filter_map(|(key, auth)| {
            let specificity = matches(&key, image)?;
            Some((specificity, auth_config(&key, &auth)?))
        })
        .collect();
    found.sort_by_key(|(specificity, _)| std::cmp::Reverse(*specificity));
    found.into_iter().map(|(_, auth)| auth).collect()
}

fn entries(secret: &Secret) -> BTreeMap<String, DockerAuth> {
    let data = secret.data.as_ref();
    let read = |key: &str| {
        data.and_then(|data| data.get(key))
            .map(|bytes| bytes.0.as_slice())
    };
    match secret.type_.as_deref() {
        Some("kubernetes.io/dockerconfigjson") => {
            let config =
                read(".dockerconfigjson").and_then(|bytes| serde_json::from_slice(bytes).ok());
            config
                .map(|config: DockerConfigJson| config.auths)
                .unwrap_or_default()
        }
        Some("kubernetes.io/dockercfg") => read(".dockercfg")
            .and_then(|bytes| serde_json::from_slice(bytes).ok())
            .unwrap_or_default(),
        _ => BTreeMap::new(),
    }
}

/// How many characters of registry and path the key names, if it fits.
fn matches(key: &str, image: &Reference) -> Option<usize> {
    let key = key
        .trim_start_matches("https://")
        .trim_start_matches("http://")
        .trim_end_matches('/');
    let (host, path) = key.split_once('/').unwrap_or((key, ""));
    let path = path.trim_end_matches('/');
    let docker_hub = matches!(
        host,
        "index.docker.io" | "docker.io" | "registry-1.docker.io"
    );
    // `https://index.docker.io/v1/` is Docker Hub's name in old configurations.
    let path = if matches!(path, "v1" | "v2") {
        ""
    } else {
        path
    };
    let host_fits = (docker_hub && image.registry == "docker.io") || glob(host, &image.registry);
    let path_fits = path.is_empty()
        || image.repository == path
        || image
            .repository
            .strip_prefix(path)
            .is_some_and(|rest| rest.starts_with('/'));
    (host_fits && path_fits).then_some(host.len() + path.len())
}

/// `*.example.org`: a star stands for one label of a host name.
fn glob(pattern: &str, host: &str) -> bool {
    let (pattern, host): (Vec<_>, Vec<_>) =
        (pattern.split('.').collect(), host.split('.').collect());
    pattern.len() == host.len()
        && pattern
            .iter()
            .zip(&host)
            .all(|(pattern, label)| match pattern.split_once('*') {
                Some((before, after)) => {
                    label.len() >= before.len() + after.len()
                        && label.starts_with(before)
                        && label.ends_with(after)
                }
                None => pattern == label,
            })
}

fn auth_config(key: &str, auth: &DockerAuth) -> Option<AuthConfig> {
    let (username, password) = if auth.auth.is_empty() {
        (auth.username.clone(), auth.password.clone())
    } else {
        let decoded = STANDARD.decode(auth.auth.trim_end_matches('\0')).ok()?;
        let decoded = String::from_utf8(decoded).ok()?;
        let (username, password) = decoded.split_once(':')?;
        (username.to_owned(), password.trim_matches('\0').to_owned())
    };
    Some(AuthConfig {
        username,
        password,
        server_address: key.to_owned(),
        ..AuthConfig::default()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::images::reference::parse;

    fn mk_secret(auths: serde_json::Value) -> Arc<Secret> {
        let config = STANDARD.encode(json!({"auths": auths}).to_string());
        let secret = json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": config}});
        Arc::new(serde_json::from_value(secret).expect("a secret"))
    }

    #[track_caller]
    fn check(auths: serde_json::Value, image: &str, expected: &[&str]) {
        let image = parse(image).expect("a name");
        let found = matching(&[mk_secret(auths)], &image);
        let users: Vec<_> = found.iter().map(|auth| auth.username.as_str()).collect();
        assert_eq!(users, expected);
    }

    #[test]
    fn credentials_fit_by_registry_and_path() {
        let auths = json!({
            "https://index.docker.io/v1/": {"username": "hub", "password": "p"},
            "registry.example.org": {"auth": STANDARD.encode("whole:p")},
            "registry.example.org/team": {"username": "team", "password": "p"},
            "*.example.net": {"username": "star", "password": "p"},
        });
        check(auths.clone(), "nginx", &["hub"]);
        check(
            auths.clone(),
            "registry.example.org/team/app",
            &["team", "whole"],
        );
        check(auths.clone(), "registry.example.org/teams/app", &["whole"]);
        check(auths.clone(), "a.example.net/app", &["star"]);
        check(auths, "other.org/app", &[]);
    }
}
