//! The KV service.

use tonic::{Request, Response, Status};

use super::Front;
use super::convert::{self, check_size, status};
use crate::embedded::Outcome;
use crate::generated::etcdserverpb as pb;
use crate::kv::Store;

#[tonic::async_trait]
impl pb::kv_server::Kv for Front {
    async fn range(
        &self,
        request: Request<pb::RangeRequest>,
    ) -> Result<Response<pb::RangeResponse>, Status> {
        let query = convert::query(request.into_inner())?;
        let response = self.store.query(query).await.map_err(status)?;
        Ok(Response::new(self.range_response(response)))
    }

    async fn put(
        &self,
        request: Request<pb::PutRequest>,
    ) -> Result<Response<pb::PutResponse>, Status> {
        let request = request.into_inner();
        check_size(&request)?;
        let transaction = convert::single(convert::put(&request)?);
        drop(request);
        let outcome = self.store.transact(transaction).await.map_err(status)?;
        let revision = outcome.revision;
        let prev_kv = match outcome.outcomes.into_iter().next() {
            Some(Outcome::Put { prev }) => prev.map(convert::key_value),
            _ => None,
        };
        Ok(Response::new(pb::PutResponse {
            header: self.header_at(revision),
            prev_kv,
        }))
    }

    async fn delete_range(
        &self,
        request: Request<pb::DeleteRangeRequest>,
    ) -> Result<Response<pb::DeleteRangeResponse>, Status> {
        let transaction = convert::single(convert::delete(request.into_inner())?);
        let outcome = self.store.transact(transaction).await.map_err(status)?;
        let revision = outcome.revision;
        let (deleted, prev_kvs) = match outcome.outcomes.into_iter().next() {
            Some(Outcome::Delete { deleted, prev_kvs }) => (deleted, prev_kvs),
            _ => (0, Vec::new()),
        };
        Ok(Response::new(pb::DeleteRangeResponse {
            header: self.header_at(revision),
            deleted,
            prev_kvs: prev_kvs.into_iter().map(convert::key_value).collect(),
        }))
    }

    async fn txn(
        &self,
        request: Request<pb::TxnRequest>,
    ) -> Result<Response<pb::TxnResponse>, Status> {
        let request = request.into_inner();
        check_size(&request)?;
        let transaction = convert::transaction(request)?;
        let outcome = self.store.transact(transaction).await.map_err(status)?;
        Ok(Response::new(self.txn_response(outcome)))
    }

    async fn compact(
        &self,
        request: Request<pb::CompactionRequest>,
    ) -> Result<Response<pb::CompactionResponse>, Status> {
        let revision = request.into_inner().revision;
        self.store.compact(revision).await.map_err(status)?;
        Ok(Response::new(pb::CompactionResponse {
            header: self.header().await?,
        }))
    }
}
