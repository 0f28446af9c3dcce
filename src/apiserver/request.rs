//! What a request asks for and who asks: parsed once at the front, read by authentication, authorization and
//! the registry. Nothing here does IO.
//!
//! Read `RequestInfo` (the path taken apart) and `RequestContext` (everything a handler gets) first.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use http::Method;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::authz::Authorizers;
use crate::query::{Query, percent_decode};

/// What is done. `Other` stands for a method upstream has no verb for; such requests get 405.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    /// `post` and below are the verbs of paths that are not resources: the lower-case method.
    Post,
    Put,
    Head,
    Options,
    Other,
}

impl Verb {
    /// As RBAC rules and metrics spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Post => "post",
            Self::Put => "put",
            Self::Head => "head",
            Self::Options => "options",
            Self::Other => "",
        }
    }

    /// Whether it only reads: decides which in-flight limit counts it.
    pub const fn is_read(self) -> bool {
        matches!(self, Self::Get | Self::List | Self::Watch | Self::Head)
    }

    fn of_resource(method: &Method) -> Self {
        match *method {
            Method::GET | Method::HEAD => Self::Get,
            Method::POST => Self::Create,
            Method::PUT => Self::Update,
            Method::PATCH => Self::Patch,
            Method::DELETE => Self::Delete,
            _ => Self::Other,
        }
    }

    fn of_path(method: &Method) -> Self {
        match *method {
            Method::GET => Self::Get,
            Method::HEAD => Self::Head,
            Method::POST => Self::Post,
            Method::PUT => Self::Put,
            Method::PATCH => Self::Patch,
            Method::DELETE => Self::Delete,
            Method::OPTIONS => Self::Options,
            _ => Self::Other,
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A request's path taken apart, as upstream's `RequestInfoFactory.NewRequestInfo` does.
///
/// Strings are empty where the path does not say: `group` for the core group, `namespace` for cluster scope or
/// all namespaces, `name` for a collection.
#[derive(Clone, Debug)]
pub struct RequestInfo {
    /// Whether the path names a resource (`/api/v1/pods`), not a document (`/healthz`, `/apis/apps`).
    pub is_resource: bool,
    pub verb: Verb,
    /// The decoded path.
    pub path: String,
    pub group: String,
    pub version: String,
    pub namespace: String,
    /// The plural (`pods`).
    pub resource: String,
    /// `status`, `log`, …; for a proxy the first segment after the name.
    pub subresource: String,
    /// For list and watch also set from a `metadata.name=` field selector, so that authorization sees it.
    pub name: String,
    /// Whether `name` stands in the path (not in a field selector).
    pub name_in_path: bool,
    /// Segments after the subresource, joined by `/`: the path a proxy request asks the target for.
    pub rest: String,
    pub query: Query,
}

impl RequestInfo {
    /// Never fails: what is no resource path is a plain one.
    pub fn parse(method: &Method, uri: &http::Uri) -> Self {
        let path = percent_decode(uri.path(), false).unwrap_or_else(|| uri.path().to_owned());
        let query = uri.query().map(Query::parse).unwrap_or_default();
        let mut info = Self {
            is_resource: false,
            verb: Verb::of_path(method),
            path: String::new(),
            group: String::new(),
            version: String::new(),
            namespace: String::new(),
            resource: String::new(),
            subresource: String::new(),
            name: String::new(),
            name_in_path: false,
            rest: String::new(),
            query,
        };
        info.take_apart(method, &path);
        info.path = path;
        info
    }

    fn take_apart(&mut self, method: &Method, path: &str) {
        let mut parts = path.trim_matches('/');
        let prefix = shift(&mut parts);
        let group = match prefix {
            "api" => "",
            "apis" => shift(&mut parts),
            _ => return,
        };
        let version = shift(&mut parts);
        if parts.is_empty() || version.is_empty() {
            return;
        }
        self.is_resource = true;
        self.group = group.to_owned();
        self.version = version.to_owned();
        self.verb = Verb::of_resource(method);

        let mut watch_path = false;
        if let Some(rest) = parts.strip_prefix("watch/") {
            // The deprecated `/api/v1/watch/…` paths.
            watch_path = true;
            parts = rest;
            if self.verb == Verb::Get {
                self.verb = Verb::Watch;
            }
        }
        if let Some(rest) = parts.strip_prefix("namespaces/") {
            let mut after = rest;
            let namespace = shift(&mut after);
            self.namespace = namespace.to_owned();
            let next = after.split('/').next().unwrap_or("");
            if !next.is_empty() && next != "status" && next != "finalize" {
                parts = after;
            }
        }
        self.resource = shift(&mut parts).to_owned();
        self.name = shift(&mut parts).to_owned();
        self.subresource = shift(&mut parts).to_owned();
        self.rest = parts.to_owned();
        self.name_in_path = !self.name.is_empty();
        if !self.name_in_path {
            self.finish_collection(watch_path);
        }
    }

    fn finish_collection(&mut self, watch_path: bool) {
        match self.verb {
            Verb::Get if self.query.flag("watch") => self.verb = Verb::Watch,
            Verb::Get => self.verb = Verb::List,
            Verb::Delete => self.verb = Verb::DeleteCollection,
            _ => {}
        }
        if watch_path || matches!(self.verb, Verb::List | Verb::Watch | Verb::DeleteCollection) {
            if let Some(name) = self
                .query
                .get("fieldSelector")
                .and_then(|selector| exact_name(selector))
            {
                self.name = name.to_owned();
            }
        }
    }

    /// `group/version`, or `v1` for the core group.
    pub fn group_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// Whether the request may outlive the request timeout: watches and the streaming subresources
    /// (upstream's `BasicLongRunningRequestCheck`).
    pub fn is_long_running(&self) -> bool {
        if !self.is_resource {
            return self.path.starts_with("/debug/pprof/");
        }
        if self.verb == Verb::Watch {
            return true;
        }
        match self.subresource.as_str() {
            "attach" | "exec" | "proxy" | "log" | "portforward" => true,
            _ => false,
        }
    }
}

/// Takes the first segment off `parts`.
fn shift<'a>(parts: &mut &'a str) -> &'a str {
    match parts.split_once('/') {
        Some((first, rest)) => {
            *parts = rest;
            first
        }
        None => std::mem::take(parts),
    }
}

