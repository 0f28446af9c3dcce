//! Carries a client's requests straight into an API server of the same process, as one trusted user.

use std::sync::Arc;

use apiserver::{Body, Server, UserInfo};
use async_trait::async_trait;
use bytes::Bytes;
use client::{BoxBody, Client, ClientError, Transport, boxed};
use http::{Request, Response};

/// See the module.
pub struct InProcess {
    server: Arc<Server>,
    user: Arc<UserInfo>,
}

impl InProcess {
    /// A client that acts as `name` in `groups`.
    pub fn client(server: &Arc<Server>, name: &str, groups: &[&str]) -> Client {
        let user = Arc::new(UserInfo::new(name, groups.iter().copied()));
        let transport = Self {
            server: Arc::clone(server),
            user,
        };
        Client::new(Arc::new(transport))
    }
}

#[async_trait]
impl Transport for InProcess {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<BoxBody>, ClientError> {
        let response = self
            .server
            .handle(&self.user, request.map(Body::from))
            .await;
        Ok(response.map(boxed))
    }
}
