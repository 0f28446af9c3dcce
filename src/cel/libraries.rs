//! Kubernetes' smaller libraries: URLs, named formats, semantic versions, and formatted texts
//! (`apiserver/pkg/cel/library`, `cel-go/ext`).

use std::cmp::Ordering;
use std::rc::Rc;

use apimachinery::name;
use base64::Engine;

use super::value::Val;

/// Most digits after the point of a formatted number.
const MAX_PRECISION: usize = 100;
/// Longest text that is made by formatting (bytes).
const MAX_TEXT: usize = 1024 * 1024;

fn overload(name: &str) -> String {
    format!("found no matching overload for '{name}'")
}

/// A URL or an absolute path.
#[derive(Debug, PartialEq, Eq)]
pub struct Url {
    uri: http::Uri,
    /// As it was written.
    pub text: String,
}

/// Reads a URL.
pub fn url(text: &str) -> Result<Url, String> {
    let wrong = || {
        format!(
            "URL parse error during conversion from string: parse {text:?}: invalid URI for request"
        )
    };
    let uri: http::Uri = text.parse().map_err(|_| wrong())?;
    let complete = uri.scheme().is_some() || text.starts_with('/');
    if !complete {
        return Err(wrong());
    }
    Ok(Url {
        uri,
        text: text.to_owned(),
    })
}

/// Members of URLs.
pub fn url_member<'v>(url: &Url, name: &str, arguments: &[Val<'v>]) -> Result<Val<'v>, String> {
    if !arguments.is_empty() {
        return Err(overload(name));
    }
    let uri = &url.uri;
    let host = || {
        let text = uri.authority().map_or("", |authority| authority.as_str());
        text.rsplit_once('@').map_or(text, |(_, host)| host)
    };
    Ok(match name {
        "getScheme" => Val::text(uri.scheme_str().unwrap_or("")),
        "getHost" => Val::text(host()),
        "getHostname" => Val::text(uri.host().unwrap_or("").trim_matches(['[', ']'])),
        "getPort" => Val::text(uri.port().map_or(String::new(), |port| port.to_string())),
        // What has a host and no path is read as having one.
        "getEscapedPath" if uri.authority().is_some() && url.text.ends_with(host()) => {
            Val::text("")
        }
        "getEscapedPath" => Val::text(uri.path()),
        "getQuery" => query(uri.query().unwrap_or("")),
        _ => return Err(overload(name)),
    })
}

fn query<'v>(text: &str) -> Val<'v> {
    let mut entries: Vec<(String, Vec<Val<'v>>)> = Vec::new();
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (unescaped(key), Val::text(unescaped(value)));
        match entries.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => values.push(value),
            None => entries.push((key, vec![value])),
        }
    }
    let entries = entries
        .into_iter()
        .map(|(key, values)| (Val::text(key), Val::list(values)))
        .collect();
    Val::Map(Rc::new(entries))
}

/// A part of a query without its escapes.
fn unescaped(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = text
            .get(at + 1..at + 3)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (bytes[at], hex) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 2;
            }
            (b'+', _) => out.push(b' '),
            (byte, _) => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Formats that texts may have, by name.
const FORMATS: [&str; 13] = [
    "byte",
    "date",
    "datetime",
    "dns1035Label",
    "dns1035LabelPrefix",
    "dns1123Label",
    "dns1123LabelPrefix",
    "dns1123Subdomain",
    "dns1123SubdomainPrefix",
    "labelValue",
    "qualifiedName",
    "uri",
    "uuid",
];

/// `format.named('x')` and `format.x()`.
pub fn named_format<'v>(name: &str, arguments: &[Val<'v>]) -> Result<Val<'v>, String> {
    let find = |wanted: &str| FORMATS.into_iter().find(|known| *known == wanted);
    match (name, arguments) {
        ("named", [Val::Text(wanted)]) => {
            Ok(Val::Optional(find(wanted).map(Val::Format).map(Rc::new)))
        }
        (name, []) => find(name)
            .map(Val::Format)
            .ok_or_else(|| format!("undeclared reference to 'format.{name}'")),
        _ => Err(overload(name)),
    }
}

