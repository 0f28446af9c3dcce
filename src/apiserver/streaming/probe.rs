//! Whether a component on this machine is well: what it answers at `/healthz`, its certificate unseen, as upstream's
//! component statuses ask.

use std::time::Duration;

use http::{Request, header};

use super::Streaming;
use super::backend::Security;
use crate::body::Body;

/// Upstream's time for one probe.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of an answer that are told.
const ANSWER: usize = 10 << 10;
const HOST: &str = "127.0.0.1";

impl Streaming {
    /// The answer of the component that serves HTTPS on `port`.
    ///
    /// # Errors
    /// Why it is not well, in the words of Go's HTTP client or its own.
    pub(crate) async fn health_of(&self, port: u16) -> Result<String, String> {
        let url = format!("https://{HOST}:{port}/healthz");
        let failed = |why: String| format!("Get {url:?}: {why}");
        let asked = async {
            let connection = self.connector.connect(HOST, port, Security::Anybody).await;
            let connection = connection.map_err(|error| failed(error.to_string()))?;
            let request = Request::get("/healthz")
                .header(header::HOST, format!("{HOST}:{port}"))
                .header(header::USER_AGENT, "kube-probe/1.37")
                .body(Body::empty())
                .map_err(|error| failed(error.to_string()))?;
            let answer = connection.send(request).await;
            let response = answer
                .map_err(|error| failed(error.to_string()))?
                .into_response();
            let code = response.status();
            let body = response.into_body().collect(ANSWER).await;
            let body = body.map_err(|_| failed("the answer is too long".to_owned()))?;
            let text = String::from_utf8_lossy(&body).into_owned();
            match code.as_u16() {
                200..400 => Ok(text),
                code => Err(format!("HTTP probe failed with statuscode: {code}")),
            }
        };
        match tokio::time::timeout(TIMEOUT, asked).await {
            Ok(outcome) => outcome,
            Err(_) => Err(failed("context deadline exceeded".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::KubeletClientOptions;

    #[tokio::test]
    async fn a_port_nobody_serves_is_told_as_go_tells_it() {
        let socket = std::net::TcpListener::bind((HOST, 0)).expect("a port");
        let port = socket.local_addr().expect("an address").port();
        drop(socket);
        let streaming = Streaming::new(&KubeletClientOptions::default());
        let expected = format!(
            "Get \"https://127.0.0.1:{port}/healthz\": dial tcp 127.0.0.1:{port}: connect: connection refused"
        );
        assert_eq!(streaming.health_of(port).await, Err(expected));
    }
}
