//! Certificates that a kubelet asks for: its own, and those of the pods that run on its node (KEP-4317).

use apimachinery::status::Reason;
use apimachinery::{Status, Value, meta};

use super::{MIRROR, Refusal, verb};
use crate::admission::{Attributes, Operation};
use crate::kinds::policy::signing_request::SigningRequest;
use crate::kinds::tree::text;

const KUBELET_SIGNERS: &[&str] = &[
    "kubernetes.io/kubelet-serving",
    "kubernetes.io/kube-apiserver-client-kubelet",
];

/// A kubelet asks for certificates of its own name alone.
pub fn signing_request(attributes: &Attributes<'_>, node: &str, object: Option<&Value>) -> Refusal {
    if attributes.operation != Operation::Create {
        return None;
    }
    let request = object?;
    if !KUBELET_SIGNERS.contains(&text(request, &["spec", "signerName"])) {
        return None;
    }
    let subject = match SigningRequest::parse(text(request, &["spec", "request"])) {
        Ok(request) => request.common_name,
        Err(why) => return Some(format!("unable to parse csr: {why}")),
    };
    (subject.strip_prefix("system:node:") != Some(node))
        .then(|| format!("can only create a node CSR with CN=system:node:{node}"))
}

/// What is not as the request says. A uid may be one that this server has not seen yet: that is no refusal for good.
#[derive(Debug, PartialEq, Eq)]
enum Mismatch {
    Refused(String),
    NotYet(String),
}

use Mismatch::{NotYet, Refused};

/// `admitPodCertificateRequest`: for a pod of the asking node, its service account and the node as they are now.
pub async fn of_pod(
    attributes: &Attributes<'_>,
    node: &str,
    object: Option<&Value>,
) -> Result<Refusal, Status> {
    let request = match (attributes.operation, object) {
        (Operation::Create, Some(request)) => request,
        (other, _) => return Ok(Some(format!("unexpected operation {}", verb(other)))),
    };
    if !attributes.subresource.is_empty() {
        let why = format!("unexpected subresource {}", attributes.subresource);
        return Ok(Some(why));
    }
    match compare(attributes, node, request).await? {
        Ok(()) => Ok(None),
        Err(Refused(why)) => Ok(Some(why)),
        Err(NotYet(why)) => Err(Status::failure(500, Reason::Unknown, &why)),
    }
}

async fn compare(
    attributes: &Attributes<'_>,
    node: &str,
    request: &Value,
) -> Result<Result<(), Mismatch>, Status> {
    let asked = Asked {
        spec: &request["spec"],
        namespace: attributes.namespace,
    };
    let registry = attributes.registry;
    if let Err(why) = asked.from(node) {
        return Ok(Err(why));
    }
    let known = registry.stored_value("", "nodes", "", node).await?;
    if let Err(why) = asked.node(known.as_ref()) {
        return Ok(Err(why));
    }
    let (namespace, name) = (asked.namespace, asked.text("podName"));
    let pod = registry.stored_value("", "pods", namespace, name).await?;
    if let Err(why) = asked.pod(pod.as_ref()) {
        return Ok(Err(why));
    }
    let name = asked.text("serviceAccountName");
    let account = registry
        .stored_value("", "serviceaccounts", namespace, name)
        .await?;
    Ok(asked.account(account.as_ref()))
}

/// A request, to be compared with what is there.
struct Asked<'a> {
    spec: &'a Value,
    namespace: &'a str,
}

