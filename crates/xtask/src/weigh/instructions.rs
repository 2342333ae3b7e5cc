//! Instructions that a message costs the runtime, counted by `valgrind`: they hardly depend on the machine and not on its load.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Weight;
use super::programs::{self, UserProgram};
use super::times::cargo;

const PROGRAM: UserProgram = UserProgram {
    name: "instructions",
    source: include_str!("../../weigh/instructions.rs"),
    ours: &[("millstream", ", default-features = false")],
    others: concat!("bytes = \"1\"\n", "tokio = { version = \"1\", features = [\"macros\", \"rt\"] }\n",),
};

/// A send; and a send with what follows: the read, the dispatch, a handler that does nothing, the settlement.
const WAYS: [&str; 3] = ["send", "unordered", "per-key"];

/// Messages of the shorter of two runs. What a run costs without messages is in both.
const MESSAGES: u64 = 5_000;

/// Weighs the ways whose name contains the filter.
pub(super) fn all(filter: &str) -> Result<Vec<Weight>> {
    let wanted = WAYS.iter().filter(|way| name(way).contains(filter));
    let wanted: Vec<_> = wanted.collect();
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let (manifest, to) = (programs::write(&PROGRAM)?, programs::folder().join("build").join(PROGRAM.name));
    cargo(&["build", "--release"], &manifest, &to)?;
    let program = to.join("release").join(PROGRAM.name);
    let run = |way: &str, messages: u64| -> Result<f64> {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(&program);
        let output = valgrind.arg(way).arg(messages.to_string()).output().context("valgrind")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{way}: {said}");
        collected(&said).with_context(|| format!("no count in: {said}"))
    };
    let weigh = |way: &&&str| {
        let each = (run(way, 2 * MESSAGES)? - run(way, MESSAGES)?) / MESSAGES as f64;
        Ok(Weight::new(name(way), each.round()))
    };
    wanted.iter().map(weigh).collect()
}

fn name(way: &str) -> String {
    format!("instructions/{way}")
}

/// Parses `==123== Collected : 4567`.
fn collected(said: &str) -> Option<f64> {
    let line = said.lines().find_map(|line| line.split_once("Collected :"))?;
    line.1.trim().parse().ok()
}

#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = String> {
    WAYS.iter().map(|way| name(way))
}

#[cfg(test)]
mod tests {
    use super::collected;

    #[test]
    fn the_count_is_read() {
        let said = "==7== Events    : Ir\n==7== Collected : 123456\n==7== \n";
        assert_eq!(collected(said), Some(123_456.0));
        assert_eq!(collected("==7== killed"), None);
    }
}
