//! Waits for the server: by blocking commands, a connection each, and by notices of changed keys, on one connection.

pub(crate) mod changes;
pub(crate) mod waiters;
