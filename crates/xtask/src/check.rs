//! The checks that need no server.

use anyhow::Result;

use crate::api;
use crate::run::cargo;
use crate::steps::{Step, quiet};
use crate::weigh;

/// Formatting, lints, features, documentation with the public API, and counts of crates and test binaries.
pub(crate) const STEPS: [Step; 5] = [
    Step { name: "format", run: || quiet(cargo(["fmt", "--all", "--check"]).run()) },
    Step { name: "clippy", run: || quiet(cargo(CLIPPY).run()) },
    Step { name: "features", run: || quiet(FEATURES.iter().try_for_each(|args| few_features(args))) },
    // Before what takes long: it takes a second.
    Step { name: "weight", run: || quiet(weigh::run(&[])) },
    Step { name: "docs", run: || quiet(api::run(false)) },
];

/// All findings at once, and not those of the first crate that has any.
const CLIPPY: [&str; 7] = ["clippy", "--workspace", "--all-targets", "--keep-going", "--", "-D", "warnings"];

/// Crates with fewer features than they have beside all others: what one feature needs may not depend on another one.
const FEATURES: [&[&str]; 17] = [
    // With it the facade and the backend on Redis, without TLS.
    &["millstream-cli"],
    &["millstream"],
    &["millstream", "--features", "redis"],
    &["millstream", "--features", "redis,admin"],
    &["millstream", "--features", "redis,lock"],
    &["millstream-delay"],
    &["millstream-packing"],
    &["millstream-packing", "--features", "lz4"],
    &["millstream-packing", "--features", "zstd"],
    &["millstream-payload", "--features", "claim-check"],
    &["millstream-payload", "--features", "cloudevents"],
    &["millstream-payload", "--features", "zstd"],
    &["millstream-payload", "--features", "encryption"],
    &["millstream-payload", "--features", "messagepack"],
    &["millstream-payload", "--features", "protobuf"],
    &["millstream-sql", "--features", "postgres"],
    &["millstream-sql", "--features", "sqlite"],
];

/// Without tests, whose dependencies turn features on. By clippy, which shares what it has built of other crates.
fn few_features(package: &[&str]) -> Result<()> {
    let clippy = ["clippy", "--no-default-features", "-p"].iter().chain(package);
    cargo(clippy.chain(&["--", "-D", "warnings"]).copied()).run()
}
