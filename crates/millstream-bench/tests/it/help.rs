//! The help of the commands, and `docs/bench.md`, which consists of it.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

const COMMANDS: [&str; 10] =
    ["suite", "produce", "consume", "e2e", "delay", "retry", "takeover", "idle", "memory", "operate"];

const HEAD: &str = "# The command `millstream-bench`

Its help, written by `UPDATE_DOCS=1 cargo test -p millstream-bench --test it help`. Options of all commands are shown once, with
the first one. [performance.md](performance.md) describes the method and has figures.
";

fn help(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_millstream-bench")).args(args).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn every_command_has_an_example_of_itself() {
    for option in ["--help", "-h"] {
        let text = help(&[option]);
        assert!(text.contains("millstream-bench produce --baseline"), "{text}");
        assert!(COMMANDS.iter().all(|command| text.contains(&format!("\n  {command} "))), "{text}");
        assert!(!text.contains("victim"), "{text}");
    }
    for command in COMMANDS {
        let text = help(&[command, "--help"]);
        let examples = text.split_once("\nExample").map(|(_, examples)| examples).unwrap_or_default();
        assert!(examples.contains(&format!("  millstream-bench {command} ")), "{command}: {text}");
    }
}

/// Removes the options of all commands from a help text.
fn own_part(text: &str) -> String {
    let (own, rest) = text.split_once("\nOptions of all commands:\n").expect("options of all commands");
    let (_, examples) = rest.split_once("\nExample").expect("an example");
    format!("{own}\nExample{examples}")
}

#[test]
fn the_reference_is_the_help() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bench.md");
    let mut made = HEAD.to_owned();
    for command in [""].into_iter().chain(COMMANDS) {
        let args: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
        let text = if command.is_empty() { help(&args) } else { own_part(&help(&args)) };
        let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
        let heading = format!("millstream-bench {command}");
        made += &format!("\n## {}\n\n```text\n{}\n```\n", heading.trim_end(), lines.join("\n"));
    }
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &made).expect("written");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    let differs = written.lines().zip(made.lines()).position(|(one, other)| one != other);
    assert!(
        written == made,
        "docs/bench.md is not the help (from line {} on): UPDATE_DOCS=1 cargo test -p millstream-bench --test it help",
        differs.unwrap_or(written.lines().count().min(made.lines().count())) + 1
    );
}
