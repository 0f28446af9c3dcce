//! The registry asked in process, over the in-memory store: every behaviour a client sees but the sockets.

mod admission;
mod bench;
mod boot;
mod contract;
mod crds;
mod harness;
mod lists;
mod mutations;
mod policies;
mod verbs;
mod watches;
mod webhooks;
