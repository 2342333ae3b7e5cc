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

/// The tool of Millstream, a message queue on Redis Streams.
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
  millstream topic list                                 what there is
  millstream --url redis://10.0.0.5 lag orders --watch  how far each group is behind, again and again
  millstream doctor --json                              how the server does, as one JSON value

Settings, the first that is there: options, the environment, the file of --config (by default
$XDG_CONFIG_HOME/millstream/config.toml or ~/.config/millstream/config.toml), defaults.

Output: data on stdout, what is said of it on stderr. With --json one JSON value a command, or one a line from commands
that go on. Colours only on a terminal, and without NO_COLOR. RUST_LOG chooses what is told of the background.

Exit codes: 0 done; 1 failed, also if there is no server, no right, or nothing of that name; 2 wrong usage, also a
confirmation that is missing; 3 looked, and found something wrong (doctor, verify); 130 interrupted before its end. What
goes on until it is stopped ends with 0 then.";

/// The log filter unless `RUST_LOG` is set. The warning that a server without persistence can lose messages is
/// omitted.
const TOLD: &str = "warn,millstream_redis::durability=error";

/// Rewrites `millstream help topic list` to `millstream topic list --help`.
fn asked(mut args: Vec<OsString>) -> Vec<OsString> {
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
    // Ends the process itself: with 0 after --help, with 2 on wrong usage.
    let matches = Cli::command().get_matches_from(asked(std::env::args_os().collect()));
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    cli.global.settle(&matches);
    if let Err(wrong) = cli.command.check() {
        Cli::command().error(clap::error::ErrorKind::ValueValidation, wrong).exit();
    }
    // Errors in the background are logged when they occur, and are not part of the output.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(TOLD));
    let colours = output::colours(&std::io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(|| log_buffer::Told)
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
