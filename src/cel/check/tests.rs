//! What the checker makes of expressions.

use std::borrow::Cow;

use apimachinery::schema::{Field, ListKind, ListType, MapType, Message, Ref, Type};

use super::*;
use crate::Program;

/// A small type: `spec` with a number, texts, a list and a time.
fn widget() -> Ty {
    let field = |name: &'static str, ty: Type| Field::new(name, ty, 0);
    let message = |name: &'static str, mut fields: Vec<Field>| {
        fields.sort_by(|a, b| a.name.cmp(&b.name));
        let mut made = Message::new(name, &[], &[]);
        made.fields = Cow::Owned(fields);
        Ref::from(made)
    };
    let texts = MapType {
        value: Type::String,
        atomic: false,
    };
    let numbers = ListType {
        item: Type::Int32,
        kind: ListKind::Unset,
        keys: Cow::Borrowed(&[]),
        merge_key: None,
        wrapped: false,
    };
    let spec = message(
        "Spec",
        vec![
            field("replicas", Type::Int32),
            field("name", Type::String),
            field("labels", Type::Map(Ref::from(texts))),
            field("numbers", Type::List(Ref::from(numbers))),
            field("port", Type::IntOrString),
            field("at", Type::Time),
        ],
    );
    Ty::Message(message("Widget", vec![field("spec", Type::Message(spec))]))
}

fn env() -> Env {
    let mut env = policy(widget(), Some(Ty::Dyn));
    let variables = [("size", Ty::Int), ("any", Ty::Dyn)];
    env.set("variables", Ty::fields("kubernetes.variables", variables));
    env
}

#[track_caller]
fn check_type(text: &str, expect: &str) {
    let program = Program::parse(text).expect("parses");
    match program.check(&env().making_objects()) {
        Ok(ty) => assert_eq!(ty.to_string(), expect, "{text}"),
        Err(why) => panic!("{text}: {why}"),
    }
}

#[track_caller]
fn check_refused(text: &str, expect: &str) {
    let program = Program::parse(text).expect("parses");
    let why = program.check(&env()).expect_err("is refused");
    assert_eq!(why, expect, "{text}");
}

#[test]
fn types_follow_from_fields_operators_and_functions() {
    for (text, expect) in [
        ("object.spec.replicas > 1 && has(object.spec.name)", "bool"),
        ("object.spec.replicas + 1", "int"),
        ("object.spec.name + 'x'", "string"),
        ("object.spec.labels['a']", "string"),
        ("object.spec.labels.a", "string"),
        ("object.spec.numbers.map(n, string(n))", "list(string)"),
        ("object.spec.numbers.filter(n, n > 1).sum()", "int"),
        ("object.spec.numbers.all(n, n in [1, 2])", "bool"),
        (
            "object.spec.port == 80 || object.spec.port == 'http'",
            "bool",
        ),
        (
            "object.spec.at - duration('1h')",
            "google.protobuf.Timestamp",
        ),
        ("object.?spec.replicas", "optional_type(int)"),
        ("object.?spec.?labels[?'a'].orValue('b')", "string"),
        ("variables.size == 1 ? 'a' : 'b'", "string"),
        ("variables.any.whatever.else", "dyn"),
        ("params.foo[1].bar", "dyn"),
        ("request.userInfo.groups.exists(g, g == 'a')", "bool"),
        ("namespaceObject.metadata.labels.env == 'prod'", "bool"),
        ("authorizer.requestResource.check('get').allowed()", "bool"),
        (
            "authorizer.group('').resource('pods').namespace('x').check('get').reason()",
            "string",
        ),
        ("[1, 2] + [3]", "list(int)"),
        ("{'a': 1}", "map(string, int)"),
        (
            "oldObject == null || object.spec.name == oldObject.spec.name",
            "bool",
        ),
        ("Object{spec: Object.spec{a: 1}}", "Object"),
        (
            "[JSONPatch{op: 'add', path: '/a', value: 1}]",
            "list(JSONPatch)",
        ),
        ("size(object.spec.numbers)", "int"),
        ("quantity('1').isGreaterThan(quantity('2'))", "bool"),
        ("type(1) == int", "bool"),
    ] {
        check_type(text, expect);
    }
}

#[test]
fn what_is_wrong_is_told_where_it_is() {
    check_refused(
        "object.spec.replica > 1",
        "ERROR: <input>:1:12: undefined field 'replica'\n | object.spec.replica > 1\n | ...........^",
    );
    check_refused(
        "object.replicas > 1",
        "ERROR: <input>:1:7: undefined field 'replicas'\n | object.replicas > 1\n | ......^",
    );
    check_refused(
        "foo == 1",
        "ERROR: <input>:1:1: undeclared reference to 'foo' (in container '')\n | foo == 1\n | ^",
    );
    check_refused(
        "object.spec.name > 1",
        "ERROR: <input>:1:18: found no matching overload for '_>_' applied to '(string, int)'\n | object.spec.name > 1\n | .................^",
    );
    check_refused(
        "true &&\n  object.spec.numbers.all(n, n.x)",
        "ERROR: <input>:2:31: type 'int' does not support field selection\n |   object.spec.numbers.all(n, n.x)\n | ..............................^",
    );
    check_refused(
        "nothing(1)",
        "ERROR: <input>:1:8: undeclared reference to 'nothing' (in container '')\n | nothing(1)\n | .......^",
    );
    check_refused(
        "object.spec.name.startsWith(1)",
        "ERROR: <input>:1:28: found no matching overload for 'startsWith' applied to 'string.(int)'\n | object.spec.name.startsWith(1)\n | ...........................^",
    );
    check_refused(
        "variables.none",
        "ERROR: <input>:1:10: undefined field 'none'\n | variables.none\n | .........^",
    );
    check_refused(
        "Object{}",
        "ERROR: <input>:1:7: undeclared reference to 'Object' (in container '')\n | Object{}\n | ......^",
    );
}

#[test]
fn results_are_held_to_what_is_wanted() {
    let compile = |text: &str, wanted: &[&str]| {
        Program::parse(text)
            .and_then(|program| program.compile(&env().making_objects(), wanted).map(drop))
    };
    assert_eq!(compile("object.spec.replicas > 1", &["bool"]), Ok(()));
    assert_eq!(
        compile("object.spec.replicas", &["bool"]),
        Err("must evaluate to bool but got int".to_owned())
    );
    assert_eq!(
        compile("params.a", &["bool"]),
        Err("must evaluate to bool but got dyn".to_owned())
    );
    assert_eq!(
        compile("true", &["string", "null_type"]),
        Err("must evaluate to one of [string null_type] but got bool".to_owned())
    );
    assert_eq!(
        compile("Object.spec{}", &["Object"]),
        Err("must evaluate to Object but got Object.spec".to_owned())
    );
    assert_eq!(compile("[]", &["list(JSONPatch)"]), Ok(()));
    assert_eq!(
        compile("[1]", &["list(JSONPatch)"]),
        Err("must evaluate to list(JSONPatch) but got list(int)".to_owned())
    );
    assert!(
        compile("object.spec.none", &["bool"])
            .expect_err("no such field")
            .starts_with("compilation failed: ERROR: <input>:1:12: undefined field 'none'")
    );
}
