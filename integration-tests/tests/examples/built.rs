//! Where cargo puts the examples.

use std::env;
use std::fs::{self, read_to_string};
use std::path::{Path, PathBuf};
use std::process::Command;

const ADVICE: &str =
    "cargo test --workspace --no-run builds it; cargo test -p integration-tests alone does not";

/// Returns a command that runs an example of the facade.
///
/// # Panics
/// If it was not built, or one of its sources was changed since: an old program proves nothing.
pub(crate) fn example(name: &str) -> Command {
    // `target/debug/deps/servers-…` is this program.
    let this = env::current_exe().expect("this program");
    let program = this.ancestors().nth(2).expect("a target folder").join("examples").join(name);
    let built = fs::metadata(&program).and_then(|it| it.modified());
    let built = built.unwrap_or_else(|error| panic!("{}: {error}. {ADVICE}", program.display()));
    for source in sources(&program) {
        let changed = fs::metadata(&source).and_then(|it| it.modified()).is_ok_and(|it| it > built);
        assert!(!changed, "{} is newer than the example {name}. {ADVICE}", source.display());
    }
    Command::new(program)
}

/// The sources of a program, those of our crates that it uses among them: cargo writes them in the form of make.
fn sources(program: &Path) -> Vec<PathBuf> {
    let list = read_to_string(program.with_extension("d")).expect("cargo lists the sources");
    let (_, sources) = list.split_once(": ").expect("a rule of make");
    let sources: Vec<PathBuf> = sources.split_whitespace().map(PathBuf::from).collect();
    assert!(sources.len() > 50, "hardly any source: {sources:?}");
    sources
}
