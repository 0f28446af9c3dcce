//! What functions take and give. A line each: the name, what it is a member of, its arguments, its result.
//!
//! `T` is the type of a list's items, or what an optional holds; `dyn` takes all.

use super::types::Ty;

/// Name, target (empty: a function), arguments, result.
type Signature = (
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static str,
);

const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
const PATH: &str = "kubernetes.authorization.PathCheck";
const GROUP: &str = "kubernetes.authorization.GroupCheck";
const RESOURCE: &str = "kubernetes.authorization.ResourceCheck";
const DECISION: &str = "kubernetes.authorization.Decision";
const QUANTITY: &str = "kubernetes.Quantity";
const ADDRESS: &str = "net.IP";
const RANGE: &str = "net.CIDR";

const SIGNATURES: &[Signature] = &[
    ("size", "", &["string"], "int"),
    ("size", "", &["bytes"], "int"),
    ("size", "", &["list"], "int"),
    ("size", "", &["map"], "int"),
    ("size", "string", &[], "int"),
    ("size", "bytes", &[], "int"),
    ("size", "list", &[], "int"),
    ("size", "map", &[], "int"),
    ("dyn", "", &["dyn"], "dyn"),
    ("type", "", &["dyn"], "type"),
    ("string", "", &["string"], "string"),
    ("string", "", &["number"], "string"),
    ("string", "", &["bool"], "string"),
    ("string", "", &["bytes"], "string"),
    ("string", "", &["duration"], "string"),
    ("string", "", &["timestamp"], "string"),
    ("string", "", &[ADDRESS], "string"),
    ("string", "", &[RANGE], "string"),
    ("int", "", &["number"], "int"),
    ("int", "", &["string"], "int"),
    ("int", "", &["timestamp"], "int"),
    ("int", "", &["duration"], "int"),
    ("uint", "", &["number"], "uint"),
    ("uint", "", &["string"], "uint"),
    ("double", "", &["number"], "double"),
    ("double", "", &["string"], "double"),
    ("bool", "", &["bool"], "bool"),
    ("bool", "", &["string"], "bool"),
    ("bytes", "", &["string"], "bytes"),
    ("bytes", "", &["bytes"], "bytes"),
    ("duration", "", &["string"], "duration"),
    ("duration", "", &["duration"], "duration"),
    ("timestamp", "", &["string"], "timestamp"),
    ("timestamp", "", &["timestamp"], "timestamp"),
    ("timestamp", "", &["int"], "timestamp"),
    ("contains", "string", &["string"], "bool"),
    ("startsWith", "string", &["string"], "bool"),
    ("endsWith", "string", &["string"], "bool"),
    ("matches", "string", &["string"], "bool"),
    ("matches", "", &["string", "string"], "bool"),
    ("find", "string", &["string"], "string"),
    ("findAll", "string", &["string"], "list(string)"),
    ("findAll", "string", &["string", "int"], "list(string)"),
    ("lowerAscii", "string", &[], "string"),
    ("upperAscii", "string", &[], "string"),
    ("trim", "string", &[], "string"),
    ("reverse", "string", &[], "string"),
    ("charAt", "string", &["int"], "string"),
    ("substring", "string", &["int"], "string"),
    ("substring", "string", &["int", "int"], "string"),
    ("indexOf", "string", &["string"], "int"),
    ("indexOf", "string", &["string", "int"], "int"),
    ("lastIndexOf", "string", &["string"], "int"),
    ("lastIndexOf", "string", &["string", "int"], "int"),
    ("split", "string", &["string"], "list(string)"),
    ("split", "string", &["string", "int"], "list(string)"),
    ("replace", "string", &["string", "string"], "string"),
    ("replace", "string", &["string", "string", "int"], "string"),
    ("format", "string", &["list"], "string"),
    ("join", "list", &[], "string"),
    ("join", "list", &["string"], "string"),
    ("min", "list", &[], "T"),
    ("max", "list", &[], "T"),
    ("sum", "list", &[], "T"),
    ("isSorted", "list", &[], "bool"),
    ("indexOf", "list", &["T"], "int"),
    ("lastIndexOf", "list", &["T"], "int"),
    ("distinct", "list", &[], "list(T)"),
    ("reverse", "list", &[], "list(T)"),
    ("sort", "list", &[], "list(T)"),
    ("slice", "list", &["int", "int"], "list(T)"),
    ("flatten", "list", &[], "dyn"),
    ("hasValue", "optional", &[], "bool"),
    ("value", "optional", &[], "T"),
    ("orValue", "optional", &["T"], "T"),
    ("or", "optional", &["optional"], "optional(T)"),
    ("getFullYear", "timestamp", &[], "int"),
    ("getMonth", "timestamp", &[], "int"),
    ("getDate", "timestamp", &[], "int"),
    ("getDayOfMonth", "timestamp", &[], "int"),
    ("getDayOfWeek", "timestamp", &[], "int"),
    ("getDayOfYear", "timestamp", &[], "int"),
    ("getHours", "timestamp", &[], "int"),
    ("getMinutes", "timestamp", &[], "int"),
    ("getSeconds", "timestamp", &[], "int"),
    ("getMilliseconds", "timestamp", &[], "int"),
    ("getFullYear", "timestamp", &["string"], "int"),
    ("getMonth", "timestamp", &["string"], "int"),
    ("getDate", "timestamp", &["string"], "int"),
    ("getDayOfMonth", "timestamp", &["string"], "int"),
    ("getDayOfWeek", "timestamp", &["string"], "int"),
    ("getDayOfYear", "timestamp", &["string"], "int"),
    ("getHours", "timestamp", &["string"], "int"),
    ("getMinutes", "timestamp", &["string"], "int"),
    ("getSeconds", "timestamp", &["string"], "int"),
    ("getMilliseconds", "timestamp", &["string"], "int"),
    ("getHours", "duration", &[], "int"),
    ("getMinutes", "duration", &[], "int"),
    ("getSeconds", "duration", &[], "int"),
    ("getMilliseconds", "duration", &[], "int"),
    ("quantity", "", &["string"], QUANTITY),
    ("isQuantity", "", &["string"], "bool"),
    ("sign", QUANTITY, &[], "int"),
    ("isInteger", QUANTITY, &[], "bool"),
    ("asInteger", QUANTITY, &[], "int"),
    ("asApproximateFloat", QUANTITY, &[], "double"),
    ("isGreaterThan", QUANTITY, &[QUANTITY], "bool"),
    ("isLessThan", QUANTITY, &[QUANTITY], "bool"),
    ("compareTo", QUANTITY, &[QUANTITY], "int"),
    ("add", QUANTITY, &[QUANTITY], QUANTITY),
    ("add", QUANTITY, &["int"], QUANTITY),
    ("sub", QUANTITY, &[QUANTITY], QUANTITY),
    ("sub", QUANTITY, &["int"], QUANTITY),
    ("ip", "", &["string"], ADDRESS),
    ("isIP", "", &["string"], "bool"),
    ("family", ADDRESS, &[], "int"),
    ("isLoopback", ADDRESS, &[], "bool"),
    ("isUnspecified", ADDRESS, &[], "bool"),
    ("isGlobalUnicast", ADDRESS, &[], "bool"),
    ("isLinkLocalMulticast", ADDRESS, &[], "bool"),
    ("isLinkLocalUnicast", ADDRESS, &[], "bool"),
    ("cidr", "", &["string"], RANGE),
    ("isCIDR", "", &["string"], "bool"),
    ("containsIP", RANGE, &["string"], "bool"),
    ("containsIP", RANGE, &[ADDRESS], "bool"),
    ("containsCIDR", RANGE, &["string"], "bool"),
    ("containsCIDR", RANGE, &[RANGE], "bool"),
    ("ip", RANGE, &[], ADDRESS),
    ("masked", RANGE, &[], RANGE),
    ("prefixLength", RANGE, &[], "int"),
    ("isURL", "", &["string"], "bool"),
    ("url", "", &["string"], "kubernetes.URL"),
    ("getScheme", "kubernetes.URL", &[], "string"),
    ("getHost", "kubernetes.URL", &[], "string"),
    ("getHostname", "kubernetes.URL", &[], "string"),
    ("getPort", "kubernetes.URL", &[], "string"),
    ("getEscapedPath", "kubernetes.URL", &[], "string"),
    ("getQuery", "kubernetes.URL", &[], "dyn"),
    ("semver", "", &["string"], "kubernetes.Semver"),
    ("isSemver", "", &["string"], "bool"),
    ("major", "kubernetes.Semver", &[], "int"),
    ("minor", "kubernetes.Semver", &[], "int"),
    ("patch", "kubernetes.Semver", &[], "int"),
    (
        "isLessThan",
        "kubernetes.Semver",
        &["kubernetes.Semver"],
        "bool",
    ),
    (
        "isGreaterThan",
        "kubernetes.Semver",
        &["kubernetes.Semver"],
        "bool",
    ),
    (
        "compareTo",
        "kubernetes.Semver",
        &["kubernetes.Semver"],
        "int",
    ),
    (
        "validate",
        "kubernetes.NamedFormat",
        &["string"],
        "optional(list(string))",
    ),
    ("path", AUTHORIZER, &["string"], PATH),
    ("group", AUTHORIZER, &["string"], GROUP),
    (
        "serviceAccount",
        AUTHORIZER,
        &["string", "string"],
        AUTHORIZER,
    ),
    ("resource", GROUP, &["string"], RESOURCE),
    ("subresource", RESOURCE, &["string"], RESOURCE),
    ("namespace", RESOURCE, &["string"], RESOURCE),
    ("name", RESOURCE, &["string"], RESOURCE),
    ("fieldSelector", RESOURCE, &["string"], RESOURCE),
    ("labelSelector", RESOURCE, &["string"], RESOURCE),
    ("check", RESOURCE, &["string"], DECISION),
    ("check", PATH, &["string"], DECISION),
    ("allowed", DECISION, &[], "bool"),
    ("reason", DECISION, &[], "string"),
    ("errored", DECISION, &[], "bool"),
    ("error", DECISION, &[], "string"),
];

