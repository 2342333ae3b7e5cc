//! Requests to the router of the dashboard: every route is asked, over each backend. And the dashboard in Chromium.
//! One program: each costs its own linking.

// The same cases over each backend.
#![allow(clippy::duplicate_mod)]

mod browser;
#[path = "../../../../integration-tests/src/cluster.rs"]
#[allow(dead_code, unreachable_pub)]
mod cluster;
mod load;
mod on_cluster;
mod on_memory;
mod on_redis;
#[path = "../../../../integration-tests/src/server.rs"]
#[allow(dead_code, unreachable_pub)]
mod server;
mod slow;

use millstream::Millstream;

/// Connects to a server with a namespace that nobody else uses.
async fn namespace(url: String) -> Millstream {
    let namespace = format!("dashboard-{}-{:016x}", std::process::id(), fastrand::u64(..));
    Millstream::at(url).namespace(namespace).connect().await.expect("the server of the tests")
}
