//! Who each component of a local cluster is, and the kubeconfig that says so.

use std::path::Path;

use super::state::{Cluster, NodeState, context_name};
use crate::files::{self, FileError};
use crate::kubeconfig::{self, Entry};
use crate::pki::{Authority, Pki, PkiError, Profile};

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    File(#[from] FileError),
}

/// The authority that signs components' certificates, and where the API server is.
pub struct Identities<'a> {
    pub authority: &'a Authority,
    /// Such as `https://172.30.0.2:6443`.
    pub server: String,
}

impl Identities<'_> {
    /// Writes a component's kubeconfig unless the one there still serves.
    pub fn kubeconfig(
        &self,
        path: &Path,
        common_name: &str,
        organization: Option<&str>,
    ) -> Result<(), IdentityError> {
        let profile = Profile::client(common_name, organization);
        let present = kubeconfig::embedded_identity(path)
            .filter(|(certificate, key)| self.authority.accepts(certificate, key, &profile));
        let (certificate, key) = match present {
            Some(present) => present,
            None => {
                let issued = self.authority.issue(&profile)?;
                (issued.certificate, issued.key)
            }
        };
        let entry = Entry {
            name: common_name.into(),
            server: self.server.clone(),
            authority: self.authority.certificate_pem().into(),
            certificate,
            key,
        };
        kubeconfig::write(path, &entry)?;
        Ok(())
    }

    /// The kubelet's and kube-proxy's identity on `node`, and the kubelet's serving certificate.
    pub fn for_node(
        &self,
        node: &NodeState,
        kubernetes: &Path,
        kubelet: &Path,
    ) -> Result<(), IdentityError> {
        let user = format!("system:node:{}", node.name);
        self.kubeconfig(
            &kubernetes.join("kubelet.conf"),
            &user,
            Some("system:nodes"),
        )?;
        self.kubeconfig(
            &kubernetes.join("kube-proxy.conf"),
            "system:kube-proxy",
            Some("system:node-proxier"),
        )?;
        let names = [
            node.name.clone(),
            node.address.to_string(),
            "localhost".into(),
            "127.0.0.1".into(),
        ];
        Pki::at(kubelet).ensure_leaf(self.authority, "kubelet", &Profile::server(&user, &names))?;
        Ok(())
    }

    /// Scheduler, controller manager, DNS and the administrator, on the control-plane node.
    pub fn for_control_plane(&self, kubernetes: &Path) -> Result<(), IdentityError> {
        for (file, user) in [
            ("scheduler.conf", "system:kube-scheduler"),
            ("controller-manager.conf", "system:kube-controller-manager"),
            ("dns.conf", "system:dns"),
        ] {
            self.kubeconfig(&kubernetes.join(file), user, None)?;
        }
        self.kubeconfig(
            &kubernetes.join("admin.conf"),
            "kubernetes-admin",
            Some("system:masters"),
        )
    }
}

/// The administrator's entry for the user's own kubeconfig, reached by the machine's loopback address.
pub fn administrator(cluster: &Cluster) -> Result<Entry, FileError> {
    let pki = Pki::at(cluster.paths().pki());
    let read = |path: std::path::PathBuf| {
        std::fs::read_to_string(&path).map_err(|source| FileError::new("read", &path, source))
    };
    Ok(Entry {
        name: context_name(&cluster.name),
        server: format!("https://127.0.0.1:{}", cluster.port),
        authority: read(pki.certificate("ca"))?,
        certificate: read(pki.certificate("admin"))?,
        key: read(pki.key("admin"))?,
    })
}

/// Copies the authority's certificate for a node that has none of the other files.
pub fn share_authority(pki: &Pki, kubernetes: &Path) -> Result<(), FileError> {
    let from = pki.certificate("ca");
    let text = std::fs::read(&from).map_err(|source| FileError::new("read", &from, source))?;
    let folder = kubernetes.join("pki");
    files::create_directory(&folder, 0o755)?;
    files::write_if_changed(&folder.join("ca.crt"), &text, 0o644)?;
    Ok(())
}
