//! The generic calls: one function per verb, for every resource, on any type that serde can read.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use api::Resource;
use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    ClientError, DeleteOptions, ListOptions, Patch, Result, WatchOptions, WatchStream,
    WriteOptions, metrics,
    options::encode_into,
    transport::{BoxBody, Transport},
};
use apimachinery::{
    Value,
    status::{Reason, Status},
};

/// Default time for an answer, its body included. The server's own limit for a request is 60 s.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// Most bytes of an answer that is not a stream: a list of 150,000 large pods.
const MAX_ANSWER: usize = 1 << 30;
/// How often an answer 429 or 503 with `Retry-After` is followed.
const MAX_RETRY_AFTER: usize = 10;
/// Longest pause between such attempts.
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(30);

/// A handle on an API server. Cheap to clone; clones share the transport's connections.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    user_agent: http::HeaderValue,
    timeout: Duration,
    accept: &'static str,
}

/// What is accepted by default, and by a client that wants metadata only: of an object, and of a list.
const JSON: &str = "application/json";
const METADATA: &str =
    "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// One page of a list, or all of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub struct List<T> {
    #[serde(default)]
    pub metadata: ListMeta,
    #[serde(default = "Vec::new", deserialize_with = "null_is_empty")]
    pub items: Vec<T>,
}

/// `meta/v1 ListMeta`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ListMeta {
    pub resource_version: String,
    #[serde(rename = "continue")]
    pub continue_token: String,
    pub remaining_item_count: Option<i64>,
}

fn null_is_empty<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::<Vec<T>>::deserialize(deserializer)?.unwrap_or_default())
}

