//! The help of the commands, and `docs/bench.md`, which names them.

use std::fs;
use std::path::Path;
use std::process::Command;

const COMMANDS: [&str; 10] =
    ["suite", "produce", "consume", "e2e", "delay", "retry", "takeover", "idle", "memory", "operate"];

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

#[test]
fn the_page_names_every_command() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/bench.md");
    let page = fs::read_to_string(&path).unwrap_or_default();
    let missing: Vec<_> =
        COMMANDS.into_iter().filter(|command| !page.contains(&format!("| `{command}` |"))).collect();
    assert!(missing.is_empty(), "docs/bench.md lacks {missing:?}");
}
