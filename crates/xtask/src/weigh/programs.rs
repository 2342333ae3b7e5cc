//! Programs of users: packages outside of the workspace that depend on some of its crates.

use std::path::PathBuf;
use std::{env, fs};

use anyhow::{Context, Result};

use crate::run::{root, target};

/// A program of a user.
pub(super) struct UserProgram {
    pub(super) name: &'static str,
    pub(super) source: &'static str,
    /// Dependencies in the workspace: a package, and options of the dependency.
    pub(super) ours: &'static [(&'static str, &'static str)],
    /// Lines of the manifest for the others.
    pub(super) others: &'static str,
}

/// What a first program needs, as the tutorial has it but for its subscriber; the parts that can be used alone.
pub(super) const PROGRAMS: [UserProgram; 3] = [
    UserProgram {
        name: "worker",
        source: include_str!("../../weigh/worker.rs"),
        ours: &[("millstream", "")],
        others: concat!(
            "serde = { version = \"1\", features = [\"derive\"] }\n",
            "tokio = { version = \"1\", features = [\"macros\", \"rt-multi-thread\", \"signal\"] }\n",
            "\n[dev-dependencies]\ntokio = { version = \"1\", features = [\"test-util\"] }\n",
        ),
    },
    UserProgram {
        name: "delay",
        source: include_str!("../../weigh/delay.rs"),
        ours: &[
            ("millstream-core", ""),
            ("millstream-delay", ", default-features = false"),
            ("millstream-redis", ""),
        ],
        others: concat!(
            "serde = { version = \"1\", features = [\"derive\"] }\n",
            "tokio = { version = \"1\", features = [\"macros\", \"rt-multi-thread\", \"signal\"] }\n",
        ),
    },
    UserProgram {
        name: "lock",
        source: include_str!("../../weigh/lock.rs"),
        ours: &[
            ("millstream-core", ""),
            ("millstream-lock", ""),
            ("millstream-redis", ", features = [\"lock\"]"),
        ],
        others: "tokio = { version = \"1\", features = [\"macros\", \"rt-multi-thread\"] }\n",
    },
];

/// Below it everything is that is written or built to be weighed.
pub(super) fn folder() -> PathBuf {
    target().join("weigh")
}

/// Writes the package of a program anew, with the versions of the workspace's lock file. Returns its manifest.
pub(super) fn write(program: &UserProgram) -> Result<PathBuf> {
    let folder = folder().join(program.name);
    fs::create_dir_all(folder.join("src")).with_context(|| folder.display().to_string())?;
    fs::write(folder.join("src/main.rs"), program.source)?;
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let manifest = folder.join("Cargo.toml");
    fs::write(&manifest, text(program, &root().join("crates").display().to_string()))?;
    Ok(manifest)
}

/// The manifest. It is a workspace of its own, or cargo would take it for a member of the one that it is in.
fn text(program: &UserProgram, crates: &str) -> String {
    let ours = program.ours.iter().map(|(name, options)| {
        let path = format!("{crates}/{name}");
        format!("{name} = {{ path = {path:?}{options} }}\n")
    });
    format!(
        "[package]\nname = \"{}\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n\n[workspace]\n\n\
         [dependencies]\n{}{}",
        program.name,
        ours.collect::<String>(),
        program.others
    )
}

/// Whether an environment variable changes how cargo builds: a program of a user is weighed without it.
pub(super) fn changes_builds(name: &str) -> bool {
    let starts = ["CARGO_PROFILE_", "CARGO_BUILD_", "CARGO_TARGET_", "CARGO_ENCODED_RUSTFLAGS"];
    starts.iter().any(|start| name.starts_with(start)) || ["CARGO_INCREMENTAL", "RUSTFLAGS"].contains(&name)
}

/// The variables of this process that do.
pub(super) fn variables() -> impl Iterator<Item = String> {
    env::vars_os().filter_map(|(name, _)| name.into_string().ok()).filter(|name| changes_builds(name))
}

#[cfg(test)]
mod tests {
    use super::{PROGRAMS, changes_builds, text};

    #[test]
    fn a_program_depends_on_the_crates_of_the_workspace() {
        let manifest = text(&PROGRAMS[1], "/here/crates");
        for line in [
            "name = \"delay\"",
            "[workspace]",
            "millstream-core = { path = \"/here/crates/millstream-core\" }",
            "millstream-delay = { path = \"/here/crates/millstream-delay\", default-features = false }",
        ] {
            assert!(manifest.lines().any(|found| found == line), "{line}\n{manifest}");
        }
    }

    #[test]
    fn settings_of_builds_are_known() {
        assert!(changes_builds("CARGO_PROFILE_DEV_DEBUG") && changes_builds("CARGO_TARGET_DIR"));
        assert!(!changes_builds("CARGO_HOME") && !changes_builds("PATH"));
    }
}
