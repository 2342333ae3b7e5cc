//! Rules on documents, and between documents and code.

use crate::none;
use crate::tree::{files, read, rust_files};

/// A role has one name in all of its places.
const ROLES: [&str; 14] = [
    "log",
    "schedule",
    "recurring",
    "tasks",
    "leases",
    "dead_letters",
    "catalog",
    "members",
    "shared",
    "locks",
    "permits",
    "idempotency",
    "inspect",
    "audit",
];

#[test]
fn a_role_has_one_name_in_five_places() {
    let folders = [
        "crates/millstream-core/src/roles",
        "crates/millstream-redis/src/roles",
        "crates/millstream-memory/src/roles",
        "crates/millstream-testkit/src/suite",
    ];
    let protocol = read("docs/protocol.md").unwrap_or_default();
    let headings: Vec<_> = protocol.lines().filter(|line| line.starts_with('#')).map(anchor).collect();
    let mut offenders = Vec::new();
    for role in ROLES {
        for folder in folders {
            let (file, module) = (format!("{folder}/{role}.rs"), format!("{folder}/{role}/mod.rs"));
            if read(&file).or_else(|| read(&module)).is_none() {
                offenders.push(file);
            }
        }
        let heading = role.replace('_', "-");
        if !headings.contains(&heading) {
            offenders.push(format!("docs/protocol.md#{heading}"));
        }
    }
    none(&offenders, "Who knows one of the five places must find the other four. Missing:");
}

/// The anchor of a heading: `## Dead letters` is `dead-letters`.
pub(crate) fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase().replace(['_', ' '], "-");
    text.chars().filter(|c| c.is_alphanumeric() || *c == '-').collect()
}

#[test]
fn the_readme_shows_the_two_commands() {
    let readme = read("README.md").unwrap_or_default();
    let missing = ["cargo run --release --example flights", "cargo xtask test"].map(str::to_owned);
    let missing: Vec<_> = missing.into_iter().filter(|command| !readme.contains(command)).collect();
    none(&missing, "Two commands set everything up, and README.md shows them. Missing:");
}

#[test]
fn the_papers_of_the_house_are_there() {
    let papers = [
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE-APACHE",
        "LICENSE-MIT",
        "README.md",
        "SECURITY.md",
        "docs/architecture.md",
        "docs/protocol.md",
    ];
    let missing: Vec<_> =
        papers.iter().filter(|path| read(path).is_none()).map(ToString::to_string).collect();
    none(&missing, "Missing:");
}

