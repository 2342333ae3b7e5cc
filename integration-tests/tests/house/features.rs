//! What a user compiles: the table of features in the README of the facade.

use std::collections::BTreeSet;
use std::process::Command;

use crate::none;
use crate::tree::{read, root};

const PAGE: &str = "crates/millstream/README.md";

/// Number of crates that are compiled for the facade with these features: itself and build tools, without those of tests.
fn crates(features: &[&str]) -> usize {
    let args =
        ["tree", "--offline", "-p", "millstream", "-e", "normal", "--prefix", "none", "--format", "{p}"];
    // The numbers are those of one platform, wherever this runs.
    let args = args.iter().chain(&["--target", "x86_64-unknown-linux-gnu"]).chain(features);
    let output = Command::new(env!("CARGO")).args(args).current_dir(root()).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("names are UTF-8");
    lines
        .lines()
        .map(|line| line.trim_end_matches(" (*)"))
        .filter(|line| !line.is_empty())
        .collect::<BTreeSet<_>>()
        .len()
}

#[test]
fn the_table_of_features_has_the_numbers_of_crates() {
    let page = read(PAGE).unwrap_or_default();
    let section = page.split("\n## Features\n").nth(1).unwrap_or_default();
    let (mut offenders, mut rows) = (Vec::new(), 0);
    for row in section.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [features, _, stated] = cells[..] else { panic!("not three cells: {row}") };
        let named = features
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|name| !name.contains(' '))
            .collect::<Vec<_>>()
            .join(",");
        let found = match features {
            "all" => crates(&["--all-features"]),
            _ => crates(&["--no-default-features", "--features", &named]),
        };
        rows += 1;
        if stated != found.to_string() {
            offenders.push(format!("{features}: {stated}, and cargo tree has {found}"));
        }
    }
    assert_eq!(rows, 18, "rows of the table in {PAGE}");
    none(
        &offenders,
        "Every feature costs what the table says. Change it, or find out what the new crates are good for:",
    );
}