/// The value a field selector requires `metadata.name` to have, when it is a name at all.
fn exact_name(selector: &str) -> Option<&str> {
    selector
        .split(',')
        .filter_map(|term| {
            let value = term.trim().strip_prefix("metadata.name=")?;
            Some(value.strip_prefix('=').unwrap_or(value))
        })
        .next()
        .filter(|name| {
            !name.is_empty() && !name.contains(['/', '%']) && !matches!(*name, "." | "..")
        })
}

/// Who asks: `user.Info` upstream. Shared, since one connection's requests have one identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    pub const MASTERS: &'static str = "system:masters";
    pub const AUTHENTICATED: &'static str = "system:authenticated";
    pub const UNAUTHENTICATED: &'static str = "system:unauthenticated";
    pub const ANONYMOUS: &'static str = "system:anonymous";

    /// An authenticated user: `system:authenticated` is added to `groups`.
    pub fn new<'a>(name: impl Into<String>, groups: impl IntoIterator<Item = &'a str>) -> Self {
        let mut groups: Vec<String> = groups.into_iter().map(str::to_owned).collect();
        groups.push(Self::AUTHENTICATED.to_owned());
        Self {
            name: name.into(),
            groups,
            ..Self::default()
        }
    }

    pub fn anonymous() -> Self {
        Self {
            name: Self::ANONYMOUS.to_owned(),
            groups: vec![Self::UNAUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|have| have == group)
    }

    /// `(namespace, name)` of `system:serviceaccount:NAMESPACE:NAME`.
    pub fn service_account(&self) -> Option<(&str, &str)> {
        self.name
            .strip_prefix("system:serviceaccount:")?
            .split_once(':')
    }
}

/// Collects texts for `Warning: 299 - "…"` headers while a request is handled. Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Most warnings kept for one request; more tell a reader nothing.
    const LIMIT: usize = 100;

    /// Repeated texts are sent once.
    pub fn add(&self, text: impl Into<String>) {
        let text = text.into();
        let mut list = self.0.lock();
        if list.len() < Self::LIMIT && !list.contains(&text) {
            list.push(text);
        }
    }

    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

