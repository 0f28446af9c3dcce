//! The Common Expression Language, as far as rules about objects use it: parsed once, evaluated over JSON that is borrowed.
//!
//! ```text
//! text ─ parse ─▶ Program ─ evaluate(variables) ─▶ Val, or an error in cel-go's words
//! ```
//!
//! Evaluation needs no types: `check` is for those who write expressions, to be told early what is wrong with them.
//! **Invariant:** work is bounded: by depth when parsing, by steps when evaluating.

pub mod authorizer;
pub mod check;
mod eval;
mod functions;
mod json;
mod libraries;
mod parse;
mod value;

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::Value;
use parking_lot::Mutex;

pub use eval::Scope;
pub use json::{check_type_names, to_json};
pub use libraries::semver;
pub use value::{OBJECT_TYPE, Object, PATCH_TYPE, Val};

/// Expressions kept parsed; past that all are parsed anew.
const MAX_PROGRAMS: usize = 4096;

/// A parsed expression.
pub struct Program {
    root: parse::Expr,
    text: String,
}

impl Program {
    /// Errs with what is wrong with the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        Ok(Self {
            root: parse::parse(text)?,
            text: text.to_owned(),
        })
    }

    /// The value in a scope.
    pub fn evaluate<'v>(&self, scope: &Scope<'v, '_>) -> Result<Val<'v>, String> {
        eval::evaluate(&self.root, scope)
    }

    /// The value as a condition.
    pub fn holds(&self, scope: &Scope<'_, '_>) -> Result<bool, String> {
        match self.evaluate(scope)? {
            Val::Bool(holds) => Ok(holds),
            _ => Err(format!("expression {:?} must evaluate to bool", self.text)),
        }
    }

    /// The type of its value, given those of the variables.
    ///
    /// # Errors
    /// All that cel-go would refuse to compile, each with its place.
    pub fn check(&self, env: &check::Env) -> Result<check::Ty, String> {
        check::check(&self.root, &self.text, env)
    }

    /// The same, where the value is wanted to be of one of these types, as they are written.
    ///
    /// # Errors
    /// Also: the value is of another type.
    pub fn compile(&self, env: &check::Env, wanted: &[&str]) -> Result<check::Ty, String> {
        let ty = self
            .check(env)
            .map_err(|why| format!("compilation failed: {why}"))?;
        let given = match ty.to_string() {
            null if null == "null" => "null_type".to_owned(),
            given => given,
        };
        // A type that the checker cannot tell may be the right one; that of a plain member cannot.
        let unsure = given.contains("dyn") && !(ty.is_dyn() && self.root.is_path());
        if unsure || wanted.contains(&given.as_str()) {
            return Ok(ty);
        }
        Err(match wanted {
            [one] => format!("must evaluate to {one} but got {given}"),
            _ => format!(
                "must evaluate to one of [{}] but got {given}",
                wanted.join(" ")
            ),
        })
    }

    /// Whether a variable is used.
    pub fn uses(&self, name: &str) -> bool {
        self.root.uses(name)
    }
}

/// Parsed expressions by their text.
#[derive(Default)]
pub struct Programs(Mutex<HashMap<String, Arc<Result<Program, String>>>>);

impl Programs {
    pub fn get(&self, text: &str) -> Arc<Result<Program, String>> {
        let mut programs = self.0.lock();
        if let Some(program) = programs.get(text) {
            return program.clone();
        }
        if programs.len() >= MAX_PROGRAMS {
            programs.clear();
        }
        let program = Arc::new(Program::parse(text));
        programs.insert(text.to_owned(), program.clone());
        program
    }
}

