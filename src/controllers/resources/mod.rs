//! Controllers of dynamic resources: claims are made for pods and go with them (KEP-4381), and pods leave devices that
//! are tainted (KEP-5055).

pub mod claims;
pub mod taints;
pub mod view;