/// Functions of a name that holds such.
const SPACES: &[Signature] = &[
    ("optional.of", "", &["dyn"], "optional"),
    ("optional.none", "", &[], "optional"),
    ("optional.ofNonZeroValue", "", &["dyn"], "optional"),
    ("format.named", "", &["string"], "optional(format)"),
    ("format.byte", "", &[], "kubernetes.NamedFormat"),
    ("format.date", "", &[], "kubernetes.NamedFormat"),
    ("format.datetime", "", &[], "kubernetes.NamedFormat"),
    ("format.dns1035Label", "", &[], "kubernetes.NamedFormat"),
    (
        "format.dns1035LabelPrefix",
        "",
        &[],
        "kubernetes.NamedFormat",
    ),
    ("format.dns1123Label", "", &[], "kubernetes.NamedFormat"),
    (
        "format.dns1123LabelPrefix",
        "",
        &[],
        "kubernetes.NamedFormat",
    ),
    ("format.dns1123Subdomain", "", &[], "kubernetes.NamedFormat"),
    (
        "format.dns1123SubdomainPrefix",
        "",
        &[],
        "kubernetes.NamedFormat",
    ),
    ("format.labelValue", "", &[], "kubernetes.NamedFormat"),
    ("format.qualifiedName", "", &[], "kubernetes.NamedFormat"),
    ("format.uri", "", &[], "kubernetes.NamedFormat"),
    ("format.uuid", "", &[], "kubernetes.NamedFormat"),
    ("jsonpatch.escapeKey", "", &["string"], "string"),
    ("strings.quote", "", &["string"], "string"),
    ("ip.isCanonical", "", &["string"], "bool"),
    ("sets.contains", "", &["list", "list"], "bool"),
    ("sets.equivalent", "", &["list", "list"], "bool"),
    ("sets.intersects", "", &["list", "list"], "bool"),
];

