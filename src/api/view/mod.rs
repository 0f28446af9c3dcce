//! Slim views of parts that many kinds share, with the rules that belong to them: metadata, taints and tolerations,
//! node selectors. Whoever reads only a few fields of an object builds its own struct out of these instead of
//! holding the whole object.
//!
//! **Invariant:** views are read, never stored: what they leave out would be lost.

mod meta;
mod node_selector;
mod taint;

pub use meta::{ObjectMeta, OwnerReference};
pub use node_selector::{
    NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PreferredSchedulingTerm,
};
pub use taint::{Taint, Toleration, untolerated};
