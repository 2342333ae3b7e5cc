#![doc = include_str!("../README.md")]

mod commands;
mod confirm;
mod context;
mod exit;
mod global;
mod human;
mod log_buffer;
mod output;
mod parse;
mod suggest;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser};
use tracing_subscriber::EnvFilter;

use commands::Command;
use exit::Exit;
use global::Global;
use suggest::Typed;

/// Manages topics, groups and messages of Millstream, a message queue on Redis Streams.
#[derive(Debug, Parser)]
#[command(name = "millstream", version, arg_required_else_help = true, disable_help_subcommand = true)]
#[command(after_help = AFTER_HELP)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "Examples:
  millstream topic list                                 all topics
  millstream --url redis://10.0.0.5 lag orders --watch  how far each group is behind, every 2 seconds
  millstream doctor --json                              the state of the server, as one JSON value

Settings, in the order of precedence: options, the environment, the file of --config (by default
$XDG_CONFIG_HOME/millstream/config.toml or ~/.config/millstream/config.toml), defaults. Store a password in the
environment or in the file: all users of a machine can see the arguments of a process.

Output: data on stdout, notes on stderr. With --json one JSON value per command, or one per line from commands that run
until they are stopped. Colours only on a terminal, and without NO_COLOR. RUST_LOG sets the log filter.

Exit codes: 0 done; 1 failed, also if the server, a permission or the named object is missing; 2 wrong usage, also a
missing confirmation; 3 found a fault (doctor, verify); 130 interrupted before its end. A command that runs until it is
stopped ends with 0 then.";

/// The log filter unless `RUST_LOG` is set. The warning that a server without persistence can lose messages is
/// omitted.
const LOG_FILTER: &str = "warn,millstream_redis::risks=error";

/// Rewrites `millstream help topic list` to `millstream topic list --help`.
fn expand_help(mut args: Vec<OsString>) -> Vec<OsString> {
    if args.get(1).is_some_and(|word| word == "help") {
        args.remove(1);
        args.push("--help".into());
    }
    args
}

fn main() -> ExitCode {
    // For developers of the commands: it is not one of them.
    if std::env::args_os().skip(1).eq(["markdown"]) {
        return exit::code(commands::generate::markdown::run(output::Output::new(false)));
    }
    // For the completion scripts of shells.
    if std::env::args_os().nth(1).is_some_and(|word| word == "complete") {
        let words: Vec<_> = std::env::args_os().skip(2).collect();
        return exit::code(commands::generate::complete::run(&words));
    }
    // Ends the process itself: with 0 after --help, with 2 on wrong usage.
    let matches = Cli::command().get_matches_from(expand_help(std::env::args_os().collect()));
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    cli.global.settle(&matches);
    if let Err(wrong) = cli.command.check() {
        Cli::command().error(clap::error::ErrorKind::ValueValidation, wrong).exit();
    }
    // Errors in the background are logged when they occur, and are not part of the output.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    let colours = output::colours(&std::io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(|| log_buffer::LogWriter)
        .init();
    exit::code(run(cli, &Typed::of(&matches)))
}

fn run(Cli { global, command }: Cli, typed: &Typed) -> Result<Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match command.run(&global).await {
            Err(error) => Err(suggest::explain(error, typed, &global).await),
            ended => ended,
        }
    })
}
