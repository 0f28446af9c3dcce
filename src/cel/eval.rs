//! Evaluates a tree in a scope. Errors are texts in cel-go's words; `&&`, `||` and the macros absorb those that do not matter.

use std::cell::Cell;
use std::rc::Rc;

use super::functions;
use super::parse::{Binary, Expr, Literal, Macro};
use super::value::{Object, PATCH_TYPE, Val};

/// Steps one evaluation may take.
const MAX_STEPS: usize = 1_000_000;

/// Computes a member of `variables` when it is first looked at.
pub type Lazy<'v, 'p> = &'p dyn Fn(&str) -> Option<Result<Val<'v>, String>>;

/// The variables an expression sees.
pub struct Scope<'v, 'p> {
    variables: Vec<(&'p str, Val<'v>)>,
    lazy: Option<Lazy<'v, 'p>>,
    outer: Option<&'p Scope<'v, 'p>>,
    steps: Rc<Cell<usize>>,
}

impl<'v, 'p> Scope<'v, 'p> {
    pub fn new(variables: &[(&'p str, Val<'v>)]) -> Self {
        Self {
            variables: variables.to_vec(),
            lazy: None,
            outer: None,
            steps: Rc::default(),
        }
    }

    /// The same scope, whose `variables` are computed by `lazy`.
    pub fn with_variables(mut self, lazy: Lazy<'v, 'p>) -> Self {
        self.lazy = Some(lazy);
        self
    }

    fn find(&self, name: &str) -> Option<Val<'v>> {
        self.variables
            .iter()
            .rev()
            .find(|(have, _)| *have == name)
            .map(|(_, value)| value.clone())
            .or_else(|| self.outer?.find(name))
    }

    fn variable(&self, name: &str) -> Option<Result<Val<'v>, String>> {
        match self.lazy {
            Some(lazy) => lazy(name),
            None => self.outer?.variable(name),
        }
    }

    fn step(&self) -> Result<(), String> {
        self.charge(1)
    }

    /// Counts work that grows with its operands.
    fn charge(&self, work: usize) -> Result<(), String> {
        let steps = self.steps.get().saturating_add(work);
        self.steps.set(steps);
        if steps > MAX_STEPS {
            return Err("operation cancelled: actual cost limit exceeded".to_owned());
        }
        Ok(())
    }
}

pub fn evaluate<'v>(expr: &Expr, scope: &Scope<'v, '_>) -> Result<Val<'v>, String> {
    scope.step()?;
    match expr {
        Expr::Literal(literal) => Ok(constant(literal)),
        Expr::Name(name, _) => scope
            .find(name)
            .or_else(|| functions::type_called(name).map(Val::Type))
            .ok_or_else(|| format!("undeclared reference to '{name}'")),
        Expr::Select(of, field, optional, _) => select(of, field, *optional, scope),
        Expr::Has(of, field, _) => {
            let value = evaluate(of, scope)?;
            match value {
                Val::JsonMap(_) | Val::Map(_) | Val::Object(_) | Val::Optional(_) => {
                    Ok(Val::Bool(value.member(field).is_some()))
                }
                _ => Err("no such overload".to_owned()),
            }
        }
        Expr::Index(of, by, optional, _) => {
            let (of, by) = (evaluate(of, scope)?, evaluate(by, scope)?);
            if let Val::Optional(inner) = &of {
                let found = inner.as_deref().and_then(|inner| inner.index(&by).ok());
                return Ok(Val::Optional(found.map(Rc::new)));
            }
            if *optional {
                return Ok(Val::Optional(of.index(&by).ok().map(Rc::new)));
            }
            of.index(&by)
        }
        Expr::Not(of, _) => match evaluate(of, scope)? {
            Val::Bool(flag) => Ok(Val::Bool(!flag)),
            _ => Err("no such overload".to_owned()),
        },
        Expr::Negate(of, _) => match evaluate(of, scope)? {
            Val::Int(number) => number.checked_neg().map(Val::Int).ok_or_else(overflow),
            Val::Double(number) => Ok(Val::Double(-number)),
            _ => Err("no such overload".to_owned()),
        },
        Expr::Binary(Binary::And, left, right, _) => either(left, right, false, scope),
        Expr::Binary(Binary::Or, left, right, _) => either(left, right, true, scope),
        Expr::Binary(operator, left, right, _) => {
            let (left, right) = (evaluate(left, scope)?, evaluate(right, scope)?);
            scope.charge(functions::weight(&left) + functions::weight(&right))?;
            binary(*operator, &left, &right)
        }
        Expr::Condition(condition, yes, no, _) => match evaluate(condition, scope)? {
            Val::Bool(true) => evaluate(yes, scope),
            Val::Bool(false) => evaluate(no, scope),
            _ => Err("no such overload".to_owned()),
        },
        Expr::List(items) => {
            let mut made = Vec::with_capacity(items.len());
            for (optional, item) in items {
                let value = evaluate(item, scope)?;
                made.extend(entry(*optional, value, "[]")?);
            }
            Ok(Val::list(made))
        }
        Expr::Map(entries) => {
            let mut made = Vec::with_capacity(entries.len());
            for (optional, key, value) in entries {
                let key = evaluate(key, scope)?;
                let value = evaluate(value, scope)?;
                if let Some(value) = entry(*optional, value, &key.show())? {
                    made.push((key, value));
                }
            }
            Ok(Val::Map(Rc::new(made)))
        }
        Expr::Struct(name, fields, _) => object(name, fields, scope),
        Expr::Macro(kind, over, variable, condition, body, _) => {
            walk(*kind, over, variable, condition.as_deref(), body, scope)
        }
        Expr::Call(target, name, arguments, _) => call(target.as_deref(), name, arguments, scope),
    }
}

