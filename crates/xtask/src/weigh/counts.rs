//! Weights that need no build.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result};

use super::Weight;
use super::programs::{self, PROGRAMS, UserProgram};
use crate::quick::members;
use crate::run::{cargo, target};

/// Packages whose crates are counted: a name, and the options of `cargo tree`.
const PACKAGES: [(&str, &[&str]); 9] = [
    ("facade-none", &["millstream", "--no-default-features"]),
    ("facade-default", &["millstream"]),
    ("facade-all", &["millstream", "--all-features"]),
    // Their dependencies are those of tests, as examples of a package are.
    ("examples", &["examples"]),
    ("examples-backend", &["examples-backend"]),
    ("examples-metrics", &["examples-metrics"]),
    ("examples-sql", &["examples-sql"]),
    ("examples-web", &["examples-web"]),
    ("cli", &["millstream-cli"]),
];

const BINARIES: &str = "tests/binaries";
const CLI_SIZE: &str = "size/cli";

/// The names of all.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = String> {
    let packages = PACKAGES.iter().map(|(name, _)| *name).chain(PROGRAMS.iter().map(|program| program.name));
    packages.map(|name| format!("crates/{name}")).chain([BINARIES, CLI_SIZE].map(str::to_owned))
}

/// Those whose name contains the filter.
pub(super) fn all(filter: &str) -> Result<Vec<Weight>> {
    let mut weights = Vec::new();
    let members = members()?;
    for (name, options) in PACKAGES {
        let weight = format!("crates/{name}");
        if !weight.contains(filter) {
            continue;
        }
        if !members.iter().any(|member| member.name == options[0]) {
            weights.push(Weight::missing(weight, "there is no such package"));
            continue;
        }
        let edges = if name.starts_with("examples") { "normal,build,dev" } else { "normal,build" };
        let start = ["tree", "--locked", "-e", edges, "--prefix", "none", "-p"];
        weights.push(Weight::new(weight, crates(&[&start[..], options].concat())?));
    }
    for program in PROGRAMS.iter().filter(|program| format!("crates/{}", program.name).contains(filter)) {
        weights.push(Weight::new(format!("crates/{}", program.name), of_program(program)?));
    }
    if BINARIES.contains(filter) {
        let metadata = cargo(["metadata", "--locked", "--no-deps", "--format-version", "1"]).output();
        weights.push(Weight::new(BINARIES, test_targets(&metadata.context("`cargo metadata` failed")?)));
    }
    if CLI_SIZE.contains(filter) {
        weights.push(cli_size());
    }
    Ok(weights)
}

fn of_program(program: &UserProgram) -> Result<f64> {
    let manifest = programs::write(program)?;
    let manifest = manifest.to_str().context("the target folder is not valid UTF-8")?;
    crates(&["tree", "--manifest-path", manifest, "-e", "normal,build", "--prefix", "none"])
}

fn crates(tree: &[&str]) -> Result<f64> {
    let output = cargo(tree.iter().copied()).output();
    Ok(different(&output.with_context(|| format!("`cargo {}` failed", tree.join(" ")))?))
}

/// How many crates a tree has, each once: names with versions, without what else `cargo tree` says about them.
#[expect(clippy::cast_precision_loss, reason = "there are not that many crates")]
fn different(tree: &str) -> f64 {
    let crates: BTreeSet<Vec<&str>> =
        tree.lines().map(|line| line.split_whitespace().take(2).collect()).collect();
    crates.iter().filter(|name| !name.is_empty()).count() as f64
}

/// How many targets of the workspace are built as tests. By a scan, since this program has no parser of JSON: the key with its
/// quotes is no part of another one, and a quote in a text is escaped.
#[expect(clippy::cast_precision_loss, reason = "there are not that many targets")]
fn test_targets(metadata: &str) -> f64 {
    metadata.matches("\"test\":true").count() as f64
}

/// Only if it is there: nothing is built for it.
fn cli_size() -> Weight {
    let built = target().join("release/millstream");
    match fs::metadata(&built) {
        Ok(file) => Weight::new(CLI_SIZE, megabytes(file.len())).note("as it was built last".to_owned()),
        Err(_) => Weight::missing(CLI_SIZE, "not checked: target/release/millstream is not built"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "no file is that large")]
pub(super) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::{different, test_targets};

    #[test]
    fn a_crate_counts_once_for_each_version() {
        let tree = "a v1.0.0 (/a)\nb v1.0.0\nb v2.0.0\nc v1.0.0 (proc-macro)\nc v1.0.0 (proc-macro) (*)\n\nb v2.0.0 (*)\n";
        assert_eq!(different(tree) as u32, 4);
    }

    #[test]
    fn targets_that_are_no_tests_do_not_count() {
        let metadata = r#"[{"doctest":true,"test":true},{"doctest":true,"test":false},{"test":true}]"#;
        assert_eq!(test_targets(metadata) as u32, 2);
    }
}