/// What a text lacks of a format; nothing when it has it.
pub fn validate<'v>(format: &str, text: &str) -> Val<'v> {
    // A prefix may end where a whole name may not.
    let prefix = || {
        text.strip_suffix('-')
            .map_or(text.to_owned(), |rest| format!("{rest}a"))
    };
    let one = |good: bool, why: &str| {
        if good {
            Vec::new()
        } else {
            vec![why.to_owned()]
        }
    };
    let wrong = match format {
        "dns1123Label" => name::dns_1123_label(text),
        "dns1123LabelPrefix" => name::dns_1123_label(&prefix()),
        "dns1123Subdomain" => name::dns_1123_subdomain(text),
        "dns1123SubdomainPrefix" => name::dns_1123_subdomain(&prefix()),
        "dns1035Label" => name::dns_1035_label(text),
        "dns1035LabelPrefix" => name::dns_1035_label(&prefix()),
        "qualifiedName" => name::qualified_name(text),
        "labelValue" => name::label_value(text),
        "uri" => url(text).err().into_iter().collect(),
        "uuid" => one(is_uuid(text), "does not match the UUID format"),
        "byte" => {
            let decoded = base64::engine::general_purpose::STANDARD.decode(text);
            one(decoded.is_ok(), "invalid base64")
        }
        "date" => {
            let whole = apimachinery::time::parse(&format!("{text}T00:00:00Z"));
            one(whole.is_some() && text.len() == 10, "invalid date")
        }
        "datetime" => one(
            apimachinery::time::parse(text).is_some(),
            "invalid datetime",
        ),
        _ => Vec::new(),
    };
    if wrong.is_empty() {
        return Val::Optional(None);
    }
    let list = wrong.into_iter().map(Val::text).collect();
    Val::Optional(Some(Rc::new(Val::list(list))))
}

fn is_uuid(text: &str) -> bool {
    let lengths: Vec<usize> = text.split('-').map(str::len).collect();
    lengths == [8, 4, 4, 4, 12] && text.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit())
}

/// A semantic version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub numbers: [u64; 3],
    pub before: String,
}

/// A semantic version as a value, as `semver(text)` makes it; `None` if the text is none.
pub fn semver<'v>(text: &str) -> Option<Val<'v>> {
    version(text).map(|version| Val::Version(Rc::new(version)))
}

/// Reads `1.2.3-rc.1+build`.
pub fn version(text: &str) -> Option<Version> {
    let (text, _) = text.split_once('+').unwrap_or((text, ""));
    let (core, before) = text.split_once('-').unwrap_or((text, ""));
    let mut numbers = [0; 3];
    let mut parts = core.split('.');
    for number in &mut numbers {
        let part = parts.next()?;
        let plain = part == "0" || !part.starts_with('0');
        *number = part
            .parse()
            .ok()
            .filter(|_| plain && part.bytes().all(|byte| byte.is_ascii_digit()))?;
    }
    let dangling = text.contains('-') && before.split('.').any(str::is_empty);
    (parts.next().is_none() && !dangling).then(|| Version {
        numbers,
        before: before.to_owned(),
    })
}

impl Version {
    pub fn order(&self, other: &Self) -> Ordering {
        let by_numbers = self.numbers.cmp(&other.numbers);
        by_numbers.then_with(|| match (self.before.as_str(), other.before.as_str()) {
            (a, b) if a == b => Ordering::Equal,
            ("", _) => Ordering::Greater,
            (_, "") => Ordering::Less,
            (a, b) => {
                let number = |part: &str| part.parse::<u64>().ok();
                let mut pairs = a.split('.').zip(b.split('.'));
                let first = pairs.find(|(a, b)| a != b);
                match first {
                    Some((a, b)) => match (number(a), number(b)) {
                        (Some(a), Some(b)) => a.cmp(&b),
                        (Some(_), None) => Ordering::Less,
                        (None, Some(_)) => Ordering::Greater,
                        (None, None) => a.cmp(b),
                    },
                    None => a.split('.').count().cmp(&b.split('.').count()),
                }
            }
        })
    }

