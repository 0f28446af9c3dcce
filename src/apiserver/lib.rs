//! The API server: HTTP front, identity, authorization, discovery, and the registry of every kind behind it.
//!
//! ```text
//!  listener ─ TLS ─ HTTP/1.1, HTTP/2 ─┐
//!                                     ├─ front: RequestInfo ─ authn ─ impersonation ─ limits ─ authz ─┬─ discovery, openapi, health, …
//!  in-process client (a given user) ──┘                                                               └─ Backend (registry) ─ Store
//! ```
//!
//! Read `Server` (life cycle), `request::RequestContext` (what a handler gets) and `backend::Backend` (the seam between
//! the outer and the inner half) first.
//!
//! **Invariant:** no global state; several servers can live in one process.
//! **Invariant:** the front never looks into an object; the registry never looks at a socket.

pub mod admission;
pub mod authn;
pub mod authz;
pub mod backend;
pub mod body;
pub mod boot;
pub mod cache;
pub mod crd;
pub mod discovery;
pub mod flags;
pub mod front;
pub mod kinds;
pub mod metrics;
pub mod options;
pub mod query;
pub mod registry;
pub mod request;
pub mod reviews;
pub mod routes;
pub mod served;
pub mod server;
pub mod streaming;

pub use backend::Backend;
pub use body::Body;
pub use options::Options;
pub use request::{RequestContext, RequestInfo, UserInfo, Verb};
pub use server::{Parts, Server};
