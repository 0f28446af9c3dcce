//! Bytes to objects and back as the registry needs it: request bodies with their findings, and the stored form.
//!
//! The stored form is compact JSON that begins with kind, apiVersion and metadata, without a resourceVersion: readers find
//! metadata at once, and the type is cut off where a list's items do not have it.

use std::cell::RefCell;
use std::sync::Arc;

use api::Resource;
use apimachinery::codec::media::MediaType;
use apimachinery::codec::protobuf::{self, Envelope};
use apimachinery::codec::{self, Decoded, json, strict, yaml};
use apimachinery::schema::{self, Message};
use apimachinery::{Status, Value, meta};
use bytes::Bytes;

use super::options::FieldValidation;
use super::strategy::Strategy;
use crate::cache::Entry;
use crate::request::Warnings;

/// Bytes of its buffer for encoding that a thread keeps.
const SCRATCH_BYTES: usize = 64 * 1024;

/// The first bytes of every stored object of a kind: `{"kind":"Pod","apiVersion":"v1",`.
pub fn type_prefix(resource: &Resource) -> Vec<u8> {
    let kind = format!(
        "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",",
        resource.kind,
        resource.api_version()
    );
    kind.into_bytes()
}

/// Encodes an object with kind, apiVersion and metadata first. With `stored`, without its resourceVersion.
///
/// The bytes are as long as they are: an object lives in the store and the caches for long, and spare room with it.
pub fn encode_object(object: &Value, stored: bool) -> Bytes {
    thread_local! {
        static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    SCRATCH.with_borrow_mut(|scratch| {
        scratch.clear();
        write_object(scratch, object, stored);
        let bytes = Bytes::copy_from_slice(scratch);
        scratch.shrink_to(SCRATCH_BYTES);
        bytes
    })
}

fn write_object(out: &mut Vec<u8>, object: &Value, stored: bool) {
    let Some(map) = object.as_object() else {
        return write_value(out, object);
    };
    out.push(b'{');
    for key in ["kind", "apiVersion"] {
        if let Some(value) = map.get(key) {
            write_key(out, key);
            write_value(out, value);
        }
    }
    match map.get("metadata") {
        Some(Value::Object(metadata)) if stored => {
            write_key(out, "metadata");
            out.push(b'{');
            for (key, value) in metadata {
                if key != "resourceVersion" {
                    write_key(out, key);
                    write_value(out, value);
                }
            }
            out.push(b'}');
        }
        Some(metadata) => {
            write_key(out, "metadata");
            write_value(out, metadata);
        }
        None => {}
    }
    for (key, value) in map {
        if !matches!(key.as_str(), "kind" | "apiVersion" | "metadata") {
            write_key(out, key);
            write_value(out, value);
        }
    }
    out.push(b'}');
}

fn write_key(out: &mut Vec<u8>, key: &str) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
    // Writing text into memory cannot fail.
    let _ = serde_json::to_writer(&mut *out, key);
    out.push(b':');
}

fn write_value(out: &mut Vec<u8>, value: &Value) {
    // Nor can writing a tree.
    let _ = serde_json::to_writer(out, value);
}

/// Stored bytes of any origin as this server stores them.
pub fn normalize(
    resource: &'static Resource,
    strategy: &dyn Strategy,
    bytes: &Bytes,
) -> Result<Bytes, String> {
    let mut object = decode_stored(bytes)?;
    if crate::crd::is_custom(resource.schema) {
        return Ok(normalize_custom(resource, strategy, object));
    }
    let version = meta::api_version(&object).to_owned();
    if version != resource.api_version() {
        let (group, version) = meta::group_version(&version);
        match api::find_kind(group, version, meta::kind(&object)) {
            Some(from) => strategy.convert(&mut object, from, resource),
            None => {
                let kind = meta::kind(&object);
                return Err(format!("no kind {kind:?} in version {version:?}"));
            }
        }
        meta::set_type(&mut object, &resource.api_version(), resource.kind);
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
        metadata.remove("selfLink");
    }
    schema::complete(&mut object, resource.schema);
    strategy.default(&mut object);
    Ok(encode_object(&object, true))
}

