//! The type checker: what an expression gives, and what cel-go would refuse to compile of it, in its words.
//!
//! It knows less than cel-go does (lists of mixed types pass, for one), and never refuses what cel-go takes: what it
//! cannot tell is `dyn`.

mod admission;
mod calls;
mod types;

use super::functions;
use super::parse::{At, Binary, Expr, Literal, Macro, located};
use super::value::{PATCH_TYPE, is_object_type};
use calls::Called;

pub use admission::policy;
pub use types::{Fields, Ty};

/// Most errors told of one expression.
const MAX_ISSUES: usize = 100;

/// The variables an expression may use.
#[derive(Clone, Debug, Default)]
pub struct Env {
    variables: Vec<(String, Ty)>,
    /// Whether objects can be made: only where something is changed.
    makes_objects: bool,
}

impl Env {
    pub fn new<'a>(variables: impl IntoIterator<Item = (&'a str, Ty)>) -> Self {
        Self {
            variables: variables
                .into_iter()
                .map(|(name, ty)| (name.to_owned(), ty))
                .collect(),
            makes_objects: false,
        }
    }

    /// The same, where `Object` and `JSONPatch` are known.
    pub fn making_objects(mut self) -> Self {
        self.makes_objects = true;
        self
    }

    /// Adds a variable, or gives one another type.
    pub fn set(&mut self, name: &str, ty: Ty) {
        self.variables.retain(|(known, _)| known != name);
        self.variables.push((name.to_owned(), ty));
    }

    fn find(&self, name: &str) -> Option<&Ty> {
        self.variables
            .iter()
            .rev()
            .find(|(known, _)| known == name)
            .map(|(_, ty)| ty)
    }
}

/// The type of a tree.
///
/// # Errors
/// All that is wrong, each with its place.
pub(crate) fn check(root: &Expr, text: &str, env: &Env) -> Result<Ty, String> {
    let mut checker = Checker {
        env,
        locals: Vec::new(),
        issues: Vec::new(),
    };
    let ty = checker.ty(root);
    if checker.issues.is_empty() {
        return Ok(ty);
    }
    checker.issues.sort_by_key(|(at, _)| *at);
    let told: Vec<String> = checker
        .issues
        .iter()
        .map(|(at, why)| located(text, *at, why))
        .collect();
    Err(told.join("\n"))
}

struct Checker<'e> {
    env: &'e Env,
    locals: Vec<(String, Ty)>,
    issues: Vec<(At, String)>,
}

