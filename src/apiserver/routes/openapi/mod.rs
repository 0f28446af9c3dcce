//! `/openapi/v2`, `/openapi/v3` and the documents below it (KEP-2896).
//!
//! A document is made when it is first asked for and kept compressed; most clients take it as it is kept. Hashes are of
//! the documents' bytes, so clients' caches on disk stay right across builds.

mod custom;
mod protobuf;

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzDecoder, GzEncoder};
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, ETAG, EXPIRES, IF_NONE_MATCH, LOCATION, VARY};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::{Map, json};

use crate::body::Body;
use crate::discovery::etag;
use crate::front::respond;
use crate::front::{gzip, negotiate};
use crate::query::Query;
use crate::served::Served;

/// The OpenAPI documents of one server.
pub struct OpenApi {
    served: Arc<Served>,
    /// By path (`api/v1`); the others have names of their own. Bounded by the group versions served.
    documents: Mutex<Documents>,
    making: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Documents {
    /// Of what is served.
    generation: u64,
    by_key: HashMap<String, Arc<Document>>,
}

struct Document {
    media_type: &'static str,
    gzip: Bytes,
    /// Quoted.
    etag: HeaderValue,
}

const V2: &str = "v2";
const V2_PROTOBUF: &str = "v2 protobuf";
const INDEX: &str = "v3";

const JSON: &str = "application/json";

/// What client-go asks for, and what is sent: `@` is not allowed in a media type (kube-openapi).
const PROTOBUF_ASKED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
const PROTOBUF_V3_ASKED: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";
const PROTOBUF_V3: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
/// What the keys of v3 documents in protobuf begin with.
const IN_PROTOBUF: &str = "protobuf ";

impl OpenApi {
    pub fn new(served: Arc<Served>) -> Self {
        Self {
            served,
            documents: Mutex::default(),
            making: tokio::sync::Mutex::new(()),
        }
    }

    /// Answers a GET below `/openapi/`; `None` when nothing is there.
    pub async fn answer(
        &self,
        path: &str,
        headers: &HeaderMap,
        query: &Query,
    ) -> Option<Response<Body>> {
        let key = match path.strip_prefix("/openapi/")?.trim_end_matches('/') {
            V2 => V2,
            INDEX => INDEX,
            other => other.strip_prefix("v3/")?,
        };
        let key = match chosen_type(headers, key == V2) {
            // The index is JSON, whatever is asked for.
            _ if key == INDEX => key.to_owned(),
            Some(PROTOBUF) => V2_PROTOBUF.to_owned(),
            Some(PROTOBUF_V3) => format!("{IN_PROTOBUF}{key}"),
            Some(_) => key.to_owned(),
            None => return Some(respond::plain_error(StatusCode::NOT_ACCEPTABLE, "")),
        };
        let document = self.document(&key).await?;
        if let Some(hash) = query.get("hash").filter(|hash| !hash.is_empty()) {
            return Some(document.hashed(hash, path, headers));
        }
        Some(document.respond(headers))
    }

    async fn document(&self, key: &str) -> Option<Arc<Document>> {
        if let Some(document) = self.known(key) {
            return Some(document);
        }
        // One at a time: a document being made takes tens of megabytes.
        let _making = self.making.lock().await;
        if let Some(document) = self.known(key) {
            return Some(document);
        }
        let (served, wanted) = (self.served.clone(), key.to_owned());
        let generation = served.generation();
        let hashes = self.hashes();
        // A thread of its own takes the memory of the trees with it when it ends; what stays is copied out.
        let thread = std::thread::Builder::new().name("openapi".to_owned());
        let made = tokio::task::spawn_blocking(move || {
            let thread = thread.spawn(move || make(&served, &wanted, &hashes)).ok()?;
            thread.join().ok()
        });
        let made = made.await.ok()??;
        let mut documents = self.documents.lock();
        let mut wanted = None;
        for (made_key, document) in &made {
            let document = Arc::new(document.copy());
            if made_key == key {
                wanted = Some(document.clone());
            }
            // What was served meanwhile is made anew.
            if documents.generation == generation {
                documents
                    .by_key
                    .insert(made_key.as_str().to_owned(), document);
            }
        }
        wanted
    }

    fn known(&self, key: &str) -> Option<Arc<Document>> {
        let mut documents = self.documents.lock();
        let now = self.served.generation();
        if documents.generation != now {
            documents.generation = now;
            // What the built-in groups' documents say does not depend on custom resources.
            documents.by_key.retain(|key, _| {
                let key = key.strip_prefix(IN_PROTOBUF).unwrap_or(key);
                let group = key
                    .strip_prefix("apis/")
                    .and_then(|rest| rest.split('/').next());
                key.starts_with("api/") || group.is_some_and(|group| self.served.is_fixed(group))
            });
        }
        documents.by_key.get(key).cloned()
    }