/// How a call fares.
pub enum Called {
    Gives(Ty),
    /// No function is called so.
    Unknown,
    /// It takes something else.
    Mismatch,
}

/// The result of calling `name` on these types.
pub fn call(target: Option<&Ty>, name: &str, arguments: &[Ty]) -> Called {
    choose(SIGNATURES, target, name, arguments)
}

/// The same for `space.name`.
pub fn call_in(space: &str, name: &str, arguments: &[Ty]) -> Called {
    choose(SPACES, None, &format!("{space}.{name}"), arguments)
}

fn choose(table: &[Signature], target: Option<&Ty>, name: &str, arguments: &[Ty]) -> Called {
    let mut known = false;
    let mut given: Option<Ty> = None;
    for (called, of, takes, gives) in table.iter().filter(|signature| signature.0 == name) {
        debug_assert_eq!(*called, name);
        known = true;
        if of.is_empty() != target.is_none() || takes.len() != arguments.len() {
            continue;
        }
        if target.is_some_and(|target| !takes_in(of, target, None)) {
            continue;
        }
        let inner = target.and_then(inner);
        let all = takes
            .iter()
            .zip(arguments)
            .all(|(takes, argument)| takes_in(takes, argument, inner.as_ref()));
        if !all {
            continue;
        }
        // Of what is not known, several may be meant.
        let result = result(gives, inner.as_ref(), arguments);
        given = Some(match given {
            Some(before) => before.join(result),
            None => result,
        });
    }
    match given {
        Some(given) => Called::Gives(given),
        None if known => Called::Mismatch,
        None => Called::Unknown,
    }
}

