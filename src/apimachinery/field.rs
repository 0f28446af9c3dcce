//! Owns: paths into an object and the errors validation finds there, with upstream's texts
//! (k8s.io/apimachinery/pkg/util/validation/field). Knows nothing of HTTP; `status::Status::invalid` turns a list
//! into an answer.

use serde::Serialize;
use serde_json::Value;
use std::fmt;

/// A path such as `spec.containers[0].env[FOO]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Path(String);

impl Path {
    /// A path of one field, or of several joined by dots.
    pub fn new(root: impl Into<String>) -> Self {
        Self(root.into())
    }

    /// The path of a field below this one.
    pub fn child(&self, name: &str) -> Self {
        let mut path = String::with_capacity(self.0.len() + name.len() + 1);
        path.push_str(&self.0);
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(name);
        Self(path)
    }

    /// The path of a list item by position.
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// The path of a map entry or a keyed list item.
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Path {
    fn from(path: &str) -> Self {
        Self(path.to_owned())
    }
}

/// What is wrong with a field (field.ErrorType).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorType {
    NotFound,
    Required,
    Duplicate,
    Invalid,
    NotSupported,
    Forbidden,
    TooLong,
    TooMany,
    Internal,
    TypeInvalid,
}

impl ErrorType {
    /// The machine-readable word used in `details.causes[].reason`.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NotFound => "FieldValueNotFound",
            Self::Required => "FieldValueRequired",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
            Self::Internal => "InternalError",
            Self::TypeInvalid => "FieldValueTypeInvalid",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::NotFound => "Not found",
            Self::Required => "Required value",
            Self::Duplicate => "Duplicate value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
            Self::Internal => "Internal error",
        }
    }

    fn shows_value(self) -> bool {
        !matches!(
            self,
            Self::Required | Self::Forbidden | Self::TooLong | Self::Internal
        )
    }
}

/// One validation error (field.Error).
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    /// What is wrong.
    pub kind: ErrorType,
    /// Where.
    pub field: Path,
    /// The offending value, shown for the types that show one.
    pub value: Value,
    /// Whether the value stays out of the message (field.OmitValueType).
    pub omits_value: bool,
    /// What would be right; may be empty.
    pub detail: String,
}

impl Error {
    fn new(
        kind: ErrorType,
        field: &Path,
        value: impl Serialize,
        detail: impl Into<String>,
    ) -> Self {
        let value = serde_json::to_value(value).unwrap_or(Value::Null);
        Self {
            kind,
            field: field.clone(),
            value,
            omits_value: false,
            detail: detail.into(),
        }
    }

    /// The same error without its value, which is too large or says nothing.
    pub fn without_value(mut self) -> Self {
        self.omits_value = true;
        self
    }

    /// A value that must be given and is not.
    pub fn required(field: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Required, field, "", detail)
    }

    /// A value that is malformed or out of range.
    pub fn invalid(field: &Path, value: impl Serialize, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Invalid, field, value, detail)
    }

    /// A value of the wrong type.
    pub fn type_invalid(field: &Path, value: impl Serialize, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::TypeInvalid, field, value, detail)
    }

    /// A value outside an enumeration.
    pub fn not_supported<S: AsRef<str>>(field: &Path, value: impl Serialize, valid: &[S]) -> Self {
        let quoted: Vec<String> = valid.iter().map(|v| quote(v.as_ref())).collect();
        let detail = if quoted.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", quoted.join(", "))
        };
        Self::new(ErrorType::NotSupported, field, value, detail)
    }

    /// A value that must be unique and is not.
    pub fn duplicate(field: &Path, value: impl Serialize) -> Self {
        Self::new(ErrorType::Duplicate, field, value, "")
    }

    /// A field that may not be used here.
    pub fn forbidden(field: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Forbidden, field, "", detail)
    }

    /// Something referred to that does not exist.
    pub fn not_found(field: &Path, value: impl Serialize) -> Self {
        Self::new(ErrorType::NotFound, field, value, "")
    }

    /// A text longer than `max` bytes.
    pub fn too_long(field: &Path, max: usize) -> Self {
        Self::new(
            ErrorType::TooLong,
            field,
            "",
            format!("may not be more than {max} bytes"),
        )
    }

    /// A list of `actual` items where `max` are allowed.
    pub fn too_many(field: &Path, actual: usize, max: usize) -> Self {
        let items = if max == 1 { "item" } else { "items" };
        Self::new(
            ErrorType::TooMany,
            field,
            actual,
            format!("must have at most {max} {items}"),
        )
    }

    /// A failure of the server, not of the input.
    pub fn internal(field: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Internal, field, "", detail)
    }

    /// The message without the path (field.Error.ErrorBody).
    pub fn body(&self) -> String {
        let mut body = self.kind.words().to_owned();
        if self.kind.shows_value() && !self.omits_value {
            body.push_str(": ");
            match &self.value {
                Value::String(text) => body.push_str(&quote(text)),
                other => body.push_str(&other.to_string()),
            }
        }
        if !self.detail.is_empty() {
            body.push_str(": ");
            body.push_str(&self.detail);
        }
        body
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// Quotes a text as Go's `%q` does: printable characters stay, control characters are escaped.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                out.push_str(&format!("\\x{:02x}", c as u32))
            }
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The errors of one object, in the order they were found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorList(Vec<Error>);

