//! What the tests over real sockets and the benchmark share: a server process and a bare HTTP/2 client.

pub mod asking;
pub mod connection;
pub mod containerd;
pub mod identity;
pub mod process;
pub mod wire;
