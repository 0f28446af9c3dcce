//! Tests over real sockets and real processes; what they share.