/// A stored custom object as its definition wants it now: without what its schema no longer has, and with the defaults
/// of the version it is stored in (upstream's `schemaCoercingDecoder` and `unstructuredDefaulter`).
fn normalize_custom(
    resource: &'static Resource,
    strategy: &dyn Strategy,
    mut object: Value,
) -> Bytes {
    strategy.revise(&mut object);
    meta::set_type(&mut object, &resource.api_version(), resource.kind);
    schema::prune(&mut object, resource.schema);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
        metadata.remove("selfLink");
        metadata.entry("generation").or_insert(1.into());
    }
    encode_object(&object, true)
}

/// Stored JSON or `k8s\0` protobuf as a tree.
fn decode_stored(bytes: &[u8]) -> Result<Value, String> {
    if Envelope::is_marked(bytes) {
        return open(bytes).map_err(|error| error.to_string());
    }
    Ok(json::decode(bytes)
        .map_err(|error| error.to_string())?
        .value)
}

fn open(bytes: &[u8]) -> Result<Value, codec::DecodeError> {
    protobuf::decode_object(bytes, |api_version, kind| {
        let (group, version) = meta::group_version(api_version);
        api::message_for(group, version, kind)
    })
}

/// An entry's object with its resourceVersion.
pub fn entry_value(entry: &Entry) -> Result<Value, Status> {
    let mut object = json::decode(entry.stored())
        .map_err(Status::internal)?
        .value;
    meta::set_resource_version(&mut object, &entry.revision().to_string());
    Ok(object)
}

/// Parses a body as its media type says, without looking at what it is.
pub fn parse(media: MediaType, body: &[u8]) -> Result<Decoded, codec::DecodeError> {
    match media {
        MediaType::Json => json::decode(body),
        MediaType::Yaml => yaml::decode(body),
        MediaType::Protobuf => Ok(Decoded {
            value: open(body)?,
            ..Decoded::default()
        }),
    }
}

fn no_kind(api_version: &str, kind: &str) -> String {
    format!(
        "no kind {kind:?} is registered for version {api_version:?} in scheme \"k8s.io/kubernetes/pkg/api/legacyscheme/scheme.go:30\""
    )
}

/// What a body is expected to be.
#[derive(Clone, Copy)]
pub struct Expected<'a> {
    pub group: &'a str,
    pub version: &'a str,
    pub kind: &'a str,
    pub message: &'static Message,
}

impl Expected<'_> {
    pub fn of(resource: &'static Resource) -> Expected<'static> {
        Expected {
            group: resource.group,
            version: resource.version,
            kind: resource.kind,
            message: resource.schema,
        }
    }

    fn api_version(&self) -> String {
        meta::join_group_version(self.group, self.version)
    }
}

/// The answer to a body that is not even its format; upstream looks for the kind of a JSON body first.
fn unreadable(kind: &str, media: MediaType, error: &codec::DecodeError, body: &[u8]) -> Status {
    let error = match media {
        MediaType::Json => &codec::DecodeError(format!(
            "couldn't get version/kind; json parse error: {error}"
        )),
        _ => error,
    };
    codec::bad_request("", "", kind, error, body)
}

/// Decodes a request's body into an object of the expected type, complete but for defaults.
pub fn decode_body(
    expected: Expected<'_>,
    media: MediaType,
    body: &[u8],
    validation: FieldValidation,
    warnings: &Warnings,
) -> Result<Value, Status> {
    let decoded = match parse(media, body) {
        Ok(decoded) => decoded,
        Err(error) => return Err(unreadable(expected.kind, media, &error, body)),
    };
    fit(expected, decoded, body, validation, warnings)
}

/// Why a tree is no object of the expected type.
enum Unfit {
    /// The type as the tree says it, and what does not fit.
    Type {
        kind: String,
        version: String,
        error: codec::DecodeError,
    },
    Version(String),
}

