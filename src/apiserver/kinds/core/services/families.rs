//! Which address families a service has (`initIPFamilyFields`): what is open is settled by the policy, the addresses that
//! were named and what the cluster has, and nothing changes between one family and two without the policy saying so.

use apimachinery::Value;
use apimachinery::field::{Error, ErrorList, Path};

use super::super::super::tree::{at, items, object_mut, text};
use super::addresses::Family;
use super::{cluster_ips, is_headless, type_of, write_addresses};

const SINGLE: &str = "SingleStack";
const PREFER: &str = "PreferDualStack";
const REQUIRE: &str = "RequireDualStack";

fn policy(service: &Value) -> &str {
    text(service, &["spec", "ipFamilyPolicy"])
}

fn families(service: &Value) -> Vec<&str> {
    items(service, &["spec", "ipFamilies"])
        .iter()
        .filter_map(Value::as_str)
        .collect()
}

/// Fills in `ipFamilyPolicy` and `ipFamilies`. `cluster` are the families services can have, the default first.
pub fn settle(service: &mut Value, old: Option<&Value>, cluster: &[Family]) -> ErrorList {
    let old = old.filter(|old| type_of(old) != "ExternalName");
    if type_of(service) == "ExternalName" || old.is_some_and(|old| is_settled(service, old)) {
        return ErrorList::new();
    }
    let bare = is_headless(service) && items_of_selector(service) == 0;
    if policy(service).is_empty() {
        let inferred = match old.map(policy) {
            Some(was) if !was.is_empty() => was,
            _ if bare => REQUIRE,
            _ => SINGLE,
        };
        let inferred = inferred.to_owned();
        object_mut(service, &["spec"]).insert("ipFamilyPolicy".to_owned(), inferred.into());
    }
    let mut errors = ErrorList::new();
    if let Some(old) = old {
        shrink(service, old, &mut errors);
    }
    let path = Path::new("spec");
    let mut found = said(service, cluster, &path, &mut errors);
    if errors.is_empty() && !bare {
        errors = configured(service, &found, cluster, &path);
    }
    if !errors.is_empty() {
        return errors;
    }
    if found.is_empty() {
        found.push(cluster.first().copied().unwrap_or(Family::V4));
    }
    if found.len() == 1 && policy(service) != SINGLE && (bare || cluster.len() == 2) {
        found.push(found[0].other());
    }
    let list: Vec<Value> = found.iter().map(|family| family.as_str().into()).collect();
    object_mut(service, &["spec"]).insert("ipFamilies".to_owned(), list.into());
    errors
}

fn items_of_selector(service: &Value) -> usize {
    at(service, &["spec", "selector"])
        .as_object()
        .map_or(0, |selector| selector.len())
}

/// A service that prefers two families keeps what it has when the cluster changes (`isMatchingPreferDualStackClusterIPFields`).
fn is_settled(service: &Value, old: &Value) -> bool {
    type_of(service) == type_of(old)
        && policy(service) == PREFER
        && policy(old) == PREFER
        && cluster_ips(service) == cluster_ips(old)
        && families(service) == families(old)
}

/// A policy that turns single is all it takes to give up the second family; giving it up without is an error.
fn shrink(service: &mut Value, old: &Value, errors: &mut ErrorList) {
    let same_addresses = cluster_ips(service) == cluster_ips(old);
    let same_families = families(service) == families(old);
    if policy(service) == SINGLE {
        if same_addresses && cluster_ips(service).len() > 1 {
            let first = cluster_ips(service)[0].to_owned();
            write_addresses(service, &first, vec![first.clone()]);
        }
        if same_families && families(service).len() > 1 {
            let first = families(service)[0].to_owned();
            object_mut(service, &["spec"])
                .insert("ipFamilies".to_owned(), Value::Array(vec![first.into()]));
        }
        return;
    }
    let path = Path::new("spec.ipFamilyPolicy");
    let fewer = |is: usize, was: usize| is > 0 && is < was;
    if fewer(cluster_ips(service).len(), cluster_ips(old).len()) {
        let why = "must be 'SingleStack' to release the secondary cluster IP";
        errors.push(Error::invalid(&path, policy(service), why));
    }
    if fewer(families(service).len(), families(old).len()) {
        let why = "must be 'SingleStack' to release the secondary IP family";
        errors.push(Error::invalid(&path, policy(service), why));
    }
}

/// The families that are named or that named addresses have.
fn said(service: &Value, cluster: &[Family], path: &Path, errors: &mut ErrorList) -> Vec<Family> {
    let mut found: Vec<Family> = families(service)
        .into_iter()
        .filter_map(Family::parse)
        .collect();
    let addresses = cluster_ips(service);
    if policy(service) == SINGLE {
        let path = path.child("ipFamilyPolicy");
        for (count, what) in [
            (addresses.len(), "cluster IPs"),
            (found.len(), "IP families"),
        ] {
            if count == 2 {
                let why = format!(
                    "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
                );
                errors.push(Error::invalid(&path, SINGLE, why));
            }
        }
    }
    for (index, address) in addresses.iter().enumerate().skip(found.len()) {
        let Ok(address) = address.parse() else { break };
        let family = Family::of(address);
        if cluster.contains(&family) {
            found.push(family);
        } else {
            errors.push(Error::invalid(
                &path.child("clusterIPs").index(index),
                &addresses,
                format!("{} is not configured on this cluster", family.as_str()),
            ));
        }
    }
    found
}

