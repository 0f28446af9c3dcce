//! Query parameters as upstream reads them: the first value of a name counts, booleans are lenient.

use std::time::Duration;

/// A decoded query string. Names may repeat; order is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes `a=b&c=d` (`+` is a space). Pairs that are not valid percent-encoding or UTF-8 are dropped,
    /// as Go's `url.Values` does.
    pub fn parse(raw: &str) -> Self {
        let pairs = raw
            .split('&')
            .filter(|pair| !pair.is_empty() && !pair.contains(';'))
            .filter_map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                Some((percent_decode(name, true)?, percent_decode(value, true)?))
            })
            .collect();
        Self(pairs)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first value of `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// Every value of `name`, in order.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> + 'a {
        self.0
            .iter()
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// Absent is false, `0` and `false` are false, everything else (also an empty value) is true:
    /// `runtime.Convert_Slice_string_To_bool`.
    pub fn flag(&self, name: &str) -> bool {
        self.optional_flag(name).unwrap_or(false)
    }

    /// As `flag`, telling absent from false.
    pub fn optional_flag(&self, name: &str) -> Option<bool> {
        self.get(name)
            .map(|value| !(value == "0" || value.eq_ignore_ascii_case("false")))
    }

    /// A decimal integer; `Err` holds Go's `strconv` message.
    pub fn integer(&self, name: &str) -> Result<Option<i64>, String> {
        let Some(value) = self.get(name).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        value
            .parse()
            .map(Some)
            .map_err(|error: std::num::ParseIntError| {
                use std::num::IntErrorKind::{NegOverflow, PosOverflow};
                let problem = match error.kind() {
                    PosOverflow | NegOverflow => "value out of range",
                    _ => "invalid syntax",
                };
                format!("strconv.ParseInt: parsing {value:?}: {problem}")
            })
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// A Go duration (`1m30s`, `500ms`, `0`); negative and malformed ones are `None`.
pub fn go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut seconds = 0.0_f64;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let end = rest
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(rest.len());
        seconds += number
            * match &rest[..end] {
                "ns" => 1e-9,
                "us" | "µs" | "μs" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = &rest[end..];
    }
    Duration::try_from_secs_f64(seconds).ok()
}

/// `None` for a broken escape or bytes that are not UTF-8.
pub(crate) fn percent_decode(text: &str, plus_is_space: bool) -> Option<String> {
    let bytes = text.as_bytes();
    if !bytes
        .iter()
        .any(|&byte| byte == b'%' || (plus_is_space && byte == b'+'))
    {
        return Some(text.to_owned());
    }
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'%' => {
                let hex = text.get(at + 1..at + 3)?;
                if !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    return None;
                }
                out.push(u8::from_str_radix(hex, 16).ok()?);
                at += 3;
            }
            b'+' if plus_is_space => {
                out.push(b' ');
                at += 1;
            }
            byte => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_and_the_first_one_counts() {
        let query = Query::parse("labelSelector=a%3Db%2Cc+in&limit=5&limit=6&x&bad=%zz");
        assert_eq!(query.get("labelSelector"), Some("a=b,c in"));
        assert_eq!(query.integer("limit"), Ok(Some(5)));
        assert_eq!(query.get("x"), Some(""));
        assert_eq!(query.get("bad"), None);
        assert_eq!(query.all("limit").collect::<Vec<_>>(), ["5", "6"]);
    }

    #[test]
    fn booleans_are_as_lenient_as_upstreams() {
        let query = Query::parse("a=0&b=False&c=&d=yes");
        let flags = ["a", "b", "c", "d", "e"].map(|name| query.flag(name));
        assert_eq!(flags, [false, false, true, true, false]);
    }

    #[test]
    fn durations_are_written_as_in_go() {
        let parse = |text| go_duration(text).map(|duration| duration.as_millis());
        assert_eq!(parse("32s"), Some(32_000));
        assert_eq!(parse("1h1m1.5s"), Some(3_661_500));
        assert_eq!(parse("0"), Some(0));
        for bad in ["", "10", "s", "-1s", "1d", "1.2.3s"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn integers_fail_with_the_message_of_strconv() {
        let query = Query::parse("limit=ten&big=99999999999999999999");
        assert_eq!(
            query.integer("limit"),
            Err("strconv.ParseInt: parsing \"ten\": invalid syntax".into())
        );
        assert_eq!(
            query.integer("big"),
            Err("strconv.ParseInt: parsing \"99999999999999999999\": value out of range".into())
        );
    }
}
