//! `$(VAR)` in commands, arguments, environment and sub paths. Pure.

/// Replaces `$(NAME)` by what `lookup` knows; `$$` is a dollar, and what is not
/// known stays as it is (upstream's `third_party/forked/golang/expansion`).
pub fn expand(text: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some((name, tail)) = after.strip_prefix('(').and_then(|s| s.split_once(')')) {
            match lookup(name) {
                Some(value) => out.push_str(&value),
                None => out.push_str(&format!("$({name})")),
            }
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_names_are_replaced_and_the_rest_is_kept() {
        let cases = [
            ("$(A)", "1"),
            ("x$(A)y$(B)", "x1y2"),
            ("$(NONE)", "$(NONE)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$A", "$A"),
            ("$(A", "$(A"),
            ("100$", "100$"),
            ("$()", "$()"),
            ("ü$(A)ü", "ü1ü"),
        ];
        for (text, expected) in cases {
            let lookup = |name: &str| match name {
                "A" => Some("1".to_owned()),
                "B" => Some("2".to_owned()),
                _ => None,
            };
            assert_eq!(expand(text, lookup), expected, "{text}");
        }
    }
}
