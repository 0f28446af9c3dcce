//! What a pod refers to: the objects its node has to read (upstream's `podutil.VisitPodSecretNames` and its like).

use apimachinery::{Value, meta};

/// An object that a pod may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Secret,
    ConfigMap,
    Claim,
    ServiceAccount,
    ResourceClaim,
}

/// Whether `pod` refers to the object `name` of its namespace.
pub fn refers(pod: &Value, wanted: Wanted, name: &str) -> bool {
    match wanted {
        Wanted::Claim => claims(pod).any(|claim| claim == name),
        _ => any_reference(pod, wanted, |value| value.as_str() == Some(name)),
    }
}

/// Whether `is` likes one of the names of what a pod refers to. Claims have names that are made.
fn any_reference(pod: &Value, wanted: Wanted, is: impl Fn(&Value) -> bool + Copy) -> bool {
    let spec = &pod["spec"];
    match wanted {
        Wanted::ServiceAccount => is(&spec["serviceAccountName"]),
        Wanted::Claim => false,
        Wanted::ResourceClaim => {
            items(&spec["resourceClaims"]).any(|claim| is(&claim["resourceClaimName"]))
                || items(&pod["status"]["resourceClaimStatuses"])
                    .any(|claim| is(&claim["resourceClaimName"]))
                || is(&pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"])
        }
        Wanted::ConfigMap => {
            containers(spec)
                .any(|container| environment(container, "configMapKeyRef", "configMapRef").any(is))
                || items(&spec["volumes"]).any(|volume| {
                    is(&volume["configMap"]["name"])
                        || items(&volume["projected"]["sources"])
                            .any(|source| is(&source["configMap"]["name"]))
                })
        }
        Wanted::Secret => {
            items(&spec["imagePullSecrets"]).any(|secret| is(&secret["name"]))
                || containers(spec)
                    .any(|container| environment(container, "secretKeyRef", "secretRef").any(is))
                || items(&spec["volumes"]).any(|volume| volume_secrets(volume).into_iter().any(is))
        }
    }
}

/// Whether `pod` refers to any secret, config map or claim at all. An ephemeral volume's claim does not count: it is made
/// for the pod.
pub fn refers_to_any(pod: &Value, wanted: Wanted) -> bool {
    let named = |value: &Value| value.as_str().is_some_and(|name| !name.is_empty());
    match wanted {
        Wanted::Claim => {
            items(&pod["spec"]["volumes"]).any(|volume| !volume["persistentVolumeClaim"].is_null())
        }
        _ => any_reference(pod, wanted, named),
    }
}

/// Names of the claims a pod mounts, those made for its ephemeral volumes included.
pub fn claims(pod: &Value) -> impl Iterator<Item = String> + '_ {
    items(&pod["spec"]["volumes"]).filter_map(|volume| {
        if !volume["ephemeral"].is_null() {
            let volume = volume["name"].as_str()?;
            return Some(format!("{}-{volume}", meta::name(pod)));
        }
        let claim = volume["persistentVolumeClaim"]["claimName"].as_str()?;
        Some(claim.to_owned())
    })
}

/// Whether a PersistentVolume refers to the secret `namespace/name`; references without a namespace are in the claim's.
pub fn volume_refers(volume: &Value, namespace: &str, name: &str) -> bool {
    let spec = &volume["spec"];
    let claim_namespace = spec["claimRef"]["namespace"].as_str().unwrap_or_default();
    let sources = [
        &spec["cephfs"]["secretRef"],
        &spec["flexVolume"]["secretRef"],
        &spec["rbd"]["secretRef"],
        &spec["scaleIO"]["secretRef"],
        &spec["iscsi"]["secretRef"],
        &spec["storageos"]["secretRef"],
        &spec["csi"]["nodePublishSecretRef"],
        &spec["csi"]["nodeStageSecretRef"],
        &spec["csi"]["nodeExpandSecretRef"],
    ];
    let azure = &spec["azureFile"];
    let azure_namespace = azure["secretNamespace"].as_str().unwrap_or(claim_namespace);
    if azure["secretName"].as_str() == Some(name) && azure_namespace == namespace {
        return true;
    }
    sources.into_iter().any(|source| {
        source["name"].as_str() == Some(name)
            && source["namespace"].as_str().unwrap_or(claim_namespace) == namespace
    })
}

fn volume_secrets(volume: &Value) -> Vec<&Value> {
    let mut names = vec![
        &volume["secret"]["secretName"],
        &volume["azureFile"]["secretName"],
        &volume["cephfs"]["secretRef"]["name"],
        &volume["flexVolume"]["secretRef"]["name"],
        &volume["rbd"]["secretRef"]["name"],
        &volume["scaleIO"]["secretRef"]["name"],
        &volume["iscsi"]["secretRef"]["name"],
        &volume["storageos"]["secretRef"]["name"],
        &volume["csi"]["nodePublishSecretRef"]["name"],
    ];
    names.extend(items(&volume["projected"]["sources"]).map(|source| &source["secret"]["name"]));
    names
}

fn environment<'a>(
    container: &'a Value,
    key_reference: &'a str,
    whole_reference: &'a str,
) -> impl Iterator<Item = &'a Value> {
    let keys =
        items(&container["env"]).map(move |variable| &variable["valueFrom"][key_reference]["name"]);
    let wholes = items(&container["envFrom"]).map(move |source| &source[whole_reference]["name"]);
    keys.chain(wholes)
}

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|list| items(&spec[list]))
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_place_of_a_reference_is_seen() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {
            "serviceAccountName": "sa",
            "imagePullSecrets": [{"name": "pull"}],
            "initContainers": [{"envFrom": [{"secretRef": {"name": "init"}}, {"configMapRef": {"name": "all"}}]}],
            "containers": [{"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "key"}}}]}],
            "volumes": [
                {"name": "a", "secret": {"secretName": "mounted"}},
                {"name": "b", "projected": {"sources": [{"secret": {"name": "projected"}}, {"configMap": {"name": "kube-root-ca.crt"}}]}},
                {"name": "c", "persistentVolumeClaim": {"claimName": "claim"}},
                {"name": "d", "ephemeral": {}},
            ],
        }});
        for secret in ["pull", "init", "key", "mounted", "projected"] {
            assert!(refers(&pod, Wanted::Secret, secret), "{secret}");
        }
        assert!(refers(&pod, Wanted::ConfigMap, "all"));
        assert!(refers(&pod, Wanted::ConfigMap, "kube-root-ca.crt"));
        assert!(refers(&pod, Wanted::ServiceAccount, "sa"));
        assert_eq!(claims(&pod).collect::<Vec<_>>(), ["claim", "p-d"]);
        assert!(!refers(&pod, Wanted::Secret, "other") && !refers(&pod, Wanted::Secret, "all"));
    }
}
