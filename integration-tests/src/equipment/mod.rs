//! What tests on servers are given: small disks, certificates, networks that lose packets, loss of power; and a baseline to
//! compare times with.

pub mod baseline;
pub mod certificates;
pub mod disk;
pub mod network;
pub mod power;
pub mod preload;

use std::path::{Path, PathBuf};

/// Returns the path of a Valkey server: that of `MILLSTREAM_TEST_VALKEY`, which `cargo xtask test` sets, or the one that
/// `cargo xtask servers` fetches.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn valkey() -> PathBuf {
    server("MILLSTREAM_TEST_VALKEY", "valkey-9")
}

/// Returns the path of a Redis 8 server: that of `MILLSTREAM_TEST_REDIS_8`, which `cargo xtask test` sets, or the one that
/// `cargo xtask servers` fetches.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn redis_8() -> PathBuf {
    server("MILLSTREAM_TEST_REDIS_8", "redis-8.0")
}

fn server(variable: &str, name: &str) -> PathBuf {
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/servers/bin").join(name);
    let path = std::env::var_os(variable).map_or(fetched, PathBuf::from);
    assert!(path.exists(), "there is no server {name}: `cargo xtask servers` fetches one");
    path
}
