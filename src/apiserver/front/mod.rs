//! wip
pub mod gzip;
pub mod inflight;
pub mod negotiate;
pub mod respond;
pub mod tls;
