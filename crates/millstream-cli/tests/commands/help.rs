//! What the command says of itself.

use std::collections::BTreeSet;

use crate::cli::{Ran, bare};

/// The commands beneath, as the help lists them.
fn beneath(help: &str) -> Vec<String> {
    let section = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = section.take_while(|line| !line.is_empty());
    // Deeper lines go on with a description.
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.map(|line| line.split_whitespace().next().expect("a name").to_owned()).collect()
}

fn walk(path: &[String], seen: &mut BTreeSet<String>) {
    let mut args: Vec<&str> = path.iter().map(String::as_str).collect();
    args.push("--help");
    let ran = Ran::of(&mut bare(&args));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{path:?}");
    let call =
        ["millstream"].into_iter().chain(path.iter().map(String::as_str)).collect::<Vec<_>>().join(" ");
    let examples = ran.stdout.lines().skip_while(|line| !["Example:", "Examples:"].contains(line));
    let calls = examples.filter(|line| format!("{} ", line.trim()).starts_with(&format!("{call} "))).count();
    assert!(calls > 0, "`{call}` needs an `after_help` with an example of it:\n{}", ran.stdout);
    seen.insert(path.join(" "));
    for name in beneath(&ran.stdout) {
        walk(&[path, &[name]].concat(), seen);
    }
}

#[test]
fn every_command_has_an_example_of_itself() {
    let mut seen = BTreeSet::new();
    walk(&[], &mut seen);
    for command in ["", "topic", "topic list", "bench", "bench produce"] {
        assert!(seen.contains(command), "{command} was not found: {seen:?}");
    }
}

#[test]
fn exit_codes_are_told() {
    let help = Ran::of(&mut bare(&["--help"])).stdout;
    for code in ["0 done", "1 failed", "2 wrong usage", "3 looked", "130 interrupted"] {
        assert!(help.contains(code), "{help}");
    }
}