impl Checker<'_> {
    /// Notes what is wrong; of what is wrong nothing more is known.
    fn refuse(&mut self, at: At, why: String) -> Ty {
        if self.issues.len() < MAX_ISSUES {
            self.issues.push((at, why));
        }
        Ty::Dyn
    }

    fn undeclared(&mut self, at: At, name: &str) -> Ty {
        self.refuse(
            at,
            format!("undeclared reference to '{name}' (in container '')"),
        )
    }

    fn mismatch(&mut self, at: At, name: &str, target: Option<&Ty>, arguments: &[Ty]) -> Ty {
        let list: Vec<String> = arguments.iter().map(Ty::to_string).collect();
        let target = target.map_or_else(String::new, |target| format!("{target}."));
        self.refuse(
            at,
            format!(
                "found no matching overload for '{name}' applied to '{target}({})'",
                list.join(", ")
            ),
        )
    }

    fn local(&self, name: &str) -> Option<Ty> {
        let mut locals = self.locals.iter().rev();
        locals
            .find(|(known, _)| known == name)
            .map(|(_, ty)| ty.clone())
    }

    fn ty(&mut self, expr: &Expr) -> Ty {
        match expr {
            Expr::Literal(literal) => constant(literal),
            Expr::Name(name, at) => self.name(name, *at),
            Expr::Select(of, field, optional, at) => self.select(of, field, *optional, *at),
            Expr::Has(of, field, at) => {
                let of = self.ty(of);
                self.field(&of, field, *at);
                Ty::Bool
            }
            Expr::Index(of, by, optional, at) => {
                let (of, by) = (self.ty(of), self.ty(by));
                self.index(&of, &by, *optional, *at)
            }
            Expr::Not(of, at) => {
                let of = self.ty(of);
                if !of.fits(&Ty::Bool) {
                    return self.mismatch(*at, "!_", None, &[of]);
                }
                Ty::Bool
            }
            Expr::Negate(of, at) => match self.ty(of) {
                ty @ (Ty::Int | Ty::Double | Ty::Dyn) => ty,
                other => self.mismatch(*at, "-_", None, &[other]),
            },
            Expr::Binary(operator, left, right, at) => {
                let (left, right) = (self.ty(left), self.ty(right));
                self.binary(*operator, left, right, *at)
            }
            Expr::Condition(condition, yes, no, at) => {
                let condition = self.ty(condition);
                let (yes, no) = (self.ty(yes), self.ty(no));
                if !condition.fits(&Ty::Bool) || !yes.fits(&no) {
                    return self.mismatch(*at, "_?_:_", None, &[condition, yes, no]);
                }
                yes.join(no)
            }
            Expr::List(items) => {
                let types: Vec<Ty> = items
                    .iter()
                    .map(|(optional, item)| held(*optional, self.ty(item)))
                    .collect();
                Ty::list(types.into_iter().reduce(Ty::join).unwrap_or(Ty::Dyn))
            }
            Expr::Map(entries) => {
                let mut keys = Vec::new();
                let mut values = Vec::new();
                for (optional, key, value) in entries {
                    keys.push(self.ty(key));
                    values.push(held(*optional, self.ty(value)));
                }
                let all = |types: Vec<Ty>| types.into_iter().reduce(Ty::join).unwrap_or(Ty::Dyn);
                Ty::Map(all(keys).into(), all(values).into())
            }
            Expr::Struct(name, fields, at) => self.object(name, fields, *at),
            Expr::Macro(kind, over, variable, condition, body, at) => {
                self.walk(*kind, over, variable, condition.as_deref(), body, *at)
            }
            Expr::Call(target, name, arguments, at) => {
                self.call(target.as_deref(), name, arguments, *at)
            }
        }
    }

    fn name(&mut self, name: &str, at: At) -> Ty {
        if let Some(ty) = self.local(name).or_else(|| self.env.find(name).cloned()) {
            return ty;
        }
        if functions::type_called(name).is_some() {
            return Ty::Type;
        }
        self.undeclared(at, name)
    }

    fn select(&mut self, of: &Expr, field: &str, optional: bool, at: At) -> Ty {
        // A variable may have a dot in its name.
        if let Some(name) = of.name()
            && self.local(name).is_none()
            && let Some(ty) = self.env.find(&format!("{name}.{field}"))
        {
            return ty.clone();
        }
        let of = self.ty(of);
        let (of, within) = match &of {
            Ty::Optional(inner) => (inner.as_ref().clone(), true),
            _ => (of, false),
        };
        let ty = self.field(&of, field, at);
        if optional || within {
            return match ty {
                Ty::Optional(_) => ty,
                ty => Ty::optional(ty),
            };
        }
        ty
    }

    fn field(&mut self, of: &Ty, field: &str, at: At) -> Ty {
        let undefined = || format!("undefined field '{field}'");
        match of {
            Ty::Dyn => Ty::Dyn,
            Ty::Optional(inner) => self.field(&inner.clone(), field, at),
            Ty::Map(_, value) => value.as_ref().clone(),
            Ty::Message(message) => match message.field(field) {
                Some(field) => Ty::of(&field.ty),
                None if message.preserve_unknown => Ty::Dyn,
                None => self.refuse(at, undefined()),
            },
            Ty::Fields(fields) => {
                let found = fields.fields.iter().find(|(name, _)| name == field);
                match found {
                    Some((_, ty)) => ty.clone(),
                    None => self.refuse(at, undefined()),
                }
            }
            Ty::Named(name) if is_object_type(name) => Ty::Dyn,
            other => {
                let why = format!("type '{other}' does not support field selection");
                self.refuse(at, why)
            }
        }
    }

    fn index(&mut self, of: &Ty, by: &Ty, optional: bool, at: At) -> Ty {
        let given = match of {
            Ty::Dyn => Ty::Dyn,
            Ty::List(item) if matches!(by, Ty::Int | Ty::Dyn) => item.as_ref().clone(),
            Ty::Map(key, value) if by.fits(key) => value.as_ref().clone(),
            Ty::Optional(inner) => {
                let inner = inner.as_ref().clone();
                return self.index(&inner, by, true, at);
            }
            _ => {
                let name = if optional { "_[?_]" } else { "_[_]" };
                return self.mismatch(at, name, None, &[of.clone(), by.clone()]);
            }
        };
        if optional { Ty::optional(given) } else { given }
    }

    fn binary(&mut self, operator: Binary, left: Ty, right: Ty, at: At) -> Ty {
        use Binary::{
            Add, And, Divide, Equal, Greater, GreaterEqual, In, Less, LessEqual, Multiply,
            NotEqual, Or, Remainder, Subtract,
        };
        let (name, given) = match operator {
            Or => ("_||_", logic(&left, &right)),
            And => ("_&&_", logic(&left, &right)),
            Equal => ("_==_", left.fits(&right).then_some(Ty::Bool)),
            NotEqual => ("_!=_", left.fits(&right).then_some(Ty::Bool)),
            Less => ("_<_", ordered(&left, &right)),
            LessEqual => ("_<=_", ordered(&left, &right)),
            Greater => ("_>_", ordered(&left, &right)),
            GreaterEqual => ("_>=_", ordered(&left, &right)),
            In => {
                let within = match &right {
                    Ty::Dyn => true,
                    Ty::List(item) => left.fits(item),
                    Ty::Map(key, _) => left.fits(key),
                    _ => false,
                };
                ("@in", within.then_some(Ty::Bool))
            }
            Add => ("_+_", sum(&left, &right)),
            Subtract => ("_-_", difference(&left, &right)),
            Multiply => ("_*_", same_number(&left, &right)),
            Divide => ("_/_", same_number(&left, &right)),
            Remainder => ("_%_", same_number(&left, &right)),
        };
        match given {
            Some(ty) => ty,
            None => self.mismatch(at, name, None, &[left, right]),
        }
    }

    fn object(&mut self, name: &str, fields: &[(bool, String, Expr)], at: At) -> Ty {
        let types: Vec<Ty> = fields
            .iter()
            .map(|(optional, _, value)| held(*optional, self.ty(value)))
            .collect();
        if !self.env.makes_objects || !is_object_type(name) {
            return self.undeclared(at, name);
        }
        if name == PATCH_TYPE {
            for ((_, field, _), ty) in fields.iter().zip(types) {
                match field.as_str() {
                    "value" => {}
                    "op" | "path" | "from" if ty.fits(&Ty::Text) => {}
                    "op" | "path" | "from" => {
                        self.refuse(
                            at,
                            format!(
                                "expected type of field '{field}' is 'string' but provided type is '{ty}'"
                            ),
                        );
                    }
                    _ => {
                        self.refuse(at, format!("undefined field '{field}'"));
                    }
                }
            }
        }
        Ty::named(name)
    }

    fn walk(
        &mut self,
        kind: Macro,
        over: &Expr,
        variable: &str,
        condition: Option<&Expr>,
        body: &Expr,
        at: At,
    ) -> Ty {
        let range = self.ty(over);
        let item = match &range {
            Ty::Dyn => Ty::Dyn,
            Ty::List(item) => item.as_ref().clone(),
            Ty::Map(key, _) => key.as_ref().clone(),
            other => self.refuse(
                at,
                format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                ),
            ),
        };
        self.locals.push((variable.to_owned(), item.clone()));
        let wanted = condition.map(|condition| self.ty(condition));
        let body = self.ty(body);
        self.locals.pop();
        if let Some(wanted) = wanted.filter(|wanted| !wanted.fits(&Ty::Bool)) {
            return self.mismatch(at, "_?_:_", None, &[wanted, range.clone(), range]);
        }
        let is_test = kind != Macro::Map;
        if is_test && !body.fits(&Ty::Bool) {
            let name = match kind {
                Macro::All => "_&&_",
                Macro::Exists => "_||_",
                _ => "_?_:_",
            };
            return self.mismatch(at, name, None, &[Ty::Bool, body]);
        }
        match kind {
            Macro::All | Macro::Exists | Macro::ExistsOne => Ty::Bool,
            Macro::Filter => Ty::list(item),
            Macro::Map => Ty::list(body),
        }
    }

    fn call(&mut self, target: Option<&Expr>, name: &str, arguments: &[Expr], at: At) -> Ty {
        let space = target
            .and_then(Expr::name)
            .filter(|space| functions::is_space(space))
            .filter(|space| self.local(space).is_none() && self.env.find(space).is_none());
        let types: Vec<Ty> = arguments.iter().map(|argument| self.ty(argument)).collect();
        if let Some(space) = space {
            return match calls::call_in(space, name, &types) {
                Called::Gives(ty) => ty,
                Called::Unknown => self.undeclared(at, name),
                Called::Mismatch => self.mismatch(at, &format!("{space}.{name}"), None, &types),
            };
        }
        let target = target.map(|target| self.ty(target));
        match calls::call(target.as_ref(), name, &types) {
            Called::Gives(ty) => ty,
            Called::Unknown => self.undeclared(at, name),
            Called::Mismatch => self.mismatch(at, name, target.as_ref(), &types),
        }
    }
}

