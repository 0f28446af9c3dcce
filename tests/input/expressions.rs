//! The expressions of policies and custom resource definitions, parsed and evaluated on a small object.

use apimachinery::schema::Type;
use cel::check::{Env, Ty};
use cel::{Program, Scope};
use serde_json::json;

/// Parses an expression; one that can be read is evaluated, whose work is bounded however it ends.
pub fn cel(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Ok(program) = Program::parse(&text) else {
        return;
    };
    let _ = program.uses("self");
    let kind = api::message_for("", "v1", "Pod")
        .map_or(Ty::Dyn, |message| Ty::of(&Type::message(message)));
    let _ = program.check(&Env::new([("self", Ty::Dyn), ("object", kind)]));
    let object = json!({"spec": {"replicas": 3, "name": "abc", "size": "1Gi", "list": [1, 2, 3], "labels": {"a": "b"},
        "parts": [{"name": "p"}, {"name": "q"}], "flag": true, "none": null, "half": 0.5}});
    let scope = Scope::new(&[("self", cel::json(&object)), ("object", cel::json(&object))]);
    let _ = program.evaluate(&scope);
}
