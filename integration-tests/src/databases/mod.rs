//! Databases of tests: a server of PostgreSQL, and what the tests of inbox and outbox share with their processes.

pub mod bank;
pub mod outbox;
pub mod pgbouncer;
pub mod postgres;
