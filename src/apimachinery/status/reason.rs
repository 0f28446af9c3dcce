//! Owns: the machine-readable reasons of a `Status`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a request failed, in one machine-readable word (metav1.StatusReason).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// No reason given, the empty word.
    #[default]
    Unknown,
    Unauthorized,
    Forbidden,
    NotFound,
    AlreadyExists,
    Conflict,
    Gone,
    Invalid,
    ServerTimeout,
    StoreReadError,
    Timeout,
    TooManyRequests,
    BadRequest,
    MethodNotAllowed,
    NotAcceptable,
    RequestEntityTooLarge,
    UnsupportedMediaType,
    InternalError,
    Expired,
    ServiceUnavailable,
    /// A word this version does not know.
    Other(String),
}

const REASONS: &[(&str, Reason)] = &[
    ("", Reason::Unknown),
    ("Unauthorized", Reason::Unauthorized),
    ("Forbidden", Reason::Forbidden),
    ("NotFound", Reason::NotFound),
    ("AlreadyExists", Reason::AlreadyExists),
    ("Conflict", Reason::Conflict),
    ("Gone", Reason::Gone),
    ("Invalid", Reason::Invalid),
    ("ServerTimeout", Reason::ServerTimeout),
    ("StorageReadError", Reason::StoreReadError),
    ("Timeout", Reason::Timeout),
    ("TooManyRequests", Reason::TooManyRequests),
    ("BadRequest", Reason::BadRequest),
    ("MethodNotAllowed", Reason::MethodNotAllowed),
    ("NotAcceptable", Reason::NotAcceptable),
    ("RequestEntityTooLarge", Reason::RequestEntityTooLarge),
    ("UnsupportedMediaType", Reason::UnsupportedMediaType),
    ("InternalError", Reason::InternalError),
    ("Expired", Reason::Expired),
    ("ServiceUnavailable", Reason::ServiceUnavailable),
];

impl Reason {
    /// The word on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Other(word) => word,
            known => REASONS
                .iter()
                .find(|(_, reason)| reason == known)
                .map_or("", |(word, _)| word),
        }
    }
}

impl From<&str> for Reason {
    fn from(word: &str) -> Self {
        REASONS
            .iter()
            .find(|(known, _)| *known == word)
            .map_or_else(
                || Self::Other(word.to_owned()),
                |(_, reason)| reason.clone(),
            )
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Ok(Self::from(word.as_ref()))
    }
}
