//! Cache semantics over the in-memory store.
