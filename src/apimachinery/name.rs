//! Owns: the syntax of names, labels and the like, with upstream's messages
//! (k8s.io/apimachinery/pkg/util/validation). Each validator returns the messages it found, none when valid.

/// Longest DNS-1123 or DNS-1035 label.
pub const DNS_LABEL_MAX: usize = 63;
/// Longest DNS-1123 subdomain.
pub const DNS_SUBDOMAIN_MAX: usize = 253;
/// Longest label value and name part of a qualified name.
pub const LABEL_MAX: usize = 63;

/// `must be no more than N bytes`.
pub fn max_length(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

const EMPTY: &str = "must be non-empty";
const DNS_1123_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const DNS_1123_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const DNS_1035_LABEL: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const QUALIFIED_TWICE: &str = "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

fn lower_alphanumeric(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn is_dns_1123_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |b: Option<&u8>| b.is_some_and(|b| lower_alphanumeric(*b));
    edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| lower_alphanumeric(*b) || *b == b'-')
}

fn is_word(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let inner = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(inner)
}

fn collect(text: &str, max: usize, valid: bool, message: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > max {
        messages.push(max_length(max));
    }
    if !valid {
        messages.push(message.to_owned());
    }
    messages
}

/// A DNS label that may start with a digit: names of namespaces, containers, most parts of names.
pub fn dns_1123_label(text: &str) -> Vec<String> {
    collect(text, DNS_LABEL_MAX, is_dns_1123_label(text), DNS_1123_LABEL)
}

/// DNS labels joined by dots: names of most objects.
pub fn dns_1123_subdomain(text: &str) -> Vec<String> {
    collect(
        text,
        DNS_SUBDOMAIN_MAX,
        text.split('.').all(is_dns_1123_label),
        DNS_1123_SUBDOMAIN,
    )
}

/// A DNS label that starts with a letter: names of services.
pub fn dns_1035_label(text: &str) -> Vec<String> {
    let starts = text.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
    collect(
        text,
        DNS_LABEL_MAX,
        starts && is_dns_1123_label(text),
        DNS_1035_LABEL,
    )
}

/// An optional DNS prefix and a name: keys of labels, annotations, taints and finalizers.
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    let name = match text.split_once('/') {
        None => text,
        Some((_, name)) if name.contains('/') => return vec![QUALIFIED_TWICE.to_owned()],
        Some((prefix, name)) => {
            if prefix.is_empty() {
                messages.push(format!("prefix part {EMPTY}"));
            } else {
                messages.extend(
                    dns_1123_subdomain(prefix)
                        .into_iter()
                        .map(|m| format!("prefix part {m}")),
                );
            }
            name
        }
    };
    if name.is_empty() {
        messages.push(format!("name part {EMPTY}"));
    } else if name.len() > LABEL_MAX {
        messages.push(format!("name part {}", max_length(LABEL_MAX)));
    }
    if !is_word(name) {
        messages.push(format!("name part {QUALIFIED}"));
    }
    messages
}

/// The value of a label.
pub fn label_value(text: &str) -> Vec<String> {
    collect(
        text,
        LABEL_MAX,
        text.is_empty() || is_word(text),
        LABEL_VALUE,
    )
}

/// A name that is safe as one segment of a path: names of RBAC objects and nodes' proxies.
pub fn path_segment(text: &str) -> Vec<String> {
    if text == "." || text == ".." {
        return vec![format!("may not be '{text}'")];
    }
    ["/", "%"]
        .iter()
        .filter(|bad| text.contains(**bad))
        .map(|bad| format!("may not contain '{bad}'"))
        .collect()
}

/// A key of a ConfigMap or Secret.
pub fn config_map_key(text: &str) -> Vec<String> {
    let inner = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let mut messages = collect(
        text,
        DNS_SUBDOMAIN_MAX,
        !text.is_empty() && text.bytes().all(inner),
        CONFIG_KEY,
    );
    if text == "." || text == ".." {
        messages.push(format!("must not be '{text}'"));
    } else if text.starts_with("..") {
        messages.push("must not start with '..'".to_owned());
    }
    messages
}

/// The name of a container or service port (IANA_SVC_NAME).
pub fn port_name(text: &str) -> Vec<String> {
    let mut messages = Vec::new();
    if text.len() > 15 {
        messages.push("must be no more than 15 characters".to_owned());
    }
    if !text.bytes().all(|b| lower_alphanumeric(b) || b == b'-') || text.is_empty() {
        messages.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        messages.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        messages.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        messages.push("must not begin or end with a hyphen".to_owned());
    }
    messages
}

/// A port number.
pub fn port_number(port: i64) -> Vec<String> {
    if (1..=65535).contains(&port) {
        Vec::new()
    } else {
        vec!["must be between 1 and 65535, inclusive".to_owned()]
    }
}

/// An IPv4 or IPv6 address.
pub fn ip_address(text: &str) -> Vec<String> {
    if text.parse::<std::net::IpAddr>().is_ok() {
        Vec::new()
    } else {
        vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()]
    }
}

/// Cuts a `generateName` prefix so that a suffix fits, and adds five random characters (names.SimpleNameGenerator).
pub fn generate(prefix: &str) -> String {
    // No vowels and no characters that look alike, as utilrand.String has it.
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    const RANDOM: usize = 5;
    let mut cut = prefix.len().min(DNS_LABEL_MAX - RANDOM);
    while !prefix.is_char_boundary(cut) {
        cut -= 1;
    }
    let mut name = prefix[..cut].to_owned();
    for _ in 0..RANDOM {
        name.push(ALPHABET[rand::random_range(0..ALPHABET.len())] as char);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(validate: fn(&str) -> Vec<String>, valid: &[&str], invalid: &[&str]) {
        for text in valid {
            assert_eq!(validate(text), Vec::<String>::new(), "{text}");
        }
        for text in invalid {
            assert!(!validate(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn names_follow_their_grammar() {
        let long = "a".repeat(64);
        check(
            dns_1123_label,
            &["a", "0a", "a-b"],
            &["", "A", "-a", "a-", "a.b", "a/b", "..", "é", &long],
        );
        check(
            dns_1123_subdomain,
            &["a", "a.b-c.1", &long],
            &["", "a..b", ".a", "a.", "a_b", "A", &"a".repeat(254)],
        );
        check(dns_1035_label, &["a", "a1"], &["1a", "", "a-"]);
        check(
            qualified_name,
            &["a", "A.b_c", "x.io/a"],
            &["", "/", "x/", "/a", "a/b/c", "X/a", "-a", &long],
        );
        check(label_value, &["", "a", "A.b_c"], &["-", "a-", "a b", &long]);
        check(path_segment, &["a:b", "A"], &[".", "..", "a/b", "a%b"]);
        check(
            config_map_key,
            &["a.b", "_A-"],
            &["", ".", "..", "..a", "a/b", "a b"],
        );
        check(
            port_name,
            &["http", "a-1"],
            &["", "1", "-a", "a--b", "A", "abcdefghijklmnop"],
        );
        check(ip_address, &["1.2.3.4", "::1"], &["1.2.3", "01.2.3.4", "x"]);
    }

    #[test]
    fn a_generated_name_is_a_valid_label() {
        assert_eq!(generate("web-").len(), 9);
        let long = generate(&"a".repeat(100));
        assert_eq!(long.len(), 63);
        assert!(dns_1123_label(&long).is_empty());
    }
}
