//! `/statusz` and `/flagz`: what this process is and what it was started with, for people (KEP-4827, KEP-4828).
//!
//! Text by default; an object where `Accept` asks for `application/json;v=v1beta1;g=config.k8s.io;as=Statusz`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Instant;

use apimachinery::codec::media::MediaType;
use apimachinery::{Status, time};
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};

use super::version;
use crate::body::Body;
use crate::flags;
use crate::front::negotiate::{Accepted, Clause, clauses};
use crate::front::respond;
use crate::options::Options;

const GROUP: &str = "config.k8s.io";
const VERSIONS: [&str; 2] = ["v1alpha1", "v1beta1"];
/// Paths that a person may look at, the first segments of what upstream's own handlers serve.
const PATHS: [&str; 7] = [
    "/flagz", "/healthz", "/livez", "/metrics", "/readyz", "/statusz", "/version",
];
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.";

/// See the module.
pub struct Pages {
    /// Whose pages they are.
    component: &'static str,
    /// Paths that a person may look at, in order.
    paths: &'static [&'static str],
    started: time::Time,
    since: Instant,
    flags: BTreeMap<String, String>,
    status_is_on: bool,
    flags_are_on: bool,
}

/// How a page is written.
enum Form {
    Text,
    /// In one of `VERSIONS`.
    Object(MediaType, &'static str),
}

impl Pages {
    pub fn new(options: &Options) -> Self {
        let is_on = |gate| options.feature_gates.get(gate).copied().unwrap_or(true);
        Self {
            status_is_on: is_on("ComponentStatusz"),
            flags_are_on: is_on("ComponentFlagz"),
            ..Self::of("kube-apiserver", &PATHS, flags::effective(options))
        }
    }

    /// The pages of another component that serves `paths`.
    pub fn of(
        component: &'static str,
        paths: &'static [&'static str],
        flags: BTreeMap<String, String>,
    ) -> Self {
        Self {
            component,
            paths,
            started: time::now(),
            since: Instant::now(),
            flags,
            status_is_on: true,
            flags_are_on: true,
        }
    }

    /// `None` when the path is no page.
    pub fn answer(
        &self,
        path: &str,
        headers: &HeaderMap,
    ) -> Option<Result<Response<Body>, Status>> {
        let kind = match path {
            "/statusz" if self.status_is_on => "Statusz",
            "/flagz" if self.flags_are_on => "Flagz",
            _ => return None,
        };
        let Some(form) = form(headers, kind) else {
            let accepted: Vec<String> = accepted(kind);
            let accepted: Vec<&str> = accepted.iter().map(String::as_str).collect();
            return Some(Err(Status::not_acceptable(&accepted)));
        };
        Some(Ok(match form {
            Form::Text => respond::plain(StatusCode::OK, self.text(kind)),
            Form::Object(media, version) => {
                let object = self.object(kind, version);
                let accepted = Accepted {
                    media,
                    pretty: true,
                };
                respond::value(StatusCode::OK, &object, accepted)
            }
        }))
    }

    fn text(&self, kind: &str) -> String {
        let component = self.component;
        let mut text = String::new();
        if kind == "Flagz" {
            let _ = write!(text, "\n{component} flagz\n{WARNING}\n\n");
            for (name, value) in &self.flags {
                let _ = writeln!(text, "{name}={value}");
            }
            return text;
        }
        let up = self.since.elapsed().as_secs();
        let _ = write!(
            text,
            "\n{component} statusz\n{WARNING}\n\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nGo version: {}\nBinary version: {}\nEmulation version: {}\nPaths: {}\n",
            unix_date(self.started),
            up / 3600,
            up / 60 % 60,
            up % 60,
            version::COMPILER,
            version::GIT_VERSION.trim_start_matches('v'),
            version::EMULATED,
            self.paths.join(" "),
        );
        text
    }