    /// The hashes of the documents there are.
    fn hashes(&self) -> HashMap<String, String> {
        let documents = self.documents.lock();
        documents
            .by_key
            .iter()
            .map(|(key, document)| (key.clone(), document.hash().to_owned()))
            .collect()
    }
}

/// The document of `key`, and for the index all that it refers to and that is not there yet (`hashes`).
fn make(served: &Served, key: &str, hashes: &HashMap<String, String>) -> Vec<(String, Document)> {
    let json = |value: &serde_json::Value| apimachinery::codec::json::encode(value);
    let resources = &served.resources()[..];
    let v3_tree = |path: &str| {
        let mut document = api::openapi::v3(path, resources)?;
        custom::publish(&mut document["components"]["schemas"], served, false);
        Some(document)
    };
    let v3 = |path: &str| Some(Document::new(JSON, &json(&v3_tree(path)?)));
    let v2 = || {
        let mut document = api::openapi::v2(resources);
        custom::publish(&mut document["definitions"], served, true);
        document
    };
    let mut made = Vec::new();
    let document = match key {
        V2 => Some(Document::new(JSON, &json(&v2()))),
        V2_PROTOBUF => {
            let bytes = protobuf::encode(&v2());
            Some(Document::new(PROTOBUF, &bytes))
        }
        INDEX => {
            let paths = api::openapi::v3_paths(resources);
            let mut known: Vec<(String, String)> = Vec::new();
            for path in paths {
                if let Some(hash) = hashes.get(&path) {
                    known.push((path, hash.clone()));
                } else if let Some(document) = v3(&path) {
                    known.push((path.clone(), document.hash().to_owned()));
                    made.push((path, document));
                }
            }
            Some(Document::new(JSON, &json(&index(&known))))
        }
        path => match path.strip_prefix(IN_PROTOBUF) {
            None => v3(path),
            // In either form a document has the one tag that the index tells.
            Some(path) => v3_tree(path).map(|tree| Document {
                etag: etag(&json(&tree)),
                ..Document::new(PROTOBUF_V3, &protobuf::encode_v3(&tree))
            }),
        },
    };
    made.extend(document.map(|document| (key.to_owned(), document)));
    made
}

fn index(documents: &[(String, String)]) -> serde_json::Value {
    let mut paths = Map::new();
    for (path, hash) in documents {
        let url = format!("/openapi/v3/{path}?hash={hash}");
        paths.insert(path.clone(), json!({"serverRelativeURL": url}));
    }
    json!({"paths": paths})
}

impl Document {
    fn new(media_type: &'static str, bytes: &[u8]) -> Self {
        let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 8), Compression::fast());
        encoder.write_all(bytes).expect("a Vec takes all bytes");
        let gzip = encoder.finish().expect("a Vec takes all bytes");
        Self {
            media_type,
            etag: etag(bytes),
            gzip: gzip.into(),
        }
    }

    /// The same in memory of the calling thread.
    fn copy(&self) -> Self {
        Self {
            media_type: self.media_type,
            gzip: Bytes::copy_from_slice(&self.gzip),
            etag: HeaderValue::from_bytes(self.etag.as_bytes()).expect("a header's value"),
        }
    }

    fn hash(&self) -> &str {
        self.etag
            .to_str()
            .expect("hexadecimal digits")
            .trim_matches('"')
    }

    /// What a client asked for by hash never changes; another hash is sent on to the right one.
    fn hashed(&self, hash: &str, path: &str, headers: &HeaderMap) -> Response<Body> {
        if hash != self.hash() {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
            let location = format!("{path}?hash={}", self.hash());
            if let Ok(location) = HeaderValue::try_from(location) {
                response.headers_mut().insert(LOCATION, location);
            }
            return response;
        }
        let mut response = self.respond(headers);
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        if let Ok(expires) = HeaderValue::try_from(in_a_year()) {
            headers.insert(EXPIRES, expires);
        }
        response
    }

    fn respond(&self, headers: &HeaderMap) -> Response<Body> {
        let mut response = if headers.get(IF_NONE_MATCH) == Some(&self.etag) {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else if gzip::is_accepted(headers) {
            let mut response =
                respond::with_type(StatusCode::OK, self.media_type, self.gzip.clone().into());
            response
                .headers_mut()
                .insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            response
        } else {
            respond::with_type(StatusCode::OK, self.media_type, self.plain().into())
        };
        let headers = response.headers_mut();
        headers.insert(ETAG, self.etag.clone());
        headers.insert(VARY, HeaderValue::from_static("Accept-Encoding, Accept"));
        response
    }

    fn plain(&self) -> Vec<u8> {
        let mut decoder = GzDecoder::new(Vec::with_capacity(self.gzip.len() * 8));
        decoder.write_all(&self.gzip).expect("our own gzip");
        decoder.finish().expect("our own gzip")
    }
}

/// The best media type for the client.
fn chosen_type(headers: &HeaderMap, v2: bool) -> Option<&'static str> {
    let clauses = negotiate::clauses(headers);
    if clauses.is_empty() {
        return Some(JSON);
    }
    clauses.iter().find_map(|clause| match clause.range {
        "*/*" | "application/*" | JSON => Some(JSON),
        PROTOBUF_ASKED | PROTOBUF if v2 => Some(PROTOBUF),
        PROTOBUF_V3_ASKED | PROTOBUF_V3 if !v2 => Some(PROTOBUF_V3),
        _ => None,
    })
}

/// An HTTP date.
fn in_a_year() -> String {
    let time = apimachinery::time::now() + time::Duration::days(365);
    let format = time::macros::format_description!(
        "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
    );
    time.format(&format).unwrap_or_default()
}