#[test]
fn nothing_names_a_machine() {
    // Put together here, so that this file does not name them either.
    let homes = ["work", "root", "home", "Users"].map(|folder| format!("/{folder}/"));
    let hosts = ["index", "static", "deb", "files", "registry", "proxy", "security"]
        .map(|host| format!("://{host}."));
    let mut offenders = Vec::new();
    for (path, text) in files().iter().filter(|(path, _)| *path != "Cargo.lock") {
        for (number, line) in text.lines().enumerate() {
            if homes.iter().chain(&hosts).any(|bad| line.contains(bad)) {
                offenders.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    none(&offenders, "Folders of a developer's machine and hosts of package registries are nobody else's:");
}

/// The cells of a table's row.
fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split('|').map(str::trim).collect()
}

/// What stands between backticks and is a path: `file::function`, or `folder::file::function`.
fn named(cell: &str) -> impl Iterator<Item = (&str, &str)> {
    cell.split('`').skip(1).step_by(2).filter_map(|word| word.rsplit_once("::"))
}

/// Returns a section of a page.
fn section_of(page: &str, title: &str) -> String {
    let page = read(page).unwrap_or_default();
    let section = page.split(&format!("\n## {title}\n")).nth(1).unwrap_or_default();
    section.split("\n## ").next().unwrap_or_default().to_owned()
}

/// Whether a function stands in a file of this name, or in a folder of this name.
fn is_there(sources: &[(String, String)], file: &str, function: &str) -> bool {
    let file = file.replace("::", "/");
    let (named, folder) = (format!("/{file}.rs"), format!("/{file}/"));
    let function = format!("fn {function}(");
    let mut of_file = sources.iter().filter(|(path, _)| path.ends_with(&named) || path.contains(&folder));
    of_file.any(|(_, text)| text.contains(&function))
}

/// Each row of this section names tests that are there.
fn each_row_names_its_test(title: &str, at_least: usize) {
    let sources: Vec<(String, String)> = rust_files().collect();
    let (mut offenders, mut rules) = (Vec::new(), 0);
    let section = section_of("docs/testing.md", title);
    for row in section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| **")).skip(1) {
        let [rule, tests] = cells(row)[..] else {
            offenders.push(format!("not two cells: {row}"));
            continue;
        };
        rules += 1;
        let missing = named(tests).filter(|(file, function)| !is_there(&sources, file, function));
        offenders.extend(missing.map(|(file, function)| format!("{rule}: there is no `{file}::{function}`")));
        if named(tests).next().is_none() {
            offenders.push(format!("{rule}: no test"));
        }
    }
    assert!(rules >= at_least, "{rules} rules");
    none(&offenders, &format!("{title} of docs/testing.md, each with its test:"));
}

#[test]
fn every_mend_names_its_test() {
    each_row_names_its_test("Mends", 31);
}

#[test]
fn locks_and_idempotency_name_their_tests() {
    each_row_names_its_test("Locks and idempotency", 8);
}

/// Each fault has its row, and each row an answer, and a test that is there or the reason why there is none.
#[test]
fn every_fault_names_its_test() {
    let section = section_of("docs/reliability.md", "Faults");
    let sources: Vec<(String, String)> = rust_files().collect();
    let mut offenders = Vec::new();
    let mut rows = Vec::new();
    for row in section.lines().filter(|line| line.starts_with("| ")).map(cells) {
        let [number, _, answer, test] = row[..] else {
            offenders.push(format!("not four cells: {row:?}"));
            continue;
        };
        if !number.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        rows.push(number.to_owned());
        if answer.len() <= 5 {
            offenders.push(format!("{number}: no answer"));
        }
        for (file, function) in named(test) {
            if !is_there(&sources, file, function) {
                offenders.push(format!("{number}: there is no `{file}::{function}`"));
            }
        }
        if named(test).next().is_none() && test.strip_prefix("none").is_none_or(|why| why.len() <= 10) {
            offenders.push(format!("{number}: neither a test nor a reason: {test}"));
        }
    }
    let all: Vec<String> = (1..=96).map(|number| number.to_string()).collect();
    let missing =
        all.iter().map(String::as_str).chain(["31b"]).filter(|number| !rows.iter().any(|row| row == number));
    offenders.extend(missing.map(|number| format!("{number}: there is no such row")));
    let mut seen = std::collections::BTreeSet::new();
    offenders.extend(rows.iter().filter(|row| !seen.insert(*row)).map(|row| format!("{row}: twice")));
    none(&offenders, "Faults of docs/reliability.md, each with its answer and its test:");
}

/// Each limit names what is refused, what slows down, what stays, and a test that is there.
#[test]
fn every_limit_names_its_test() {
    let section = section_of("docs/reliability.md", "Limits");
    let sources: Vec<(String, String)> = rust_files().collect();
    let (mut offenders, mut rows) = (Vec::new(), 0);
    for row in section.lines().filter(|line| line.starts_with("| ")).skip(1).map(cells) {
        let [what, refused, slows, stays, tests] = row[..] else {
            offenders.push(format!("not five cells: {row:?}"));
            continue;
        };
        rows += 1;
        if [refused, slows, stays].iter().any(|cell| cell.is_empty()) {
            offenders.push(format!("{what}: an empty cell"));
        }
        let missing = named(tests).filter(|(file, function)| !is_there(&sources, file, function));
        offenders.extend(missing.map(|(file, function)| format!("{what}: there is no `{file}::{function}`")));
        if named(tests).next().is_none() {
            offenders.push(format!("{what}: no test"));
        }
    }
    assert!(rows >= 12, "{rows} limits");
    none(&offenders, "Limits of docs/reliability.md, each with its test:");
}
