//! Weights that need builds, which take minutes: by hand.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, ensure};

use super::Weight;
use super::counts::megabytes;
use super::programs::{self, PROGRAMS};
use crate::run::{program, root};

/// A step of a row.
#[derive(Clone, Copy)]
enum Step {
    /// Runs cargo. With a name, its time is a weight.
    Cargo(Option<&'static str>, &'static [&'static str]),
    /// Changes the handler of the program.
    ChangeHandler,
    /// Makes a file of the workspace newer.
    Touch(&'static str),
    /// Weighs a file of the target folder, as the size of this name.
    Size(&'static str, &'static str),
}

/// Steps that begin with an empty target folder.
struct Row {
    name: &'static str,
    /// Whether it builds the program of a user, or the workspace.
    of: Option<&'static str>,
    steps: &'static [Step],
}

const ROWS: [Row; 7] = [
    Row {
        name: "flights-release",
        of: None,
        steps: &[
            Step::Cargo(Some("flights-release"), &["build", "--release", "--example", "flights"]),
            Step::Size("flights-release", "release/examples/flights"),
        ],
    },
    Row {
        name: "worker-debug",
        of: Some("worker"),
        steps: &[
            Step::Cargo(Some("worker-debug"), &["build"]),
            Step::Size("worker-debug", "debug/worker"),
            Step::Cargo(Some("worker-first-test"), &["test"]),
            Step::ChangeHandler,
            Step::Cargo(Some("worker-change-debug"), &["build"]),
        ],
    },
    Row {
        name: "worker-release",
        of: Some("worker"),
        steps: &[
            Step::Cargo(Some("worker-release"), &["build", "--release"]),
            Step::Size("worker-release", "release/worker"),
            Step::ChangeHandler,
            Step::Cargo(Some("worker-change-release"), &["build", "--release"]),
        ],
    },
    Row {
        name: "delay-debug",
        of: Some("delay"),
        steps: &[Step::Cargo(Some("delay-debug"), &["build"]), Step::Size("delay-debug", "debug/delay")],
    },
    Row {
        name: "lock-debug",
        of: Some("lock"),
        steps: &[Step::Cargo(Some("lock-debug"), &["build"]), Step::Size("lock-debug", "debug/lock")],
    },
    Row {
        name: "cli-release",
        of: None,
        steps: &[
            Step::Cargo(Some("cli-release"), &["build", "--release", "-p", "millstream-cli"]),
            Step::Size("cli", "release/millstream"),
        ],
    },
    Row {
        name: "core-test",
        of: None,
        steps: &[
            Step::Cargo(None, &["test", "-p", "millstream-core", "--no-run"]),
            Step::Touch("crates/millstream-core/src/lib.rs"),
            Step::Cargo(Some("core-test"), &["test", "-p", "millstream-core"]),
        ],
    },
];

/// The names of all.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = String> {
    ROWS.iter().flat_map(|row| row.steps).filter_map(name_of)
}

/// The name of the weight that a step finds.
fn name_of(step: &Step) -> Option<String> {
    match step {
        Step::Cargo(name, _) => name.map(|name| format!("cpu/{name}")),
        Step::Size(name, _) => Some(format!("size/{name}")),
        Step::ChangeHandler | Step::Touch(_) => None,
    }
}

/// What a call of cargo took.
#[derive(Debug, PartialEq)]
pub(super) struct Cost {
    /// Seconds of all its processes, user and system.
    cpu: f64,
    /// How many crates it compiled.
    compiled: usize,
}

/// Runs the rows that have a weight whose name contains the filter, and all of their steps.
pub(super) fn all(filter: &str) -> Result<Vec<Weight>> {
    let mut weights = Vec::new();
    let is_wanted = |row: &&Row| row.steps.iter().filter_map(name_of).any(|name| name.contains(filter));
    for row in ROWS.iter().filter(is_wanted) {
        println!("\n== {}", row.name);
        weights.extend(run(row).with_context(|| row.name)?);
    }
    Ok(weights)
}

fn run(row: &Row) -> Result<Vec<Weight>> {
    let to = programs::folder().join("build").join(row.name);
    if to.exists() {
        fs::remove_dir_all(&to).with_context(|| to.display().to_string())?;
    }
    let user = row.of.and_then(|name| PROGRAMS.iter().find(|program| program.name == name));
    let manifest = user.map(programs::write).transpose()?.unwrap_or_else(|| root().join("Cargo.toml"));
    let mut weights = Vec::new();
    for step in row.steps {
        let name = name_of(step).unwrap_or_default();
        match step {
            Step::Cargo(_, args) => {
                let started = Instant::now();
                let Cost { cpu, compiled } = cargo(args, &manifest, &to)?;
                let wall = started.elapsed().as_secs_f64();
                let note = format!("wall {wall:.1} s, {compiled} crates compiled");
                if !name.is_empty() {
                    weights.push(Weight::new(name, cpu).note(note));
                }
            }
            Step::Size(_, file) => weights.push(size(name, &to.join(file))?),
            Step::ChangeHandler => {
                let file = manifest.with_file_name("src").join("main.rs");
                fs::write(&file, changed(&fs::read_to_string(&file)?)).context("the program is changed")?;
            }
            Step::Touch(file) => {
                let file = fs::File::options().append(true).open(root().join(file))?;
                file.set_modified(SystemTime::now())?;
            }
        }
    }
    Ok(weights)
}

/// The source of a program whose handler does something else.
fn changed(source: &str) -> String {
    source.replacen(" paid ", " has paid ", 1)
}

/// Runs cargo as a user would, whose environment has no settings of builds. The shell adds up what its children took.
pub(super) fn cargo(args: &[&str], manifest: &Path, to: &Path) -> Result<Cost> {
    let (manifest, to) = (manifest.display().to_string(), to.display().to_string());
    let all = [args, &["--manifest-path", &manifest, "--target-dir", &to]].concat();
    let script = "cargo \"$@\"; code=$?; times; exit $code";
    let mut bash = program("bash", ["-c", script, "bash"].into_iter().chain(all)).env("LC_ALL", "C");
    for name in programs::variables() {
        bash = bash.env_remove(&name);
    }
    let (success, lines) = bash.watch()?;
    ensure!(success, "`cargo {}` failed", args.join(" "));
    let compiled = lines.iter().filter(|line| line.trim_start().starts_with("Compiling ")).count();
    Ok(Cost { cpu: children(&lines).context("bash says no times")?, compiled })
}

/// The last line of `times` with user and system time, which is that of the children: `0m1.234s 0m0.567s`.
fn children(lines: &[String]) -> Option<f64> {
    let mut times = lines.iter().filter_map(|line| {
        let (user, system) = line.split_once(' ')?;
        Some(seconds(user)? + seconds(system)?)
    });
    times.next_back()
}

/// From `1m2.345s`.
fn seconds(text: &str) -> Option<f64> {
    let (minutes, seconds) = text.strip_suffix('s')?.split_once('m')?;
    Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
}

/// The size of a program, as it is and stripped, if there is a program for that.
fn size(name: String, file: &Path) -> Result<Weight> {
    let bytes = |file: &Path| fs::metadata(file).map(|file| megabytes(file.len()));
    let built = bytes(file).with_context(|| file.display().to_string())?;
    let stripped: PathBuf = programs::folder().join("stripped");
    let (from, to) = (file.display().to_string(), stripped.display().to_string());
    let note = match program("strip", ["-o", &to, &from]).works() {
        true => format!("stripped {:.1} MB", bytes(&stripped)?),
        false => "not stripped: there is no strip".to_owned(),
    };
    Ok(Weight::new(name, built).note(note))
}

#[cfg(test)]
mod tests {
    use super::{PROGRAMS, ROWS, Step, changed, children, names, seconds};

    #[test]
    fn times_of_the_shell_are_minutes_and_seconds() {
        let near = |text: &str, expected: f64| (seconds(text).unwrap() - expected).abs() < 1e-9;
        assert!(near("0m1.234s", 1.234) && near("2m0.500s", 120.5));
        assert_eq!(seconds("1.2s"), None);
        assert_eq!(seconds("am1s"), None);
    }

    #[test]
    fn the_time_of_the_children_is_on_the_last_line_of_times() {
        let lines = ["running 1 test", "0m0.001s 0m0.002s", "1m2.000s 0m3.500s", "   Compiling serde v1.0.0"];
        let found = children(&lines.map(str::to_owned)).unwrap();
        assert!((found - 65.5).abs() < 1e-9, "{found}");
        assert_eq!(children(&["nothing".to_owned()]), None);
    }

    #[test]
    fn names_are_unique_and_programs_are_there() {
        let names: Vec<_> = names().collect();
        for (at, name) in names.iter().enumerate() {
            assert!(!names[..at].contains(name), "{name}");
        }
        for row in ROWS {
            assert!(
                row.of.is_none_or(|name| PROGRAMS.iter().any(|program| program.name == name)),
                "{}",
                row.name
            );
            let changes = row.steps.iter().any(|step| matches!(step, Step::ChangeHandler));
            let source =
                PROGRAMS.iter().find(|program| Some(program.name) == row.of).map(|program| program.source);
            assert!(!changes || source.is_some_and(|source| changed(source) != source), "{}", row.name);
        }
    }
}
