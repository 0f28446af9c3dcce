//! `skiff apiserver`: one API server with kube-apiserver's flags.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ArgAction;
use cluster::apiserver::Options;
use cluster::apiserver::options::{AuthorizationMode, Pem, StorageMediaType};
use cluster::control::api::{self, ApiConfig, key_pair};
use cluster::control::store::{EtcdFront, StoreConfig};

use super::runtime::{self, Common};
use super::server::{EtcdFlags, StoreKind};
use crate::flags;

/// Flags about how requests are served that `skiff server` has too.
#[derive(clap::Args, Debug)]
pub struct ServingFlags {
    /// A CIDR notation IP range from which to assign service cluster IPs, comma separated for two families.
    #[arg(long, value_delimiter = ',')]
    service_cluster_ip_range: Vec<String>,
    /// A port range to reserve for services with NodePort visibility, such as 30000-32767.
    #[arg(long)]
    service_node_port_range: Option<String>,
    /// tolerationSeconds of the toleration for notReady:NoExecute that every pod gets that has none.
    #[arg(long)]
    default_not_ready_toleration_seconds: Option<i64>,
    /// tolerationSeconds of the toleration for unreachable:NoExecute that every pod gets that has none.
    #[arg(long)]
    default_unreachable_toleration_seconds: Option<i64>,
    /// Amount of time to retain events.
    #[arg(long, value_parser = flags::duration)]
    event_ttl: Option<Duration>,
    /// The media type to use to store objects: application/json or application/vnd.kubernetes.protobuf.
    #[arg(long)]
    storage_media_type: Option<String>,
    /// Turns groups, versions and resources on or off: api/beta=true,batch/v1=false.
    #[arg(long, value_delimiter = ',', value_parser = flags::switch_pair)]
    runtime_config: Vec<(String, bool)>,
    /// A set of key=value pairs that describe feature gates.
    #[arg(long, value_delimiter = ',', value_parser = flags::switch_pair)]
    feature_gates: Vec<(String, bool)>,
    /// Admission plugins to enable in addition to those that are on.
    #[arg(long, value_delimiter = ',')]
    enable_admission_plugins: Vec<String>,
    /// Admission plugins to disable.
    #[arg(long, value_delimiter = ',')]
    disable_admission_plugins: Vec<String>,
    /// Ordered list of plug-ins to do authorization on secure port: AlwaysAllow, Node, RBAC.
    #[arg(long, value_delimiter = ',')]
    authorization_mode: Vec<String>,
    /// Let requests in that carry no credentials, as system:anonymous.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    anonymous_auth: Option<bool>,
    /// The maximum number of non-mutating requests in flight.
    #[arg(long)]
    max_requests_inflight: Option<usize>,
    /// The maximum number of mutating requests in flight.
    #[arg(long)]
    max_mutating_requests_inflight: Option<usize>,
    /// Share the two limits of requests in flight out by flow schemas and priority levels.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = ArgAction::Set)]
    enable_priority_and_fairness: Option<bool>,
    /// How long a handler may keep a request open before it times out.
    #[arg(long, value_parser = flags::duration)]
    request_timeout: Option<Duration>,
    /// The least time a handler of a watch keeps it open; watches end after a random time of up to twice this, in seconds.
    #[arg(long)]
    min_request_timeout: Option<u64>,
    /// How long the server still serves when it is told to end, while /readyz fails already.
    #[arg(long, value_parser = flags::duration)]
    shutdown_delay_duration: Option<Duration>,
    /// The interval of compaction requests; 0 never compacts.
    #[arg(long, value_parser = flags::duration)]
    etcd_compaction_interval: Option<Duration>,
    /// The prefix to prepend to all resource paths in etcd.
    #[arg(long)]
    etcd_prefix: Option<String>,
}

impl ServingFlags {
    /// The modes' and the range's texts, checked before anything is started.
    pub fn check(&self) -> anyhow::Result<()> {
        self.authorization_modes()?;
        self.node_ports()?;
        self.media_type()?;
        Ok(())
    }