/// A value of JSON for expressions.
pub fn json(value: &Value) -> Val<'_> {
    Val::of(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(text: &str, expect: bool) {
        let object = json!({"spec": {"replicas": 3, "name": "abc", "size": "1Gi", "list": [1, 2, 3], "empty": [], "flag": true,
            "labels": {"a": "b", "x.y/z": "w"}, "parts": [{"name": "p", "n": 1}, {"name": "q", "n": 2}], "a-b": 1}});
        let scope = Scope::new(&[("self", json(&object))]);
        let program = Program::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"));
        match program.holds(&scope) {
            Ok(holds) => assert_eq!(holds, expect, "{text}"),
            Err(why) => panic!("{text}: {why}"),
        }
    }

    #[test]
    fn operators_have_their_precedence_and_types() {
        check("1 + 2 * 3 == 7 && !(1 > 2) || false", true);
        check("-2 + 5 == 3 && 7 / 2 == 3 && 7 % 4 == 3", true);
        check("1.5 * 2.0 == 3.0 && 0x10 == 16 && 2u == 2u", true);
        check("self.spec.replicas > 2 ? 'big' == 'big' : false", true);
        check("'a' + \"b\" == 'ab' && r'\\d' == '\\\\d'", true);
        check("[1, 2] + [3] == [1, 2, 3] && 2 in [1, 2]", true);
        check(
            "{'a': 1}.a == 1 && 'a' in {'a': 1} && {'a': 1}['a'] == 1",
            true,
        );
        check("self.spec.replicas <= 2", false);
    }

    #[test]
    fn macros_walk_lists_and_maps() {
        check(
            "self.spec.list.all(x, x > 0) && self.spec.list.exists(x, x == 2)",
            true,
        );
        check("self.spec.list.exists_one(x, x > 2)", true);
        check("self.spec.list.map(x, x * 2) == [2, 4, 6]", true);
        check("self.spec.list.filter(x, x != 2) == [1, 3]", true);
        check("self.spec.labels.all(k, k.size() > 0)", true);
        check(
            "self.spec.parts.all(p, self.spec.parts.exists_one(q, q.name == p.name))",
            true,
        );
        check("has(self.spec.name) && !has(self.spec.none)", true);
        check("self.spec.empty.all(x, false)", true);
    }

    #[test]
    fn errors_are_absorbed_where_the_answer_is_known() {
        check("true || self.none.deeper", true);
        check("self.none.deeper || true", true);
        check("!(false && self.none)", true);
        let object = json!({});
        let scope = Scope::new(&[("self", json(&object))]);
        let why = Program::parse("self.none == 1")
            .expect("parses")
            .holds(&scope)
            .expect_err("fails");
        assert_eq!(why, "no such key: none");
    }

    #[test]
    fn libraries_know_texts_lists_times_and_quantities() {
        check(
            "self.spec.name.startsWith('a') && self.spec.name.matches('^[a-c]+$')",
            true,
        );
        check(
            "'a,b'.split(',') == ['a', 'b'] && ['a', 'b'].join('-') == 'a-b'",
            true,
        );
        check(
            "'Hello'.lowerAscii() == 'hello' && 'abc'.substring(1, 2) == 'b'",
            true,
        );
        check(
            "self.spec.list.sum() == 6 && self.spec.list.max() == 3 && self.spec.list.isSorted()",
            true,
        );
        check(
            "quantity(self.spec.size).isGreaterThan(quantity('500Mi')) && isQuantity('1Gi')",
            true,
        );
        check(
            "duration('1h') > duration('30m') && timestamp('2026-01-01T00:00:00Z') < timestamp('2027-01-01T00:00:00Z')",
            true,
        );
        check(
            "int('3') == 3 && string(3) == '3' && double(3) == 3.0 && size('abc') == 3",
            true,
        );
        check(
            "self.spec.?none.orValue(5) == 5 && self.spec.?replicas.hasValue()",
            true,
        );
        check("self.spec.a__dash__b == 1 && type(1) == int", true);
        check(
            "'10.0.0.0/8' == '10.0.0.0/8' && isIP('10.0.0.1') && cidr('10.0.0.0/8').containsIP('10.1.0.1')",
            true,
        );
    }

    #[test]
    fn chains_are_bounded_but_those_of_conditions() {
        for part in [".a", "[0]", ".a()", "+1", "==1"] {
            let text = format!("self{}", part.repeat(10_000));
            let why = Program::parse(&text).err().expect("too deep");
            assert!(why.contains("recursion limit exceeded"), "{why}");
        }
        check(&format!("true{}", " && true".repeat(5_000)), true);
        check(&format!("false{} || true", " || false".repeat(5_000)), true);
    }

    #[test]
    fn what_doubles_is_stopped_by_its_size() {
        let scope = Scope::new(&[]);
        for one in ["['0123456789']", "[[1]]"] {
            let text = one.to_owned() + &".map(a, a + a)".repeat(40);
            let why = Program::parse(&text).expect("parses").evaluate(&scope);
            let why = why.err().expect("a terabyte");
            assert!(why.contains("cost limit"), "{why}");
        }
    }

    #[test]
    fn bad_texts_and_endless_work_are_refused() {
        for text in ["1 +", "a.b(", "'x", "[1, 2", "foo bar", "1 ? 2", ""] {
            assert!(Program::parse(text).is_err(), "{text}");
        }
        assert!(Program::parse(&"(".repeat(10_000)).is_err());
        let list: Vec<i64> = (0..1000).collect();
        let object = json!({ "l": list });
        let scope = Scope::new(&[("self", json(&object))]);
        let program = Program::parse("self.l.all(a, self.l.all(b, self.l.all(c, a + b + c >= 0)))")
            .expect("parses");
        let why = program.holds(&scope).expect_err("too much");
        assert!(why.contains("cost limit"), "{why}");
    }
}
