//! This server's identity: a Lease in kube-system that says it lives (KEP-1965).

use std::sync::Weak;
use std::time::Duration;

use apimachinery::{Status, Value, time};
use serde_json::json;
use sha2::{Digest, Sha256};
use store::{Compare, CompareOp, Op, Txn};

use crate::registry::Registry;

/// What the lease says it lasts (`IdentityLeaseDurationSeconds`).
const LIFE: Duration = Duration::from_secs(3600);
/// Renewed six times in that: an idle server writes next to nothing.
const RENEW: Duration = Duration::from_secs(600);
const RETRY: Duration = Duration::from_secs(5);

/// Keeps the lease for as long as the server lives.
pub async fn hold(registry: Weak<Registry>) {
    let holder = uuid::Uuid::new_v4().to_string();
    loop {
        let pause = match registry.upgrade() {
            None => return,
            Some(registry) => match renew(&registry, &holder).await {
                Ok(()) => RENEW,
                Err(error) => {
                    tracing::warn!(%error, "identity lease cannot be renewed yet");
                    RETRY
                }
            },
        };
        tokio::time::sleep(pause).await;
    }
}

async fn renew(registry: &Registry, holder: &str) -> Result<(), Status> {
    let Some(kind) = registry.kind("coordination.k8s.io", "leases") else {
        return Ok(());
    };
    let identity = identity(registry);
    let key = kind.key("kube-system", &identity);
    let (revision, value) = match registry.read_raw(&key).await? {
        None => {
            let object = lease(registry, &identity, holder);
            (0, registry.system_object(&kind, object, "kube-apiserver"))
        }
        Some(kv) => {
            let old = registry.decode_raw(&kind, &kv)?;
            let mut object = old.clone();
            object["spec"] = spec(&identity, holder);
            let value = registry.system_update(&kind, object, &old);
            (kv.mod_revision, value)
        }
    };
    let txn = Txn {
        compare: vec![Compare::ModRevision(
            key.clone(),
            CompareOp::Equal,
            revision,
        )],
        success: vec![Op::Put {
            key,
            value,
            lease: 0,
        }],
        failure: Vec::new(),
    };
    registry.store_txn(txn).await?;
    Ok(())
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}

/// `apiserver-` and a hash of what tells this server from others.
fn identity(registry: &Registry) -> String {
    let seed = match registry.options.identity.as_str() {
        "" => format!(
            "{}-{}:{}",
            host(),
            registry.options.advertise_address,
            registry.options.advertise_port
        ),
        named => named.to_owned(),
    };
    // Base 32 without padding, in lower case, of the first 16 bytes: 26 letters, as upstream's.
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let digest = Sha256::digest(seed.as_bytes());
    let mut text = String::from("apiserver-");
    let (mut bits, mut held) = (0u32, 0);
    for byte in &digest[..16] {
        bits = bits << 8 | u32::from(*byte);
        held += 8;
        while held >= 5 {
            held -= 5;
            text.push(LETTERS[(bits >> held & 31) as usize] as char);
        }
    }
    text.push(LETTERS[(bits << (5 - held) & 31) as usize] as char);
    text
}

fn spec(identity: &str, holder: &str) -> Value {
    json!({
        "holderIdentity": format!("{identity}_{holder}"),
        "leaseDurationSeconds": LIFE.as_secs(),
        "renewTime": time::now_micro_text(),
    })
}

fn lease(registry: &Registry, identity: &str, holder: &str) -> Value {
    let options = &registry.options;
    json!({
        "metadata": {
            "name": identity,
            "namespace": "kube-system",
            "labels": {
                "apiserver.kubernetes.io/identity": "kube-apiserver",
                "kubernetes.io/hostname": host(),
            },
            "annotations": {
                "kubernetes.io/peer-advertise-address":
                    format!("{}:{}", options.advertise_address, options.advertise_port),
            },
        },
        "spec": spec(identity, holder),
    })
}
