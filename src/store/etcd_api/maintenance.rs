//! The Maintenance, Cluster and Auth services of a cluster of one member without users.

use futures::StreamExt;
use futures::stream::BoxStream;
use tonic::{Code, Request, Response, Status};

use super::convert::status;
use super::{Front, MEMBER_ID, RAFT_TERM, VERSION, snapshot};
use crate::generated::etcdserverpb as pb;
use crate::kv::Store;

#[tonic::async_trait]
impl pb::maintenance_server::Maintenance for Front {
    /// The only alarm there could be, no space, is not latched: writes are taken again once there is space.
    async fn alarm(
        &self,
        _request: Request<pb::AlarmRequest>,
    ) -> Result<Response<pb::AlarmResponse>, Status> {
        Ok(Response::new(pb::AlarmResponse {
            header: self.header().await?,
            alarms: Vec::new(),
        }))
    }

    async fn status(
        &self,
        _request: Request<pb::StatusRequest>,
    ) -> Result<Response<pb::StatusResponse>, Status> {
        let revision = self.store.revision().await.map_err(status)?;
        // There is no raft; every revision counts as one entry of its log.
        let index = u64::try_from(revision).unwrap_or(0);
        let health = self.store.health().await;
        Ok(Response::new(pb::StatusResponse {
            header: self.header_at(revision),
            version: VERSION.into(),
            db_size: self.store.db_size().await.map_err(status)?,
            leader: MEMBER_ID,
            raft_index: index,
            raft_term: RAFT_TERM,
            raft_applied_index: index,
            errors: health
                .err()
                .map(|error| error.to_string())
                .into_iter()
                .collect(),
            db_size_in_use: self.store.db_size_in_use(),
            is_learner: false,
        }))
    }

    /// Space is returned by compaction already.
    async fn defragment(
        &self,
        _request: Request<pb::DefragmentRequest>,
    ) -> Result<Response<pb::DefragmentResponse>, Status> {
        Ok(Response::new(pb::DefragmentResponse {
            header: self.header().await?,
        }))
    }

    async fn hash(
        &self,
        _request: Request<pb::HashRequest>,
    ) -> Result<Response<pb::HashResponse>, Status> {
        let (hash, revision) = snapshot::hash(&self.store, 0).await.map_err(status)?;
        Ok(Response::new(pb::HashResponse {
            header: self.header_at(revision),
            hash,
        }))
    }

    async fn hash_kv(
        &self,
        request: Request<pb::HashKvRequest>,
    ) -> Result<Response<pb::HashKvResponse>, Status> {
        let asked = request.into_inner().revision.max(0);
        let (hash, revision) = snapshot::hash(&self.store, asked).await.map_err(status)?;
        Ok(Response::new(pb::HashKvResponse {
            header: self.header().await?,
            hash,
            compact_revision: self.store.compacted_revision(),
            hash_revision: if asked == 0 { revision } else { asked },
        }))
    }

    type SnapshotStream = BoxStream<'static, Result<pb::SnapshotResponse, Status>>;

    async fn snapshot(
        &self,
        _request: Request<pb::SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let header = self.header().await?;
        let blobs = snapshot::stream(self.store.clone()).await.map_err(status)?;
        let responses = blobs.map(move |blob| {
            let snapshot::Blob { bytes, remaining } = blob.map_err(status)?;
            Ok(pb::SnapshotResponse {
                header,
                remaining_bytes: remaining,
                blob: bytes,
            })
        });
        Ok(Response::new(responses.boxed()))
    }

    async fn move_leader(
        &self,
        _request: Request<pb::MoveLeaderRequest>,
    ) -> Result<Response<pb::MoveLeaderResponse>, Status> {
        Err(Status::new(
            Code::FailedPrecondition,
            "etcdserver: bad leader transferee",
        ))
    }
}

#[tonic::async_trait]
impl pb::cluster_server::Cluster for Front {
    async fn member_list(
        &self,
        _request: Request<pb::MemberListRequest>,
    ) -> Result<Response<pb::MemberListResponse>, Status> {
        Ok(Response::new(pb::MemberListResponse {
            header: self.header().await?,
            members: vec![pb::Member {
                id: MEMBER_ID,
                name: "skiff".into(),
                peer_ur_ls: Vec::new(),
                client_ur_ls: vec![self.url.to_string()],
                is_learner: false,
            }],
        }))
    }
}

#[tonic::async_trait]
impl pb::auth_server::Auth for Front {
    async fn auth_enable(
        &self,
        _request: Request<pb::AuthRequest>,
    ) -> Result<Response<pb::AuthResponse>, Status> {
        // There are no users, and the first one would have to be root.
        Err(Status::new(
            Code::FailedPrecondition,
            "etcdserver: root user does not exist",
        ))
    }

    async fn auth_disable(
        &self,
        _request: Request<pb::AuthRequest>,
    ) -> Result<Response<pb::AuthResponse>, Status> {
        Ok(Response::new(pb::AuthResponse {
            header: self.header().await?,
        }))
    }

    async fn auth_status(
        &self,
        _request: Request<pb::AuthStatusRequest>,
    ) -> Result<Response<pb::AuthStatusResponse>, Status> {
        Ok(Response::new(pb::AuthStatusResponse {
            header: self.header().await?,
            enabled: false,
            auth_revision: 1,
        }))
    }

    async fn authenticate(
        &self,
        _request: Request<pb::AuthenticateRequest>,
    ) -> Result<Response<pb::AuthenticateResponse>, Status> {
        Err(Status::new(
            Code::FailedPrecondition,
            "etcdserver: authentication is not enabled",
        ))
    }
}
