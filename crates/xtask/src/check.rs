//! The checks that need no server.

use anyhow::Result;

use crate::run::cargo;
use crate::steps::{Step, quiet};

/// Formatting, lints, features, documentation.
pub(crate) const STEPS: [Step; 4] = [
    Step { name: "format", run: || quiet(cargo(["fmt", "--all", "--check"]).run()) },
    Step { name: "clippy", run: || quiet(cargo(CLIPPY).run()) },
    Step { name: "features", run: || quiet(FEATURES.iter().try_for_each(|args| few_features(args))) },
    Step {
        name: "docs",
        run: || {
            let doc = cargo(["doc", "--workspace", "--no-deps", "--keep-going"]);
            quiet(doc.env("RUSTDOCFLAGS", "-D warnings -D missing_docs").run())
        },
    },
];

/// All findings at once, and not those of the first crate that has any.
const CLIPPY: [&str; 7] = ["clippy", "--workspace", "--all-targets", "--keep-going", "--", "-D", "warnings"];

/// Crates with fewer features than they have beside all others: what one feature needs may not depend on another one.
const FEATURES: [&[&str]; 4] = [
    // With it the facade and the backend on Redis, without TLS.
    &["millstream-cli"],
    &["millstream"],
    &["millstream-sql", "--features", "postgres"],
    &["millstream-sql", "--features", "sqlite"],
];

/// Without tests, whose dependencies turn features on. By clippy, which shares what it has built of other crates.
fn few_features(package: &[&str]) -> Result<()> {
    let clippy = ["clippy", "--no-default-features", "-p"].iter().chain(package);
    cargo(clippy.chain(&["--", "-D", "warnings"]).copied()).run()
}
