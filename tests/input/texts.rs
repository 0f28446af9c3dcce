//! The decoders of texts: selectors, quantities, the continue token.

use apimachinery::quantity::Quantity;
use apimachinery::selector::{FieldSelector, LabelSelector};
use apimachinery::time;
use apiserver::registry::page;

/// The keys of the list that tokens are tried on.
const PREFIX: &[u8] = b"/registry/pods/";

/// A label selector says what it was read from.
pub fn label_selector(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Ok(selector) = LabelSelector::parse(&text) else {
        return;
    };
    let said = selector.to_string();
    let again = LabelSelector::parse(&said).expect("own output");
    assert_eq!(again.to_string(), said, "{text:?}");
}

/// A field selector says what it was read from.
pub fn field_selector(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Ok(selector) = FieldSelector::parse(&text) else {
        return;
    };
    let said = selector.to_string();
    let again = FieldSelector::parse(&said).expect("own output");
    assert_eq!(again, selector, "{text:?}");
}

/// A quantity's canonical text is the same quantity; times and durations are read with the same care.
pub fn quantity(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(quantity) = text.parse::<Quantity>() {
        let said = quantity.to_string();
        let again: Quantity = said.parse().expect("own output");
        assert_eq!(again, quantity, "{text:?}");
        assert_eq!(again.to_string(), said, "{text:?}");
        let mut sum = quantity;
        sum.add(&quantity);
        sum.sub(&quantity.neg());
        let _ = (
            sum.value(),
            sum.milli_value(),
            sum.as_f64(),
            sum.to_string(),
        );
    }
    if let Some(time) = time::parse(&text) {
        let _ = (
            time::format(time),
            time::format_micro(time),
            time::format_nano(time),
        );
    }
    let _ = time::parse_go_duration(&text).map(time::go_duration);
}

/// A continue token leads into its list and nowhere else. What is no base64 is also tried as what base64 would hold.
pub fn continue_token(bytes: &[u8]) {
    use base64::Engine;
    let text = String::from_utf8_lossy(bytes);
    let packed = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
    for token in [&*text, &packed] {
        let Ok(page) = page::decode(PREFIX, token) else {
            continue;
        };
        assert!(page.start.starts_with(PREFIX), "{token}");
        assert!(
            !page.start.windows(4).any(|part| part == b"/../"),
            "{token}"
        );
        if page.start.ends_with(b"\0") {
            let last = page.start.strip_suffix(b"\0").expect("seen");
            let again = page::decode(PREFIX, &page::encode(PREFIX, last, page.revision))
                .expect("own output");
            assert_eq!(again, page, "{token}");
        }
    }
}