/// All that a handler knows about a request besides its headers and body.
#[derive(Clone)]
pub struct RequestContext {
    pub info: RequestInfo,
    /// The caller after impersonation.
    pub user: Arc<UserInfo>,
    /// The authenticated caller, when it impersonates `user`.
    pub impersonator: Option<Arc<UserInfo>>,
    /// Also the `Audit-Id` header of the response.
    pub audit_id: Arc<str>,
    pub received: Instant,
    /// When the front gives up (504); `None` for long-running requests.
    pub deadline: Option<Instant>,
    /// The peer's address; `None` in process.
    pub remote: Option<IpAddr>,
    pub warnings: Warnings,
    /// For the checks that a path cannot express: create on update, escalate and bind, owner references.
    pub authorizers: Arc<Authorizers>,
    /// Cancelled when the server drains: watches end their stream cleanly then.
    pub shutdown: CancellationToken,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &str, path: &str) -> RequestInfo {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        RequestInfo::parse(&method, &path.parse().expect("a uri"))
    }

    #[track_caller]
    fn check(method: &str, path: &str, expect: [&str; 7]) {
        let info = parse(method, path);
        assert!(info.is_resource, "{path}");
        let got = [
            info.verb.as_str(),
            info.group.as_str(),
            info.version.as_str(),
            info.namespace.as_str(),
            info.resource.as_str(),
            info.name.as_str(),
            info.subresource.as_str(),
        ];
        assert_eq!(got, expect, "{method} {path}");
    }

    #[test]
    fn resource_paths_are_taken_apart() {
        check(
            "GET",
            "/api/v1/pods",
            ["list", "", "v1", "", "pods", "", ""],
        );
        check(
            "HEAD",
            "/api/v1/pods",
            ["list", "", "v1", "", "pods", "", ""],
        );
        check(
            "GET",
            "/api/v1/pods?watch=1",
            ["watch", "", "v1", "", "pods", "", ""],
        );
        check(
            "POST",
            "/api/v1/namespaces/a/pods",
            ["create", "", "v1", "a", "pods", "", ""],
        );
        check(
            "GET",
            "/api/v1/namespaces/a/pods/p/log",
            ["get", "", "v1", "a", "pods", "p", "log"],
        );
        check(
            "PUT",
            "/apis/apps/v1/namespaces/a/deployments/d/status",
            ["update", "apps", "v1", "a", "deployments", "d", "status"],
        );
        check(
            "DELETE",
            "/apis/apps/v1/namespaces/a/deployments",
            ["deletecollection", "apps", "v1", "a", "deployments", "", ""],
        );
        check(
            "DELETE",
            "/api/v1/nodes/n",
            ["delete", "", "v1", "", "nodes", "n", ""],
        );
    }

    #[test]
    fn a_namespace_is_its_own_namespace() {
        check(
            "GET",
            "/api/v1/namespaces",
            ["list", "", "v1", "", "namespaces", "", ""],
        );
        check(
            "GET",
            "/api/v1/namespaces/a",
            ["get", "", "v1", "a", "namespaces", "a", ""],
        );
        check(
            "PUT",
            "/api/v1/namespaces/a/finalize",
            ["update", "", "v1", "a", "namespaces", "a", "finalize"],
        );
        check(
            "PATCH",
            "/api/v1/namespaces/a/status",
            ["patch", "", "v1", "a", "namespaces", "a", "status"],
        );
    }

    #[test]
    fn deprecated_watch_paths_are_watches() {
        check(
            "GET",
            "/api/v1/watch/namespaces/a/pods",
            ["watch", "", "v1", "a", "pods", "", ""],
        );
        check(
            "GET",
            "/api/v1/watch/namespaces/a/pods/p",
            ["watch", "", "v1", "a", "pods", "p", ""],
        );
    }

    #[test]
    fn a_field_selector_on_the_name_is_seen_by_authorization() {
        check(
            "GET",
            "/api/v1/namespaces/a/secrets?fieldSelector=metadata.name%3Ds&watch=true",
            ["watch", "", "v1", "a", "secrets", "s", ""],
        );
        assert!(!parse("GET", "/api/v1/secrets?fieldSelector=metadata.name%3Ds").name_in_path);
        check(
            "GET",
            "/api/v1/secrets?fieldSelector=metadata.name!%3Ds",
            ["list", "", "v1", "", "secrets", "", ""],
        );
        check(
            "GET",
            "/api/v1/secrets?fieldSelector=type%3Dx,metadata.name%3D%3Ds",
            ["list", "", "v1", "", "secrets", "s", ""],
        );
    }

    #[test]
    fn escaped_slashes_separate_segments_as_in_go() {
        check(
            "GET",
            "/api/v1/namespaces/a/pods/..%2Fp",
            ["get", "", "v1", "a", "pods", "..", "p"],
        );
    }

    #[test]
    fn the_rest_of_a_proxy_path_is_kept() {
        let info = parse("POST", "/api/v1/namespaces/a/services/s:80/proxy/x/y");
        assert_eq!((info.name.as_str(), info.rest.as_str()), ("s:80", "x/y"));
        assert!(info.is_long_running());
    }

    #[test]
    fn other_paths_are_no_resources() {
        for path in [
            "/",
            "/api",
            "/api/v1",
            "/api/v1/",
            "/apis/apps/v1",
            "/healthz/etcd",
            "/foo/bar/baz",
        ] {
            let info = parse("GET", path);
            assert!(!info.is_resource, "{path}");
            assert_eq!((info.verb, info.path.as_str()), (Verb::Get, path));
        }
    }
}
