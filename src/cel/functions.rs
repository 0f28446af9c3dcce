//! The functions expressions may call: CEL's own, its text library, and Kubernetes' for lists, regular expressions,
//! quantities and addresses (`apiserver/pkg/cel/library`).

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;

use apimachinery::quantity::Quantity;
use apimachinery::time;

use super::libraries;
use super::value::Val;

/// Longest text a function makes (bytes).
const MAX_TEXT: usize = 1024 * 1024;

/// Types that are called by name.
pub fn type_called(name: &str) -> Option<&'static str> {
    [
        "null_type",
        "bool",
        "int",
        "uint",
        "double",
        "string",
        "bytes",
        "list",
        "map",
        "type",
    ]
    .into_iter()
    .find(|known| *known == name)
}

/// Names that hold functions rather than values.
pub fn is_space(name: &str) -> bool {
    matches!(
        name,
        "format" | "ip" | "jsonpatch" | "optional" | "sets" | "strings"
    )
}

/// Calls a function of a name that holds such.
pub fn call_in<'v>(space: &str, name: &str, arguments: &[Val<'v>]) -> Result<Val<'v>, String> {
    let among = |items: &[Val<'v>], wanted: &Val<'v>| items.iter().any(|item| item.equals(wanted));
    match (space, name, arguments) {
        ("jsonpatch", "escapeKey", [Val::Text(key)]) => {
            Ok(Val::text(key.replace('~', "~0").replace('/', "~1")))
        }
        ("strings", "quote", [Val::Text(text)]) => Ok(Val::text(format!("{text:?}"))),
        ("format", name, arguments) => libraries::named_format(name, arguments),
        ("ip", "isCanonical", [Val::Text(text)]) => {
            let address = parse_address(text)?;
            Ok(Val::Bool(address.to_string() == *text))
        }
        ("sets", _, [a, b]) => {
            let (Some(a), Some(b)) = (a.items(), b.items()) else {
                return Err(overload(name));
            };
            let holds_all = |a: &[Val<'v>], b: &[Val<'v>]| b.iter().all(|wanted| among(a, wanted));
            Ok(Val::Bool(match name {
                "contains" => holds_all(&a, &b),
                "equivalent" => holds_all(&a, &b) && holds_all(&b, &a),
                "intersects" => b.iter().any(|wanted| among(&a, wanted)),
                _ => return Err(overload(name)),
            }))
        }
        _ => Err(format!("undeclared reference to '{space}.{name}'")),
    }
}

fn overload(name: &str) -> String {
    format!("found no matching overload for '{name}'")
}

/// Steps for looking at the whole of a value: its items, or a tenth of its bytes, as cel-go counts texts.
pub fn weight(value: &Val<'_>) -> usize {
    match value {
        Val::Text(text) => text.len() / 10,
        other => other.size().unwrap_or(0),
    }
}

/// Steps for parsing a pattern that was not parsed lately.
const PATTERN_STEPS: usize = 2_000;

/// Steps for a call beyond the one that every expression costs.
pub fn cost(target: Option<&Val<'_>>, name: &str, arguments: &[Val<'_>]) -> usize {
    let own = target.map_or(0, weight);
    let given: usize = arguments.iter().map(weight).sum();
    match (name, arguments.first()) {
        ("matches" | "find" | "findAll", Some(Val::Text(pattern))) => {
            let parsed = PATTERNS.with_borrow(|patterns| patterns.contains_key(pattern.as_ref()));
            let parse = if parsed { 0 } else { PATTERN_STEPS };
            own.saturating_mul(1 + pattern.len() / 4)
                .saturating_add(parse)
        }
        ("distinct", _) => own.saturating_mul(own),
        _ => own + given,
    }
}

