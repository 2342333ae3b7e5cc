#![doc = include_str!("../README.md")]

mod bench;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// The tool of Millstream, a message queue on Redis Streams.
#[derive(Debug, Parser)]
#[command(name = "millstream", version, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures Millstream, and with --baseline the bare Redis commands beside it.
    Bench(bench::Bench),
}

/// What is told unless `RUST_LOG` says otherwise. That a server without persistence can lose messages is no news here.
const TOLD: &str = "warn,millstream_redis::durability=error";

fn main() -> ExitCode {
    // It ends the process itself: with 0 after --help, with 2 on wrong usage.
    let cli = Cli::parse();
    let Command::Bench(bench) = cli.command;
    if let Err(wrong) = bench.check() {
        Cli::command().error(clap::error::ErrorKind::ValueValidation, wrong).exit();
    }
    // What goes wrong in the background is told as it happens, and not in the output.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(TOLD));
    let colours = io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(io::stderr).init();
    match run(bench) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A signal ends the work as an error does, so that what was started and stored is cleaned up.
fn run(bench: bench::Bench) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(bench.run())
}
