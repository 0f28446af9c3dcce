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
    /// The end of the certificate's life, in seconds since 1970.
    expires: Option<i64>,
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
            expires: self.chain.first().and_then(certificate::expires),
            verdict: verdict.clone(),
            generation,
            until: now + VERIFY_AGAIN,
        });
        verdict
    }

    /// How long the certificate of a believed peer lives yet.
    pub fn certificate_life(&self) -> Option<Duration> {
        let judged = self.verdict.lock();
        let judged = judged.as_ref()?;
        judged.verdict.as_ref().ok()?.as_ref()?;
        let left = judged.expires? - apimachinery::time::now().unix_timestamp();
        Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
    }

    fn judge(&self, clients: &ClientCa) -> Verdict {
        if let Err(error) = clients.verify(&self.chain) {
            tracing::info!(%error, remote = ?self.remote, "Refused a client certificate");
            return Err(Refused);
        }
        Ok(self.chain.first().and_then(certificate::user).map(Arc::new))
    }
}