/// The second half of `decode_body`: checks the type and fits the tree to its table.
pub fn fit(
    expected: Expected<'_>,
    decoded: Decoded,
    body: &[u8],
    validation: FieldValidation,
    warnings: &Warnings,
) -> Result<Value, Status> {
    let mut decoded = conform(expected, decoded).map_err(|unfit| match unfit {
        Unfit::Type {
            kind,
            version,
            error,
        } => codec::bad_request(&kind, &version, expected.kind, &error, body),
        Unfit::Version(text) => Status::bad_request(text),
    })?;
    // Of a custom object upstream tells what is unknown after all else; of YAML, too.
    let is_json = body.trim_ascii_start().starts_with(b"{");
    if is_json && validation != FieldValidation::Ignore && !crate::crd::is_custom(expected.message)
    {
        decoded.strict = strict::in_order_of_text(body, decoded.strict);
    }
    report(expected, &decoded.strict, validation, warnings, body)?;
    Ok(decoded.value)
}

/// The same for an object that a patch made; what does not fit is the patch's fault, and `explain` says it with the
/// patch's value (`patch: Invalid value: …`).
pub fn fit_patched(
    expected: Expected<'_>,
    decoded: Decoded,
    validation: FieldValidation,
    warnings: &Warnings,
    explain: impl Fn(&str) -> Status,
) -> Result<Value, Status> {
    let decoded = conform(expected, decoded).map_err(|unfit| match unfit {
        Unfit::Type { error, .. } => explain(&error.0),
        Unfit::Version(text) => explain(&text),
    })?;
    match validation {
        FieldValidation::Strict if !decoded.strict.is_empty() => {
            return Err(explain(&codec::strict_error(&decoded.strict).0));
        }
        FieldValidation::Warn => warn(&decoded.strict, warnings),
        _ => {}
    }
    Ok(decoded.value)
}

fn conform(expected: Expected<'_>, mut decoded: Decoded) -> Result<Decoded, Unfit> {
    let version = expected.api_version();
    let unfit = |kind: &str, version: &str, text: String| Unfit::Type {
        kind: kind.to_owned(),
        version: version.to_owned(),
        error: codec::DecodeError(text),
    };
    if !decoded.value.is_object() {
        let text = format!(
            "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type struct {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
            json_type(&decoded.value)
        );
        return Err(unfit("", "", text));
    }
    let said_version = meta::api_version(&decoded.value).to_owned();
    let said_kind = meta::kind(&decoded.value).to_owned();
    let is_version = if said_version.is_empty() {
        &version
    } else {
        &said_version
    };
    let is_kind = if said_kind.is_empty() {
        expected.kind
    } else {
        &said_kind
    };
    let (group, bare) = meta::group_version(is_version);
    if is_kind != expected.kind || *is_version != version {
        if api::message_for(group, bare, is_kind).is_none() {
            return Err(unfit(is_kind, bare, no_kind(is_version, is_kind)));
        }
        if *is_version != version {
            return Err(Unfit::Version(format!(
                "the API version in the data ({is_version}) does not match the expected API version ({version})"
            )));
        }
        let package = go_package(expected.group);
        let text = format!(
            "converting ({bare}.{is_kind}) to ({package}.{}): unknown conversion",
            expected.kind
        );
        return Err(unfit(is_kind, bare, text));
    }
    meta::set_type(&mut decoded.value, &version, expected.kind);
    let decoded = if crate::crd::is_custom(expected.message) {
        fit_custom(decoded, expected.message)
    } else {
        decoded.conform(expected.message)
    };
    let mut decoded = decoded.map_err(|error| unfit(is_kind, bare, error.0))?;
    if let Some(metadata) = decoded
        .value
        .get_mut("metadata")
        .and_then(Value::as_object_mut)
    {
        metadata.remove("selfLink");
    }
    Ok(decoded)
}

/// The package of a group's own types, as upstream's messages name them (`core.ConfigMap`).
pub fn go_package(group: &str) -> &str {
    match group {
        "" | "events.k8s.io" => "core",
        "rbac.authorization.k8s.io" => "rbac",
        "internal.apiserver.k8s.io" => "apiserverinternal",
        _ => group.split('.').next().unwrap_or(""),
    }
}