impl Client {
    /// A client over any transport, named `skiff` to the server until `with_user_agent`.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        Client {
            transport,
            user_agent: http::HeaderValue::from_static("skiff"),
            timeout: DEFAULT_TIMEOUT,
            accept: JSON,
        }
    }

    /// The same connections under another name: `kube-scheduler` becomes upstream's
    /// `kube-scheduler/v1.37.0 (linux/amd64) kubernetes/skiff`, and the name before `/` the default field manager.
    pub fn with_user_agent(&self, name: &str) -> Self {
        let text = if name.contains('/') {
            name.to_string()
        } else {
            format!("{name}/v1.37.0 (linux/amd64) kubernetes/skiff")
        };
        Client {
            user_agent: http::HeaderValue::from_str(&text)
                .unwrap_or_else(|_| http::HeaderValue::from_static("skiff")),
            ..self.clone()
        }
    }

    /// The same connections with another time limit for each call (watches have none).
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Client {
            timeout,
            ..self.clone()
        }
    }

    /// The same connections, but reads and watches bring the objects' metadata only.
    pub fn metadata_only(&self) -> Self {
        Client {
            accept: METADATA,
            ..self.clone()
        }
    }

    /// Reads one object. `ns` is empty for cluster-scoped resources.
    pub async fn get<T: DeserializeOwned>(&self, r: &Resource, ns: &str, name: &str) -> Result<T> {
        self.get_subresource(r, ns, name, "").await
    }

    /// Reads a subresource such as `status` or `scale`.
    pub async fn get_subresource<T: DeserializeOwned>(
        &self,
        r: &Resource,
        ns: &str,
        name: &str,
        subresource: &str,
    ) -> Result<T> {
        let path = object_path(r, ns, name, subresource)?;
        self.json(Method::GET, path, None).await
    }

    /// One page (all, if `limit` is 0). `ns` empty lists all namespaces.
    pub async fn list<T: DeserializeOwned>(
        &self,
        r: &Resource,
        ns: &str,
        options: &ListOptions,
    ) -> Result<List<T>> {
        let path = collection_path(r, ns) + &options.query();
        // A server refuses a list to who asks for an object.
        let accept = match self.accept {
            METADATA => METADATA_LIST,
            accept => accept,
        };
        let client = Client {
            accept,
            ..self.clone()
        };
        client.json(Method::GET, path, None).await
    }

    /// Every page, in pages of `options.limit` (500 if that is 0). A continue token that expired under way restarts
    /// the list as one full answer, as client-go's pager does.
    pub async fn list_all<T: DeserializeOwned>(
        &self,
        r: &Resource,
        ns: &str,
        options: &ListOptions,
    ) -> Result<List<T>> {
        const PAGE: usize = 500;
        let mut options = options.clone();
        if options.limit == 0 {
            options.limit = PAGE;
        }
        let mut all: Option<List<T>> = None;
        loop {
            let page: List<T> = match self.list(r, ns, &options).await {
                Err(error) if error.is_gone() && !options.continue_token.is_empty() => {
                    options.limit = 0;
                    options.continue_token.clear();
                    all = None;
                    continue;
                }
                other => other?,
            };
            options.continue_token = page.metadata.continue_token.clone();
            // Only the first page may name a version; the token carries it from there.
            options.resource_version.clear();
            options.resource_version_match.clear();
            let list = match all.take() {
                None => page,
                Some(mut list) => {
                    list.items.extend(page.items);
                    list.metadata = page.metadata;
                    list
                }
            };
            if options.continue_token.is_empty() {
                return Ok(list);
            }
            all = Some(list);
        }
    }

    /// Creates `object` and returns what was stored.
    pub async fn create<T: Serialize, R: DeserializeOwned>(
        &self,
        r: &Resource,
        ns: &str,
        object: &T,
        options: &WriteOptions,
    ) -> Result<R> {
        let path = collection_path(r, ns) + &options.query();
        self.json(Method::POST, path, Some(body(object)?)).await
    }

    /// Replaces the object; conflicts if `object` has a resourceVersion that is not the stored one.
    pub async fn update<T: Serialize, R: DeserializeOwned>(
        &self,
        r: &Resource,
        ns: &str,
        name: &str,
        object: &T,
        options: &WriteOptions,
    ) -> Result<R> {
        self.update_subresource(r, ns, name, "", object, options)
            .await
    }

    /// Replaces the object's status.
    pub async fn update_status<T: Serialize, R: DeserializeOwned>(
        &self,
        r: &Resource,
        ns: &str,
        name: &str,
        object: &T,
        options: &WriteOptions,
    ) -> Result<R> {
        self.update_subresource(r, ns, name, "status", object, options)
            .await
    }

    /// PUTs a subresource (`status`, `scale`, `finalize`, `approval`); an empty one is the object itself.
    pub async fn update_subresource<T: Serialize, R: DeserializeOwned>(
        &self,
        r: &Resource,
        ns: &str,
        name: &str,
        subresource: &str,
        object: &T,
        options: &WriteOptions,
    ) -> Result<R> {
        let path = object_path(r, ns, name, subresource)? + &options.query();
        self.json(Method::PUT, path, Some(body(object)?)).await
    }

    /// Patches the object, or its subresource if that is not empty.
    pub async fn patch<R: DeserializeOwned>(
        &self,
        r: &Resource,
        ns: &str,
        name: &str,
        subresource: &str,
        patch: &Patch,
        options: &WriteOptions,
    ) -> Result<R> {
        let path = object_path(r, ns, name, subresource)? + &options.query();
        let content = (patch.content_type(), body(patch.body())?.1);
        self.json(Method::PATCH, path, Some(content)).await
    }

    /// Deletes the object. The answer is the object (if it is still there, terminating) or a Status.
    pub async fn delete(
        &self,
        r: &Resource,
        ns: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Value> {
        let path = object_path(r, ns, name, "")?;
        let content = body(&options.to_body())?;
        self.json(Method::DELETE, path, Some(content)).await
    }

    /// Deletes everything `list` selects.
    pub async fn delete_collection(
        &self,
        r: &Resource,
        ns: &str,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<Value> {
        let path = collection_path(r, ns) + &list.query();
        let content = body(&options.to_body())?;
        self.json(Method::DELETE, path, Some(content)).await
    }

    /// POSTs to a subresource: `binding`, `eviction`, `token`.
    pub async fn create_subresource<T: Serialize, R: DeserializeOwned>(
        &self,
        r: &Resource,
        ns: &str,
        name: &str,
        subresource: &str,
        object: &T,
        options: &WriteOptions,
    ) -> Result<R> {
        let path = object_path(r, ns, name, subresource)? + &options.query();
        self.json(Method::POST, path, Some(body(object)?)).await
    }

    /// Opens a watch; `Ok` means that the server accepted it. `ns` empty watches all namespaces.
    pub async fn watch<T: DeserializeOwned>(
        &self,
        r: &Resource,
        ns: &str,
        options: &WatchOptions,
    ) -> Result<WatchStream<T>> {
        let path = collection_path(r, ns) + &options.query();
        Ok(WatchStream::new(
            self.stream(Method::GET, path, None).await?,
        ))
    }

    /// GETs any path, such as `/version` or a discovery document.
    pub async fn get_path<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.json(Method::GET, path.to_string(), None).await
    }

    /// GETs any path as `accept` (a media type with parameters, such as aggregated discovery's).
    pub async fn get_path_as<T: DeserializeOwned>(&self, path: &str, accept: &str) -> Result<T> {
        let request = Request::get(path)
            .header(header::ACCEPT, accept)
            .body(Bytes::new())
            .map_err(|error| ClientError::Request(error.to_string()))?;
        let call = async {
            let answer = self.raw(request).await?;
            if !answer.status().is_success() {
                return Err(failure(answer).await);
            }
            let bytes = collect(answer.into_body(), MAX_ANSWER).await?;
            serde_json::from_slice(&bytes).map_err(ClientError::Decode)
        };
        let limit = self.timeout;
        tokio::time::timeout(limit, call)
            .await
            .unwrap_or(Err(ClientError::Timeout(limit)))
    }

    /// Any call by its path, for resources known only from discovery.
    pub async fn call_path<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        object: Option<&Value>,
    ) -> Result<T> {
        let content = object.map(body).transpose()?;
        self.json(method, path.to_string(), content).await
    }

    /// Sends a request as it is, plus user agent; answers of 400 and above are returned as answers. No time limit.
    pub async fn raw(&self, mut request: Request<Bytes>) -> Result<Response<BoxBody>> {
        let headers = request.headers_mut();
        if !headers.contains_key(header::USER_AGENT) {
            headers.insert(header::USER_AGENT, self.user_agent.clone());
        }
        self.send(request).await
    }

    /// Sends and returns the streaming body of a good answer; anything else becomes an error. The time limit is for
    /// the head.
    pub(crate) async fn stream(
        &self,
        method: Method,
        path: String,
        content: Option<Content>,
    ) -> Result<BoxBody> {
        let limit = self.timeout;
        let answer = self.answer(method, path, content);
        match tokio::time::timeout(limit, answer).await {
            Ok(answer) => Ok(answer?.into_body()),
            Err(_) => Err(ClientError::Timeout(limit)),
        }
    }

    async fn json<R: DeserializeOwned>(
        &self,
        method: Method,
        path: String,
        content: Option<Content>,
    ) -> Result<R> {
        let call = async {
            let body = self.answer(method, path, content).await?.into_body();
            let bytes = collect(body, MAX_ANSWER).await?;
            serde_json::from_slice(&bytes).map_err(ClientError::Decode)
        };
        match tokio::time::timeout(self.timeout, call).await {
            Ok(result) => result,
            Err(_) => Err(ClientError::Timeout(self.timeout)),
        }
    }

    /// One request there and back, counted.
    async fn send(&self, request: Request<Bytes>) -> Result<Response<BoxBody>> {
        let (method, start) = (request.method().clone(), Instant::now());
        let answer = self.transport.send(request).await;
        metrics::request(&method, self.transport.host(), start.elapsed(), &answer);
        answer
    }

    /// Sends, follows `Retry-After`, and turns failure answers into errors.
    async fn answer(
        &self,
        method: Method,
        path: String,
        content: Option<Content>,
    ) -> Result<Response<BoxBody>> {
        let (content_type, bytes) = content.unwrap_or(("", Bytes::new()));
        let mut attempts = 0;
        loop {
            let mut request = Request::builder()
                .method(method.clone())
                .uri(&path)
                .header(header::ACCEPT, self.accept)
                .header(header::USER_AGENT, &self.user_agent);
            if !content_type.is_empty() {
                request = request.header(header::CONTENT_TYPE, content_type);
            }
            let request = request
                .body(bytes.clone())
                .map_err(|error| ClientError::Request(error.to_string()))?;
            let answer = self.send(request).await?;
            if answer.status().is_success() {
                return Ok(answer);
            }
            attempts += 1;
            match retry_after(&answer) {
                Some(pause) if attempts <= MAX_RETRY_AFTER => tokio::time::sleep(pause).await,
                _ => return Err(failure(answer).await),
            }
        }
    }
}

