//! Flags of the HTTPS that the scheduler and the controller manager serve.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use cluster::client::Client;
use cluster::component::{self, ComponentConfig, Serving};
use tokio_util::sync::CancellationToken;

use super::runtime::ClientFlags;

#[derive(clap::Args, Debug)]
pub struct SecureFlags {
    /// The IP address on which to listen for the --secure-port port.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    bind_address: IpAddr,
    /// File containing the default x509 Certificate for HTTPS. Without it a self-signed certificate is made.
    #[arg(long, requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    /// File containing the default x509 private key matching --tls-cert-file.
    #[arg(long, requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// If set, any request presenting a client certificate signed by one of the authorities in the client-ca-file is
    /// authenticated with an identity corresponding to the CommonName of the client certificate.
    #[arg(long)]
    client_ca_file: Option<PathBuf>,
    /// kubeconfig file pointing at the 'core' kubernetes server with enough rights to create
    /// tokenreviews.authentication.k8s.io. Without it all token requests are considered to be anonymous.
    #[arg(long)]
    authentication_kubeconfig: Option<PathBuf>,
    /// kubeconfig file pointing at the 'core' kubernetes server with enough rights to create
    /// subjectaccessreviews.authorization.k8s.io. Without it all requests not skipped by authorization are forbidden.
    #[arg(long)]
    authorization_kubeconfig: Option<PathBuf>,
    /// A list of HTTP paths to skip during authorization, i.e. these are authorized without contacting the 'core'
    /// kubernetes server.
    #[arg(long, value_delimiter = ',', default_value = "/healthz,/readyz,/livez")]
    authorization_always_allow_paths: Vec<String>,
}

impl SecureFlags {
    /// What is to be served on `port`; nothing on 0.
    pub fn serving(self, port: u16) -> anyhow::Result<Option<Serving>> {
        let Self {
            bind_address,
            tls_cert_file,
            tls_private_key_file,
            client_ca_file,
            authentication_kubeconfig,
            authorization_kubeconfig,
            authorization_always_allow_paths,
        } = self;
        if port == 0 {
            return Ok(None);
        }
        Ok(Some(Serving {
            bind: SocketAddr::new(bind_address, port),
            certificate: tls_cert_file.zip(tls_private_key_file),
            host: cluster::process::host_name(),
            authentication: client(authentication_kubeconfig.as_deref())?,
            authorization: client(authorization_kubeconfig.as_deref())?,
            client_ca: client_ca_file,
            always_allowed: authorization_always_allow_paths,
            flags: crate::flags::given(),
        }))
    }
}

fn client(kubeconfig: Option<&Path>) -> anyhow::Result<Option<Client>> {
    let client = |path: &Path| {
        let flags = ClientFlags {
            kubeconfig: Some(path.into()),
            master: None,
        };
        flags.client("delegated-auth")
    };
    kubeconfig.map(client).transpose()
}

/// Serves until `shutdown`; without a configuration it only waits for that.
pub async fn serve(
    config: Option<ComponentConfig>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    match config {
        Some(config) => Ok(component::run(config, shutdown).await?),
        None => {
            shutdown.cancelled().await;
            Ok(())
        }
    }
}
