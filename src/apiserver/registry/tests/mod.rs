//! The registry asked in process, over the in-memory store: every behaviour a client sees but the sockets.

mod contract;
mod harness;
mod lists;
mod verbs;
mod watches;
