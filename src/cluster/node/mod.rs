//! A node: a set of namespaces on this machine whose first process keeps containerd, kubelet and the rest running.
//!
//! ```text
//!  spec    what a node is                launch   starts one from the machine's side
//!  init    becomes its first process     exec     runs a command inside
//!  mounts, network, forward              what init sets up
//!  supervisor, log                       what init then does for the rest of its life
//! ```
//!
//! **Invariant:** killing the first process kills the node: the kernel ends every process of its namespace, and with
//! them go its mounts, its links and its containers.

pub mod exec;
pub mod forward;
pub mod init;
pub mod launch;
pub mod log;
pub mod mounts;
pub mod network;
pub mod spec;
pub mod supervisor;

pub use spec::NodeSpec;
