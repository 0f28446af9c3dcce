//! Broken input: golden bytes with random damage go through every decoder, and what still decodes goes through every
//! transformation. Nothing may panic; the damage is the same in every run.

use crate::golden::{folder, objects, read};
use crate::random::Random;
use apimachinery::apply::FieldSet;
use apimachinery::apply::managed_fields::{Write, apply, update};
use apimachinery::codec::{json, protobuf, yaml};
use apimachinery::patch::{json_patch, merge_patch, strategic_merge};
use apimachinery::quantity::Quantity;
use apimachinery::schema::{Message, conform, unknown_fields};
use apimachinery::selector::{FieldSelector, LabelSelector};
use apimachinery::{Value, time};

/// Damaged inputs of each kind and encoding.
const ROUNDS: usize = 6;

impl Random {
    /// Changes, removes, repeats or cuts some bytes.
    fn damage(&mut self, bytes: &[u8]) -> Vec<u8> {
        const INTERESTING: &[u8] = b"\0\xff\x80{}[]\",:\\-0eE.$&*!|>\n\t #";
        let mut out = bytes.to_vec();
        for _ in 0..=self.below(6) {
            let at = self.below(out.len());
            match self.below(6) {
                0 => out[at] = self.next() as u8,
                1 => out[at] = INTERESTING[self.below(INTERESTING.len())],
                2 => {
                    out.remove(at);
                }
                3 => out.insert(at, INTERESTING[self.below(INTERESTING.len())]),
                4 => {
                    let end = (at + self.below(40)).min(out.len());
                    let part = out[at..end].to_vec();
                    let to = self.below(out.len());
                    out.splice(to..to, part);
                }
                _ => out.truncate(at.max(1)),
            }
            if out.is_empty() {
                out.push(b'{');
            }
        }
        out
    }
}

/// Everything that is done with an object.
fn put_through(object: Value, original: &Value, message: &'static Message) {
    let reset = FieldSet::new();
    let write = Write {
        manager: "m",
        api_version: "v1",
        subresource: "",
        now: "2026-01-01T00:00:00Z",
        message,
        reset: &reset,
    };
    let _ = unknown_fields(&object, message);
    let _ = strategic_merge(original.clone(), object.clone(), message);
    merge_patch(&mut original.clone(), object.clone());
    let _ = json_patch(&mut original.clone(), &object);
    let _ = apply(original, &object, &write, true);
    let _ = LabelSelector::from_value(&object);
    let _ = yaml::encode(&object);
    let _ = protobuf::encode_object(&object, message);
    let mut fitted = object;
    if conform(&mut fitted, message).is_ok() {
        update(original, &mut fitted, &write);
        let _ = json::encode(&fitted);
    }
}

#[test]
fn damaged_objects_panic_nothing() {
    let Some(folder) = folder() else { return };
    let mut random = Random(0x5eed);
    for (name, message) in objects(&folder) {
        let original = json::decode(&read(&folder, &name, "json"))
            .expect("golden JSON")
            .value;
        for _ in 0..ROUNDS {
            if let Ok(decoded) = json::decode(&random.damage(&read(&folder, &name, "json"))) {
                put_through(decoded.value, &original, message);
            }
            if let Ok(decoded) = yaml::decode(&random.damage(&read(&folder, &name, "yaml"))) {
                put_through(decoded.value, &original, message);
            }
            if let Ok(value) =
                protobuf::decode_object(&random.damage(&read(&folder, &name, "pb")), |_, _| {
                    Some(message)
                })
            {
                put_through(value, &original, message);
            }
        }
    }
}

#[test]
fn damaged_texts_panic_nothing() {
    let mut random = Random(0xfeed);
    let texts = [
        "a in (x,y),!b,c!=d,e>3",
        "metadata.name=a\\,b,spec.x!=y",
        "1.5Gi",
        "-12e6",
        "128974848n",
        "2026-10-31T14:28:09.000001Z",
        "1h2m3.5s",
    ];
    for text in texts {
        for _ in 0..2_000 {
            let damaged = random.damage(text.as_bytes());
            let damaged = String::from_utf8_lossy(&damaged);
            let _ = LabelSelector::parse(&damaged).map(|selector| selector.to_string());
            let _ = FieldSelector::parse(&damaged).map(|selector| selector.to_string());
            if let Ok(quantity) = damaged.parse::<Quantity>() {
                let text = quantity.to_string();
                assert_eq!(
                    text.parse::<Quantity>().expect("own output"),
                    quantity,
                    "{damaged}"
                );
            }
            if let Some(parsed) = time::parse(&damaged) {
                let _ = (
                    time::format(parsed),
                    time::format_micro(parsed),
                    time::format_nano(parsed),
                );
            }
            let _ = time::parse_go_duration(&damaged).map(time::go_duration);
        }
    }
}
