//! Every script alone against a real server, and the reader, the catalog and connections with it.
//!
//! Uses the server of `MILLSTREAM_TEST_REDIS`, or starts `redis-server`. Tests that would disturb others always
//! start one of their own.

#[path = "scripts/catalog.rs"]
mod catalog;
#[path = "scripts/connect.rs"]
mod connect;
#[path = "scripts/leases.rs"]
mod leases;
#[path = "scripts/members.rs"]
mod members;
#[path = "scripts/members_together.rs"]
mod members_together;
#[path = "scripts/notes.rs"]
mod notes;
#[path = "scripts/reader.rs"]
mod reader;
#[path = "scripts/seek.rs"]
mod seek;
#[path = "scripts/server.rs"]
mod server;
#[path = "scripts/settle.rs"]
mod settle;
#[path = "scripts/shared.rs"]
mod shared;
#[path = "scripts/whole.rs"]
mod whole;