    fn authorization_modes(&self) -> anyhow::Result<Vec<AuthorizationMode>> {
        let mode = |text: &String| match text.as_str() {
            "AlwaysAllow" => Ok(AuthorizationMode::AlwaysAllow),
            "Node" => Ok(AuthorizationMode::Node),
            "RBAC" => Ok(AuthorizationMode::Rbac),
            other => anyhow::bail!("authorization-mode {other:?} is not a valid mode"),
        };
        self.authorization_mode.iter().map(mode).collect()
    }

    fn node_ports(&self) -> anyhow::Result<Option<(u16, u16)>> {
        let Some(text) = &self.service_node_port_range else {
            return Ok(None);
        };
        let ports = text
            .split_once('-')
            .and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
        ports
            .filter(|(first, last)| first <= last)
            .map(Some)
            .ok_or_else(|| anyhow::anyhow!("service-node-port-range {text:?} is not a valid range"))
    }

    fn media_type(&self) -> anyhow::Result<Option<StorageMediaType>> {
        match self.storage_media_type.as_deref() {
            None => Ok(None),
            Some("application/json") => Ok(Some(StorageMediaType::Json)),
            Some("application/vnd.kubernetes.protobuf") => Ok(Some(StorageMediaType::Protobuf)),
            Some(other) => anyhow::bail!(
                "--storage-media-type {other:?} invalid, allowed values: application/json, application/vnd.kubernetes.protobuf"
            ),
        }
    }

    /// Puts what was given in place of the defaults. Call `check` first: what is wrong is left out here.
    pub fn apply(self, options: &mut Options) {
        let (modes, ports, media_type) = (
            self.authorization_modes(),
            self.node_ports(),
            self.media_type(),
        );
        let Self {
            service_cluster_ip_range,
            service_node_port_range: _,
            default_not_ready_toleration_seconds,
            default_unreachable_toleration_seconds,
            event_ttl,
            storage_media_type: _,
            runtime_config,
            feature_gates,
            enable_admission_plugins,
            disable_admission_plugins,
            authorization_mode: _,
            anonymous_auth,
            max_requests_inflight,
            max_mutating_requests_inflight,
            enable_priority_and_fairness,
            request_timeout,
            min_request_timeout,
            shutdown_delay_duration,
            etcd_compaction_interval,
            etcd_prefix,
        } = self;
        replace(
            &mut options.service_cidrs,
            (!service_cluster_ip_range.is_empty()).then_some(service_cluster_ip_range),
        );
        replace(&mut options.service_node_ports, ports.ok().flatten());
        replace(
            &mut options.admission.default_not_ready_toleration_seconds,
            default_not_ready_toleration_seconds,
        );
        replace(
            &mut options.admission.default_unreachable_toleration_seconds,
            default_unreachable_toleration_seconds,
        );
        replace(&mut options.storage.event_ttl, event_ttl);
        replace(&mut options.storage.media_type, media_type.ok().flatten());
        replace(&mut options.storage.prefix, etcd_prefix);
        if let Some(interval) = etcd_compaction_interval {
            options.storage.compaction_interval = (!interval.is_zero()).then_some(interval);
        }
        options.flags = flags::given();
        options.runtime_config.extend(runtime_config);
        options.feature_gates.extend(feature_gates);
        options.admission.enable.extend(enable_admission_plugins);
        options.admission.disable.extend(disable_admission_plugins);
        replace(
            &mut options.authorization_modes,
            modes.ok().filter(|modes| !modes.is_empty()),
        );
        replace(&mut options.anonymous_auth, anonymous_auth);
        replace(
            &mut options.limits.requests_in_flight,
            max_requests_inflight,
        );
        replace(
            &mut options.limits.mutating_requests_in_flight,
            max_mutating_requests_inflight,
        );
        let limits = &mut options.limits;
        replace(
            &mut limits.priority_and_fairness,
            enable_priority_and_fairness,
        );
        replace(&mut limits.request_timeout, request_timeout);
        replace(
            &mut limits.min_request_timeout,
            min_request_timeout.map(Duration::from_secs),
        );
        replace(&mut limits.shutdown_delay, shutdown_delay_duration);
    }
}

