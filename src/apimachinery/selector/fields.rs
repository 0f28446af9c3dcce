//! Owns: field selectors: `metadata.name=a,spec.nodeName!=b`.

use std::fmt;

/// One comparison of a field selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldRequirement {
    /// Field label, `metadata.name`.
    pub field: String,
    /// Text to compare with.
    pub value: String,
    /// True for `=`, false for `!=`.
    pub equal: bool,
}

/// A field selector: every comparison must hold. The default one selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    requirements: Vec<FieldRequirement>,
}

impl FieldSelector {
    /// Selects every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Selects objects whose field has this value.
    pub fn equals(field: &str, value: &str) -> Self {
        Self {
            requirements: vec![FieldRequirement {
                field: field.to_owned(),
                value: value.to_owned(),
                equal: true,
            }],
        }
    }

    /// Parses `a=b,c==d,e!=f`; `\,`, `\=` and `\\` stand for themselves in values.
    ///
    /// # Errors
    /// `invalid selector: …` in upstream's words (fields.ParseSelector).
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut requirements = Vec::new();
        for term in split_terms(text) {
            if term.is_empty() {
                continue;
            }
            let invalid = || format!("invalid selector: '{text}'; can't understand '{term}'");
            let at = find_operator(term).ok_or_else(invalid)?;
            let (field, operator) = (&term[..at], &term[at..]);
            let (equal, value) = if let Some(value) = operator.strip_prefix("!=") {
                (false, value)
            } else if let Some(value) = operator.strip_prefix("==") {
                (true, value)
            } else {
                (true, operator.strip_prefix('=').ok_or_else(invalid)?)
            };
            requirements.push(FieldRequirement {
                field: field.to_owned(),
                value: unescape(value)?,
                equal,
            });
        }
        requirements.sort_by(|a, b| a.field.cmp(&b.field));
        Ok(Self { requirements })
    }

    /// Whether every comparison holds; `get` gives a field's text, `None` being an absent one, which equals "".
    pub fn matches<'a>(&self, mut get: impl FnMut(&str) -> Option<&'a str>) -> bool {
        self.requirements
            .iter()
            .all(|r| (get(&r.field).unwrap_or("") == r.value) == r.equal)
    }

    /// Whether every object matches.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The value this field must have, if the selector demands one.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.requirements
            .iter()
            .find(|r| r.equal && r.field == field)
            .map(|r| r.value.as_str())
    }

    /// The comparisons, sorted by field.
    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.requirements
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, r) in self.requirements.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let operator = if r.equal { "=" } else { "!=" };
            let value = r
                .value
                .replace('\\', "\\\\")
                .replace(',', "\\,")
                .replace('=', "\\=");
            write!(f, "{comma}{}{operator}{value}", r.field)?;
        }
        Ok(())
    }
}

fn split_terms(text: &str) -> Vec<&str> {
    let (mut terms, mut start, mut escaped) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

fn find_operator(term: &str) -> Option<usize> {
    term.char_indices()
        .find(|(at, _)| term[*at..].starts_with('=') || term[*at..].starts_with("!="))
        .map(|(at, _)| at)
}

fn unescape(value: &str) -> Result<String, String> {
    let mut out = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => match characters.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                Some(c) => {
                    return Err(format!(
                        "invalid field selector: invalid escape sequence: \\{c}"
                    ));
                }
                None => {
                    return Err("invalid field selector: invalid escape sequence: \\".to_owned());
                }
            },
            ',' | '=' => {
                return Err(format!(
                    "invalid field selector: unescaped character in value: {c}"
                ));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_selectors_compare_and_unescape() {
        let selector =
            FieldSelector::parse(r"metadata.name=a\,b,spec.nodeName!=n,status.phase==Running")
                .expect("valid");
        let get = |field: &str| match field {
            "metadata.name" => Some("a,b"),
            "status.phase" => Some("Running"),
            _ => None,
        };
        assert!(selector.matches(get));
        assert_eq!(selector.exact("metadata.name"), Some("a,b"));
        assert_eq!(
            FieldSelector::parse(&selector.to_string()).expect("own output"),
            selector
        );
        assert!(FieldSelector::parse("a").is_err());
        assert!(FieldSelector::parse(r"a=\x").is_err());
        assert!(FieldSelector::parse("").expect("empty").is_everything());
    }
}
