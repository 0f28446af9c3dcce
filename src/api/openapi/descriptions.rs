//! What types and fields mean, in words: a compressed table out of the k8s-openapi crate's rustdoc
//! (`hack/update-descriptions`), unpacked for as long as a document is being made.

use std::collections::HashMap;
use std::io::Read;

const PACKED: &[u8] = include_bytes!("../generated/descriptions.json.gz");

const API_VERSION: &str = "The versioned schema of this representation of an object: group and version, or the version alone for the core group.";
const KIND: &str = "The REST resource this object represents, in CamelCase. It is given by the endpoint a request goes to and cannot be changed.";
const ITEMS: &str = "The objects of the list.";
const LIST_METADATA: &str = "Standard list metadata.";

/// Definition name → (`""` or JSON field name) → words.
pub struct Descriptions(HashMap<String, HashMap<String, String>>);

impl Descriptions {
    pub fn unpack() -> Self {
        let mut text = Vec::new();
        let unpacked = flate2::read::GzDecoder::new(PACKED).read_to_end(&mut text);
        // The bytes are part of the binary and a test unpacks them: an empty table is only possible in theory.
        let table = unpacked
            .ok()
            .and_then(|_| serde_json::from_slice(&text).ok());
        Self(table.unwrap_or_default())
    }

    /// What the type is for.
    pub fn of_type(&self, definition: &str) -> Option<String> {
        if let Some(words) = self.0.get(definition).and_then(|fields| fields.get("")) {
            return Some(words.clone());
        }
        let kind = definition.rsplit('.').next()?.strip_suffix("List")?;
        Some(format!("{kind}List is a collection of {kind} objects."))
    }

    /// What the field is for.
    pub fn of_field(&self, definition: &str, field: &str) -> Option<String> {
        if let Some(words) = self.0.get(definition).and_then(|fields| fields.get(field)) {
            return Some(words.clone());
        }
        let words = match field {
            "apiVersion" => API_VERSION,
            "kind" => KIND,
            "items" => ITEMS,
            "metadata" if definition.ends_with("List") => LIST_METADATA,
            _ => return None,
        };
        Some(words.to_owned())
    }
}
