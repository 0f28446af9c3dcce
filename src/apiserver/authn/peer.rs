//! The other end of a connection, and who its certificate says it is.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;

use super::{Refused, certificate};
use crate::front::tls::ClientCa;
use crate::request::UserInfo;

/// A verified chain is verified again after this, so that one that expires stops working on an open connection.
const VERIFY_AGAIN: Duration = Duration::from_secs(60);

type Verdict = Result<Option<Arc<UserInfo>>, Refused>;

/// One connection's peer; its requests share the verdict about its certificate.
pub struct Peer {
    /// `None` in process.
    pub remote: Option<IpAddr>,
    chain: Vec<CertificateDer<'static>>,
    verdict: Mutex<Option<Judged>>,
}

struct Judged {
    verdict: Verdict,
    generation: u64,
    until: Instant,
}

impl Peer {
    /// `chain`: what the client presented, its own certificate first; empty when it presented none.
    pub fn new(remote: Option<IpAddr>, chain: Vec<CertificateDer<'static>>) -> Self {
        Self {
            remote,
            chain,
            verdict: Mutex::new(None),
        }
    }

    /// The certificate's user, `None` without one, `Refused` for one that no CA of ours vouches for.
    pub fn certificate_user(&self, clients: &ClientCa) -> Verdict {
        if self.chain.is_empty() {
            return Ok(None);
        }
        let generation = clients.generation();
        let now = Instant::now();
        let mut judged = self.verdict.lock();
        if let Some(judged) = judged.as_ref() {
            if judged.generation == generation && judged.until > now {
                return judged.verdict.clone();
            }
        }
        let verdict = self.judge(clients);
        *judged = Some(Judged {
            verdict: verdict.clone(),
            generation,
            until: now + VERIFY_AGAIN,
        });
        verdict
    }

    fn judge(&self, clients: &ClientCa) -> Verdict {
        if let Err(error) = clients.verify(&self.chain) {
            tracing::info!(%error, remote = ?self.remote, "Refused a client certificate");
            return Err(Refused);
        }
        Ok(self.chain.first().and_then(certificate::user).map(Arc::new))
    }
}
