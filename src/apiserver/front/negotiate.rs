//! What encoding a client takes, for the answers that the front itself gives (Status, discovery, reviews).

use http::HeaderMap;
use http::header::{ACCEPT, USER_AGENT};

use crate::query::Query;

/// Media types in the order upstream prefers them for `*/*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    Json,
    Yaml,
    Protobuf,
}

impl Media {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    fn matches(self, range: &str) -> bool {
        range == "*/*" || range == "application/*" || range.eq_ignore_ascii_case(self.as_str())
    }
}

/// One media range of an Accept header.
#[derive(Clone, Copy, Debug)]
pub struct Clause<'a> {
    pub range: &'a str,
    params: &'a str,
    quality: f32,
}

impl<'a> Clause<'a> {
    /// The value of a parameter such as `as` or `g`.
    pub fn param(&self, name: &str) -> Option<&'a str> {
        self.params.split(';').find_map(|param| {
            let (key, value) = param.split_once('=')?;
            (key.trim().eq_ignore_ascii_case(name)).then(|| value.trim().trim_matches('"'))
        })
    }

    fn parse(text: &'a str) -> Self {
        let (range, params) = text.split_once(';').unwrap_or((text, ""));
        let mut clause = Self {
            range: range.trim(),
            params,
            quality: 1.0,
        };
        if let Some(quality) = clause.param("q") {
            clause.quality = quality.parse().unwrap_or(1.0);
        }
        clause
    }
}

/// The Accept header's clauses, best first; clauses of equal quality keep their order.
pub fn clauses(headers: &HeaderMap) -> Vec<Clause<'_>> {
    let mut clauses: Vec<_> = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .map(Clause::parse)
        .filter(|clause| clause.quality > 0.0)
        .collect();
    clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    clauses
}

/// The best of `offered` that the client takes; the first one without an Accept header.
pub fn choose(headers: &HeaderMap, offered: &[Media]) -> Option<Media> {
    let Some(accept) = headers.get(ACCEPT) else {
        return offered.first().copied();
    };
    if accept == "application/json" || accept == "*/*" {
        return offered.first().copied();
    }
    clauses(headers).iter().find_map(|clause| {
        offered
            .iter()
            .copied()
            .find(|media| media.matches(clause.range))
    })
}

/// Whether JSON is indented: `pretty` says so, or a person's tool asks (upstream's `isPrettyPrint`).
pub fn wants_pretty(headers: &HeaderMap, query: &Query) -> bool {
    if let Some(value) = query.get("pretty").filter(|value| !value.is_empty()) {
        return matches!(value, "1" | "t" | "T" | "true" | "TRUE" | "True");
    }
    headers
        .get(USER_AGENT)
        .and_then(|agent| agent.to_str().ok())
        .is_some_and(|agent| {
            ["curl", "Wget", "Mozilla/5.0"]
                .iter()
                .any(|tool| agent.starts_with(tool))
        })
}

/// How one client's errors are written.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    pub media: Media,
    pub pretty: bool,
}

impl Accepted {
    /// An error is sent as JSON when nothing offered is acceptable.
    pub fn of(headers: &HeaderMap, query: &Query) -> Self {
        let offered = [Media::Json, Media::Yaml, Media::Protobuf];
        Self {
            media: choose(headers, &offered).unwrap_or(Media::Json),
            pretty: wants_pretty(headers, query),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[track_caller]
    fn check(accept: &'static str, expect: Option<Media>) {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        let offered = [Media::Json, Media::Yaml, Media::Protobuf];
        assert_eq!(choose(&headers, &offered), expect, "{accept}");
    }

    #[test]
    fn the_best_quality_wins_and_then_the_order() {
        check("*/*", Some(Media::Json));
        check(
            "application/vnd.kubernetes.protobuf, application/json",
            Some(Media::Protobuf),
        );
        check(
            "application/yaml;q=0.5, application/json;q=0.9",
            Some(Media::Json),
        );
        check("application/json;q=0, application/yaml", Some(Media::Yaml));
        check("text/html", None);
        check("text/html, */*;q=0.8", Some(Media::Json));
    }

    #[test]
    fn parameters_are_found_in_any_order() {
        let clause =
            Clause::parse("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
        assert_eq!(clause.param("as"), Some("APIGroupDiscoveryList"));
        assert_eq!(clause.param("v"), Some("v2"));
        assert_eq!(clause.param("q"), None);
    }

    #[test]
    fn people_get_indented_json() {
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, HeaderValue::from_static("curl/7.88.1"));
        assert!(wants_pretty(&headers, &Query::default()));
        assert!(!wants_pretty(&headers, &Query::parse("pretty=false")));
        assert!(!wants_pretty(&HeaderMap::new(), &Query::default()));
    }
}
