//! Running programs: in the root of the workspace, without stdin, and in CI with a time limit.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, io, thread};

use anyhow::{Context, Result, ensure};

/// In CI all steps together must end within this time, so that a hanging one is reported and not cut off.
/// What is installed first counts, too.
const CI_BUDGET: Duration = Duration::from_secs(85 * 60);
/// In CI no single program may take longer.
const CI_LIMIT: Duration = Duration::from_secs(70 * 60);

/// A program to run.
pub(crate) struct Program {
    command: Command,
    shown: String,
}

/// Whether this is a run without a developer: nothing may be tolerated or left to guess.
pub(crate) fn in_ci() -> bool {
    env::var_os("CI").is_some_and(|value| !value.is_empty())
}

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map_or_else(|| here.clone(), PathBuf::from)
}

/// Cargo's target folder.
pub(crate) fn target() -> PathBuf {
    root().join(env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from))
}

/// `cargo` with these arguments.
pub(crate) fn cargo<'a>(args: impl IntoIterator<Item = &'a str>) -> Program {
    program(&env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()), args)
}

/// Any other program.
pub(crate) fn program<'a>(name: &str, args: impl IntoIterator<Item = &'a str>) -> Program {
    static STARTED: OnceLock<Instant> = OnceLock::new();
    let args: Vec<_> = args.into_iter().collect();
    let mut command = if in_ci() {
        let left = CI_BUDGET.saturating_sub(STARTED.get_or_init(Instant::now).elapsed());
        let limit = left.min(CI_LIMIT).as_secs().max(1);
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", &limit.to_string(), name]);
        command
    } else {
        Command::new(name)
    };
    command.args(&args).current_dir(root()).stdin(Stdio::null());
    // What cargo said about this program is nothing about others. Build scripts that read such a variable would run again,
    // and all that depends on them would be compiled again, each time that cargo is called directly in between.
    for (name, _) in env::vars_os().filter(|(name, _)| is_about_a_package(&name.to_string_lossy())) {
        command.env_remove(name);
    }
    let name = name.rsplit('/').next().unwrap_or(name);
    Program { command, shown: [&[name][..], &args].concat().join(" ") }
}

/// Whether cargo sets this variable for the programs of a package.
fn is_about_a_package(name: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.starts_with(prefix))
}

impl Program {
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn env_remove(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    /// Runs it with its output on ours. An error if it fails.
    pub(crate) fn run(mut self) -> Result<()> {
        println!("$ {}", self.shown);
        let status = self.command.status().with_context(|| format!("cannot run {}", self.shown))?;
        ensure!(status.success(), "`{}`: {status}", self.shown);
        Ok(())
    }

    /// Runs it with its output in a file. An error if it fails.
    pub(crate) fn run_into(mut self, log: &Path) -> Result<()> {
        let file = File::create(log).with_context(|| log.display().to_string())?;
        self.command.stderr(file.try_clone()?).stdout(file);
        let status = self.command.status().with_context(|| format!("cannot run {}", self.shown))?;
        ensure!(status.success(), "`{}`: {status}", self.shown);
        Ok(())
    }

    /// Whether it runs and succeeds; silently.
    pub(crate) fn works(mut self) -> bool {
        self.command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    /// What it writes to stdout, if it succeeds.
    pub(crate) fn output(mut self) -> Option<String> {
        let output = self.command.stderr(Stdio::null()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs it silently. An error if it fails, with the last line that it wrote to stderr.
    pub(crate) fn collected(mut self) -> Result<()> {
        let output = self.command.output().with_context(|| format!("cannot run {}", self.shown))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it says nothing");
        let name = self.shown.split(' ').next().unwrap_or_default();
        ensure!(output.status.success(), "{name} failed: {}", last.trim());
        Ok(())
    }

    /// Runs it and passes its output on while it comes; returns whether it succeeded, and all lines.
    pub(crate) fn watch(self) -> Result<(bool, Vec<String>)> {
        self.watch_each(|_| {})
    }

    /// The same, with a call for each line of stderr.
    pub(crate) fn watch_each(mut self, seen: impl FnMut(&str) + Send) -> Result<(bool, Vec<String>)> {
        println!("$ {}", self.shown);
        let mut child = self
            .command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {}", self.shown))?;
        let stdout = child.stdout.take().context("stdout is piped")?;
        let stderr = child.stderr.take().context("stderr is piped")?;
        let lines = thread::scope(|scope| {
            let errors = scope.spawn(|| pass_on(stderr, io::stderr(), seen));
            let mut lines = pass_on(stdout, io::stdout(), |_| {});
            lines.extend(errors.join().unwrap_or_default());
            lines
        });
        Ok((child.wait()?.success(), lines))
    }
}

fn pass_on(from: impl Read, mut to: impl Write, mut seen: impl FnMut(&str)) -> Vec<String> {
    let mut lines = Vec::new();
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        let _ = writeln!(to, "{line}");
        seen(&line);
        lines.push(line);
    }
    lines
}
