//! Every script alone against a real server, and the reader, the catalog and connections with it.
//!
//! Uses the server of `MILLSTREAM_TEST_REDIS`, or starts `redis-server`. Tests that would disturb others always
//! start one of their own.

mod catalog;
mod connect;
mod deleting;
mod leases;
mod limits;
mod members;
mod rates;
mod reader;
mod schedule;
mod server;
mod settle;
mod shared;
mod steps;
mod tasks;
mod whole;
