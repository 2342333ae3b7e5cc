//! What this crate does on real databases: each test on a PostgreSQL and on a SQLite of its own.
#![allow(missing_docs, clippy::unwrap_used)]

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
