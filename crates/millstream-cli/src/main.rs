#![doc = include_str!("../README.md")]

mod commands;
mod confirm;
mod context;
mod envelope;
mod exit;
mod global;
mod human;
mod log_buffer;
mod output;
mod parse;
mod suggest;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use commands::Command;
use commands::exec::watchdog;
use envelope::ErrorView;
use exit::{Exit, Failure};
use global::Global;
use output::Output;
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
  millstream doctor --json                              the state of the server, as one line of JSON

Settings, in the order of precedence: options, the environment, the file of --config (by default
$XDG_CONFIG_HOME/millstream/config.toml or ~/.config/millstream/config.toml), defaults. Store a password in the
environment or in the file: all users of a machine can see the arguments of a process.

Output: data on stdout, notes on stderr. With --json each line of stdout is {\"version\":1,\"command\":…,\"data\":…}, one line
per command, or one per record from commands that print records; after a failure the last line has \"error\" in the place
of \"data\". `millstream schema` prints the schema of each. Colours only on a terminal, and without NO_COLOR. RUST_LOG sets
the log filter.

Exit codes: 0 done; 1 failed, also if the server, a permission or the named object is missing, or if something that was
selected was skipped; 2 wrong usage, also a missing confirmation; 3 found a fault (doctor, verify); 130 interrupted before
its end. A command that runs until it is stopped ends with 0 then.";

/// The log filter unless `RUST_LOG` is set. The warning that a server without persistence can lose messages is
/// omitted, and what users of the dashboard change is logged.
const LOG_FILTER: &str = "warn,millstream_redis::risks=error,millstream_dashboard::audit=info";

/// Returns the log filter: `warn,millstream_redis=debug`. It selects by target and level only: a filter that
/// selects spans by their fields would bring an engine for regular expressions.
fn log_filter() -> Targets {
    let asked = std::env::var("RUST_LOG").ok().and_then(|it| it.parse().ok());
    asked.or_else(|| LOG_FILTER.parse().ok()).unwrap_or_default()
}

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
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let page: Option<fn(Output) -> anyhow::Result<Exit>> = match words.as_slice() {
        [word] if word == "markdown" => Some(commands::generate::markdown::run),
        [word, page] if word == "markdown" && page == "json" => Some(commands::generate::json_page::run),
        _ => None,
    };
    if let Some(page) = page {
        return exit::code(page(Output::plain()).map_err(Failure::from), Output::plain());
    }
    if words.first().is_some_and(|word| word == watchdog::WORD) {
        return watchdog::run();
    }
    // For the completion scripts of shells.
    if std::env::args_os().nth(1).is_some_and(|word| word == "complete") {
        let words: Vec<_> = std::env::args_os().skip(2).collect();
        return exit::code(commands::generate::complete::run(&words).map_err(Failure::from), Output::plain());
    }
    let args = expand_help(std::env::args_os().collect());
    let (cli, matches) = match parse(&args) {
        Ok(parsed) => parsed,
        Err(error) => return refuse(&error, &args),
    };
    // Errors in the background are logged when they occur, and are not part of the output.
    let colours = output::colours(&std::io::stderr());
    let log = tracing_subscriber::fmt::layer().with_ansi(colours).with_writer(|| log_buffer::LogWriter);
    tracing_subscriber::registry().with(log_filter()).with(log).init();
    let output = cli.global.output();
    exit::code(run(cli, &Typed::of(&matches)), output)
}

fn parse(args: &[OsString]) -> Result<(Cli, ArgMatches), clap::Error> {
    let matches = Cli::command().try_get_matches_from(args)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    cli.global.settle(&matches);
    Ok((cli, matches))
}

/// Commands that a build may lack, each with the feature that brings it and whether this build has it.
const OPTIONAL: [(&str, &str, bool); 4] = [
    ("dashboard", "dashboard", cfg!(feature = "dashboard")),
    ("exporter", "exporter", cfg!(feature = "exporter")),
    ("scaler", "keda", cfg!(feature = "keda")),
    ("top", "top", cfg!(feature = "top")),
];

/// Returns what to say to somebody who wants a command that this build lacks.
fn left_out(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(wanted)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let (command, feature, _) = OPTIONAL.iter().find(|(name, _, is_there)| name == wanted && !is_there)?;
    Some(format!(
        "this build has no `millstream {command}`: cargo install millstream-cli --features {feature}"
    ))
}

/// Prints the help or the version, and ends with 0; or the error in the arguments, and ends with 2.
fn refuse(error: &clap::Error, args: &[OsString]) -> ExitCode {
    let left_out = left_out(error).map(|why| Cli::command().error(ErrorKind::InvalidSubcommand, why));
    let error = left_out.as_ref().unwrap_or(error);
    // If the stream is closed, the text is dropped.
    let _ = error.print();
    if error.use_stderr() {
        // The arguments up to the wrong one: they name the command.
        let known = Cli::command().ignore_errors(true).try_get_matches_from(args);
        let command = known.as_ref().map_or("", global::path);
        Output::new(wants_json(args), command).fail(&ErrorView::of_arguments(error));
    }
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Whether `--json` is among the arguments: where they are wrong, clap does not say it.
fn wants_json(args: &[OsString]) -> bool {
    args.iter().take_while(|word| *word != "--").any(|word| word == "--json")
}

fn run(Cli { global, command }: Cli, typed: &Typed) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(anyhow::Error::from)?.block_on(async {
        match command.run(&global).await {
            Err(error) => {
                let advice = suggest::explain(&error, typed, &global).await;
                Err(Failure { error, advice })
            }
            Ok(ended) => Ok(ended),
        }
    })
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::filter::LevelFilter;

    use super::*;

    #[test]
    fn warnings_are_logged_and_what_is_changed_in_the_dashboard() {
        let filter: Targets = LOG_FILTER.parse().expect("a filter");
        let logs = |target, level: LevelFilter| {
            level.into_level().is_some_and(|level| filter.would_enable(target, &level))
        };
        assert!(logs("millstream_runtime::consumer", LevelFilter::WARN));
        assert!(!logs("millstream_runtime::consumer", LevelFilter::INFO));
        assert!(!logs("millstream_redis::risks", LevelFilter::WARN));
        assert!(logs("millstream_dashboard::audit", LevelFilter::INFO));
    }
}
