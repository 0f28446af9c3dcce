//! Everything a server can be told at its start: plain data, filled by `cluster` from flags or defaults.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use store::Store;

/// PEM text, in memory or in a file that is read again when it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pem {
    Bytes(Vec<u8>),
    File(PathBuf),
}

impl Pem {
    /// The text as it is now.
    pub fn read(&self) -> std::io::Result<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.clone()),
            Self::File(path) => std::fs::read(path),
        }
    }

    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Bytes(_) => None,
            Self::File(path) => Some(path),
        }
    }
}

/// A certificate chain (leaf first) and its private key.
#[derive(Clone, Debug)]
pub struct KeyPair {
    pub certificate: Pem,
    pub key: Pem,
}

#[derive(Clone, Debug)]
pub struct TlsOptions {
    pub serving: KeyPair,
    /// Signs client certificates (`--client-ca-file`); `None` refuses all of them.
    pub client_ca: Option<Pem>,
}

/// Service-account tokens: who signs, who is believed.
#[derive(Clone, Debug)]
pub struct ServiceAccountOptions {
    /// The first signs; all are accepted (`--service-account-issuer`).
    pub issuers: Vec<String>,
    /// Audiences this server answers to (`--api-audiences`); empty means the first issuer.
    pub audiences: Vec<String>,
    /// `None`: TokenRequest is refused.
    pub signing_key: Option<Pem>,
    /// Public (or private) keys that verify tokens (`--service-account-key-file`).
    pub keys: Vec<Pem>,
    /// Longest life a TokenRequest may ask for; `None` is upstream's 2^32 seconds.
    pub max_expiration: Option<Duration>,
    /// Gives tokens that pods mount an hour of grace up to a year, as upstream does
    /// (`--service-account-extend-token-expiration`).
    pub extend_expiration: bool,
    /// Where `jwks_uri` points; `None` derives it from the advertise address.
    pub jwks_uri: Option<String>,
}

/// How kubelets are reached for logs, exec, attach, port-forward and proxy.
#[derive(Clone, Debug)]
pub struct KubeletClientOptions {
    /// The client certificate (`--kubelet-client-certificate`).
    pub identity: Option<KeyPair>,
    /// Verifies the kubelet's serving certificate; `None` accepts any, as upstream without
    /// `--kubelet-certificate-authority`.
    pub ca: Option<Pem>,
    /// Node address types in the order they are tried.
    pub address_types: Vec<String>,
    pub timeout: Duration,
}

#[derive(Clone, Debug)]
pub struct AdmissionOptions {
    /// `tolerationSeconds` for `node.kubernetes.io/not-ready:NoExecute`.
    pub default_not_ready_toleration_seconds: i64,
    /// `tolerationSeconds` for `node.kubernetes.io/unreachable:NoExecute`.
    pub default_unreachable_toleration_seconds: i64,
    pub enable: Vec<String>,
    pub disable: Vec<String>,
}

/// Which bytes an object is stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageMediaType {
    Json,
    Protobuf,
}

#[derive(Clone, Debug)]
pub struct StorageOptions {
    pub media_type: StorageMediaType,
    /// Without the trailing slash.
    pub prefix: String,
    /// `None` never compacts.
    pub compaction_interval: Option<Duration>,
    /// How long Events live.
    pub event_ttl: Duration,
}

/// Bounds on what clients can make the server hold at once.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Reading requests in flight, long-running ones apart.
    pub requests_in_flight: usize,
    /// Writing requests in flight.
    pub mutating_requests_in_flight: usize,
    /// Shares both limits out by flow schemas and priority levels (`--enable-priority-and-fairness`).
    pub priority_and_fairness: bool,
    /// A request that takes longer is answered 504.
    pub request_timeout: Duration,
    /// Watches end after a random time from this to twice this when the client names none.
    pub min_request_timeout: Duration,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    pub connections: usize,
    /// From the connection's acceptance to the end of its TLS handshake.
    pub handshake_timeout: Duration,
    /// How long a server that is told to end still serves, while `/readyz` fails already (`--shutdown-delay-duration`).
    pub shutdown_delay: Duration,
    /// How long a draining server waits for requests.
    pub shutdown_grace: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthorizationMode {
    AlwaysAllow,
    Node,
    Rbac,
}

/// Settings of `extension-apiserver-authentication` for front proxies; empty without one.
#[derive(Clone, Debug, Default)]
pub struct RequestHeaderOptions {
    pub client_ca: Option<Pem>,
    pub allowed_names: Vec<String>,
    pub username_headers: Vec<String>,
    pub group_headers: Vec<String>,
    pub extra_header_prefixes: Vec<String>,
}