fn constant(literal: &Literal) -> Ty {
    match literal {
        Literal::Null => Ty::Null,
        Literal::Bool(_) => Ty::Bool,
        Literal::Int(_) => Ty::Int,
        Literal::Uint(_) => Ty::Uint,
        Literal::Double(_) => Ty::Double,
        Literal::Text(_) => Ty::Text,
        Literal::Bytes(_) => Ty::Bytes,
    }
}

/// What an entry adds: an optional one what it holds.
fn held(optional: bool, ty: Ty) -> Ty {
    match ty {
        Ty::Optional(inner) if optional => inner.as_ref().clone(),
        ty => ty,
    }
}

fn logic(left: &Ty, right: &Ty) -> Option<Ty> {
    (left.fits(&Ty::Bool) && right.fits(&Ty::Bool)).then_some(Ty::Bool)
}

fn ordered(left: &Ty, right: &Ty) -> Option<Ty> {
    let has_order = |ty: &Ty| {
        matches!(
            ty,
            Ty::Dyn | Ty::Bool | Ty::Text | Ty::Bytes | Ty::Duration | Ty::Timestamp
        ) || ty.is_number()
    };
    let alike = left.fits(right) || (left.is_number() && right.is_number());
    (has_order(left) && has_order(right) && alike).then_some(Ty::Bool)
}

