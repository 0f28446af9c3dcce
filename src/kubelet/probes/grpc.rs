//! The gRPC health check: grpc.health.v1.Health/Check, whose two messages are
//! small enough to be written here.

use std::time::Duration;

use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

use super::check::Outcome;

#[derive(Clone, PartialEq, Eq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `HealthCheckResponse.ServingStatus.SERVING`.
const SERVING: i32 = 1;

pub(super) async fn check(host: &str, port: u16, service: &str, timeout: Duration) -> Outcome {
    match tokio::time::timeout(timeout, ask(host, port, service)).await {
        Ok(Ok(SERVING)) => Outcome::Passed,
        Ok(Ok(status)) => {
            let name = match status {
                0 => "UNKNOWN",
                2 => "NOT_SERVING",
                3 => "SERVICE_UNKNOWN",
                _ => "UNRECOGNIZED",
            };
            Outcome::Failed(format!("service unhealthy (responded with {name:?})"))
        }
        Ok(Err(error)) => Outcome::Failed(error),
        Err(_) => Outcome::Failed(format!(
            "timeout: failed to connect service \"{host}:{port}\" within {}: context deadline exceeded",
            crate::text::duration(timeout)
        )),
    }
}

async fn ask(host: &str, port: u16, service: &str) -> Result<i32, String> {
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    let address = format!("http://{host}:{port}");
    let endpoint = Endpoint::from_shared(address).map_err(|error| error.to_string())?;
    let channel = endpoint.connect().await.map_err(|error| {
        format!("error: this server could not be reached at \"{host}:{port}\": {error}")
    })?;
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(|error| error.to_string())?;
    let request = tonic::Request::new(HealthCheckRequest {
        service: service.to_owned(),
    });
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec: ProstCodec<HealthCheckRequest, HealthCheckResponse> = ProstCodec::default();
    let answer = grpc.unary(request, path, codec).await;
    answer
        .map(|answer| answer.into_inner().status)
        .map_err(|status| format!("error: health rpc failed: {}", status.message()))
}
