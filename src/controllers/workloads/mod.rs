//! Controllers that keep pods running: what they share is how pods are found, made and deleted (`pods`) and how one's
//! own writes are waited for (`ledger`).

#[cfg(test)]
mod chaos;
pub mod daemon_set;
pub mod deployment;
pub mod ledger;
pub mod pods;
pub mod replica_set;
mod revisions;
pub mod stateful_set;

use apimachinery::{Value, selector::LabelSelector};

/// A label selector, or the plain labels a ReplicationController selects by; what is malformed selects nothing.
pub fn selector_of(selector: &Value) -> LabelSelector {
    let plain = selector
        .as_object()
        .filter(|labels| !labels.is_empty() && labels.values().all(Value::is_string));
    if let Some(labels) = plain {
        let text = |value: &Value| value.as_str().unwrap_or("").to_string();
        return LabelSelector::from_labels(
            labels.iter().map(|(key, value)| (key.clone(), text(value))),
        );
    }
    LabelSelector::from_value(selector).unwrap_or_else(|_| LabelSelector::nothing())
}

/// A short name for a template: FNV-1a over its JSON and the collision count, in letters that spell no words
/// (rand.SafeEncodeString). Upstream hashes another text of the same template, so names differ between the two.
fn hash(template: &Value, collisions: Option<i64>) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut hash: u32 = 0x811c_9dc5;
    let mut feed = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
        }
    };
    feed(template.to_string().as_bytes());
    if let Some(collisions) = collisions {
        feed(&collisions.to_le_bytes());
    }
    let digits = hash.to_string();
    digits
        .bytes()
        .map(|byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]))
        .collect()
}
