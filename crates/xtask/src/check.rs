//! The checks that need no server.

use crate::run::cargo;
use crate::steps::{Step, quiet};

/// Formatting, lints, documentation.
pub(crate) const STEPS: [Step; 3] = [
    Step { name: "format", run: || quiet(cargo(["fmt", "--all", "--check"]).run()) },
    Step { name: "clippy", run: || quiet(cargo(CLIPPY).run()) },
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
