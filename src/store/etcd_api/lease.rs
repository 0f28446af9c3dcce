//! The Lease service.

use futures::StreamExt;
use futures::stream::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use super::Front;
use super::convert::status;
use crate::generated::etcdserverpb as pb;
use crate::kv::{Store, StoreError};

#[tonic::async_trait]
impl pb::lease_server::Lease for Front {
    async fn lease_grant(
        &self,
        request: Request<pb::LeaseGrantRequest>,
    ) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        let pb::LeaseGrantRequest { ttl, id } = request.into_inner();
        let lease = self.store.lease_grant(id, ttl).await.map_err(status)?;
        Ok(Response::new(pb::LeaseGrantResponse {
            header: self.header().await?,
            id: lease.id,
            ttl: lease.ttl,
            error: String::new(),
        }))
    }

    async fn lease_revoke(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        let id = request.into_inner().id;
        self.store.lease_revoke(id).await.map_err(status)?;
        Ok(Response::new(pb::LeaseRevokeResponse {
            header: self.header().await?,
        }))
    }

    type LeaseKeepAliveStream = BoxStream<'static, Result<pb::LeaseKeepAliveResponse, Status>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let front = self.clone();
        let answers = request.into_inner().then(move |request| {
            let front = front.clone();
            async move { front.keep_alive(request?.id).await }
        });
        let answers = answers.take_until(self.shutdown.clone().cancelled_owned());
        Ok(Response::new(answers.boxed()))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Result<Response<pb::LeaseTimeToLiveResponse>, Status> {
        let pb::LeaseTimeToLiveRequest { id, keys } = request.into_inner();
        let header = self.header().await?;
        let response = match self.store.lease_time_to_live(id).await {
            Ok(lease) => pb::LeaseTimeToLiveResponse {
                header,
                id,
                ttl: lease.remaining,
                granted_ttl: lease.ttl,
                keys: if keys {
                    self.store.lease_keys(id).unwrap_or_default()
                } else {
                    Vec::new()
                },
            },
            // Not an error to etcd.
            Err(StoreError::LeaseNotFound(_)) => pb::LeaseTimeToLiveResponse {
                header,
                id,
                ttl: -1,
                ..pb::LeaseTimeToLiveResponse::default()
            },
            Err(error) => return Err(status(error)),
        };
        Ok(Response::new(response))
    }

    async fn lease_leases(
        &self,
        _request: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        let leases = self.store.leases().into_iter();
        Ok(Response::new(pb::LeaseLeasesResponse {
            header: self.header().await?,
            leases: leases.map(|id| pb::LeaseStatus { id }).collect(),
        }))
    }
}

impl Front {
    /// A lease that is not there has no time left, which is how etcd says so.
    async fn keep_alive(&self, id: i64) -> Result<pb::LeaseKeepAliveResponse, Status> {
        let ttl = match self.store.lease_keep_alive(id).await {
            Ok(lease) => lease.ttl,
            Err(StoreError::LeaseNotFound(_)) => 0,
            Err(error) => return Err(status(error)),
        };
        Ok(pb::LeaseKeepAliveResponse {
            header: self.header().await?,
            id,
            ttl,
        })
    }
}
