//! The client of a Kubernetes API: generic calls, watches, shared informers, work queues, leader election, events.
//!
//! Data flow: `Client` turns a call into one HTTP request and hands it to its `Transport`, which is either HTTP/2
//! over TLS (`http::Http`) or an API server in the same process. `informer::Factory` keeps one watch per resource and
//! selector, and feeds caches and handlers from it; handlers put keys into a `workqueue::Queue`; a component reads the
//! caches, decides, and writes back through the `Client`. Read `Client` first.
//!
//! **Invariant:** this crate knows no kind by name except Lease (`leader`), Event (`events`) and the reviews
//! (`delegation`), and nothing of the server's insides.

mod call;
pub mod config;
pub mod delegation;
pub mod error;
pub mod events;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod http;
pub mod informer;
pub mod leader;
pub mod metrics;
pub mod options;
pub mod transport;
pub mod watch;
pub mod workqueue;

pub use call::{Client, List};
pub use config::{ConfigError, RestConfig};
pub use error::ClientError;
pub use informer::{Delta, Factory, Informer, Selectors};
pub use options::{
    DeleteOptions, ListOptions, Patch, Preconditions, Propagation, WatchOptions, WriteOptions,
};
pub use transport::{BoxBody, BoxError, Transport, boxed, full};
pub use watch::{WatchEvent, WatchStream};

/// The result of a call.
pub type Result<T, E = ClientError> = std::result::Result<T, E>;
