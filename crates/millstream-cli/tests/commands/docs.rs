//! `millstream completions`, `man`, and the reference: what is made from the command itself.

mod completing;
// With all features, as it is published.
#[cfg(all(feature = "dashboard", feature = "exporter", feature = "keda"))]
mod deploy;
pub(crate) mod globals;
mod json;

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use crate::support::cli::{Ran, bare};

#[track_caller]
fn printed(args: &[&str]) -> String {
    let ran = Ran::of(&mut bare(args));
    assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
    ran.stdout
}

#[test]
fn every_shell_completes_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = printed(&["completions", shell]);
        for word in ["pending", "describe", "retention", "completions", "until-empty"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    assert_eq!(Ran::of(&mut bare(&["completions", "csh"])).code, 2);
}

#[test]
fn bash_understands_its_script() {
    let script = printed(&["completions", "bash"]);
    let line = "COMP_WORDS=(millstream topic cr); COMP_CWORD=2; _millstream millstream cr topic; echo ${COMPREPLY[@]}";
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("script");
    // Too long for an argument.
    fs::write(&file, format!("{script}\n{line}")).expect("written");
    let output =
        Command::new("bash").arg("--norc").arg(&file).stdin(Stdio::null()).output().expect("bash runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "create", "{output:?}");
}

#[test]
fn every_command_has_a_manual_page() {
    let page = printed(&["man"]);
    assert!(page.contains(".TH millstream 1") && page.contains("MILLSTREAM_URL"), "{page}");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("man1");
    printed(&["man", path.to_str().expect("UTF-8")]);
    let pages: BTreeSet<_> = fs::read_dir(&path)
        .expect("a folder")
        .map(|it| it.expect("a file").file_name().into_string().expect("UTF-8"))
        .collect();
    for page in ["millstream.1", "millstream-lag.1", "millstream-topic-create.1", "millstream-dlq-consume.1"]
    {
        assert!(pages.contains(page), "{page}: {pages:?}");
    }
    let create = fs::read_to_string(path.join("millstream-topic-create.1")).expect("a page");
    assert!(create.contains("millstream topic create orders"), "its example: {create}");
    assert!(!pages.contains("millstream-markdown.1"), "what is hidden has none");
}

/// With all features, as it is published.
#[cfg(feature = "top")]
#[test]
fn the_reference_is_what_the_command_says() {
    let made = printed(&["markdown"]);
    for word in
        ["## millstream topic create", "`--retention <RETENTION>`", "MILLSTREAM_NAMESPACE", "Examples:"]
    {
        assert!(made.contains(word), "{word}");
    }
}

#[test]
fn no_limit_is_zero() {
    let reference = printed(&["markdown"]);
    let sections = reference.split("\n## millstream ").filter(|it| it.contains("| `--limit <"));
    let commands: Vec<&str> = sections.map(|it| it.lines().next().expect("a name")).collect();
    assert!(commands.len() > 15, "{commands:?}");
    for command in commands {
        let words: Vec<&str> = command.split(' ').chain(["--limit", "0"]).collect();
        let ran = Ran::of(&mut bare(&words));
        assert!(ran.code == 2 && ran.stderr.contains("0 is not in 1.."), "{command}: {ran:?}");
    }
}
