//! What this crate does on real databases: each test on a PostgreSQL and on a SQLite of its own.
//! One program with the unit tests: each costs its own linking.

mod delivery;
mod fences;
mod figures;
mod handlers;
mod inbox;
mod markers;
mod migrations;
mod outbox;
#[allow(dead_code, unreachable_pub)]
#[path = "../../../../integration-tests/src/databases/postgres.rs"]
mod postgres;
mod support;
