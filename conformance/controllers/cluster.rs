//! A server with simulated nodes, and a namespace in it for one test: requests by path through kube's client.

use std::{
    future::Future,
    pin::Pin,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use http::Request;
use integration::process::{self, Server};
use kube::Client;
use serde_json::{Value, json};

pub type Outcome = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// How long something may take to become so, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Dropping it ends both processes.
pub struct Cluster {
    client: Client,
    simulator: Child,
    _server: Server,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.simulator.kill();
        let _ = self.simulator.wait();
    }
}

impl Cluster {
    pub async fn start(nodes: usize) -> Self {
        process::install_crypto();
        let server = Server::start(&[]).await.expect("a server");
        let file = server.data_dir().join("admin.kubeconfig");
        let simulator = Command::new(process::binary())
            .args(["simulate", "--nodes", &nodes.to_string(), "--kubeconfig"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a simulator");
        Cluster {
            client: conformance::administrator(&server).await,
            simulator,
            _server: server,
        }
    }

    /// A new namespace.
    pub async fn space(&self, name: &str) -> Space {
        let space = Space {
            client: self.client.clone(),
            name: name.into(),
        };
        space
            .post("/api/v1/namespaces", json!({"metadata": {"name": name}}))
            .await
            .expect("a namespace");
        let account = space.core("serviceaccounts/default");
        space
            .until("an account", &account, |account| account.is_some())
            .await
            .expect("its account");
        space
    }
}

#[derive(Clone)]
pub struct Space {
    client: Client,
    pub name: String,
}

impl Space {
    pub fn core(&self, rest: &str) -> String {
        format!("/api/v1/namespaces/{}/{rest}", self.name)
    }

    /// The namespace of this name.
    pub fn beside(&self, name: &str) -> Space {
        Space {
            client: self.client.clone(),
            name: name.into(),
        }
    }

    /// A path of a group, such as `apps/v1`.
    pub fn group(&self, version: &str, rest: &str) -> String {
        format!("/apis/{version}/namespaces/{}/{rest}", self.name)
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: Option<Value>,
    ) -> Result<Value, kube::Error> {
        let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", kind);
        let request = request.body(body).expect("paths of tests are well-formed");
        self.client.request(request).await
    }

    pub async fn get(&self, path: &str) -> Result<Value, kube::Error> {
        self.send("GET", path, "application/json", None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Result<Value, kube::Error> {
        self.send("POST", path, "application/json", Some(body))
            .await
    }

    pub async fn put(&self, path: &str, body: Value) -> Result<Value, kube::Error> {
        self.send("PUT", path, "application/json", Some(body)).await
    }

    /// A merge patch.
    pub async fn patch(&self, path: &str, body: Value) -> Result<Value, kube::Error> {
        self.send("PATCH", path, "application/merge-patch+json", Some(body))
            .await
    }

    pub async fn delete(&self, path: &str) -> Result<Value, kube::Error> {
        self.delete_as(path, "Background").await
    }

    pub async fn delete_as(&self, path: &str, propagation: &str) -> Result<Value, kube::Error> {
        self.delete_now(path, json!({"propagationPolicy": propagation}))
            .await
    }

    pub async fn delete_now(&self, path: &str, options: Value) -> Result<Value, kube::Error> {
        self.send("DELETE", path, "application/json", Some(options))
            .await
    }

    /// The items of a list.
    pub async fn items(&self, path: &str) -> anyhow::Result<Vec<Value>> {
        let list = self.get(path).await?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Waits until the object (none if it is not there) is as wanted, and returns it.
    pub async fn until(
        &self,
        what: &str,
        path: &str,
        is_so: impl Fn(Option<&Value>) -> bool,
    ) -> anyhow::Result<Value> {
        self.until_within(PATIENCE, what, path, is_so).await
    }

    pub async fn until_within(
        &self,
        patience: Duration,
        what: &str,
        path: &str,
        is_so: impl Fn(Option<&Value>) -> bool,
    ) -> anyhow::Result<Value> {
        let started = Instant::now();
        loop {
            let found = match self.get(path).await {
                Ok(found) => Some(found),
                Err(kube::Error::Api(status)) if status.code == 404 => None,
                Err(error) => return Err(error).with_context(|| format!("GET {path}")),
            };
            if is_so(found.as_ref()) {
                return Ok(found.unwrap_or_default());
            }
            if started.elapsed() > patience {
                bail!(
                    "no {what} within {patience:?}, but {}",
                    found.unwrap_or_default()
                );
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    pub async fn until_gone(&self, path: &str) -> anyhow::Result<()> {
        self.until("absence", path, |found| found.is_none())
            .await
            .map(drop)
    }

    /// Waits until a list has so many items, and returns them.
    pub async fn until_count(&self, path: &str, count: usize) -> anyhow::Result<Vec<Value>> {
        let what = format!("list of {count}");
        let list = self
            .until(&what, path, |list| length(list) == count)
            .await?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }
}

pub fn length(list: Option<&Value>) -> usize {
    list.and_then(|list| list["items"].as_array())
        .map_or(0, Vec::len)
}

/// The code of a refusal.
pub fn refused<T>(result: Result<T, kube::Error>, code: u16) -> anyhow::Result<String> {
    match result {
        Err(kube::Error::Api(status)) if status.code == code => Ok(status.message.clone()),
        Err(error) => bail!("refused otherwise: {error}"),
        Ok(_) => bail!("not refused"),
    }
}

/// The spec of a pod that waits for a node there is not.
pub fn pending() -> Value {
    json!({"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"nowhere": "true"}})
}

/// A template with this label.
pub fn template(app: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": pending()})
}

/// A ReplicationController.
pub fn controller(name: &str, replicas: usize) -> Value {
    json!({"metadata": {"name": name}, "spec": {"replicas": replicas, "selector": {"app": name}, "template": template(name)}})
}

/// The names of an object's owners.
pub fn owners(object: &Value) -> Vec<&str> {
    let all = object["metadata"]["ownerReferences"]
        .as_array()
        .into_iter()
        .flatten();
    all.filter_map(|owner| owner["name"].as_str()).collect()
}
