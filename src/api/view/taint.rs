//! Taints of nodes and the tolerations of pods (k8s.io/component-helpers/scheduling/corev1).

use serde::{Deserialize, Serialize};

/// core/v1 Taint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    pub key: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_added: Option<String>,
}

/// core/v1 Toleration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    /// Empty, with `Exists`: all keys.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// `Equal` (also when empty) or `Exists`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operator: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Empty: all effects.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub effect: String,
    /// How long a `NoExecute` taint is tolerated; absent is for ever, 0 and less not at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

impl Taint {
    /// A taint without a value.
    pub fn new(key: &str, effect: &str) -> Self {
        Taint {
            key: key.into(),
            effect: effect.into(),
            ..Taint::default()
        }
    }

    /// Whether both are the same taint: a node has one of each key and effect.
    pub fn same(&self, other: &Taint) -> bool {
        self.key == other.key && self.effect == other.effect
    }
}

impl Toleration {
    /// Whether this toleration covers the taint (ToleratesTaint).
    pub fn tolerates(&self, taint: &Taint) -> bool {
        let effect = self.effect.is_empty() || self.effect == taint.effect;
        let key = self.key.is_empty() || self.key == taint.key;
        let value = match self.operator.as_str() {
            "" | "Equal" => self.value == taint.value,
            "Exists" => true,
            _ => false,
        };
        effect && key && value
    }
}

/// The first of the taints with one of these effects that no toleration covers (FindMatchingUntoleratedTaint).
pub fn untolerated<'a>(
    taints: &'a [Taint],
    tolerations: &[Toleration],
    effects: &[&str],
) -> Option<&'a Taint> {
    taints
        .iter()
        .filter(|taint| effects.contains(&taint.effect.as_str()))
        .find(|taint| {
            !tolerations
                .iter()
                .any(|toleration| toleration.tolerates(taint))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toleration_covers_by_key_operator_value_and_effect() {
        let taint = Taint {
            value: "v".into(),
            ..Taint::new("k", "NoSchedule")
        };
        for (key, operator, value, effect, expected) in [
            ("k", "Equal", "v", "NoSchedule", true),
            ("k", "", "v", "", true),
            ("k", "", "other", "", false),
            ("k", "Exists", "", "", true),
            ("k", "Exists", "", "NoExecute", false),
            ("", "Exists", "", "", true),
            ("other", "Exists", "", "", false),
            ("k", "Gt", "v", "", false),
        ] {
            let toleration = Toleration {
                key: key.into(),
                operator: operator.into(),
                value: value.into(),
                effect: effect.into(),
                toleration_seconds: None,
            };
            assert_eq!(toleration.tolerates(&taint), expected, "{toleration:?}");
        }
    }
}