/// Calls a function, or (with a target) a member.
pub fn call<'v>(
    target: Option<&Val<'v>>,
    name: &str,
    arguments: &[Val<'v>],
) -> Result<Val<'v>, String> {
    let Some(target) = target else {
        return match arguments {
            [one] => function(name, one),
            [Val::Text(text), Val::Text(_)] if name == "matches" => {
                text_member(text, name, &arguments[1..])
            }
            _ => Err(overload(name)),
        };
    };
    if name == "size" && arguments.is_empty() {
        return function("size", target);
    }
    match target {
        Val::Check(check) => super::authorizer::member(check, name, arguments),
        Val::Decision(answer) => match (name, arguments) {
            ("allowed", []) => Ok(Val::Bool(answer.allowed)),
            ("reason", []) => Ok(Val::text(answer.reason.as_str())),
            ("errored", []) => Ok(Val::Bool(!answer.error.is_empty())),
            ("error", []) => Ok(Val::text(answer.error.as_str())),
            _ => Err(overload(name)),
        },
        Val::Url(uri) => libraries::url_member(uri, name, arguments),
        Val::Version(version) => version.member(name, arguments),
        Val::Format(format) => match (name, arguments) {
            ("validate", [Val::Text(text)]) => Ok(libraries::validate(format, text)),
            _ => Err(overload(name)),
        },
        Val::Text(text) => text_member(text, name, arguments),
        Val::JsonList(_) | Val::List(_) => list_member(target, name, arguments),
        Val::Quantity(quantity) => quantity_member(quantity, name, arguments),
        Val::Optional(inner) => match (name, arguments) {
            ("hasValue", []) => Ok(Val::Bool(inner.is_some())),
            ("value", []) => inner
                .as_deref()
                .cloned()
                .ok_or_else(|| "optional.none() dereference".to_owned()),
            ("orValue", [other]) => Ok(inner.as_deref().unwrap_or(other).clone()),
            ("or", [other]) => Ok(if inner.is_some() { target } else { other }.clone()),
            _ => Err(overload(name)),
        },
        Val::Timestamp(at) => {
            let number = match name {
                "getFullYear" => i64::from(at.year()),
                "getMonth" => i64::from(u8::from(at.month())) - 1,
                "getDate" => i64::from(at.day()),
                "getDayOfMonth" => i64::from(at.day()) - 1,
                "getDayOfWeek" => i64::from(at.weekday().number_days_from_sunday()),
                "getDayOfYear" => i64::from(at.ordinal()) - 1,
                "getHours" => i64::from(at.hour()),
                "getMinutes" => i64::from(at.minute()),
                "getSeconds" => i64::from(at.second()),
                "getMilliseconds" => i64::from(at.millisecond()),
                _ => return Err(overload(name)),
            };
            Ok(Val::Int(number))
        }
        Val::Duration(nanos) => {
            let unit = match name {
                "getHours" => 3_600_000_000_000,
                "getMinutes" => 60_000_000_000,
                "getSeconds" => 1_000_000_000,
                "getMilliseconds" => 1_000_000,
                _ => return Err(overload(name)),
            };
            Ok(Val::Int(nanos / unit))
        }
        Val::Address(address) => match (name, arguments) {
            ("family", []) => Ok(Val::Int(if address.is_ipv4() { 4 } else { 6 })),
            ("isLoopback", []) => Ok(Val::Bool(address.is_loopback())),
            ("isUnspecified", []) => Ok(Val::Bool(address.is_unspecified())),
            ("isLinkLocalUnicast", []) => Ok(Val::Bool(is_link_local(*address))),
            ("isLinkLocalMulticast", []) => Ok(Val::Bool(is_link_local_multicast(*address))),
            ("isGlobalUnicast", []) => Ok(Val::Bool(
                !address.is_unspecified()
                    && !address.is_loopback()
                    && !address.is_multicast()
                    && !is_link_local(*address)
                    && *address != IpAddr::V4(std::net::Ipv4Addr::BROADCAST),
            )),
            _ => Err(overload(name)),
        },
        Val::Range(base, bits) => match (name, arguments) {
            ("prefixLength", []) => Ok(Val::Int(i64::from(*bits))),
            ("ip", []) => Ok(Val::Address(*base)),
            ("masked", []) => Ok(Val::Range(masked(*base, *bits), *bits)),
            ("containsCIDR", [range]) => {
                let (inner, narrower) = match range {
                    Val::Range(inner, narrower) => (*inner, *narrower),
                    other => parse_range(&other.show())?,
                };
                Ok(Val::Bool(
                    narrower >= *bits && contains(*base, *bits, inner),
                ))
            }
            ("containsIP", [address]) => {
                let address = match address {
                    Val::Address(address) => *address,
                    other => parse_address(&other.show())?,
                };
                Ok(Val::Bool(contains(*base, *bits, address)))
            }
            _ => Err(overload(name)),
        },
        _ => Err(overload(name)),
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn is_link_local_multicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[..3] == [224, 0, 0],
        IpAddr::V6(address) => address.segments()[0] & 0xff0f == 0xff02,
    }
}

