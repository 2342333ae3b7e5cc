//! Names that completions ask the server for.

use std::fs;
use std::process::{Command, Stdio};

use crate::support::cli::{Cli, MILLSTREAM, Ran, bare};

/// What bash completes for these words, the last of which is being typed.
fn bash(cli: &Cli, words: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("script");
    let script = Ran::of(&mut bare(&["completions", "bash"])).stdout;
    let quoted: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
    let line = format!(
        "COMP_WORDS=('{MILLSTREAM}' {}); COMP_CWORD={}; _millstream_names '{MILLSTREAM}' '{}' ''; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        quoted.join(" "),
        words.len(),
        words.last().expect("a word"),
    );
    fs::write(&file, format!("{script}\n{line}")).expect("written");
    let mut command = Command::new("bash");
    command.arg("--norc").arg(&file).stdin(Stdio::null());
    command.env("MILLSTREAM_URL", &cli.url).env("MILLSTREAM_NAMESPACE", &cli.namespace);
    let ran = Ran::of(&mut command);
    ran.stdout.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn names_of_topics_groups_and_queues_are_completed() {
    let cli = Cli::new();
    for args in [
        "topic create orders",
        "topic create orders-eu",
        "topic create mails",
        "group create orders billing",
        "group create orders shipping",
        "group create mails senders",
        "queue create tasks",
    ] {
        cli.ok(args);
    }
    assert_eq!(bash(&cli, &["topic", "describe", ""]), ["mails", "orders", "orders-eu"]);
    assert_eq!(bash(&cli, &["topic", "describe", "or"]), ["orders", "orders-eu"]);
    assert_eq!(bash(&cli, &["dlq", "list", "orders", ""]), ["billing", "shipping"]);
    assert_eq!(bash(&cli, &["lag", "-g", "s"]), ["senders", "shipping"]);
    assert_eq!(bash(&cli, &["queue", "counts", ""]), ["tasks"]);
    assert_eq!(bash(&cli, &["schedule", "list", "--queue", ""]), ["tasks"]);
    // Subcommands and options are completed as before.
    assert_eq!(bash(&cli, &["topic", "cr"]), ["create"]);
    assert_eq!(bash(&cli, &["topic", "create", "x", "--parti"]), ["--partitions"]);
    // The namespace that is typed counts.
    let other = Cli::new();
    let words = ["--namespace", cli.namespace.as_str(), "topic", "describe", "orders-"];
    assert_eq!(bash(&other, &words), ["orders-eu"]);
}

#[test]
fn nothing_is_said_where_there_is_no_server() {
    for words in [&["topic", "describe", ""][..], &["lag", "--group", ""], &[], &["--url"]] {
        let args = [&["complete"], words].concat();
        let ran = Ran::of(bare(&args).env("MILLSTREAM_URL", "redis://127.0.0.1:1"));
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "", ""), "{words:?}: {ran:?}");
    }
}

#[test]
fn the_scripts_of_zsh_and_fish_ask_for_names() {
    let zsh = Ran::of(&mut bare(&["completions", "zsh"])).stdout;
    assert!(zsh.starts_with("#compdef millstream"), "zsh reads the first line");
    for line in zsh.lines().filter(|line| line.contains("':topic --") || line.contains(":GROUP:")) {
        assert!(line.contains(":_millstream_names'"), "{line}");
    }
    assert!(zsh.contains("_millstream_names()"));
    let fish = Ran::of(&mut bare(&["completions", "fish"])).stdout;
    assert!(fish.contains("complete -c millstream -f -a \"(__fish_millstream_names)\""));
}
