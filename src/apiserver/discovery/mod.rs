//! What the server can do: the legacy documents (`/api`, `/apis`, …) and aggregated discovery (KEP-3352), both derived
//! from the served resources. Documents are made when they are first asked for.

mod aggregated;
mod legacy;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::body::Body;
use crate::front::negotiate::{self, Accepted};
use crate::front::respond;
use crate::served::Served;

pub use aggregated::Version;

/// The discovery documents of one server.
pub struct Discovery {
    served: Arc<Served>,
    /// `host:port` in `/api`'s serverAddressByClientCIDRs.
    address: String,
    core: Cached,
    groups: Cached,
}

/// An aggregated document in both versions of its own API.
#[derive(Default)]
struct Cached {
    v2: Slot,
    v2beta1: Slot,
}

/// A document and the generation of what is served that it was made of.
type Slot = Mutex<Option<(u64, Arc<Document>)>>;

struct Document {
    bytes: Bytes,
    etag: HeaderValue,
}

impl Discovery {
    pub fn new(served: Arc<Served>, address: String) -> Self {
        Self {
            served,
            address,
            core: Cached::default(),
            groups: Cached::default(),
        }
    }

    pub fn served(&self) -> &Arc<Served> {
        &self.served
    }

    pub fn serves(&self, group: &str, version: &str) -> bool {
        self.served.serves(group, version)
    }

    /// Answers a GET of `/api`, `/apis` or a path below; `None` when nothing is there.
    pub fn answer(
        &self,
        path: &str,
        headers: &HeaderMap,
        accepted: Accepted,
    ) -> Option<Response<Body>> {
        let path = path.trim_end_matches('/');
        if path == "/api" || path == "/apis" {
            if let Some(version) = wanted_version(headers) {
                return Some(self.aggregated(path == "/api", version, headers));
            }
        }
        let value = match path {
            "/api" => legacy::core_versions(&self.address),
            "/apis" => legacy::groups(&self.served),
            _ => self.deeper(path)?,
        };
        Some(respond::value(StatusCode::OK, &value, accepted))
    }

    fn deeper(&self, path: &str) -> Option<serde_json::Value> {
        if let Some(version) = path.strip_prefix("/api/") {
            return legacy::resources(&self.served, "", version);
        }
        let rest = path.strip_prefix("/apis/")?;
        match rest.split_once('/') {
            Some((group, _)) if group.is_empty() => None,
            Some((group, version)) => legacy::resources(&self.served, group, version),
            None if rest.is_empty() => None,
            None => legacy::group(&self.served, rest),
        }
    }

    fn document(&self, slot: &Slot, core: bool, version: Version) -> Arc<Document> {
        let mut slot = slot.lock();
        let now = self.served.generation();
        if let Some((at, document)) = &*slot
            && *at == now
        {
            return document.clone();
        }
        let value = aggregated::list(&self.served, core, version);
        let mut bytes = serde_json::to_vec(&value).expect("a Value has string keys only");
        bytes.push(b'\n');
        let document = Arc::new(Document {
            etag: etag(&bytes),
            bytes: bytes.into(),
        });
        *slot = Some((now, document.clone()));
        document
    }

    fn aggregated(&self, core: bool, version: Version, headers: &HeaderMap) -> Response<Body> {
        let cached = if core { &self.core } else { &self.groups };
        let slot = match version {
            Version::V2 => &cached.v2,
            Version::V2Beta1 => &cached.v2beta1,
        };
        let document = self.document(slot, core, version);
        let mut response = if headers.get(IF_NONE_MATCH) == Some(&document.etag) {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            respond::with_type(
                StatusCode::OK,
                version.media_type(),
                document.bytes.clone().into(),
            )
        };
        let headers = response.headers_mut();
        headers.insert(ETAG, document.etag.clone());
        headers.insert(VARY, HeaderValue::from_static("Accept"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
        response
    }
}

/// The quoted hash of a document.
pub fn etag(bytes: &[u8]) -> HeaderValue {
    use std::fmt::Write;
    let mut text = String::from("\"");
    for byte in Sha256::digest(bytes) {
        let _ = write!(text, "{byte:02X}");
    }
    text.push('"');
    HeaderValue::try_from(text).expect("hexadecimal digits")
}

/// The aggregated form the client likes best, unless it likes a plain document better.
fn wanted_version(headers: &HeaderMap) -> Option<Version> {
    for clause in negotiate::clauses(headers) {
        let is_json = matches!(clause.range, "application/json" | "application/*" | "*/*");
        let wanted = (clause.param("as"), clause.param("g"), clause.param("v"));
        match wanted {
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")) if is_json => {
                return Some(Version::V2);
            }
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2beta1"))
                if is_json =>
            {
                return Some(Version::V2Beta1);
            }
            (None, _, _) => return None,
            _ => {}
        }
    }
    None
}
