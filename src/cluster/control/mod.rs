//! The control plane's parts, as they run: alone under upstream's names, or all in one process.
//!
//! ```text
//!  api        one API server: store, certificates, listeners     parts      what runs beside it in one process
//!  store      embedded or etcd, and etcd's API in front          server     `skiff server`: all of the control plane
//!  inprocess  the transport between parts of one process         notify     tells a supervisor that a part is ready
//! ```
//!
//! **Invariant:** a part's end is the end of its process; whoever started the process starts it again.

pub mod api;
pub mod inprocess;
pub mod notify;
mod parts;
pub mod server;
pub mod store;