/// The address with the bits of hosts gone.
fn masked(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            IpAddr::V6((u128::from(address) & mask).into())
        }
    }
}

fn parse_address(text: &str) -> Result<IpAddr, String> {
    text.parse()
        .map_err(|_| format!("IP Address {text:?} parse error during conversion from string"))
}

fn parse_range(text: &str) -> Result<(IpAddr, u8), String> {
    let bad = || format!("network address parse error during conversion from string: {text:?}");
    let (address, bits) = text.split_once('/').ok_or_else(bad)?;
    let address: IpAddr = address.parse().map_err(|_| bad())?;
    let bits: u8 = bits.parse().map_err(|_| bad())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    if bits > most {
        return Err(bad());
    }
    Ok((address, bits))
}

fn contains(base: IpAddr, bits: u8, address: IpAddr) -> bool {
    let number = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)), 32),
        IpAddr::V6(address) => (u128::from(address), 128),
    };
    let ((base, width), (address, other)) = (number(base), number(address));
    let shift = width - u32::from(bits);
    width == other && (shift >= 128 || base.checked_shr(shift) == address.checked_shr(shift))
}

fn function<'v>(name: &str, value: &Val<'v>) -> Result<Val<'v>, String> {
    let conversion = |to: &str| {
        format!(
            "type conversion error from '{}' to '{to}'",
            value.type_name()
        )
    };
    Ok(match (name, value) {
        ("size", value) => {
            let size = value.size().ok_or_else(|| overload(name))?;
            Val::Int(i64::try_from(size).unwrap_or(i64::MAX))
        }
        ("dyn", value) => value.clone(),
        ("type", Val::Type(_)) => Val::Type("type"),
        ("type", value) => Val::Type(value.type_name()),
        ("string", Val::Text(_)) => value.clone(),
        ("string", value) => Val::text(value.show()),
        ("int", Val::Text(text)) => Val::Int(text.parse().map_err(|_| conversion("int"))?),
        ("int", Val::Int(_)) => value.clone(),
        ("int", Val::Uint(number)) => {
            Val::Int(i64::try_from(*number).map_err(|_| "integer overflow")?)
        }
        ("int", Val::Double(number)) if number.is_finite() && number.abs() < 9.2e18 => {
            Val::Int(*number as i64)
        }
        ("int", Val::Timestamp(at)) => Val::Int(at.unix_timestamp()),
        ("uint", Val::Int(number)) => {
            Val::Uint(u64::try_from(*number).map_err(|_| "unsigned integer overflow")?)
        }
        ("uint", Val::Uint(_)) => value.clone(),
        ("uint", Val::Text(text)) => Val::Uint(text.parse().map_err(|_| conversion("uint"))?),
        ("double", Val::Text(text)) => Val::Double(text.parse().map_err(|_| conversion("double"))?),
        ("double", value) => Val::Double(value.number().ok_or_else(|| conversion("double"))?),
        ("bool", Val::Bool(_)) => value.clone(),
        ("bool", Val::Text(text)) => Val::Bool(text.parse().map_err(|_| conversion("bool"))?),
        ("bytes", Val::Text(text)) => Val::Bytes(std::rc::Rc::new(text.as_bytes().to_vec())),
        ("duration", Val::Text(text)) => Val::Duration(
            time::parse_go_duration(text).ok_or_else(|| conversion("google.protobuf.Duration"))?,
        ),
        ("duration", Val::Duration(_)) | ("timestamp", Val::Timestamp(_)) => value.clone(),
        ("timestamp", Val::Text(text)) => Val::Timestamp(
            time::parse(text).ok_or_else(|| conversion("google.protobuf.Timestamp"))?,
        ),
        ("quantity", Val::Text(text)) => Val::Quantity(parse_quantity(text)?),
        ("isQuantity", Val::Text(text)) => Val::Bool(text.parse::<Quantity>().is_ok()),
        ("ip", Val::Text(text)) => Val::Address(parse_address(text)?),
        ("isIP", Val::Text(text)) => Val::Bool(parse_address(text).is_ok()),
        ("cidr", Val::Text(text)) => {
            let (address, bits) = parse_range(text)?;
            Val::Range(address, bits)
        }
        ("isCIDR", Val::Text(text)) => Val::Bool(parse_range(text).is_ok()),
        ("isURL", Val::Text(text)) => Val::Bool(libraries::url(text).is_ok()),
        ("url", Val::Text(text)) => Val::Url(libraries::url(text)?.into()),
        ("isSemver", Val::Text(text)) => Val::Bool(libraries::version(text).is_some()),
        ("semver", Val::Text(text)) => Val::Version(
            libraries::version(text)
                .ok_or_else(|| format!("semver parse error: Invalid version {text:?}"))?
                .into(),
        ),
        _ => return Err(overload(name)),
    })
}