/// A content type with its bytes.
type Content = (&'static str, Bytes);

fn body<T: Serialize>(object: &T) -> Result<Content> {
    let bytes = serde_json::to_vec(object).map_err(ClientError::Encode)?;
    Ok(("application/json", bytes.into()))
}

/// The pause the server asks for, if it does (429 and 5xx only, as client-go).
fn retry_after(answer: &Response<BoxBody>) -> Option<Duration> {
    let status = answer.status();
    if status != StatusCode::TOO_MANY_REQUESTS && !status.is_server_error() {
        return None;
    }
    let text = answer.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    let seconds = text.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(MAX_RETRY_PAUSE))
}

/// Reads a failed answer: its Status, or one made of what came instead.
async fn failure(answer: Response<BoxBody>) -> ClientError {
    const MAX_FAILURE: usize = 1 << 20;
    let code = answer.status();
    let bytes = match collect(answer.into_body(), MAX_FAILURE).await {
        Ok(bytes) => bytes,
        Err(error) => return error,
    };
    match serde_json::from_slice::<Status>(&bytes) {
        Ok(status) if status.code != 0 => status.into(),
        _ => {
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(1024)]).into_owned();
            Status::failure(code.as_u16(), reason_of(code.as_u16()), text).into()
        }
    }
}

