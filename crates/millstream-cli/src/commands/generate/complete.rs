//! Names of topics, groups and delay queues for the completion scripts of shells.
//!
//! `millstream complete WORD…` is called by these scripts with the words of the command line, the last of which is being
//! typed. It is not a command for people: it prints nothing where no such name fits, or if the server does not answer
//! soon, and then the shell completes subcommands, options and files by itself.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use anyhow::Result;
use clap::{Arg, Command, CommandFactory, FromArgMatches};
use millstream::TopicName;

use crate::Cli;
use crate::context::Context;
use crate::exit::Exit;
use crate::global::Global;
use crate::output::Output;

/// Maximum time for a connection and the answer: somebody waits for it with a hand on the keyboard.
const TIMEOUT: Duration = Duration::from_millis(1_500);

/// Maximum number of names: no shell shows more in a useful way.
const MOST: usize = 500;

/// Kind of a name that is being typed.
#[derive(Debug, PartialEq, Eq)]
enum CompleteWanted {
    Topic,
    Queue,
    /// Group of this topic, or of any topic.
    Group(Option<String>),
}

/// Prints the names, one on each line.
pub(crate) fn run(words: &[OsString]) -> Result<Exit> {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let Some((typed, before)) = words.split_last() else { return Ok(Exit::Done) };
    let Some(wanted) = wanted(&Cli::command(), before, typed) else { return Ok(Exit::Done) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let names = runtime.block_on(async { tokio::time::timeout(TIMEOUT, names(before, &wanted)).await });
    // What fails here fails again, with an error, when the command is run.
    let Ok(Ok(mut names)) = names else { return Ok(Exit::Done) };
    names.retain(|name| name.starts_with(typed.as_str()));
    names.truncate(MOST);
    let lines: String = names.iter().map(|name| format!("{name}\n")).collect();
    Output::plain().write(&lines)?;
    Ok(Exit::Done)
}

async fn names(before: &[String], wanted: &CompleteWanted) -> Result<Vec<String>> {
    // The line is not complete yet: only its global options are read.
    let line = ["millstream".to_owned()].into_iter().chain(before.iter().cloned());
    let matches = Cli::command().ignore_errors(true).try_get_matches_from(line)?;
    let mut global = Global::from_arg_matches(&matches)?;
    global.settle(&matches);
    let cx = Context::open(&global).await?;
    let admin = cx.admin();
    let mut names: Vec<String> = match wanted {
        CompleteWanted::Topic => texts(&admin.topics().await?),
        CompleteWanted::Queue => texts(&cx.mq.backend().tasks()?.queues().await?),
        CompleteWanted::Group(Some(topic)) => texts(&admin.groups(&topic.parse()?).await?),
        CompleteWanted::Group(None) => {
            let mut groups = Vec::new();
            for topic in admin.topics().await?.iter().take(MOST) {
                groups.extend(groups_of(&cx, topic).await);
            }
            groups
        }
    };
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

async fn groups_of(cx: &Context, topic: &TopicName) -> Vec<String> {
    // A topic that was deleted meanwhile, or whose key is damaged, hides no other.
    cx.admin().groups(topic).await.map(|groups| texts(&groups)).unwrap_or_default()
}

fn texts<T: ToString>(names: &[T]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

/// Returns the kind of the name behind these words, if a name of one is expected there.
fn wanted(root: &Command, before: &[String], typed: &str) -> Option<CompleteWanted> {
    // Options that are for all commands are known to the first one only.
    let globals: Vec<&Arg> = root.get_arguments().filter(|arg| arg.is_global_set()).collect();
    let (mut command, mut values) = (root, BTreeMap::<String, String>::new());
    let (mut position, mut of_option, mut only_positions) = (0, None::<&Arg>, false);
    for word in before {
        // A shell may pass the `=` of an option as a word of its own.
        if word == "=" {
            continue;
        }
        if let Some(arg) = of_option.take() {
            values.insert(arg.get_id().to_string(), word.clone());
        } else if word == "--" && !only_positions {
            only_positions = true;
        } else if !only_positions && word.len() > 1 && word.starts_with('-') {
            let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(a, b)| (a, Some(b)));
            let arg = option(command, &globals, name);
            match value {
                Some(value) => {
                    values.extend(arg.map(|arg| (arg.get_id().to_string(), value.to_owned())));
                }
                None => of_option = arg.filter(|arg| takes_word(arg)),
            }
            if let Some(arg) = arg.filter(|arg| !arg.get_action().takes_values()) {
                values.insert(arg.get_id().to_string(), "true".to_owned());
            }
        } else if let Some(beneath) = command.find_subcommand(word).filter(|_| position == 0) {
            command = beneath;
        } else {
            let arg = positional(command, position);
            values.extend(arg.map(|arg| (arg.get_id().to_string(), word.clone())));
            position += 1;
        }
    }
    let arg = match of_option {
        Some(arg) => arg,
        None if !only_positions && typed.starts_with('-') => return None,
        None => positional(command, position)?,
    };
    match arg.get_id().as_str() {
        "topic" | "topics" | "to_topic" => Some(CompleteWanted::Topic),
        // For verify, `queue` is an option with a name; for schedule, it says what the name is.
        "queue" | "queues" if arg.get_action().takes_values() => Some(CompleteWanted::Queue),
        "name" if command.get_arguments().any(|arg| arg.get_id() == "queue") => {
            Some(if values.contains_key("queue") { CompleteWanted::Queue } else { CompleteWanted::Topic })
        }
        "group" => Some(CompleteWanted::Group(values.get("topic").cloned())),
        _ => None,
    }
}

/// Returns the option of this name: `--group`, or `-g`, also behind flags (`-yg`).
fn option<'a>(command: &'a Command, globals: &[&'a Arg], name: &str) -> Option<&'a Arg> {
    let mut args = command.get_arguments().chain(globals.iter().copied());
    match name.strip_prefix("--") {
        Some(long) => args.find(|arg| arg.get_long() == Some(long)),
        None => args.find(|arg| arg.get_short() == name.chars().next_back()),
    }
}

/// Whether the value of an option is the next word: not that of one which needs the equals sign.
fn takes_word(arg: &Arg) -> bool {
    arg.get_action().takes_values() && !arg.is_require_equals_set()
}

/// Returns the argument at this position; the last one if it may be repeated.
fn positional(command: &Command, position: usize) -> Option<&Arg> {
    let positions: Vec<&Arg> = command.get_positionals().collect();
    let last = positions.last().filter(|arg| matches!(arg.get_action(), clap::ArgAction::Append));
    positions.get(position).or(last).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<CompleteWanted> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let (typed, before) = words.split_last().expect("a word");
        wanted(&Cli::command(), before, typed)
    }

    fn group(topic: &str) -> Option<CompleteWanted> {
        Some(CompleteWanted::Group(Some(topic.to_owned())))
    }

    #[test]
    fn names_are_expected_where_a_command_has_them() {
        for line in [
            "topic describe ",
            "topic describe or",
            "lag ",
            "lag --behind 5 ",
            "verify a ",
            "dlq replay orders billing --to-topic ",
            "dlq replay orders billing --to-topic = o",
            "--url redis://h tail ",
            "schedule list ",
            "consume -- ",
        ] {
            assert_eq!(of(line), Some(CompleteWanted::Topic), "{line:?}");
        }
        for line in ["queue counts ", "queue dead list ma", "verify --queue ", "schedule list --queue "] {
            assert_eq!(of(line), Some(CompleteWanted::Queue), "{line:?}");
        }
        for line in
            ["group describe orders ", "dlq list orders bil", "consume orders -g ", "-y lag orders --group "]
        {
            assert_eq!(of(line), group("orders"), "{line:?}");
        }
        assert_eq!(of("lag --group "), Some(CompleteWanted::Group(None)));
    }

    #[test]
    fn nothing_is_expected_elsewhere() {
        for line in [
            "",
            "top",
            "topic ",
            "topic describe --",
            "topic describe orders ",
            "topic create orders --partitions ",
            "dlq show orders billing ",
            "lag --watch ",
            "--url ",
            "nonsense ",
        ] {
            let expected = if line == "lag --watch " { Some(CompleteWanted::Topic) } else { None };
            assert_eq!(of(line), expected, "{line:?}");
        }
    }
}