fn parse_quantity(text: &str) -> Result<Quantity, String> {
    text.parse().map_err(|_| {
        "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            .to_owned()
    })
}

/// Patterns kept parsed by each thread; past that all are parsed anew.
const MAX_PATTERNS: usize = 64;
/// Most bytes of a parsed pattern.
const PATTERN_BYTES: usize = 1 << 20;

thread_local! {
    static PATTERNS: RefCell<HashMap<String, regex::Regex>> = RefCell::default();
}

fn regex(pattern: &str) -> Result<regex::Regex, String> {
    PATTERNS.with_borrow_mut(|patterns| {
        if let Some(parsed) = patterns.get(pattern) {
            return Ok(parsed.clone());
        }
        let parsed = regex::RegexBuilder::new(pattern)
            .size_limit(PATTERN_BYTES)
            .build()
            .map_err(|_| format!("error parsing regexp: invalid pattern: `{pattern}`"))?;
        if patterns.len() >= MAX_PATTERNS {
            patterns.clear();
        }
        patterns.insert(pattern.to_owned(), parsed.clone());
        Ok(parsed)
    })
}

/// Characters from one position to another.
fn slice(text: &str, from: i64, to: Option<i64>) -> Result<String, String> {
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let to = to.unwrap_or(length);
    if from < 0 || from > to || to > length {
        return Err(format!("index out of range: {from}"));
    }
    let (from, to) = (
        usize::try_from(from).unwrap_or(0),
        usize::try_from(to).unwrap_or(0),
    );
    Ok(text.chars().skip(from).take(to - from).collect())
}

fn position(text: &str, byte: Option<usize>) -> Val<'static> {
    Val::Int(byte.map_or(-1, |byte| {
        i64::try_from(text[..byte].chars().count()).unwrap_or(i64::MAX)
    }))
}