/// The whole body, at most `limit` bytes.
pub(crate) async fn collect(mut body: BoxBody, limit: usize) -> Result<Bytes> {
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(ClientError::Transport)?.into_data() else {
            continue;
        };
        if first.len() + whole.len() + data.len() > limit {
            return Err(ClientError::TooLarge(limit));
        }
        // Most answers are one frame, which is then not copied.
        if first.is_empty() && whole.is_empty() {
            first = data;
            continue;
        }
        if whole.is_empty() {
            whole.extend_from_slice(&std::mem::take(&mut first));
        }
        whole.extend_from_slice(&data);
    }
    Ok(if whole.is_empty() {
        first
    } else {
        whole.freeze()
    })
}

/// `/api/v1/namespaces/ns/pods`, `/apis/apps/v1/deployments`.
pub(crate) fn collection_path(r: &Resource, ns: &str) -> String {
    let mut path = String::with_capacity(96);
    if r.group.is_empty() {
        path.push_str("/api/");
    } else {
        path.push_str("/apis/");
        path.push_str(r.group);
        path.push('/');
    }
    path.push_str(r.version);
    if r.namespaced && !ns.is_empty() {
        path.push_str("/namespaces/");
        encode_into(&mut path, ns);
    }
    path.push('/');
    path.push_str(r.plural);
    path
}

fn object_path(r: &Resource, ns: &str, name: &str, subresource: &str) -> Result<String> {
    if name.is_empty() {
        return Err(ClientError::Request(
            "resource name may not be empty".into(),
        ));
    }
    if r.namespaced && ns.is_empty() {
        return Err(ClientError::Request(
            "an empty namespace may not be set when a resource name is provided".into(),
        ));
    }
    let mut path = collection_path(r, ns);
    path.push('/');
    encode_into(&mut path, name);
    if !subresource.is_empty() {
        path.push('/');
        path.push_str(subresource);
    }
    Ok(path)
}

/// The reason upstream gives an answer that has no Status (errors.NewGenericServerResponse).
fn reason_of(code: u16) -> Reason {
    match code {
        400 => Reason::BadRequest,
        401 => Reason::Unauthorized,
        403 => Reason::Forbidden,
        404 => Reason::NotFound,
        405 => Reason::MethodNotAllowed,
        406 => Reason::NotAcceptable,
        409 => Reason::Conflict,
        410 => Reason::Gone,
        413 => Reason::RequestEntityTooLarge,
        415 => Reason::UnsupportedMediaType,
        422 => Reason::Invalid,
        429 => Reason::TooManyRequests,
        500 => Reason::InternalError,
        503 => Reason::ServiceUnavailable,
        504 => Reason::Timeout,
        _ => Reason::Unknown,
    }
}
