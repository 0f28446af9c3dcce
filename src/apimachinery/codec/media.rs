//! Owns: the names of the encodings and choosing one from `Accept` and `Content-Type`. Knows nothing of how they
//! encode.

/// How an object is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MediaType {
    #[default]
    Json,
    Yaml,
    Protobuf,
}

/// What an answer is turned into (`as=` in Accept).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transform {
    /// The object itself.
    #[default]
    None,
    /// meta.k8s.io/v1 Table.
    Table,
    /// meta.k8s.io/v1 PartialObjectMetadata.
    PartialObjectMetadata,
    /// meta.k8s.io/v1 PartialObjectMetadataList.
    PartialObjectMetadataList,
}

/// What was negotiated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Negotiated {
    /// Encoding.
    pub media: MediaType,
    /// Form of the answer.
    pub transform: Transform,
    /// Version of meta.k8s.io asked for with the transform is v1beta1.
    pub v1beta1: bool,
    /// `application/json;stream=watch` and the like.
    pub stream: bool,
    /// `pretty=1` in the media type.
    pub pretty: bool,
}

/// Every media type the API takes, in the order error texts name them.
pub const ACCEPTED: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];

impl MediaType {
    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        match name {
            "application/json" => Some(Self::Json),
            "application/yaml" => Some(Self::Yaml),
            "application/vnd.kubernetes.protobuf" => Some(Self::Protobuf),
            _ => None,
        }
    }
}

/// The encoding of a body by its `Content-Type`; none given is JSON. `None` is a 415.
pub fn content_type(header: Option<&str>) -> Option<MediaType> {
    let header = header.unwrap_or("").trim();
    if header.is_empty() {
        return Some(MediaType::Json);
    }
    let name = header
        .split(';')
        .next()
        .unwrap_or("")
        .trim()
        .to_ascii_lowercase();
    MediaType::from_name(&name)
}

/// The best encoding for an `Accept` header; none given is JSON. `None` is a 406.
pub fn accept(header: Option<&str>) -> Option<Negotiated> {
    best(header, |_| true)
}

/// The same where an answer has no form as a table: clauses that ask for one are passed over.
pub fn accept_without_table(header: Option<&str>) -> Option<Negotiated> {
    best(header, |negotiated| {
        negotiated.transform != Transform::Table
    })
}

fn best(header: Option<&str>, fits: impl Fn(&Negotiated) -> bool) -> Option<Negotiated> {
    let header = header.unwrap_or("").trim();
    if header.is_empty() {
        return Some(Negotiated::default());
    }
    // A stable sort keeps the client's order among equal qualities.
    let mut clauses: Vec<(u16, &str)> = header
        .split(',')
        .take(MAX_CLAUSES)
        .map(|c| (quality(c), c))
        .collect();
    clauses.sort_by_key(|(quality, _)| std::cmp::Reverse(*quality));
    clauses
        .iter()
        .filter(|(quality, _)| *quality > 0)
        .filter_map(|(_, clause)| parse_clause(clause))
        .find(fits)
}

/// Clauses looked at in one Accept header.
const MAX_CLAUSES: usize = 64;

/// Thousandths of the `q` parameter.
fn quality(clause: &str) -> u16 {
    let q = clause
        .split(';')
        .skip(1)
        .find_map(|p| p.trim().strip_prefix("q="));
    match q.map(str::parse::<f32>) {
        Some(Ok(q)) => (q.clamp(0.0, 1.0) * 1000.0) as u16,
        _ => 1000,
    }
}

fn parse_clause(clause: &str) -> Option<Negotiated> {
    let mut parts = clause.split(';').map(str::trim);
    let name = parts.next()?.to_ascii_lowercase();
    let media = match name.as_str() {
        "*/*" | "application/*" => MediaType::Json,
        name => MediaType::from_name(name)?,
    };
    let mut negotiated = Negotiated {
        media,
        ..Negotiated::default()
    };
    let (mut group, mut version) = ("meta.k8s.io", "v1");
    for part in parts {
        match part.split_once('=').unwrap_or((part, "")) {
            ("as", "Table") => negotiated.transform = Transform::Table,
            ("as", "PartialObjectMetadata") => {
                negotiated.transform = Transform::PartialObjectMetadata
            }
            ("as", "PartialObjectMetadataList") => {
                negotiated.transform = Transform::PartialObjectMetadataList
            }
            ("as", _) => return None,
            ("g", g) => group = g,
            ("v", v) => version = v,
            ("stream", "watch") => negotiated.stream = true,
            ("stream", _) => return None,
            ("pretty", value) => negotiated.pretty = value == "1",
            _ => {}
        }
    }
    if negotiated.transform != Transform::None {
        if group != "meta.k8s.io" || !matches!(version, "v1" | "v1beta1") {
            return None;
        }
        negotiated.v1beta1 = version == "v1beta1";
    }
    Some(negotiated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_clause_wins() {
        let media = |header| accept(Some(header)).map(|n| (n.media, n.transform));
        assert_eq!(accept(None), Some(Negotiated::default()));
        assert_eq!(media("*/*"), Some((MediaType::Json, Transform::None)));
        assert_eq!(
            media("application/yaml"),
            Some((MediaType::Yaml, Transform::None))
        );
        assert_eq!(
            media("text/html, application/json;q=0.5"),
            Some((MediaType::Json, Transform::None))
        );
        assert_eq!(
            media("application/json;q=0.5, application/vnd.kubernetes.protobuf"),
            Some((MediaType::Protobuf, Transform::None))
        );
        assert_eq!(
            media(
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
            ),
            Some((MediaType::Json, Transform::Table))
        );
        assert_eq!(
            media("application/json;as=Nonsense;v=v1;g=meta.k8s.io,application/json"),
            Some((MediaType::Json, Transform::None))
        );
        assert_eq!(media("text/html"), None);
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        assert_eq!(accept_without_table(Some(table)), None);
        assert_eq!(
            accept_without_table(Some(&format!("{table},application/yaml"))).map(|n| n.media),
            Some(MediaType::Yaml)
        );
        assert_eq!(media("application/json;q=0"), None);
    }

    #[test]
    fn content_types_ignore_parameters() {
        assert_eq!(content_type(None), Some(MediaType::Json));
        assert_eq!(
            content_type(Some("application/json; charset=utf-8")),
            Some(MediaType::Json)
        );
        assert_eq!(content_type(Some("text/plain")), None);
    }
}