#[derive(Clone)]
pub struct Options {
    pub store: Arc<dyn Store>,
    pub tls: Option<TlsOptions>,
    pub service_accounts: ServiceAccountOptions,
    pub kubelet_client: KubeletClientOptions,
    pub admission: AdmissionOptions,
    pub storage: StorageOptions,
    pub limits: Limits,
    pub authorization_modes: Vec<AuthorizationMode>,
    /// Lets requests without credentials in as `system:anonymous`; authorization decides about them.
    pub anonymous_auth: bool,
    pub request_header: RequestHeaderOptions,
    /// The address in the `kubernetes` Endpoints.
    pub advertise_address: IpAddr,
    /// The port in the `kubernetes` Endpoints.
    pub advertise_port: u16,
    /// One CIDR per IP family, the first is the primary one.
    pub service_cidrs: Vec<String>,
    /// First and last port for NodePort services.
    pub service_node_ports: (u16, u16),
    /// `--runtime-config`: `api/beta`, `group/version`, `group/version/resource` to on or off.
    pub runtime_config: BTreeMap<String, bool>,
    pub feature_gates: BTreeMap<String, bool>,
    /// The flags of the process as they were given; `/flagz` shows those in effect.
    pub flags: Vec<(String, String)>,
    /// Components that run in this process: they are well as long as it is.
    pub in_process: Vec<&'static str>,
    /// Tells this server from others on the same store (`kube-apiserver-…` identity lease).
    pub identity: String,
}

impl Options {
    /// Upstream's defaults on `store`; no TLS and no keys yet.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            tls: None,
            service_accounts: ServiceAccountOptions::default(),
            kubelet_client: KubeletClientOptions::default(),
            admission: AdmissionOptions::default(),
            storage: StorageOptions::default(),
            limits: Limits::default(),
            authorization_modes: vec![AuthorizationMode::Node, AuthorizationMode::Rbac],
            anonymous_auth: true,
            request_header: RequestHeaderOptions::default(),
            advertise_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            advertise_port: 6443,
            service_cidrs: vec!["10.96.0.0/16".to_owned()],
            service_node_ports: (30000, 32767),
            runtime_config: BTreeMap::new(),
            feature_gates: BTreeMap::new(),
            flags: Vec::new(),
            in_process: Vec::new(),
            identity: String::new(),
        }
    }

    /// The audiences a token without any is meant for, and which are accepted.
    pub fn api_audiences(&self) -> &[String] {
        let accounts = &self.service_accounts;
        if accounts.audiences.is_empty() {
            &accounts.issuers[..accounts.issuers.len().min(1)]
        } else {
            &accounts.audiences
        }
    }
}

impl Default for ServiceAccountOptions {
    fn default() -> Self {
        Self {
            issuers: vec!["https://kubernetes.default.svc.cluster.local".to_owned()],
            audiences: Vec::new(),
            signing_key: None,
            keys: Vec::new(),
            max_expiration: None,
            extend_expiration: true,
            jwks_uri: None,
        }
    }
}

impl Default for KubeletClientOptions {
    fn default() -> Self {
        let types = [
            "InternalIP",
            "ExternalIP",
            "Hostname",
            "InternalDNS",
            "ExternalDNS",
        ];
        Self {
            identity: None,
            ca: None,
            address_types: types.map(str::to_owned).to_vec(),
            timeout: Duration::from_secs(5),
        }
    }
}

impl Default for AdmissionOptions {
    fn default() -> Self {
        Self {
            default_not_ready_toleration_seconds: 300,
            default_unreachable_toleration_seconds: 300,
            enable: Vec::new(),
            disable: Vec::new(),
        }
    }
}

impl Default for StorageOptions {
    fn default() -> Self {
        Self {
            media_type: StorageMediaType::Json,
            prefix: "/registry".to_owned(),
            compaction_interval: Some(Duration::from_secs(300)),
            event_ttl: Duration::from_secs(3600),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            requests_in_flight: 400,
            mutating_requests_in_flight: 200,
            priority_and_fairness: true,
            request_timeout: Duration::from_secs(60),
            min_request_timeout: Duration::from_secs(1800),
            body_bytes: 3 * 1024 * 1024,
            connections: 65_536,
            handshake_timeout: Duration::from_secs(10),
            shutdown_delay: Duration::ZERO,
            shutdown_grace: Duration::from_secs(60),
        }
    }
}