/// What an item, an entry or a field comes to; nothing where an optional one has no value.
fn entry<'v>(optional: bool, value: Val<'v>, key: &str) -> Result<Option<Val<'v>>, String> {
    match value {
        value if !optional => Ok(Some(value)),
        Val::Optional(inner) => Ok(inner.as_deref().cloned()),
        other => Err(format!(
            "cannot initialize optional entry '{key}' from non-optional value {}",
            other.show()
        )),
    }
}

/// An object of a type that mutations know: `Object`, what is below it, and `JSONPatch`.
fn object<'v>(
    name: &str,
    fields: &[(bool, String, Expr)],
    scope: &Scope<'v, '_>,
) -> Result<Val<'v>, String> {
    if !super::value::is_object_type(name) {
        return Err(format!("unknown type: {name}"));
    }
    let mut made = Vec::with_capacity(fields.len());
    for (optional, field, value) in fields {
        let value = evaluate(value, scope)?;
        let Some(value) = entry(*optional, value, field)? else {
            continue;
        };
        if name == PATCH_TYPE {
            match (field.as_str(), &value) {
                ("value", _) | ("op" | "path" | "from", Val::Text(_)) => {}
                ("op" | "path" | "from", other) => {
                    return Err(format!(
                        "unexpected type {} for JSONPatchType '{field}' field",
                        other.type_name()
                    ));
                }
                _ => return Err(format!("unexpected JSONPatchType field: {field}")),
            }
        }
        made.push((field.clone(), value));
    }
    Ok(Val::Object(Rc::new(Object {
        name: name.to_owned(),
        fields: made,
    })))
}

fn overflow() -> String {
    "integer overflow".to_owned()
}

fn constant<'v>(literal: &Literal) -> Val<'v> {
    match literal {
        Literal::Null => Val::Null,
        Literal::Bool(flag) => Val::Bool(*flag),
        Literal::Int(number) => Val::Int(*number),
        Literal::Uint(number) => Val::Uint(*number),
        Literal::Double(number) => Val::Double(*number),
        Literal::Text(text) => Val::text(text.as_str()),
        Literal::Bytes(bytes) => Val::Bytes(Rc::new(bytes.clone())),
    }
}

fn select<'v>(
    of: &Expr,
    field: &str,
    optional: bool,
    scope: &Scope<'v, '_>,
) -> Result<Val<'v>, String> {
    if matches!(of, Expr::Name(name, _) if name == "variables")
        && let Some(found) = scope.variable(field)
    {
        return found;
    }
    let value = evaluate(of, scope)?;
    let found = value.member(field);
    match &value {
        Val::Optional(_) => Ok(Val::Optional(found.map(Rc::new))),
        _ if optional => Ok(Val::Optional(found.map(Rc::new))),
        // `authorizer.requestResource` is a variable of two names.
        Val::Check(_) if let Some(name) = of.name() => scope
            .find(&format!("{name}.{field}"))
            .ok_or_else(|| format!("undefined field '{field}'")),
        Val::JsonMap(_) | Val::Map(_) | Val::Object(_) => {
            found.ok_or_else(|| format!("no such key: {field}"))
        }
        _ => Err("no such overload".to_owned()),
    }
}