    fn object(&self, kind: &str, version: &str) -> Value {
        let mut object = json!({
            "kind": kind,
            "apiVersion": format!("{GROUP}/{version}"),
            "metadata": {"name": self.component},
        });
        if kind == "Flagz" {
            object["flags"] = json!(self.flags);
            return object;
        }
        object["startTime"] = time::format(self.started).into();
        object["uptimeSeconds"] = self.since.elapsed().as_secs().into();
        object["goVersion"] = version::COMPILER.into();
        object["binaryVersion"] = version::GIT_VERSION.trim_start_matches('v').into();
        object["emulationVersion"] = version::EMULATED.into();
        object["paths"] = json!(self.paths);
        object
    }
}

fn accepted(kind: &str) -> Vec<String> {
    let mut all = vec!["text/plain".to_owned()];
    for media in ["application/json", "application/yaml"] {
        for version in VERSIONS {
            all.push(format!("{media};v={version};g={GROUP};as={kind}"));
        }
    }
    all
}

/// The first form that the client takes; text where it does not say.
fn form(headers: &HeaderMap, kind: &str) -> Option<Form> {
    let clauses = clauses(headers);
    if clauses.is_empty() {
        return Some(Form::Text);
    }
    clauses.iter().find_map(|clause| match clause.range {
        "*/*" | "text/*" | "text/plain" => Some(Form::Text),
        "application/json" => object_form(clause, kind, MediaType::Json),
        "application/yaml" => object_form(clause, kind, MediaType::Yaml),
        _ => None,
    })
}

fn object_form(clause: &Clause<'_>, kind: &str, media: MediaType) -> Option<Form> {
    let version = clause.param("v")?;
    let version = VERSIONS.into_iter().find(|known| *known == version)?;
    let fits = clause.param("g") == Some(GROUP) && clause.param("as") == Some(kind);
    fits.then_some(Form::Object(media, version))
}

/// `Wed Oct 16 21:03:43 UTC 2024`.
fn unix_date(time: time::Time) -> String {
    format!(
        "{:.3} {:.3} {:2} {:02}:{:02}:{:02} UTC {}",
        time.weekday().to_string(),
        time.month().to_string(),
        time.day(),
        time.hour(),
        time.minute(),
        time.second(),
        time.year(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use http::header::ACCEPT;

    fn pages() -> Pages {
        let flags = BTreeMap::from([("secure-port".to_owned(), "6443".to_owned())]);
        Pages {
            started: time::parse("2024-10-16T21:03:43Z").expect("a time"),
            ..Pages::of("kube-apiserver", &PATHS, flags)
        }
    }

    async fn page(path: &str, accept: &'static str) -> Result<String, u16> {
        let mut headers = HeaderMap::new();
        if !accept.is_empty() {
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
        }
        let answer = pages().answer(path, &headers).expect("a page");
        let response = answer.map_err(|status| status.code)?;
        let body = response.into_body().collect(1 << 20).await.expect("a body");
        Ok(String::from_utf8(body.to_vec()).expect("text"))
    }

    #[tokio::test]
    async fn people_get_text_and_programs_an_object() {
        let text = page("/statusz", "").await.expect("text");
        assert!(text.contains("\nStarted: Wed Oct 16 21:03:43 UTC 2024\nUp: 0 hr 00 min 00 sec\n"));
        assert!(text.starts_with("\nkube-apiserver statusz\nWarning: "));
        let text = page("/flagz", "application/json, */*").await.expect("text");
        assert!(text.ends_with("\n\nsecure-port=6443\n"), "{text}");
        let accept = "application/json;v=v1beta1;g=config.k8s.io;as=Flagz";
        let object = page("/flagz", accept).await.expect("an object");
        let object: Value = serde_json::from_str(&object).expect("JSON");
        assert_eq!(object["apiVersion"], "config.k8s.io/v1beta1");
        assert_eq!(object["flags"], json!({"secure-port": "6443"}));
        let accept = "application/yaml;v=v1alpha1;g=config.k8s.io;as=Statusz";
        let object = page("/statusz", accept).await.expect("an object");
        assert!(object.contains("kind: Statusz\n"), "{object}");
        for accept in ["application/json", "text/html"] {
            assert_eq!(page("/statusz", accept).await, Err(406));
        }
    }
}