fn text_member<'v>(text: &str, name: &str, arguments: &[Val<'v>]) -> Result<Val<'v>, String> {
    Ok(match (name, arguments) {
        ("contains", [Val::Text(part)]) => Val::Bool(text.contains(part.as_ref())),
        ("startsWith", [Val::Text(part)]) => Val::Bool(text.starts_with(part.as_ref())),
        ("endsWith", [Val::Text(part)]) => Val::Bool(text.ends_with(part.as_ref())),
        ("matches", [Val::Text(pattern)]) => Val::Bool(regex(pattern)?.is_match(text)),
        ("find", [Val::Text(pattern)]) => {
            let found = regex(pattern)?
                .find(text)
                .map(|found| found.as_str().to_owned());
            Val::text(found.unwrap_or_default())
        }
        ("findAll", [Val::Text(pattern)]) => Val::list(
            regex(pattern)?
                .find_iter(text)
                .map(|found| Val::text(found.as_str()))
                .collect(),
        ),
        ("findAll", [Val::Text(pattern), Val::Int(most)]) => Val::list(
            regex(pattern)?
                .find_iter(text)
                .take(usize::try_from(*most).unwrap_or(usize::MAX))
                .map(|found| Val::text(found.as_str()))
                .collect(),
        ),
        ("indexOf", [Val::Text(part), Val::Int(from)]) => {
            let skipped = text.len() - slice(text, *from, None)?.len();
            position(
                text,
                text[skipped..].find(part.as_ref()).map(|at| at + skipped),
            )
        }
        ("format", [list]) => {
            let items = list.items().ok_or_else(|| overload(name))?;
            Val::text(libraries::formatted(text, &items)?)
        }
        ("lowerAscii", []) => Val::text(text.to_ascii_lowercase()),
        ("upperAscii", []) => Val::text(text.to_ascii_uppercase()),
        ("trim", []) => Val::text(text.trim()),
        ("reverse", []) => Val::text(text.chars().rev().collect::<String>()),
        ("charAt", [Val::Int(at)]) => Val::text(slice(text, *at, Some(at + 1)).unwrap_or_default()),
        ("substring", [Val::Int(from)]) => Val::text(slice(text, *from, None)?),
        ("substring", [Val::Int(from), Val::Int(to)]) => Val::text(slice(text, *from, Some(*to))?),
        ("indexOf", [Val::Text(part)]) => position(text, text.find(part.as_ref())),
        ("lastIndexOf", [Val::Text(part)]) => position(text, text.rfind(part.as_ref())),
        ("split", [Val::Text(by)]) if by.is_empty() => {
            Val::list(text.chars().map(|c| Val::text(c.to_string())).collect())
        }
        ("split", [Val::Text(by)]) => Val::list(text.split(by.as_ref()).map(Val::text).collect()),
        ("split", [Val::Text(by), Val::Int(most)]) if *most > 0 => Val::list(
            text.splitn(usize::try_from(*most).unwrap_or(usize::MAX), by.as_ref())
                .map(Val::text)
                .collect(),
        ),
        ("replace", [Val::Text(from), Val::Text(to)]) => {
            if (text.len() + 1).saturating_mul(to.len() + 1) > MAX_TEXT {
                return Err("operation cancelled: actual cost limit exceeded".to_owned());
            }
            Val::text(text.replace(from.as_ref(), to))
        }
        ("replace", [Val::Text(from), Val::Text(to), Val::Int(most)]) => {
            let most = usize::try_from(*most)
                .unwrap_or(usize::MAX)
                .min(text.len() + 1);
            if most.saturating_mul(to.len()).saturating_add(text.len()) > MAX_TEXT {
                return Err("operation cancelled: actual cost limit exceeded".to_owned());
            }
            Val::text(text.replacen(from.as_ref(), to, most))
        }
        _ => return Err(overload(name)),
    })
}

