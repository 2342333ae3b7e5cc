//! The dashboard in Chromium: nothing hostile runs, nothing is inaccessible, and the script does what it should.

// The same cases over each backend.
#![allow(clippy::duplicate_mod)]

mod chromium;
#[path = "../../../../integration-tests/src/cluster.rs"]
#[allow(dead_code, unreachable_pub)]
mod cluster;
mod on_cluster;
mod on_redis;
#[path = "../../../../integration-tests/src/server.rs"]
#[allow(dead_code, unreachable_pub)]
mod server;
