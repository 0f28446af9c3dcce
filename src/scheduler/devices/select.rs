//! Selectors in CEL: what an expression sees of a device, and whether it wants it.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

use cel::{Programs, Scope, Val};

use super::{
    inventory::Entry,
    view::{Attribute, Selector},
};

thread_local! {
    /// Expressions of classes and claims, parsed.
    static PROGRAMS: RefCell<Rc<Programs>> = RefCell::default();
}

/// Whether all selectors want the device.
///
/// # Errors
/// An expression that cannot be read, or fails on the device.
pub fn wants<'a>(
    mut selectors: impl Iterator<Item = &'a Selector>,
    entry: &Entry,
) -> Result<bool, String> {
    let programs = PROGRAMS.with_borrow(Rc::clone);
    selectors.try_fold(true, |so_far, selector| {
        let Some(cel) = &selector.cel else {
            return Ok(false);
        };
        if !so_far {
            return Ok(false);
        }
        let program = programs.get(&cel.expression);
        let program = program.as_ref().as_ref().map_err(Clone::clone)?;
        let scope = Scope::new(&[("device", device(entry, &cel.expression))]);
        program.holds(&scope)
    })
}

fn map<'v>(fields: Vec<(&'v str, Val<'v>)>) -> Val<'v> {
    let fields = fields
        .into_iter()
        .map(|(name, value)| (Val::Text(name.into()), value));
    Val::Map(Rc::new(fields.collect()))
}

/// The variable `device`.
fn device<'v>(entry: &'v Entry, expression: &'v str) -> Val<'v> {
    let device = entry.device();
    let attributes = device
        .attributes
        .iter()
        .filter_map(|(name, one)| Some((name.as_str(), value(one)?)));
    let capacity = device
        .capacity
        .iter()
        .filter_map(|(name, one)| Some((name.as_str(), Val::Quantity(one.value?.0))));
    map(vec![
        ("driver", Val::Text(entry.driver().into())),
        (
            "attributes",
            by_domain(entry.driver(), expression, attributes),
        ),
        ("capacity", by_domain(entry.driver(), expression, capacity)),
        (
            "allowMultipleAllocations",
            Val::Bool(device.allow_multiple_allocations),
        ),
    ])
}

fn value(attribute: &Attribute) -> Option<Val<'_>> {
    let Attribute {
        bool,
        int,
        string,
        version,
    } = attribute;
    bool.map(Val::Bool)
        .or(int.map(Val::Int))
        .or(string.as_deref().map(|text| Val::Text(text.into())))
        .or(version.as_deref().and_then(cel::semver))
}

/// Values by domain and name; a name without a domain is in the driver's. A domain that is asked for and not there is
/// an empty one, so that `has` can be asked of it.
fn by_domain<'v>(
    driver: &'v str,
    expression: &'v str,
    values: impl Iterator<Item = (&'v str, Val<'v>)>,
) -> Val<'v> {
    let mut domains: BTreeMap<&str, Vec<(&str, Val<'_>)>> = BTreeMap::new();
    for text in expression.split(['"', '\'']).skip(1).step_by(2) {
        domains.entry(text).or_default();
    }
    for (name, value) in values {
        let (domain, name) = name.split_once('/').unwrap_or((driver, name));
        domains.entry(domain).or_default().push((name, value));
    }
    map(domains
        .into_iter()
        .map(|(domain, values)| (domain, map(values)))
        .collect())
}
