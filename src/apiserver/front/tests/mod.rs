//! A whole server over real TLS sockets, in front of a backend that answers what its paths say.

mod flow;
mod harness;
mod http;
mod identity;
mod limits;
mod policy;
mod reviews;

use harness::Harness;
