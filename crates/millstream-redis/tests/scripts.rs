//! Every script alone against a real server, and the reader, the catalog and connections with it.
//!
//! Uses the server of `MILLSTREAM_TEST_REDIS`, or starts `redis-server`. Tests that would disturb others always
//! start one of their own.

#[path = "scripts/connect.rs"]
mod connect;
#[path = "scripts/leases.rs"]
mod leases;
#[path = "scripts/reader.rs"]
mod reader;
#[path = "scripts/server.rs"]
mod server;
#[path = "scripts/settle.rs"]
mod settle;
#[path = "scripts/whole.rs"]
mod whole;
