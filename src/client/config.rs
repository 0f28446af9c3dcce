//! Where the API server is and who we are to it: kubeconfig files, the service account of a pod, or plain fields.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use serde::Deserialize;

/// Where a pod finds its service account's token and CA.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Bytes given in place, or in a file that is read anew when a connection is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    Data(Vec<u8>),
}

/// A bearer token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    Value(String),
    /// Read anew at most every ten seconds, and at once after a 401.
    File(PathBuf),
}

/// How to reach one API server. All of PEM may hold several certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestConfig {
    /// `https://host:port[/prefix]`, or `http://` for plain HTTP/2.
    pub server: String,
    pub ca: Option<Source>,
    /// The name the server's certificate must have, if it is not `server`'s host.
    pub server_name: Option<String>,
    /// Do not check the server's certificate.
    pub insecure_skip_tls_verify: bool,
    pub client_certificate: Option<Source>,
    pub client_key: Option<Source>,
    pub token: Option<Token>,
}

/// Why no configuration could be made.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {source}")]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{path} is not a kubeconfig: {message}")]
    Parse { path: PathBuf, message: String },
    #[error("{path}: {what} {name:?} does not exist")]
    Missing {
        path: PathBuf,
        what: &'static str,
        name: String,
    },
    #[error("{path}: {what} is not base64")]
    Base64 { path: PathBuf, what: &'static str },
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    #[error(
        "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined"
    )]
    NotInCluster,
    #[error("invalid server address {0:?}")]
    Server(String),
    #[error("TLS: {0}")]
    Tls(String),
}

impl RestConfig {
    /// The file if there is one, else the pod's service account.
    pub fn load(kubeconfig: Option<&Path>) -> Result<Self, ConfigError> {
        match kubeconfig {
            Some(path) => Self::from_kubeconfig(path, None),
            None => Self::in_cluster(),
        }
    }

    /// The service account of the pod this process runs in.
    pub fn in_cluster() -> Result<Self, ConfigError> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let (Some(host), Some(port)) = (
            variable("KUBERNETES_SERVICE_HOST"),
            variable("KUBERNETES_SERVICE_PORT"),
        ) else {
            return Err(ConfigError::NotInCluster);
        };
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host
        };
        let folder = Path::new(SERVICE_ACCOUNT);
        Ok(RestConfig {
            server: format!("https://{host}:{port}"),
            ca: Some(Source::File(folder.join("ca.crt"))),
            token: Some(Token::File(folder.join("token"))),
            ..RestConfig::default()
        })
    }

    /// A context of a kubeconfig file; `None` is its current one.
    pub fn from_kubeconfig(path: &Path, context: Option<&str>) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.into(),
            source,
        })?;
        Self::parse(&text, path, context)
    }

    fn parse(text: &str, path: &Path, context: Option<&str>) -> Result<Self, ConfigError> {
        let file: File = serde_saphyr::from_str(text).map_err(|error| ConfigError::Parse {
            path: path.into(),
            message: error.to_string(),
        })?;
        let missing = |what, name: &str| ConfigError::Missing {
            path: path.into(),
            what,
            name: name.into(),
        };
        let name = context.unwrap_or(&file.current_context);
        let context = find(&file.contexts, name, |named| &named.name)
            .ok_or_else(|| missing("context", name))?;
        let context = &context.context;
        let cluster = find(&file.clusters, &context.cluster, |named| &named.name)
            .ok_or_else(|| missing("cluster", &context.cluster))?;
        let cluster = &cluster.cluster;
        let user = find(&file.users, &context.user, |named| &named.name);
        if user.is_none() && !context.user.is_empty() {
            return Err(missing("user", &context.user));
        }
        let nobody = User::default();
        let user = user.map_or(&nobody, |named| &named.user);
        if user.exec.is_some() {
            return Err(ConfigError::Unsupported("an exec credential plugin"));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let source = |what, data: &Option<String>, file: &Option<PathBuf>| match (data, file) {
            (Some(data), _) if !data.is_empty() => base64::engine::general_purpose::STANDARD
                .decode(data)
                .map(|bytes| Some(Source::Data(bytes)))
                .map_err(|_| ConfigError::Base64 {
                    path: path.into(),
                    what,
                }),
            (_, Some(file)) => Ok(Some(Source::File(folder.join(file)))),
            _ => Ok(None),
        };
        let token = match (&user.token, &user.token_file) {
            (_, Some(file)) => Some(Token::File(folder.join(file))),
            (Some(token), None) => Some(Token::Value(token.clone())),
            (None, None) => None,
        };
        Ok(RestConfig {
            server: cluster.server.clone(),
            ca: source(
                "certificate-authority-data",
                &cluster.certificate_authority_data,
                &cluster.certificate_authority,
            )?,
            server_name: cluster.tls_server_name.clone(),
            insecure_skip_tls_verify: cluster.insecure_skip_tls_verify,
            client_certificate: source(
                "client-certificate-data",
                &user.client_certificate_data,
                &user.client_certificate,
            )?,
            client_key: source("client-key-data", &user.client_key_data, &user.client_key)?,
            token,
        })
    }
}

fn find<'a, T>(all: &'a [T], name: &str, name_of: impl Fn(&T) -> &String) -> Option<&'a T> {
    all.iter().find(|named| name_of(named) == name)
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", default)]
#[derive(Default)]
struct File {
    current_context: String,
    contexts: Vec<NamedContext>,
    clusters: Vec<NamedCluster>,
    users: Vec<NamedUser>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize)]
struct Context {
    cluster: String,
    #[serde(default)]
    user: String,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster {
    server: String,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    tls_server_name: Option<String>,
    #[serde(default)]
    insecure_skip_tls_verify: bool,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    #[serde(default)]
    user: User,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    exec: Option<serde::de::IgnoredAny>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
apiVersion: v1
kind: Config
current-context: a
contexts:
- name: a
  context: {cluster: c, user: u, namespace: default}
- name: b
  context: {cluster: nowhere, user: u}
clusters:
- name: c
  cluster:
    server: https://127.0.0.1:6443
    certificate-authority: pki/ca.crt
    tls-server-name: kubernetes
users:
- name: u
  user:
    client-certificate-data: Y2VydA==
    client-key: /etc/key
    tokenFile: token
preferences: {}
";

    #[test]
    fn a_kubeconfigs_paths_are_relative_to_it() {
        let config = RestConfig::parse(TEXT, Path::new("/x/config"), None).unwrap();
        let expected = RestConfig {
            server: "https://127.0.0.1:6443".into(),
            ca: Some(Source::File("/x/pki/ca.crt".into())),
            server_name: Some("kubernetes".into()),
            insecure_skip_tls_verify: false,
            client_certificate: Some(Source::Data(b"cert".to_vec())),
            client_key: Some(Source::File("/etc/key".into())),
            token: Some(Token::File("/x/token".into())),
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn what_a_context_names_must_exist() {
        let error = |context| {
            RestConfig::parse(TEXT, Path::new("/x/config"), Some(context))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(error("b"), "/x/config: cluster \"nowhere\" does not exist");
        assert_eq!(error("z"), "/x/config: context \"z\" does not exist");
    }
}