    /// Members of versions.
    pub fn member<'v>(&self, name: &str, arguments: &[Val<'v>]) -> Result<Val<'v>, String> {
        let number = |at: usize| Val::Int(i64::try_from(self.numbers[at]).unwrap_or(i64::MAX));
        Ok(match (name, arguments) {
            ("major", []) => number(0),
            ("minor", []) => number(1),
            ("patch", []) => number(2),
            ("isLessThan", [Val::Version(other)]) => Val::Bool(self.order(other) == Ordering::Less),
            ("isGreaterThan", [Val::Version(other)]) => {
                Val::Bool(self.order(other) == Ordering::Greater)
            }
            ("compareTo", [Val::Version(other)]) => Val::Int(self.order(other) as i64),
            _ => return Err(overload(name)),
        })
    }
}

/// `'%s has %d'.format([a, b])`.
pub fn formatted(text: &str, arguments: &[Val<'_>]) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = arguments.iter();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if out.len() > MAX_TEXT {
            return Err("operation cancelled: actual cost limit exceeded".to_owned());
        }
        if c != '%' {
            out.push(c);
            continue;
        }
        if chars.peek() == Some(&'%') {
            chars.next();
            out.push('%');
            continue;
        }
        let mut precision = None;
        if chars.peek() == Some(&'.') {
            chars.next();
            let mut digits = 0usize;
            while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
                digits = digits.saturating_mul(10).saturating_add(digit as usize);
                chars.next();
            }
            precision = Some(digits.min(MAX_PRECISION));
        }
        let verb = chars
            .next()
            .ok_or_else(|| "unexpected end of format string".to_owned())?;
        let index = arguments.len() - rest.len();
        let value = rest
            .next()
            .ok_or_else(|| format!("index {index} out of range"))?;
        out.push_str(&one_formatted(verb, precision, value)?);
    }
    Ok(out)
}

