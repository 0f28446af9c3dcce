//! From a pod's spec to what the runtime is asked to make. All of it is pure;
//! `pod::start` fetches what goes in and sends what comes out.

pub mod container;
pub mod dns;
pub mod environment;
pub mod expand;
pub mod fields;
pub mod sandbox;
pub mod security;
