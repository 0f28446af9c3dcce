//! Why a pod fits nowhere, in upstream's words.

use std::{borrow::Cow, collections::BTreeSet, fmt};

use crate::framework::Rejection;

/// Why a pod fits nowhere. `Display` is upstream's FitError.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FitError {
    pub nodes: usize,
    /// A reason that holds for all nodes at once.
    pub of_all: Option<String>,
    pub reasons: Reasons,
    /// The plugins that said so.
    pub plugins: BTreeSet<&'static str>,
    /// What evicting pods would have done (PostFilterMsg); empty if it helps.
    pub preemption: String,
    /// What DynamicResources, asked before that, did with the pod's claims; empty if it was not asked.
    pub claims: &'static str,
    /// Indexes of the nodes where evicting pods might help.
    pub resolvable: Vec<usize>,
}

impl FitError {
    /// Notes that a plugin rejects a node.
    pub fn reject(&mut self, node: usize, plugin: &'static str, rejections: &[Rejection]) {
        self.plugins.insert(plugin);
        for rejection in rejections {
            self.reasons.count(rejection);
        }
        if rejections.iter().all(|rejection| rejection.is_resolvable) {
            self.resolvable.push(node);
        }
    }
}

impl fmt::Display for FitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nodes == 0 {
            return f.write_str("no nodes available to schedule pods");
        }
        write!(f, "0/{} nodes are available:", self.nodes)?;
        match &self.of_all {
            Some(reason) => write!(f, " {reason}.")?,
            None => write!(f, "{}", self.reasons)?,
        }
        if self.preemption.is_empty() {
            return Ok(());
        }
        if !self.claims.is_empty() {
            write!(f, " {},", self.claims)?;
        }
        write!(f, " preemption: {}", self.preemption)
    }
}

/// How many nodes each reason holds for. `Display` is ` 1 this, 2 that.`, sorted as text, or nothing.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Reasons(Vec<(Cow<'static, str>, usize)>);

impl Reasons {
    /// Counts one node more for a rejection. There are few different ones, so they are looked through.
    pub fn count(&mut self, rejection: &Rejection) {
        match self
            .0
            .iter_mut()
            .find(|(known, _)| *known == rejection.reason)
        {
            Some((_, count)) => *count += 1,
            None => self.0.push((rejection.reason.clone(), 1)),
        }
    }

    /// Adds a reason that has not been counted.
    pub fn add(&mut self, reason: impl Into<Cow<'static, str>>, nodes: usize) {
        if nodes > 0 {
            self.0.push((reason.into(), nodes));
        }
    }
}

impl fmt::Display for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = self
            .0
            .iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        parts.sort();
        if parts.is_empty() {
            return Ok(());
        }
        write!(f, " {}.", parts.join(", "))
    }
}