fn list_member<'v>(list: &Val<'v>, name: &str, arguments: &[Val<'v>]) -> Result<Val<'v>, String> {
    use std::cmp::Ordering;
    let items = list.items().unwrap_or_default();
    let best = |wanted: Ordering| -> Result<Val<'v>, String> {
        let mut items = items.iter();
        let mut found = items
            .next()
            .ok_or_else(|| format!("{name} called on empty list"))?;
        for item in items {
            if item.compare(found) == Some(wanted) {
                found = item;
            }
        }
        Ok(found.clone())
    };
    let at = |found: Option<usize>| {
        Val::Int(found.map_or(-1, |at| i64::try_from(at).unwrap_or(i64::MAX)))
    };
    Ok(match (name, arguments) {
        ("min", []) => best(Ordering::Less)?,
        ("max", []) => best(Ordering::Greater)?,
        ("sum", []) => {
            let mut ints = 0i64;
            let mut floats = 0.0;
            let mut whole = true;
            for item in &items {
                match item {
                    Val::Int(number) => {
                        ints = ints.checked_add(*number).ok_or("integer overflow")?;
                        floats += *number as f64;
                    }
                    other => {
                        whole = false;
                        floats += other.number().ok_or_else(|| overload(name))?;
                    }
                }
            }
            if whole {
                Val::Int(ints)
            } else {
                Val::Double(floats)
            }
        }
        ("isSorted", []) => Val::Bool(
            items
                .windows(2)
                .all(|pair| pair[0].compare(&pair[1]) != Some(Ordering::Greater)),
        ),
        ("indexOf", [wanted]) => at(items.iter().position(|item| item.equals(wanted))),
        ("lastIndexOf", [wanted]) => at(items.iter().rposition(|item| item.equals(wanted))),
        ("join", []) => joined(&items, "")?,
        ("join", [Val::Text(by)]) => joined(&items, by)?,
        ("distinct", []) => {
            let mut kept: Vec<Val<'v>> = Vec::new();
            for item in items {
                if !kept.iter().any(|have| have.equals(&item)) {
                    kept.push(item);
                }
            }
            Val::list(kept)
        }
        ("reverse", []) => Val::list(items.into_iter().rev().collect()),
        ("sort", []) => {
            let mut items = items;
            items.sort_by(|a, b| a.compare(b).unwrap_or(Ordering::Equal));
            Val::list(items)
        }
        ("slice", [Val::Int(from), Val::Int(to)]) => {
            let range = usize::try_from(*from).ok().zip(usize::try_from(*to).ok());
            let cut = range.and_then(|(from, to)| items.get(from..to));
            let cut = cut.ok_or_else(|| format!("cannot slice({from}, {to})"))?;
            Val::list(cut.to_vec())
        }
        ("flatten", []) => {
            let mut flat = Vec::with_capacity(items.len());
            for item in items {
                match item {
                    Val::List(_) | Val::JsonList(_) => {
                        flat.extend(item.items().unwrap_or_default())
                    }
                    item => flat.push(item),
                }
            }
            Val::list(flat)
        }
        _ => return Err(overload(name)),
    })
}

fn joined<'v>(items: &[Val<'v>], by: &str) -> Result<Val<'v>, String> {
    let mut texts = Vec::with_capacity(items.len());
    for item in items {
        match item {
            Val::Text(text) => texts.push(text.as_ref()),
            _ => return Err(overload("join")),
        }
    }
    let length: usize = texts.iter().map(|text| text.len() + by.len()).sum();
    if length > MAX_TEXT {
        return Err("operation cancelled: actual cost limit exceeded".to_owned());
    }
    Ok(Val::text(texts.join(by)))
}

fn quantity_member<'v>(
    quantity: &Quantity,
    name: &str,
    arguments: &[Val<'v>],
) -> Result<Val<'v>, String> {
    let other = match arguments {
        [Val::Quantity(other)] => Some(other.clone()),
        [Val::Int(number)] => number.to_string().parse().ok(),
        _ => None,
    };
    Ok(match (name, other) {
        ("sign", None) => Val::Int(i64::from(quantity.sign())),
        ("isInteger", None) => Val::Bool(quantity.is_whole()),
        ("asInteger", None) if quantity.is_whole() => Val::Int(quantity.value()),
        ("asInteger", None) => return Err("cannot convert value to integer".to_owned()),
        ("asApproximateFloat", None) => Val::Double(quantity.as_f64()),
        ("isGreaterThan", Some(other)) => Val::Bool(*quantity > other),
        ("isLessThan", Some(other)) => Val::Bool(*quantity < other),
        ("compareTo", Some(other)) => Val::Int(match quantity.partial_cmp(&other) {
            Some(std::cmp::Ordering::Less) => -1,
            Some(std::cmp::Ordering::Greater) => 1,
            _ => 0,
        }),
        ("add", Some(other)) => {
            let mut sum = quantity.clone();
            sum.add(&other);
            Val::Quantity(sum)
        }
        ("sub", Some(other)) => {
            let mut rest = quantity.clone();
            rest.sub(&other);
            Val::Quantity(rest)
        }
        _ => return Err(overload(name)),
    })
}