/// `&&` (`decides` is false) and `||`: one side that decides hides the other's error.
fn either<'v>(
    left: &Expr,
    right: &Expr,
    decides: bool,
    scope: &Scope<'v, '_>,
) -> Result<Val<'v>, String> {
    let first = evaluate(left, scope);
    if matches!(first, Ok(Val::Bool(flag)) if flag == decides) {
        return Ok(Val::Bool(decides));
    }
    let second = evaluate(right, scope);
    match (first, second) {
        (_, Ok(Val::Bool(flag))) if flag == decides => Ok(Val::Bool(decides)),
        (Err(why), _) | (_, Err(why)) => Err(why),
        (Ok(Val::Bool(_)), Ok(Val::Bool(_))) => Ok(Val::Bool(!decides)),
        _ => Err("no such overload".to_owned()),
    }
}

fn binary<'v>(operator: Binary, left: &Val<'v>, right: &Val<'v>) -> Result<Val<'v>, String> {
    use std::cmp::Ordering;
    let compared = || {
        left.compare(right)
            .ok_or_else(|| "no such overload".to_owned())
    };
    Ok(match operator {
        Binary::Equal => Val::Bool(left.equals(right)),
        Binary::NotEqual => Val::Bool(!left.equals(right)),
        Binary::Less => Val::Bool(compared()? == Ordering::Less),
        Binary::LessEqual => Val::Bool(compared()? != Ordering::Greater),
        Binary::Greater => Val::Bool(compared()? == Ordering::Greater),
        Binary::GreaterEqual => Val::Bool(compared()? != Ordering::Less),
        Binary::In => match right {
            Val::JsonMap(_) | Val::Map(_) => Val::Bool(right.index(left).is_ok()),
            _ => {
                let items = right.items().ok_or_else(|| "no such overload".to_owned())?;
                Val::Bool(items.iter().any(|item| item.equals(left)))
            }
        },
        other => return arithmetic(other, left, right),
    })
}

fn arithmetic<'v>(operator: Binary, left: &Val<'v>, right: &Val<'v>) -> Result<Val<'v>, String> {
    use Binary::{Add, Divide, Multiply, Remainder, Subtract};
    let zero = || match operator {
        Remainder => "modulus by zero".to_owned(),
        _ => "division by zero".to_owned(),
    };
    match (left, right) {
        (Val::Int(a), Val::Int(b)) => {
            let made = match operator {
                Add => a.checked_add(*b),
                Subtract => a.checked_sub(*b),
                Multiply => a.checked_mul(*b),
                Divide if *b == 0 => return Err(zero()),
                Remainder if *b == 0 => return Err(zero()),
                Divide => a.checked_div(*b),
                _ => a.checked_rem(*b),
            };
            made.map(Val::Int).ok_or_else(overflow)
        }
        (Val::Uint(a), Val::Uint(b)) => {
            let made = match operator {
                Add => a.checked_add(*b),
                Subtract => a.checked_sub(*b),
                Multiply => a.checked_mul(*b),
                Divide | Remainder if *b == 0 => return Err(zero()),
                Divide => a.checked_div(*b),
                _ => a.checked_rem(*b),
            };
            made.map(Val::Uint).ok_or_else(overflow)
        }
        (Val::Text(a), Val::Text(b)) if operator == Add => Ok(Val::text(format!("{a}{b}"))),
        (Val::Bytes(a), Val::Bytes(b)) if operator == Add => {
            let mut joined = a.to_vec();
            joined.extend_from_slice(b);
            Ok(Val::Bytes(Rc::new(joined)))
        }
        (Val::Duration(a), Val::Duration(b)) if operator == Add => {
            a.checked_add(*b).map(Val::Duration).ok_or_else(overflow)
        }
        (Val::Duration(a), Val::Duration(b)) if operator == Subtract => {
            a.checked_sub(*b).map(Val::Duration).ok_or_else(overflow)
        }
        (Val::Timestamp(a), Val::Timestamp(b)) if operator == Subtract => {
            let nanos = i64::try_from((*a - *b).whole_nanoseconds()).map_err(|_| overflow())?;
            Ok(Val::Duration(nanos))
        }
        (Val::Timestamp(time), Val::Duration(by)) | (Val::Duration(by), Val::Timestamp(time))
            if matches!(operator, Add | Subtract) =>
        {
            let by = match operator {
                Add => *by,
                _ => by.checked_neg().ok_or_else(overflow)?,
            };
            let by = time::Duration::nanoseconds(by);
            time.checked_add(by)
                .map(Val::Timestamp)
                .ok_or_else(overflow)
        }
        _ => {
            if operator == Add
                && let (Some(mut a), Some(b)) = (list_of(left), list_of(right))
            {
                a.extend(b);
                return Ok(Val::list(a));
            }
            let (Some(a), Some(b)) = (left.number(), right.number()) else {
                return Err("no such overload".to_owned());
            };
            Ok(Val::Double(match operator {
                Add => a + b,
                Subtract => a - b,
                Multiply => a * b,
                Divide => a / b,
                _ => return Err("no such overload".to_owned()),
            }))
        }
    }
}

