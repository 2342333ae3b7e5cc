//! `millstream markdown`: prints the reference of all commands, a page of the book. For developers of the
//! commands: it is hidden from help, completions and suggestions.

use anyhow::Result;
use clap::{Arg, Command, CommandFactory};

use crate::Cli;
use crate::exit::Exit;
use crate::output::Output;

const HEAD: &str = "# The command line

Made from the command itself. The guides explain the terms, above all [looking after a queue](guides/admin.md). [bench.md](bench.md) is the reference of `millstream-bench`.
";

/// Prints the reference.
///
/// # Errors
/// If it cannot be written.
pub(crate) fn run(output: Output) -> Result<Exit> {
    output.write(&reference())?;
    Ok(Exit::Done)
}

fn reference() -> String {
    let mut root = Cli::command().term_width(100);
    root.build();
    let mut text = HEAD.to_owned();
    let mut commands = Vec::new();
    collect(&root, &mut commands);
    text += "\n| command | what it does |\n|---|---|\n";
    for command in commands.iter().filter(|it| !it.has_subcommands()) {
        let path = path(command);
        let anchor = path.replace(' ', "-");
        text +=
            &format!("| [`{path}`](#{anchor}) | {} |\n", about(command).lines().next().unwrap_or_default());
    }
    for command in commands {
        section(command, &mut text);
    }
    text
}

/// Collects all commands that are not hidden, parents first.
fn collect<'a>(command: &'a Command, into: &mut Vec<&'a Command>) {
    into.push(command);
    command.get_subcommands().filter(|it| !it.is_hide_set()).for_each(|it| collect(it, into));
}

fn path(command: &Command) -> String {
    command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned()
}

/// Returns the command's description: the short one, then the rest.
fn about(command: &Command) -> String {
    command.get_long_about().or_else(|| command.get_about()).map(ToString::to_string).unwrap_or_default()
}

fn section(command: &Command, text: &mut String) {
    let path = path(command);
    *text += &format!("\n## {path}\n\n{}\n", about(command));
    let usage = command.clone().render_usage().to_string();
    *text += &format!("\n```text\n{}\n```\n", usage.trim_start_matches("Usage: "));
    // Global options are described once.
    let is_root = path == "millstream";
    let own = |arg: &&Arg| (is_root || !arg.is_global_set()) && !arg.is_hide_set() && !is_builtin(arg);
    let rows: Vec<String> = command.get_arguments().filter(own).map(row).collect();
    if !rows.is_empty() {
        let title = if is_root { "option of every command" } else { "argument" };
        *text += &format!("\n| {title} | |\n|---|---|\n{}\n", rows.join("\n"));
    }
    if let Some(examples) = command.get_after_help() {
        *text += &format!("\n```text\n{}\n```\n", examples.to_string().trim_end());
    }
}

fn is_builtin(arg: &Arg) -> bool {
    ["help", "version"].contains(&arg.get_id().as_str())
}

fn row(arg: &Arg) -> String {
    let mut name = String::new();
    if let Some(short) = arg.get_short() {
        name += &format!("-{short}, ");
    }
    if let Some(long) = arg.get_long() {
        name += &format!("--{long}");
    }
    let values = arg.get_value_names().unwrap_or_default();
    if arg.get_action().takes_values() {
        let values: Vec<_> = values.iter().map(|value| format!("<{value}>")).collect();
        let between = if arg.is_require_equals_set() { "=" } else { " " };
        let optional = arg.get_num_args().is_some_and(|range| range.min_values() == 0);
        name += &match (name.is_empty(), optional) {
            (true, _) => values.join(" "),
            (false, true) => format!("[{between}{}]", values.join(" ")),
            (false, false) => format!("{between}{}", values.join(" ")),
        };
    }
    let mut what =
        arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
    what = what.split_whitespace().collect::<Vec<_>>().join(" ");
    let choices: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|it| !it.is_hide_set())
        .map(|it| format!("`{}`", it.get_name()))
        .collect();
    if arg.get_action().takes_values() && !choices.is_empty() {
        what += &format!(". One of {}", choices.join(", "));
    }
    let defaults: Vec<_> = arg.get_default_values().iter().map(|it| it.to_string_lossy()).collect();
    if arg.get_action().takes_values() && !defaults.is_empty() {
        what += &format!(". Default: `{}`", defaults.join(" "));
    }
    if let Some(env) = arg.get_env() {
        what += &format!(". Environment: `{}`", env.to_string_lossy());
    }
    format!("| `{}` | {} |", name.replace('|', "\\|"), what.replace('|', "\\|"))
}