fn replace<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

#[derive(clap::Args, Debug)]
pub struct ApiServer {
    /// The port on which to serve HTTPS with authentication and authorization.
    #[arg(long, default_value_t = 6443)]
    secure_port: u16,
    /// The IP address on which to listen for the --secure-port port.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    bind_address: IpAddr,
    /// The IP address on which to advertise the apiserver to members of the cluster.
    #[arg(long)]
    advertise_address: Option<IpAddr>,
    /// File containing the default x509 Certificate for HTTPS.
    #[arg(long)]
    tls_cert_file: PathBuf,
    /// File containing the default x509 private key matching --tls-cert-file.
    #[arg(long)]
    tls_private_key_file: PathBuf,
    /// If set, any request presenting a client certificate signed by one of the authorities in the client-ca-file is
    /// authenticated with an identity corresponding to the CommonName of the client certificate.
    #[arg(long)]
    client_ca_file: Option<PathBuf>,
    /// Where objects are kept: embedded, or etcd (which is meant when --etcd-servers is given).
    #[arg(long, value_enum)]
    store: Option<StoreKind>,
    /// Folder of the embedded store.
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Where the embedded store serves etcd's API. May be repeated.
    #[arg(long, value_delimiter = ',')]
    etcd_listen: Vec<SocketAddr>,
    /// The certificate of etcd's API.
    #[arg(long)]
    etcd_serving_cert_file: Option<PathBuf>,
    /// The key of etcd's API.
    #[arg(long)]
    etcd_serving_key_file: Option<PathBuf>,
    /// The authority of certificates that clients of etcd's API must have.
    #[arg(long)]
    etcd_serving_client_ca_file: Option<PathBuf>,
    #[command(flatten)]
    etcd: EtcdFlags,
    /// Identifier of the service account token issuer. The first signs, all are accepted.
    #[arg(long, value_delimiter = ',')]
    service_account_issuer: Vec<String>,
    /// Identifiers of the API.
    #[arg(long, value_delimiter = ',')]
    api_audiences: Vec<String>,
    /// File containing PEM-encoded x509 RSA or ECDSA private or public keys, used to verify ServiceAccount tokens.
    #[arg(long, value_delimiter = ',')]
    service_account_key_file: Vec<PathBuf>,
    /// Path to the file that contains the current private key of the service account token issuer.
    #[arg(long)]
    service_account_signing_key_file: Option<PathBuf>,
    /// The maximum validity duration of a token created by the service account token issuer.
    #[arg(long, value_parser = flags::duration)]
    service_account_max_token_expiration: Option<Duration>,
    /// Path to a client cert file for TLS to kubelets.
    #[arg(long)]
    kubelet_client_certificate: Option<PathBuf>,
    /// Path to a client key file for TLS to kubelets.
    #[arg(long)]
    kubelet_client_key: Option<PathBuf>,
    /// Path to a cert file for the certificate authority of kubelets.
    #[arg(long)]
    kubelet_certificate_authority: Option<PathBuf>,
    /// List of the preferred NodeAddressTypes to use for kubelet connections.
    #[arg(long, value_delimiter = ',')]
    kubelet_preferred_address_types: Vec<String>,
    /// Root certificate bundle to verify client certificates on requests before trusting usernames in headers.
    #[arg(long)]
    requestheader_client_ca_file: Option<PathBuf>,
    #[arg(long, value_delimiter = ',')]
    requestheader_allowed_names: Vec<String>,
    #[arg(long, value_delimiter = ',')]
    requestheader_username_headers: Vec<String>,
    #[arg(long, value_delimiter = ',')]
    requestheader_group_headers: Vec<String>,
    #[arg(long, value_delimiter = ',')]
    requestheader_extra_headers_prefix: Vec<String>,
    /// Serve also on the listening socket that is the standard input.
    #[arg(long)]
    listen_stdin: bool,
    #[command(flatten)]
    serving: ServingFlags,
    #[command(flatten)]
    common: Common,
}