fn configured(service: &Value, found: &[Family], cluster: &[Family], path: &Path) -> ErrorList {
    let mut errors = ErrorList::new();
    if policy(service) == REQUIRE && cluster.len() < 2 {
        errors.push(Error::invalid(
            &path.child("ipFamilyPolicy"),
            REQUIRE,
            "this cluster is not configured for dual-stack services",
        ));
    }
    for (index, family) in found.iter().enumerate() {
        if !cluster.contains(family) {
            errors.push(Error::invalid(
                &path.child("ipFamilies").index(index),
                family.as_str(),
                "not configured on this cluster",
            ));
        }
    }
    errors
}

/// What an update may not change: the first address and family never, the second not into another
/// (`validateUpgradeDowngradeClusterIPs`, `validateUpgradeDowngradeIPFamilies`).
pub fn unchanged(new: &Value, old: &Value, errors: &mut ErrorList) {
    if is_headless(new) && is_headless(old) {
        return;
    }
    let why = "may not change once set";
    let (is, was) = (cluster_ips(new), cluster_ips(old));
    let path = Path::new("spec.clusterIPs");
    for (index, _) in differing(&is, &was) {
        errors.push(Error::invalid(&path.index(index), &is, why));
    }
    let (is, was) = (families(new), families(old));
    let path = Path::new("spec.ipFamilies");
    for _ in differing(&is, &was) {
        errors.push(Error::invalid(&path.index(0), &is, why));
    }
}

/// Positions at which both lists have something, and not the same; of lists of two lengths only the first counts.
fn differing<'a>(is: &[&'a str], was: &[&'a str]) -> Vec<(usize, &'a str)> {
    let counted = if is.len() == was.len() { is.len() } else { 1 };
    is.iter()
        .zip(was)
        .take(counted)
        .enumerate()
        .filter(|(_, (is, was))| is != was)
        .map(|(index, (is, _))| (index, *is))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::testing::check;
    use serde_json::json;

    const BOTH: [Family; 2] = [Family::V4, Family::V6];

    #[track_caller]
    fn settled(spec: Value, old: Option<Value>, families: &[&str], policy: &str) -> Value {
        let mut service = json!({"spec": spec});
        let old = old.map(|spec| json!({"spec": spec}));
        check(settle(&mut service, old.as_ref(), &BOTH), &[]);
        assert_eq!(service["spec"]["ipFamilies"], json!(families));
        assert_eq!(service["spec"]["ipFamilyPolicy"], policy);
        service
    }

    #[track_caller]
    fn refused(spec: Value, old: Option<Value>, cluster: &[Family], texts: &[&str]) {
        let mut service = json!({"spec": spec});
        let old = old.map(|spec| json!({"spec": spec}));
        check(settle(&mut service, old.as_ref(), cluster), texts);
    }

    #[test]
    fn what_is_open_follows_the_policy_and_the_cluster() {
        settled(json!({}), None, &["IPv4"], SINGLE);
        settled(
            json!({"ipFamilyPolicy": PREFER}),
            None,
            &["IPv4", "IPv6"],
            PREFER,
        );
        settled(json!({"clusterIPs": ["fd00::1"]}), None, &["IPv6"], SINGLE);
        settled(
            json!({"clusterIP": "None", "clusterIPs": ["None"]}),
            None,
            &["IPv4", "IPv6"],
            REQUIRE,
        );
    }

    #[test]
    fn two_of_anything_need_a_policy_for_two() {
        refused(
            json!({"ipFamilies": ["IPv6", "IPv4"], "clusterIPs": ["fd00::1", "10.0.0.1"]}),
            None,
            &BOTH,
            &[
                "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified",
                "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified",
            ],
        );
        refused(
            json!({"ipFamilyPolicy": REQUIRE}),
            None,
            &BOTH[..1],
            &[
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
            ],
        );
        refused(
            json!({"clusterIPs": ["fd00::1"]}),
            None,
            &BOTH[..1],
            &[
                "spec.clusterIPs[0]: Invalid value: [\"fd00::1\"]: IPv6 is not configured on this cluster",
            ],
        );
    }

    #[test]
    fn the_second_family_goes_when_the_policy_says_so() {
        let dual = json!({"ipFamilyPolicy": REQUIRE, "ipFamilies": ["IPv4", "IPv6"],
            "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"]});
        let mut single = dual.clone();
        single["ipFamilyPolicy"] = SINGLE.into();
        let service = settled(single, Some(dual.clone()), &["IPv4"], SINGLE);
        assert_eq!(service["spec"]["clusterIPs"], json!(["10.0.0.1"]));
        let mut less = dual.clone();
        less["clusterIPs"] = json!(["10.0.0.1"]);
        less["ipFamilies"] = json!(["IPv4"]);
        refused(
            less,
            Some(dual),
            &BOTH,
            &[
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the secondary cluster IP",
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the secondary IP family",
            ],
        );
    }

    #[test]
    fn families_and_addresses_are_not_swapped() {
        let old = json!({"spec": {"ipFamilies": ["IPv4", "IPv6"], "clusterIPs": ["10.0.0.1", "fd00::1"]}});
        let mut new = old.clone();
        new["spec"]["clusterIPs"] = json!(["10.0.0.1", "fd00::2"]);
        new["spec"]["ipFamilies"] = json!(["IPv6"]);
        let mut errors = ErrorList::new();
        unchanged(&new, &old, &mut errors);
        check(
            errors,
            &[
                "spec.clusterIPs[1]: Invalid value: [\"10.0.0.1\",\"fd00::2\"]: may not change once set",
                "spec.ipFamilies[0]: Invalid value: [\"IPv6\"]: may not change once set",
            ],
        );
    }
}