fn one_formatted(verb: char, precision: Option<usize>, value: &Val<'_>) -> Result<String, String> {
    let places = precision.unwrap_or(6);
    let wrong = || {
        format!(
            "error during formatting: no formatting function for %{verb} of {}",
            value.type_name()
        )
    };
    Ok(match (verb, value) {
        ('s', value) => shown(value),
        ('d', Val::Int(_) | Val::Uint(_)) => value.show(),
        ('d', Val::Double(number)) if number.fract() == 0.0 => format!("{number:.0}"),
        ('f', value) => format!("{:.places$}", value.number().ok_or_else(wrong)?),
        ('e', value) => {
            let plain = format!("{:.places$e}", value.number().ok_or_else(wrong)?);
            // Go writes the sign and two digits of the exponent.
            match plain.split_once('e') {
                Some((digits, exponent)) => {
                    let number: i32 = exponent.parse().unwrap_or(0);
                    let sign = if number < 0 { '-' } else { '+' };
                    format!("{digits}e{sign}{:02}", number.abs())
                }
                None => plain,
            }
        }
        ('b', Val::Bool(flag)) => if *flag { "1" } else { "0" }.to_owned(),
        ('b', Val::Int(number)) if *number < 0 => format!("-{:b}", number.unsigned_abs()),
        ('b', Val::Int(number)) => format!("{number:b}"),
        ('b', Val::Uint(number)) => format!("{number:b}"),
        ('o', Val::Int(number)) if *number < 0 => format!("-{:o}", number.unsigned_abs()),
        ('o', Val::Int(number)) => format!("{number:o}"),
        ('o', Val::Uint(number)) => format!("{number:o}"),
        ('x' | 'X', value) => {
            let hex = match value {
                Val::Int(number) if *number < 0 => format!("-{:x}", number.unsigned_abs()),
                Val::Int(number) => format!("{number:x}"),
                Val::Uint(number) => format!("{number:x}"),
                Val::Text(text) => text.bytes().map(|byte| format!("{byte:02x}")).collect(),
                Val::Bytes(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
                _ => return Err(wrong()),
            };
            if verb == 'X' { hex.to_uppercase() } else { hex }
        }
        ('d' | 'b' | 'o', _) => return Err(wrong()),
        _ => {
            return Err(format!(
                "could not parse formatting clause: unrecognized formatting clause \"{verb}\""
            ));
        }
    })
}

fn shown(value: &Val<'_>) -> String {
    match value {
        Val::List(_) | Val::JsonList(_) => {
            let items = value.items().unwrap_or_default();
            let items: Vec<String> = items.iter().map(shown).collect();
            format!("[{}]", items.join(", "))
        }
        Val::Map(_) | Val::JsonMap(_) => {
            let mut entries: Vec<String> = value
                .items()
                .unwrap_or_default()
                .iter()
                .map(|key| {
                    let of = value.index(key).unwrap_or(Val::Null);
                    format!("{}: {}", shown(key), shown(&of))
                })
                .collect();
            entries.sort();
            format!("{{{}}}", entries.join(", "))
        }
        value => value.show(),
    }
}

#[cfg(test)]
mod tests {
    use crate::{Program, Scope};

    #[track_caller]
    fn check(text: &str) {
        let program = Program::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"));
        match program.holds(&Scope::new(&[])) {
            Ok(holds) => assert!(holds, "{text}"),
            Err(why) => panic!("{text}: {why}"),
        }
    }

    #[test]
    fn urls_are_taken_apart() {
        check("url('https://u@example.com:80/a%20b?k=1&k=2%2B').getHost() == 'example.com:80'");
        check("url('https://example.com:80/a?k=1&k=2%2B').getQuery()['k'] == ['1', '2+']");
        check(
            "url('https://[::1]:80/').getHostname() == '::1' && url('https://[::1]:80/').getPort() == '80'",
        );
        check("url('/path').getScheme() == '' && url('/path').getEscapedPath() == '/path'");
        check("url('https://example.com').getEscapedPath() == ''");
        check("isURL('https://example.com') && isURL('/a') && !isURL('example.com')");
    }

    #[test]
    fn formats_say_what_is_wrong() {
        check("!format.dns1123Label().validate('abc').hasValue()");
        check("format.dns1123Label().validate('Abc').value().size() == 1");
        check("!format.dns1123LabelPrefix().validate('abc-').hasValue()");
        check("format.named('uuid').value().validate('x').hasValue()");
        check("!format.named('nothing').hasValue()");
        check("!format.uuid().validate('123e4567-e89b-12d3-a456-426614174000').hasValue()");
    }

    #[test]
    fn versions_are_ordered() {
        check("isSemver('1.0.0') && !isSemver('1.0') && !isSemver('01.0.0')");
        check("semver('1.2.3').major() == 1 && semver('1.2.3').patch() == 3");
        check("semver('1.0.0-rc.2').isLessThan(semver('1.0.0-rc.10'))");
        check("semver('1.0.0').isGreaterThan(semver('1.0.0-rc'))");
        check("semver('1.10.0').compareTo(semver('1.9.0')) == 1");
    }

    #[test]
    fn texts_are_formatted_as_in_go() {
        check("'%s has %d, %.2f, %x'.format(['a', 3, 1.5, 255]) == 'a has 3, 1.50, ff'");
        check("'%s %s'.format([[1, 'b'], {'a': 1}]) == '[1, b] {a: 1}'");
        check("'%e %b %o %X%%'.format([12.5, 5, 8, 'hi']) == '1.250000e+01 101 10 6869%'");
    }

    #[test]
    fn lists_are_cut_sorted_and_flattened() {
        check("[3, 1, 2].sort() == [1, 2, 3] && [1, 2, 3].slice(1, 3) == [2, 3]");
        check("[[1], [2, [3]]].flatten() == [1, 2, [3]]");
        check("matches('abc', '^a') && 'abcabc'.indexOf('b', 2) == 4");
        check(
            "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && string(cidr('10.1.2.3/8').masked()) == '10.0.0.0/8'",
        );
        check("timestamp('2026-01-01T00:00:00.250Z').getMilliseconds() == 250");
        check("!ip('10.0.0.1').isLinkLocalUnicast() && ip('169.254.1.1').isLinkLocalUnicast()");
    }
}