impl ApiServer {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.serving.check()?;
        let inherited = match self.listen_stdin {
            true => Some(std::net::TcpListener::from(
                std::io::stdin().as_fd().try_clone_to_owned()?,
            )),
            false => None,
        };
        let store = self.store()?;
        let Self {
            secure_port,
            bind_address,
            advertise_address,
            tls_cert_file,
            tls_private_key_file,
            client_ca_file,
            common,
            ..
        } = &self;
        let common = Common {
            verbosity: common.verbosity,
        };
        let config = ApiConfig {
            store,
            bind: SocketAddr::new(*bind_address, *secure_port),
            inherited,
            advertise: *advertise_address,
            certificate: tls_cert_file.clone(),
            key: tls_private_key_file.clone(),
            client_authority: client_ca_file.clone(),
            adjust: Box::new(move |options| self.apply(options)),
        };
        runtime::run(&common, |shutdown| async move {
            Ok(api::run(config, shutdown).await?)
        })
    }

    fn store(&self) -> anyhow::Result<StoreConfig> {
        let etcd = &self.etcd;
        let kind = self.store.unwrap_or(if etcd.etcd_servers.is_empty() {
            StoreKind::Embedded
        } else {
            StoreKind::Etcd
        });
        if kind == StoreKind::Etcd {
            anyhow::ensure!(
                !etcd.etcd_servers.is_empty(),
                "--etcd-servers must be specified"
            );
            return Ok(StoreConfig::Etcd {
                servers: etcd.etcd_servers.clone(),
                authority: etcd.etcd_cafile.clone(),
                certificate: etcd.etcd_certfile.clone(),
                key: etcd.etcd_keyfile.clone(),
            });
        }
        let directory = self
            .data_dir
            .clone()
            .ok_or_else(|| anyhow::anyhow!("--data-dir or --etcd-servers must be specified"))?;
        let files = (
            &self.etcd_serving_cert_file,
            &self.etcd_serving_key_file,
            &self.etcd_serving_client_ca_file,
        );
        let front = match files {
            _ if self.etcd_listen.is_empty() => None,
            (Some(certificate), Some(key), Some(client_authority)) => Some(EtcdFront {
                listen: self.etcd_listen.clone(),
                certificate: certificate.clone(),
                key: key.clone(),
                client_authority: client_authority.clone(),
            }),
            _ => anyhow::bail!(
                "--etcd-listen needs --etcd-serving-cert-file, --etcd-serving-key-file and --etcd-serving-client-ca-file"
            ),
        };
        Ok(StoreConfig::Embedded { directory, front })
    }

    fn apply(self, options: &mut Options) {
        let accounts = &mut options.service_accounts;
        replace(
            &mut accounts.issuers,
            (!self.service_account_issuer.is_empty()).then_some(self.service_account_issuer),
        );
        accounts.audiences = self.api_audiences;
        accounts.keys = self
            .service_account_key_file
            .into_iter()
            .map(Pem::File)
            .collect();
        accounts.signing_key = self.service_account_signing_key_file.map(Pem::File);
        accounts.max_expiration = self.service_account_max_token_expiration;
        let kubelets = &mut options.kubelet_client;
        if let (Some(certificate), Some(key)) =
            (&self.kubelet_client_certificate, &self.kubelet_client_key)
        {
            kubelets.identity = Some(key_pair(certificate, key));
        }
        kubelets.ca = self.kubelet_certificate_authority.map(Pem::File);
        let types = self.kubelet_preferred_address_types;
        replace(
            &mut kubelets.address_types,
            (!types.is_empty()).then_some(types),
        );
        let header = &mut options.request_header;
        header.client_ca = self.requestheader_client_ca_file.map(Pem::File);
        header.allowed_names = self.requestheader_allowed_names;
        header.username_headers = self.requestheader_username_headers;
        header.group_headers = self.requestheader_group_headers;
        header.extra_header_prefixes = self.requestheader_extra_headers_prefix;
        self.serving.apply(options);
    }
}
