//! The command lines in `docs/deploy`: the command knows each of them, with all its options and values.

use std::fs;
use std::path::Path;

use crate::support::cli::{Ran, bare};

/// The files with command lines. The chart renders to the manifests.
const FILES: [&str; 6] = [
    "compose.yml",
    "kubernetes.yml",
    "helm/millstream/values.yaml",
    "systemd/millstream-dashboard.service",
    "systemd/millstream-exporter.service",
    "systemd/millstream-worker@.service",
];

/// The words of `["exporter", "--address", "0.0.0.0:9464"]`.
fn flow(text: &str) -> Vec<String> {
    text.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The words behind `millstream` in each command line of a file.
fn calls(text: &str) -> Vec<Vec<String>> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (mut calls, mut lines) = (Vec::new(), text.lines().peekable());
    while let Some(line) = lines.next() {
        let line = line.trim();
        if let Some(call) = line.strip_prefix("ExecStart=/usr/bin/millstream ") {
            calls.push(words(call));
        } else if let Some((_, call)) = line.split_once(": millstream ") {
            calls.push(words(call));
        } else if let Some((command, options)) =
            line.strip_prefix("# More options of `millstream ").and_then(|rest| rest.split_once("`: "))
        {
            calls.push([words(command), flow(options)].concat());
        } else if line == "args:" {
            let mut call = Vec::new();
            while let Some(word) = lines.next_if(|line| line.trim().starts_with("- ")) {
                call.push(word.trim()["- ".len()..].trim_matches('"').to_owned());
            }
            calls.push(call);
        } else if let Some(call) = line.strip_prefix("command: ").map(flow) {
            // Others have a program of their own, or options of one.
            calls.extend(Some(call).filter(|call| {
                call.first().is_some_and(|word| !word.starts_with('-') && word != "redis-server")
            }));
        }
    }
    calls
}

/// What systemd puts in: any word will do.
fn filled_in(word: &str) -> String {
    if word.starts_with("${") && word.ends_with('}') { "x".to_owned() } else { word.replace("%i", "x") }
}

/// Options before `--help` are read; what is wrong with one of them is told first.
#[test]
fn the_command_knows_what_the_files_to_deploy_with_call() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/deploy");
    let mut seen = Vec::new();
    for file in FILES {
        let text = fs::read_to_string(folder.join(file)).expect(file);
        let of_file = calls(&text);
        assert!(!of_file.is_empty(), "{file}: no command line is found");
        for call in of_file {
            let mut words: Vec<String> = call.iter().map(|word| filled_in(word)).collect();
            words.push("--help".to_owned());
            let ran = Ran::of(&mut bare(&words.iter().map(String::as_str).collect::<Vec<_>>()));
            assert!(ran.code == 0 && ran.stdout.contains("Usage: millstream "), "{file}: {call:?}: {ran:?}");
            seen.extend(call.into_iter().next());
        }
    }
    for command in ["consume", "dashboard", "exporter", "group", "scaler"] {
        assert!(seen.iter().any(|word| word == command), "{command}: {seen:?}");
    }
    let wrong = [&["exporter", "--adress", "x", "--help"][..], &["exporter", "--address", "x", "--help"]];
    for words in wrong {
        assert_eq!(Ran::of(&mut bare(words)).code, 2, "{words:?} would pass for right");
    }
}
