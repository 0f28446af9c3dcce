//! Those who may do everything.

use super::{Attributes, Authorizer, Verdict};
use crate::request::UserInfo;

/// Members of `system:masters` (upstream's `PrivilegedGroups`).
pub struct Masters;

impl Authorizer for Masters {
    fn authorize(&self, attributes: &Attributes<'_>) -> Verdict {
        if attributes.user.is_in(UserInfo::MASTERS) {
            return Verdict::allow("");
        }
        Verdict::no_opinion("")
    }
}

/// `--authorization-mode=AlwaysAllow`.
pub struct Everyone;

impl Authorizer for Everyone {
    fn authorize(&self, _attributes: &Attributes<'_>) -> Verdict {
        Verdict::allow("")
    }
}
