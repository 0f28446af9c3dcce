//! Node selectors and node affinity (k8s.io/component-helpers/scheduling/corev1/nodeaffinity).

use std::collections::BTreeMap;

use serde::Deserialize;

/// core/v1 NodeSelector: any of the terms.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelector {
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// All of its expressions and fields; an empty term matches no node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorTerm {
    pub match_expressions: Vec<NodeSelectorRequirement>,
    pub match_fields: Vec<NodeSelectorRequirement>,
}

/// One comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorRequirement {
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt`, `Lt`.
    pub operator: String,
    pub values: Vec<String>,
}

/// core/v1 NodeAffinity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub required: Option<NodeSelector>,
    #[serde(rename = "preferredDuringSchedulingIgnoredDuringExecution")]
    pub preferred: Vec<PreferredSchedulingTerm>,
}

/// A term with its weight, 1 to 100.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PreferredSchedulingTerm {
    pub weight: i64,
    pub preference: NodeSelectorTerm,
}

impl NodeSelector {
    /// Whether a node of this name with these labels is selected.
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        self.node_selector_terms
            .iter()
            .any(|term| term.matches(name, labels))
    }
}

impl NodeSelectorTerm {
    /// Whether all of the term holds for a node of this name with these labels.
    pub fn matches(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        if self.match_expressions.is_empty() && self.match_fields.is_empty() {
            return false;
        }
        let label = |key: &str| labels.get(key).map(String::as_str);
        let field = |key: &str| (key == "metadata.name").then_some(name);
        self.match_expressions
            .iter()
            .all(|requirement| requirement.holds(label(&requirement.key)))
            && self
                .match_fields
                .iter()
                .all(|requirement| requirement.holds(field(&requirement.key)))
    }
}

impl NodeSelectorRequirement {
    fn holds(&self, found: Option<&str>) -> bool {
        let among = |value: &str| self.values.iter().any(|wanted| wanted == value);
        let numbers = |value: &str| {
            let wanted = self.values.first()?.parse::<i64>().ok()?;
            Some((value.parse::<i64>().ok()?, wanted))
        };
        match (self.operator.as_str(), found) {
            ("In", Some(value)) => among(value),
            ("NotIn", Some(value)) => !among(value),
            ("NotIn", None) => true,
            ("Exists", found) => found.is_some(),
            ("DoesNotExist", found) => found.is_none(),
            ("Gt", Some(value)) => numbers(value).is_some_and(|(have, wanted)| have > wanted),
            ("Lt", Some(value)) => numbers(value).is_some_and(|(have, wanted)| have < wanted),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_compare_as_upstream() {
        let labels = BTreeMap::from([
            ("zone".to_string(), "a".to_string()),
            ("cores".to_string(), "8".to_string()),
        ]);
        for (key, operator, values, expected) in [
            ("zone", "In", vec!["a", "b"], true),
            ("zone", "NotIn", vec!["a"], false),
            ("missing", "NotIn", vec!["a"], true),
            ("missing", "In", vec!["a"], false),
            ("zone", "Exists", vec![], true),
            ("missing", "DoesNotExist", vec![], true),
            ("cores", "Gt", vec!["4"], true),
            ("cores", "Lt", vec!["4"], false),
            ("zone", "Gt", vec!["4"], false),
        ] {
            let requirement = NodeSelectorRequirement {
                key: key.into(),
                operator: operator.into(),
                values: values.into_iter().map(Into::into).collect(),
            };
            let term = NodeSelectorTerm {
                match_expressions: vec![requirement],
                match_fields: Vec::new(),
            };
            assert_eq!(term.matches("n1", &labels), expected, "{key} {operator}");
        }
    }

    #[test]
    fn an_empty_term_matches_nothing_and_a_field_the_nodes_name() {
        let labels = BTreeMap::new();
        assert!(!NodeSelectorTerm::default().matches("n1", &labels));
        let by_name = NodeSelectorTerm {
            match_expressions: Vec::new(),
            match_fields: vec![NodeSelectorRequirement {
                key: "metadata.name".into(),
                operator: "In".into(),
                values: vec!["n1".into()],
            }],
        };
        assert!(by_name.matches("n1", &labels) && !by_name.matches("n2", &labels));
    }
}
