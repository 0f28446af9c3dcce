//! What the tests of the kinds' rules share.

use apimachinery::field::ErrorList;

/// The errors are these, word for word and in this order.
#[track_caller]
pub fn check(errors: ErrorList, expect: &[&str]) {
    let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(texts, expect);
}
