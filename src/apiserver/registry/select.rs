//! Selectors of lists and watches: which field labels a kind knows, where their values lie, and the predicate of a request.

use api::Resource;
use apimachinery::Status;
use apimachinery::selector::{FieldSelector, LabelSelector, Labels};
use bytes::Bytes;

use super::kind::Kind;
use crate::cache::{Entry, Path, Selection};

/// Where the value of a field label comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Name,
    Namespace,
    /// Numbers of scanned paths, tried in order, and the value when none is there.
    Paths(Vec<usize>, &'static str),
}

/// The field labels of one kind, in all its versions.
#[derive(Debug, Default)]
pub struct Fields {
    labels: Vec<(&'static str, Source)>,
    paths: Vec<Path>,
}

impl Fields {
    /// Collects the labels of `versions`; `paths` and `default` are the kind's rules.
    pub fn new(
        versions: &[&'static Resource],
        paths: impl Fn(&str) -> Option<Vec<Path>>,
        default: impl Fn(&str) -> &'static str,
    ) -> Self {
        let mut fields = Self::default();
        for label in versions.iter().flat_map(|resource| resource.field_labels) {
            if fields.labels.iter().any(|(have, _)| have == label) {
                continue;
            }
            let source = match *label {
                "metadata.name" => Source::Name,
                "metadata.namespace" => Source::Namespace,
                label => {
                    let list = paths(label).unwrap_or_else(|| vec![label.split('.').collect()]);
                    let numbers = list.into_iter().map(|path| fields.number(path)).collect();
                    Source::Paths(numbers, default(label))
                }
            };
            fields.labels.push((label, source));
        }
        fields
    }

    fn number(&mut self, path: Path) -> usize {
        if let Some(at) = self.paths.iter().position(|have| *have == path) {
            return at;
        }
        self.paths.push(path);
        self.paths.len() - 1
    }

    /// The paths that entries are scanned for.
    pub fn paths(&self) -> Vec<Path> {
        self.paths.clone()
    }

    fn source(&self, label: &str) -> Option<&Source> {
        self.labels
            .iter()
            .find(|(have, _)| *have == label)
            .map(|(_, source)| source)
    }
}

impl Source {
    fn value<'a>(&self, entry: &'a Entry) -> &'a str {
        match self {
            Self::Name => entry.name(),
            Self::Namespace => entry.namespace(),
            Self::Paths(numbers, default) => numbers
                .iter()
                .find_map(|number| entry.field(*number).filter(|text| !text.is_empty()))
                .unwrap_or(default),
        }
    }
}

/// The selectors of a request, parsed.
pub struct Selectors {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selectors {
    /// Errs as upstream does for what cannot be parsed or is not supported by the resource.
    pub fn parse(resource: &Resource, labels: &str, fields: &str) -> Result<Self, Status> {
        let labels = LabelSelector::parse(labels).map_err(|error| {
            Status::bad_request(format!("unable to parse requirement: {error}"))
        })?;
        let fields = FieldSelector::parse(fields).map_err(Status::bad_request)?;
        for requirement in fields.requirements() {
            let label = requirement.field.as_str();
            if resource.field_labels.contains(&label)
                || label == "metadata.name"
                || (label == "metadata.namespace" && resource.namespaced)
            {
                continue;
            }
            let only_metadata = resource
                .field_labels
                .iter()
                .all(|label| label.starts_with("metadata."));
            return Err(Status::bad_request(if only_metadata {
                format!(
                    "{label:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                )
            } else {
                format!("field label not supported: {label}")
            }));
        }
        Ok(Self { labels, fields })
    }

    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// What the cache is asked for: `namespace` empty is all of them.
    pub fn selection(self, kind: &Kind, scope: Bytes, namespace: &str) -> Selection {
        let only = self
            .fields
            .exact("metadata.name")
            .filter(|name| !name.is_empty() && (!namespace.is_empty() || !kind.storage.namespaced))
            .map(|name| kind.key(namespace, name));
        if self.is_everything() {
            return Selection::all(scope);
        }
        let checks: Vec<(Source, String, bool)> = self
            .fields
            .requirements()
            .iter()
            .map(|requirement| {
                let source = kind.fields.source(&requirement.field).cloned();
                let source = source.unwrap_or(match requirement.field.as_str() {
                    "metadata.name" => Source::Name,
                    "metadata.namespace" => Source::Namespace,
                    _ => Source::Paths(Vec::new(), ""),
                });
                (source, requirement.value.clone(), requirement.equal)
            })
            .collect();
        let of_node = kind.storage.plural == "pods" && self.fields.exact("spec.nodeName").is_some();
        let labels = (!self.labels.is_everything()).then_some(self.labels);
        Selection {
            prefix: scope,
            only,
            of_node,
            predicate: Some(Box::new(move |entry: &Entry| {
                checks
                    .iter()
                    .all(|(source, value, equal)| (source.value(entry) == value) == *equal)
                    && labels
                        .as_ref()
                        .is_none_or(|selector| selector.matches(&EntryLabels(entry)))
            })),
        }
    }
}

struct EntryLabels<'a>(&'a Entry);

impl Labels for EntryLabels<'_> {
    fn get_label(&self, key: &str) -> Option<&str> {
        self.0.label(key)
    }
}