impl<'a> Asked<'a> {
    fn text(&self, field: &str) -> &'a str {
        text(self.spec, &[field])
    }

    fn key(&self, field: &str) -> String {
        format!("{}/{}", self.namespace, self.text(field))
    }

    fn from(&self, node: &str) -> Result<(), Mismatch> {
        let named = self.text("nodeName");
        if named == node {
            return Ok(());
        }
        Err(Refused(format!(
            "PodCertificateRequest.Spec.NodeName={named:?}, which is not the requesting node {node:?}"
        )))
    }

    fn node(&self, node: Option<&Value>) -> Result<(), Mismatch> {
        let name = self.text("nodeName");
        let Some(node) = node else {
            return Err(NotYet(format!(
                "while retrieving node {name:?} named in the PodCertificateRequest: node {name:?} not found"
            )));
        };
        let (asked, has) = (self.text("nodeUID"), meta::uid(node));
        if asked == has {
            return Ok(());
        }
        Err(NotYet(format!(
            "PodCertificateRequest for pod {:?} names node UID {asked:?}, inconsistent with the running node ({has:?})",
            self.key("podName")
        )))
    }

    fn pod(&self, pod: Option<&Value>) -> Result<(), Mismatch> {
        let (key, name) = (self.key("podName"), self.text("podName"));
        let Some(pod) = pod else {
            return Err(NotYet(format!(
                "while retrieving pod {key:?} named in the PodCertificateRequest: pod {name:?} not found"
            )));
        };
        let (asked, has) = (self.text("podUID"), meta::uid(pod));
        if asked != has {
            return Err(NotYet(format!(
                "PodCertificateRequest for pod {key:?} contains pod UID ({asked:?}) which differs from running pod {has:?}"
            )));
        }
        let node = self.text("nodeName");
        if text(pod, &["spec", "nodeName"]) != node {
            return Err(Refused(format!(
                "pod {key:?} is not running on node {node:?} named in the PodCertificateRequest"
            )));
        }
        if meta::annotation(pod, MIRROR).is_some() {
            return Err(Refused(format!("pod {key:?} is a mirror pod")));
        }
        let (asked, has) = (
            self.text("serviceAccountName"),
            text(pod, &["spec", "serviceAccountName"]),
        );
        if asked != has {
            return Err(Refused(format!(
                "PodCertificateRequest for pod {key:?} contains serviceAccountName ({asked:?}) that differs from running pod ({has:?})"
            )));
        }
        Ok(())
    }

    fn account(&self, account: Option<&Value>) -> Result<(), Mismatch> {
        let name = self.text("serviceAccountName");
        let Some(account) = account else {
            return Err(NotYet(format!(
                "while retrieving service account {:?} named in the PodCertificateRequest: serviceaccount {name:?} not found",
                self.key("serviceAccountName")
            )));
        };
        let (asked, has) = (self.text("serviceAccountUID"), meta::uid(account));
        if asked == has {
            return Ok(());
        }
        Err(NotYet(format!(
            "PodCertificateRequest for pod {:?} names service account UID {asked:?}, which differs from the running service account ({has:?})",
            self.key("podName")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What is compared with a pod `p` on a node `n`, all of which are as asked but for one member of the request.
    #[track_caller]
    fn check(field: &str, value: &str, expect: Mismatch) {
        let mut spec = json!({"podName": "p", "podUID": "1", "serviceAccountName": "s",
            "serviceAccountUID": "2", "nodeName": "n", "nodeUID": "3"});
        let all = |spec: &Value| {
            let asked = Asked {
                spec,
                namespace: "ns",
            };
            let with = |uid: &str| json!({"metadata": {"uid": uid}});
            let mut pod = with("1");
            pod["spec"] = json!({"nodeName": "n", "serviceAccountName": "s"});
            asked.from("n")?;
            asked.node(Some(&with("3")))?;
            asked.pod(Some(&pod))?;
            asked.account(Some(&with("2")))
        };
        assert_eq!(all(&spec), Ok(()));
        spec[field] = value.into();
        assert_eq!(all(&spec), Err(expect));
    }

    #[test]
    fn a_kubelet_asks_for_its_own_pods_as_they_are() {
        check(
            "nodeName",
            "m",
            Refused(
                "PodCertificateRequest.Spec.NodeName=\"m\", which is not the requesting node \"n\""
                    .to_owned(),
            ),
        );
        check(
            "nodeUID",
            "9",
            NotYet("PodCertificateRequest for pod \"ns/p\" names node UID \"9\", inconsistent with the running node (\"3\")".to_owned()),
        );
        check(
            "podUID",
            "9",
            NotYet("PodCertificateRequest for pod \"ns/p\" contains pod UID (\"9\") which differs from running pod \"1\"".to_owned()),
        );
        check(
            "serviceAccountName",
            "t",
            Refused("PodCertificateRequest for pod \"ns/p\" contains serviceAccountName (\"t\") that differs from running pod (\"s\")".to_owned()),
        );
        check(
            "serviceAccountUID",
            "9",
            NotYet("PodCertificateRequest for pod \"ns/p\" names service account UID \"9\", which differs from the running service account (\"2\")".to_owned()),
        );
    }

    #[test]
    fn pods_of_other_nodes_and_of_files_get_no_certificates() {
        let spec = json!({"podName": "p", "podUID": "1", "nodeName": "n"});
        let asked = Asked {
            spec: &spec,
            namespace: "ns",
        };
        let mut pod = json!({"metadata": {"uid": "1"}, "spec": {"nodeName": "m"}});
        assert_eq!(
            asked.pod(Some(&pod)),
            Err(Refused(
                "pod \"ns/p\" is not running on node \"n\" named in the PodCertificateRequest"
                    .to_owned()
            ))
        );
        pod["spec"]["nodeName"] = "n".into();
        pod["metadata"]["annotations"] = json!({MIRROR: "x"});
        assert_eq!(
            asked.pod(Some(&pod)),
            Err(Refused("pod \"ns/p\" is a mirror pod".to_owned()))
        );
        assert!(matches!(asked.pod(None), Err(NotYet(_))));
    }
}
