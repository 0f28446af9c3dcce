//! What the tests over real sockets, those of bad input and the benchmark share: a server process, a bare HTTP/2 client, and
//! the decoders under test.

pub mod asking;
pub mod connection;
pub mod containerd;
pub mod identity;
pub mod input;
pub mod process;
pub mod wire;