fn inner(ty: &Ty) -> Option<Ty> {
    match ty {
        Ty::List(item) | Ty::Optional(item) => Some(item.as_ref().clone()),
        _ => None,
    }
}

fn takes_in(word: &str, ty: &Ty, inner: Option<&Ty>) -> bool {
    match (word, ty) {
        ("dyn", _) | (_, Ty::Dyn) => true,
        ("T", ty) => inner.is_none_or(|inner| ty.fits(inner)),
        ("string", Ty::Text)
        | ("bool", Ty::Bool)
        | ("int", Ty::Int)
        | ("number", Ty::Int | Ty::Uint | Ty::Double)
        | ("bytes", Ty::Bytes)
        | ("duration", Ty::Duration)
        | ("timestamp", Ty::Timestamp)
        | ("list", Ty::List(_))
        | ("map", Ty::Map(_, _))
        | ("optional", Ty::Optional(_)) => true,
        (word, Ty::Named(name)) => word == name,
        _ => false,
    }
}

fn result(word: &str, inner: Option<&Ty>, arguments: &[Ty]) -> Ty {
    let held = || inner.cloned().unwrap_or(Ty::Dyn);
    match word {
        "dyn" => Ty::Dyn,
        "T" => held(),
        "bool" => Ty::Bool,
        "int" => Ty::Int,
        "uint" => Ty::Uint,
        "double" => Ty::Double,
        "string" => Ty::Text,
        "bytes" => Ty::Bytes,
        "duration" => Ty::Duration,
        "timestamp" => Ty::Timestamp,
        "type" => Ty::Type,
        "list(string)" => Ty::list(Ty::Text),
        "list(T)" => Ty::list(held()),
        "optional(list(string))" => Ty::optional(Ty::list(Ty::Text)),
        "optional(format)" => Ty::optional(Ty::named("kubernetes.NamedFormat")),
        "optional(T)" => Ty::optional(held()),
        "optional" => Ty::optional(arguments.first().cloned().unwrap_or(Ty::Dyn)),
        name => Ty::named(name),
    }
}