impl ErrorList {
    /// No error yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one error.
    pub fn push(&mut self, error: Error) {
        self.0.push(error);
    }

    /// One `Invalid` per message, as validators that return several messages are used upstream.
    pub fn push_invalid(
        &mut self,
        field: &Path,
        value: &str,
        messages: impl IntoIterator<Item = String>,
    ) {
        self.0.extend(
            messages
                .into_iter()
                .map(|message| Error::invalid(field, value, message)),
        );
    }

    /// What was found, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Error> {
        self.0.iter_mut()
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many errors were found.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The errors in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Error> {
        self.0.iter()
    }

    /// The texts as upstream joins them: one bare, several in brackets, repeats once (ErrorList.ToAggregate).
    pub fn aggregate(&self) -> String {
        let mut texts: Vec<String> = Vec::with_capacity(self.0.len());
        for error in &self.0 {
            let text = error.to_string();
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        match texts.len() {
            1 => texts.swap_remove(0),
            _ => format!("[{}]", texts.join(", ")),
        }
    }
}

impl Extend<Error> for ErrorList {
    fn extend<I: IntoIterator<Item = Error>>(&mut self, errors: I) {
        self.0.extend(errors);
    }
}

impl IntoIterator for ErrorList {
    type Item = Error;
    type IntoIter = std::vec::IntoIter<Error>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl From<Error> for ErrorList {
    fn from(error: Error) -> Self {
        Self(vec![error])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(error: Error, text: &str) {
        assert_eq!(error.to_string(), text);
    }

    #[test]
    fn errors_read_as_upstreams() {
        let path = Path::new("spec").child("containers").index(0).child("name");
        check(
            Error::required(&path, ""),
            "spec.containers[0].name: Required value",
        );
        check(
            Error::required(&path, "why"),
            "spec.containers[0].name: Required value: why",
        );
        check(
            Error::invalid(&path, "A", "no"),
            "spec.containers[0].name: Invalid value: \"A\": no",
        );
        check(
            Error::invalid(&path, 7, "no"),
            "spec.containers[0].name: Invalid value: 7: no",
        );
        check(
            Error::not_supported(&path, "x", &["A", "B"]),
            "spec.containers[0].name: Unsupported value: \"x\": supported values: \"A\", \"B\"",
        );
        check(
            Error::duplicate(&path, "x"),
            "spec.containers[0].name: Duplicate value: \"x\"",
        );
        check(
            Error::forbidden(&path, "never"),
            "spec.containers[0].name: Forbidden: never",
        );
        check(
            Error::too_long(&path, 63),
            "spec.containers[0].name: Too long: may not be more than 63 bytes",
        );
        check(
            Error::too_many(&path, 5, 3),
            "spec.containers[0].name: Too many: 5: must have at most 3 items",
        );
        check(
            Error::not_found(&Path::new("a").key("k"), "x"),
            "a[k]: Not found: \"x\"",
        );
    }

    #[test]
    fn several_errors_are_listed_in_brackets_and_repeats_once() {
        let mut errors = ErrorList::new();
        errors.push(Error::required(&Path::new("a"), ""));
        errors.push(Error::required(&Path::new("a"), ""));
        assert_eq!(errors.aggregate(), "a: Required value");
        errors.push(Error::required(&Path::new("b"), ""));
        assert_eq!(errors.aggregate(), "[a: Required value, b: Required value]");
    }

    #[test]
    fn control_characters_are_quoted_as_go_does() {
        assert_eq!(quote("a\"\\\n\u{1}é"), "\"a\\\"\\\\\\n\\x01é\"");
    }
}