fn same_number(left: &Ty, right: &Ty) -> Option<Ty> {
    let fits = |ty: &Ty| ty.is_dyn() || ty.is_number();
    (fits(left) && fits(right) && left.fits(right)).then(|| {
        if left.is_dyn() {
            right.clone()
        } else {
            left.clone()
        }
    })
}

fn sum(left: &Ty, right: &Ty) -> Option<Ty> {
    match (left, right) {
        (Ty::Timestamp, Ty::Duration) | (Ty::Duration, Ty::Timestamp) => Some(Ty::Timestamp),
        (Ty::Duration, Ty::Duration) => Some(Ty::Duration),
        (Ty::Text, Ty::Text | Ty::Dyn) | (Ty::Dyn, Ty::Text) => Some(Ty::Text),
        (Ty::Bytes, Ty::Bytes | Ty::Dyn) | (Ty::Dyn, Ty::Bytes) => Some(Ty::Bytes),
        (Ty::List(_), Ty::List(_)) if left.fits(right) => Some(left.clone().join(right.clone())),
        (Ty::List(_), Ty::Dyn) => Some(left.clone()),
        (Ty::Dyn, Ty::List(_)) => Some(right.clone()),
        (Ty::Dyn, Ty::Duration | Ty::Timestamp) | (Ty::Duration | Ty::Timestamp, Ty::Dyn) => {
            Some(Ty::Dyn)
        }
        _ => same_number(left, right),
    }
}

fn difference(left: &Ty, right: &Ty) -> Option<Ty> {
    match (left, right) {
        (Ty::Timestamp, Ty::Timestamp) | (Ty::Duration, Ty::Duration) => Some(Ty::Duration),
        (Ty::Timestamp, Ty::Duration) => Some(Ty::Timestamp),
        (Ty::Dyn, Ty::Duration | Ty::Timestamp) | (Ty::Duration | Ty::Timestamp, Ty::Dyn) => {
            Some(Ty::Dyn)
        }
        _ => same_number(left, right),
    }
}

#[cfg(test)]
mod tests;
