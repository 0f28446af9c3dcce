//! What encoding a client takes, for the answers that the front itself gives (Status, discovery, reviews).

use apimachinery::codec::media::{self, MediaType};
use http::HeaderMap;
use http::header::{ACCEPT, USER_AGENT};

use crate::query::Query;

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

/// How one client's errors and documents are written.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    pub media: MediaType,
    pub pretty: bool,
}

impl Accepted {
    /// JSON when nothing that can be had is acceptable: an error has to be sent somehow.
    pub fn of(headers: &HeaderMap, query: &Query) -> Self {
        let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
        Self {
            media: media::accept(accept).unwrap_or_default().media,
            pretty: wants_pretty(headers, query),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn the_best_quality_comes_first_and_then_the_order() {
        let mut headers = HeaderMap::new();
        let accept = "a/a;q=0.5, b/b, c/c;q=0, d/d";
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        let ranges: Vec<_> = clauses(&headers)
            .iter()
            .map(|clause| clause.range)
            .collect();
        assert_eq!(ranges, ["b/b", "d/d", "a/a"]);
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