fn list_of<'v>(value: &Val<'v>) -> Option<Vec<Val<'v>>> {
    matches!(value, Val::JsonList(_) | Val::List(_))
        .then(|| value.items())
        .flatten()
}

fn walk<'v>(
    kind: Macro,
    over: &Expr,
    variable: &str,
    condition: Option<&Expr>,
    body: &Expr,
    scope: &Scope<'v, '_>,
) -> Result<Val<'v>, String> {
    let over = evaluate(over, scope)?;
    scope.charge(functions::weight(&over))?;
    let items = over.items().ok_or_else(|| "no such overload".to_owned())?;
    let mut error = None;
    let mut count = 0;
    let mut made = Vec::new();
    for item in items {
        scope.step()?;
        let inner = Scope {
            variables: vec![(variable, item.clone())],
            lazy: None,
            outer: Some(scope),
            steps: scope.steps.clone(),
        };
        let holds = |expr: &Expr| match evaluate(expr, &inner)? {
            Val::Bool(flag) => Ok(flag),
            _ => Err("no such overload".to_owned()),
        };
        match kind {
            Macro::All | Macro::Exists => match holds(body) {
                Ok(flag) if flag == (kind == Macro::Exists) => return Ok(Val::Bool(flag)),
                Ok(_) => {}
                Err(why) => error = error.or(Some(why)),
            },
            Macro::ExistsOne => count += usize::from(holds(body)?),
            Macro::Filter => {
                if holds(body)? {
                    made.push(item);
                }
            }
            Macro::Map => {
                let wanted = condition.map_or(Ok(true), holds)?;
                if wanted {
                    made.push(evaluate(body, &inner)?);
                }
            }
        }
    }
    match (kind, error) {
        (Macro::All | Macro::Exists, Some(why)) => Err(why),
        (Macro::All, None) => Ok(Val::Bool(true)),
        (Macro::Exists, None) => Ok(Val::Bool(false)),
        (Macro::ExistsOne, _) => Ok(Val::Bool(count == 1)),
        (Macro::Filter | Macro::Map, _) => Ok(Val::list(made)),
    }
}

fn call<'v>(
    target: Option<&Expr>,
    name: &str,
    arguments: &[Expr],
    scope: &Scope<'v, '_>,
) -> Result<Val<'v>, String> {
    // `optional.of(x)` looks like a member call of a variable.
    if let Some(Expr::Name(space, _)) = target
        && functions::is_space(space)
        && scope.find(space).is_none()
    {
        if space != "optional" {
            let values: Result<Vec<_>, _> = arguments
                .iter()
                .map(|argument| evaluate(argument, scope))
                .collect();
            return functions::call_in(space, name, &values?);
        }
        let mut values = arguments.iter().map(|argument| evaluate(argument, scope));
        return match (name, values.next()) {
            ("none", None) => Ok(Val::Optional(None)),
            ("of", Some(value)) => Ok(Val::Optional(Some(Rc::new(value?)))),
            ("ofNonZeroValue", Some(value)) => {
                let value = value?;
                let zero = match &value {
                    Val::Null => true,
                    Val::Bool(flag) => !flag,
                    other => other.number() == Some(0.0) || other.size() == Some(0),
                };
                Ok(Val::Optional((!zero).then(|| Rc::new(value))))
            }
            _ => Err(format!("undeclared reference to 'optional.{name}'")),
        };
    }
    let target = target.map(|target| evaluate(target, scope)).transpose()?;
    let arguments: Result<Vec<_>, _> = arguments
        .iter()
        .map(|argument| evaluate(argument, scope))
        .collect();
    let arguments = arguments?;
    scope.charge(functions::cost(target.as_ref(), name, &arguments))?;
    functions::call(target.as_ref(), name, &arguments)
}
