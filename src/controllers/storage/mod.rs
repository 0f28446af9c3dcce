//! Controllers of storage: claims are bound to volumes, and neither goes while it is in use.

pub mod attach_detach;
pub mod attributes_class;
pub mod binder;
pub mod ephemeral;
pub mod expander;
pub mod protection;
pub mod provisioner;
pub mod view;
