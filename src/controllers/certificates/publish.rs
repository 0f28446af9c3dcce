//! kube-apiserver-serving-clustertrustbundle-publisher-controller: a ClusterTrustBundle has the authority that signs the
//! API server's certificate (KEP-3257), and no other bundle of that signer is there.

use std::{fmt::Write, sync::Arc};

use api::{r::CLUSTERTRUSTBUNDLES, view::ObjectMeta};
use async_trait::async_trait;
use client::{
    ClientError, DeleteOptions, Informer, Selectors, WriteOptions,
    workqueue::{self, Queue, Requeue},
};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::{Context, Controller, context::synced};

const SIGNER: &str = "kubernetes.io/kube-apiserver-serving";
/// Bytes of the digest in a bundle's name.
const DIGEST: usize = 12;

pub struct Publisher;

/// certificates.k8s.io/v1 ClusterTrustBundle.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Bundle {
    metadata: ObjectMeta,
    spec: BundleSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct BundleSpec {
    signer_name: String,
    trust_bundle: String,
}

#[derive(Debug, PartialEq)]
enum Action {
    Create,
    Correct(Arc<Bundle>),
    Delete(Arc<Bundle>),
}

#[async_trait]
impl Controller for Publisher {
    fn name(&self) -> &'static str {
        "kube-apiserver-serving-clustertrustbundle-publisher-controller"
    }

    async fn run(&self, context: Context) {
        let Some(authority) = context.config.root_ca.clone() else {
            context.shutdown.cancelled().await;
            return;
        };
        let selectors = Selectors::fields(format!("spec.signerName={SIGNER}"));
        let bundles: Informer<Bundle> =
            context
                .informers
                .informer(&CLUSTERTRUSTBUNDLES, "", selectors);
        if !synced!(context, bundles) {
            return;
        }
        // There is one thing to do, whatever changed.
        let queue = Queue::default();
        let keys = queue.clone();
        bundles.add_handler(move |_| keys.add(()));
        queue.add(());
        let name = "clustertrustbundle-publisher";
        workqueue::run(name, &queue, 1, &context.shutdown, |()| {
            let (context, bundles, authority) = (&context, &bundles, authority.as_str());
            async move {
                for action in plan(&bundles.list(), authority) {
                    apply(context, authority, action).await?;
                }
                Ok::<_, ClientError>(Requeue::No)
            }
        })
        .await;
    }
}

/// The name of the bundle with these certificates.
fn name_of(authority: &str) -> String {
    let mut name = format!("{}:", SIGNER.replace('/', ":"));
    for byte in &Sha256::digest(authority)[..DIGEST] {
        write!(name, "{byte:02x}").expect("a string takes whatever is written");
    }
    name
}

fn plan(bundles: &[Arc<Bundle>], authority: &str) -> Vec<Action> {
    let name = name_of(authority);
    let ours = bundles.iter().filter(|one| one.spec.signer_name == SIGNER);
    let (right, old): (Vec<_>, Vec<_>) = ours
        .cloned()
        .partition(|bundle| bundle.metadata.name == name);
    let first = match right.into_iter().next() {
        None => Some(Action::Create),
        Some(bundle) if bundle.spec.trust_bundle == authority => None,
        Some(bundle) => Some(Action::Correct(bundle)),
    };
    let old = old
        .into_iter()
        .filter(|bundle| !bundle.metadata.is_deleting());
    first.into_iter().chain(old.map(Action::Delete)).collect()
}

async fn apply(context: &Context, authority: &str, action: Action) -> Result<(), ClientError> {
    let (client, resource) = (&context.client, &CLUSTERTRUSTBUNDLES);
    let options = WriteOptions::default();
    let object = |metadata: Value| {
        json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle", "metadata": metadata,
            "spec": {"signerName": SIGNER, "trustBundle": authority},
        })
    };
    let done = match action {
        Action::Create => {
            let bundle = object(json!({"name": name_of(authority)}));
            client
                .create::<_, Value>(resource, "", &bundle, &options)
                .await
                .map(drop)
        }
        Action::Correct(old) => {
            let (name, bundle) = (&old.metadata.name, object(json!(old.metadata)));
            client
                .update::<_, Value>(resource, "", name, &bundle, &options)
                .await
                .map(drop)
        }
        Action::Delete(old) => {
            let options = DeleteOptions::uid(&old.metadata.uid);
            client
                .delete(resource, "", &old.metadata.name, &options)
                .await
                .map(drop)
        }
    };
    match done {
        // The cache is behind: what changed is on its way.
        Err(error) if error.is_already_exists() || error.is_not_found() || error.is_conflict() => {
            Ok(())
        }
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle(name: &str, signer: &str, trust: &str) -> Arc<Bundle> {
        let bundle = json!({"metadata": {"name": name}, "spec": {"signerName": signer, "trustBundle": trust}});
        Arc::new(serde_json::from_value(bundle).unwrap())
    }

    #[test]
    fn the_authoritys_bundle_is_made_and_is_the_only_one_of_its_signer() {
        let name = name_of("CA");
        // echo -n CA | sha256sum | head -c 24
        assert_eq!(
            name,
            "kubernetes.io:kube-apiserver-serving:4b650e5c4785025dee7bd65e"
        );
        let right = bundle(&name, SIGNER, "CA");
        let wrong = bundle(&name, SIGNER, "other");
        let old = bundle("kubernetes.io:kube-apiserver-serving:old", SIGNER, "old");
        let others = bundle("x", "example.com/x", "CA");
        for (bundles, expected) in [
            (vec![], vec![Action::Create]),
            (vec![right.clone(), others], vec![]),
            (vec![wrong.clone()], vec![Action::Correct(wrong)]),
            (vec![right, old.clone()], vec![Action::Delete(old)]),
        ] {
            assert_eq!(plan(&bundles, "CA"), expected);
        }
    }
}
