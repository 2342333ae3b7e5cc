//! What the command says of itself.

use std::collections::BTreeMap;

use crate::support::cli::{Ran, bare};

/// The commands beneath, as the help lists them.
fn beneath(help: &str) -> Vec<String> {
    let section = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = section.take_while(|line| !line.is_empty());
    // Deeper lines go on with a description.
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.map(|line| line.split_whitespace().next().expect("a name").to_owned()).collect()
}

/// Every command by its path, with its help.
pub(crate) fn commands() -> BTreeMap<String, String> {
    let mut seen = BTreeMap::new();
    walk(&[], &mut seen);
    seen
}

fn walk(path: &[String], seen: &mut BTreeMap<String, String>) {
    let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
    args.push("--help");
    let ran = Ran::of(&mut bare(&args));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{path:?}");
    let call =
        ["millstream"].into_iter().chain(path.iter().map(String::as_str)).collect::<Vec<_>>().join(" ");
    let examples = ran.stdout.lines().skip_while(|line| !["Example:", "Examples:"].contains(line));
    let calls = examples.filter(|line| format!("{} ", line.trim()).starts_with(&format!("{call} "))).count();
    assert!(calls > 0, "`{call}` needs an `after_help` with an example of it:\n{}", ran.stdout);
    for name in beneath(&ran.stdout) {
        walk(&[path, &[name]].concat(), seen);
    }
    seen.insert(path.join(" "), ran.stdout);
}

#[test]
fn every_command_has_an_example_of_itself() {
    let seen = commands();
    for command in ["", "topic", "topic list", "dlq consume"] {
        assert!(seen.contains_key(command), "{command} was not found: {:?}", seen.keys());
    }
}

#[test]
fn help_is_a_command_too_and_what_is_for_others_is_not_told() {
    let help = |args: &[&str]| Ran::of(&mut bare(args));
    assert_eq!(help(&["help", "topic", "list"]).stdout, help(&["topic", "list", "--help"]).stdout);
    assert_eq!(help(&["help"]).stdout, help(&["--help"]).stdout);
    let near = help(&["markdwn"]);
    assert!(near.code == 2 && !near.stderr.contains("markdown"), "{near:?}");
    assert!(!help(&["completions", "fish"]).stdout.contains("-a \"markdown\""));
}

#[test]
fn exit_codes_are_listed() {
    let help = Ran::of(&mut bare(&["--help"])).stdout;
    for code in ["0 done", "1 failed", "2 wrong usage", "3 found", "130 interrupted"] {
        assert!(help.contains(code), "{help}");
    }
}