/// A custom object is held to its schema when it is validated; only what every object has must fit now.
fn fit_custom(mut decoded: Decoded, message: &Message) -> Result<Decoded, codec::DecodeError> {
    let unknown = |path: &str| format!("unknown field {}", apimachinery::field::quote(path));
    if let (Some(metadata), Some(shape)) = (
        decoded.value.get_mut("metadata"),
        api::message("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"),
    ) {
        for path in schema::conform(metadata, shape).map_err(codec::DecodeError)? {
            decoded.strict.push(unknown(&format!("metadata.{path}")));
        }
    }
    let mut pruned = schema::prune(&mut decoded.value, message);
    pruned.sort();
    for path in pruned {
        decoded.strict.push(unknown(&path));
    }
    Ok(decoded)
}

/// What JSON calls a value, as Go's decoder says it.
pub fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
        Value::Null => "null",
        Value::Object(_) => "object",
    }
}

fn warn(findings: &[String], warnings: &Warnings) {
    findings
        .iter()
        .flat_map(|finding| strict::warnings(finding))
        .for_each(|warning| warnings.add(warning));
}

/// Tells about, or refuses, what is given twice in an applied configuration.
pub fn report_applied(
    findings: &[String],
    validation: FieldValidation,
    warnings: &Warnings,
) -> Result<(), Status> {
    match validation {
        FieldValidation::Strict if !findings.is_empty() => Err(Status::bad_request(format!(
            "error strict decoding YAML: {}",
            strict::converting(findings)
        ))),
        FieldValidation::Warn => {
            warn(findings, warnings);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Tells about, or refuses, unknown and duplicate fields.
pub fn report(
    expected: Expected<'_>,
    findings: &[String],
    validation: FieldValidation,
    warnings: &Warnings,
    body: &[u8],
) -> Result<(), Status> {
    if findings.is_empty() {
        return Ok(());
    }
    match validation {
        FieldValidation::Ignore => {}
        FieldValidation::Warn => warn(findings, warnings),
        FieldValidation::Strict => {
            let error = codec::strict_error(findings);
            return Err(codec::bad_request(
                expected.kind,
                expected.version,
                expected.kind,
                &error,
                body,
            ));
        }
    }
    Ok(())
}

/// Makes an entry out of bytes that were just written, or (dry run) would have been.
pub fn written_entry(
    shape: &crate::cache::Shape,
    key: Bytes,
    value: Bytes,
    revision: i64,
    lease: i64,
) -> Result<Arc<Entry>, Status> {
    let kv = store::KeyValue {
        key,
        value,
        create_revision: 0,
        mod_revision: revision,
        version: 0,
        lease,
    };
    Entry::new(shape, &kv)
        .map(Arc::new)
        .map_err(Status::internal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn of_a_custom_object_unknown_metadata_is_told_of_too() {
        let shape = api::message("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta");
        let schema = json!({"type": "object"});
        let message =
            schema::structural::resource("T", &schema, shape.expect("every object has metadata"));
        let decoded = Decoded {
            value: json!({"metadata": {"name": "a", "foo": 1}, "bar": 1}),
            ..Decoded::default()
        };
        let Ok(decoded) = fit_custom(decoded, &message) else {
            panic!("it fits");
        };
        assert_eq!(decoded.value, json!({"metadata": {"name": "a"}}));
        assert_eq!(
            decoded.strict,
            [r#"unknown field "metadata.foo""#, r#"unknown field "bar""#]
        );
    }

    #[test]
    fn stored_objects_begin_with_their_type_and_have_no_version() {
        let object = json!({"apiVersion": "v1", "data": {"a": "b"}, "kind": "ConfigMap",
            "metadata": {"name": "x", "resourceVersion": "5"}});
        let bytes = encode_object(&object, true);
        assert_eq!(
            std::str::from_utf8(&bytes).unwrap(),
            r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"x"},"data":{"a":"b"}}"#
        );
        assert!(bytes.starts_with(&type_prefix(&api::r::CONFIGMAPS)));
    }
}
