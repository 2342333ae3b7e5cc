//! Rules on documents, and between documents and code.

use std::collections::BTreeSet;

use house::book::broken_links;
use house::faults::{FILE, faults};
use house::text::{anchors, sentences, words};
use house::tree::{files, read, rust_files};

use crate::none;

/// A role has one name in all of its places.
const ROLES: [&str; 17] = [
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
    "batches",
    "cancels",
    "steps",
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
    let headings = anchors(&protocol);
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

/// Whether a function stands in a file of this name, or in a folder of this name.
fn is_there(sources: &[(String, String)], file: &str, function: &str) -> bool {
    let file = file.replace("::", "/");
    let (named, folder) = (format!("/{file}.rs"), format!("/{file}/"));
    let function = format!("fn {function}(");
    let mut of_file = sources.iter().filter(|(path, _)| path.ends_with(&named) || path.contains(&folder));
    of_file.any(|(_, text)| text.contains(&function))
}

/// The tests of a list that are not there: `file::function`, or `folder::file::function`.
fn missing(sources: &[(String, String)], tests: &[String]) -> Vec<String> {
    let there =
        |test: &str| test.rsplit_once("::").is_some_and(|(file, function)| is_there(sources, file, function));
    tests.iter().filter(|test| !there(test)).cloned().collect()
}

/// Each fault has an answer, and a test that is there or the reason why there is none; each limit has a test.
#[test]
fn every_fault_and_limit_names_its_test() {
    let all = faults().expect("the faults");
    let sources: Vec<(String, String)> = rust_files().collect();
    let mut offenders = Vec::new();
    for one in &all.faults {
        let number = &one.number;
        offenders.extend(
            missing(&sources, &one.tests).iter().map(|test| format!("{number}: there is no `{test}`")),
        );
        if one.answer.len() <= 5 || one.tests.is_empty() && one.untested.len() <= 10 {
            offenders.push(format!("{number}: no answer, or neither a test nor a reason"));
        }
    }
    let mut numbers = BTreeSet::new();
    offenders.extend(
        all.faults
            .iter()
            .filter(|one| !numbers.insert(&one.number))
            .map(|one| format!("{}: twice", one.number)),
    );
    let known: Vec<String> = (1..=96).map(|number| number.to_string()).collect();
    offenders.extend(
        known.iter().filter(|number| !numbers.contains(number)).map(|number| format!("{number}: missing")),
    );
    for one in &all.limits {
        offenders.extend(
            missing(&sources, &one.tests).iter().map(|test| format!("{}: there is no `{test}`", one.what)),
        );
        if one.tests.is_empty() || [&one.refused, &one.slows, &one.stays].iter().any(|cell| cell.is_empty()) {
            offenders.push(format!("{}: no test, or an empty cell", one.what));
        }
    }
    assert!(all.limits.len() >= 12, "{} limits", all.limits.len());
    none(&offenders, &format!("{FILE}: each with its answer and its test:"));
}

/// All that is written by hand for people.
const WORDS: usize = 70_000;
/// Pages that have a limit of their own.
const WORDS_OF: [(&str, usize); 4] = [
    ("README.md", 1_300),
    ("CHANGELOG.md", 800),
    ("docs/architecture.md", 3_500),
    ("docs/performance.md", 2_500),
];
/// Lines of the two pages that everybody reads first.
const LINES_OF: [(&str, usize); 2] = [("README.md", 120), ("CHANGELOG.md", 40)];
/// Words of a sentence, on average over a page.
const SENTENCE: usize = 18;

#[test]
fn pages_are_short_and_so_are_their_sentences() {
    let pages = files().into_iter().filter(|(path, _)| path.ends_with(".md") && !path.contains("/src/"));
    let (mut offenders, mut all) = (Vec::new(), 0);
    for (path, text) in pages {
        let count = words(&text);
        all += count;
        if let Some((_, most)) = WORDS_OF.iter().find(|(page, most)| *page == path && count > *most) {
            offenders.push(format!("{path}: {count} words, at most {most}"));
        }
        if let Some((_, most)) =
            LINES_OF.iter().find(|(page, most)| *page == path && text.lines().count() > *most)
        {
            offenders.push(format!("{path}: {} lines, at most {most}", text.lines().count()));
        }
        let sentences = sentences(&text);
        let mean = sentences.iter().sum::<usize>() as f64 / sentences.len().max(1) as f64;
        if sentences.len() > 3 && mean > SENTENCE as f64 {
            offenders.push(format!("{path}: {mean:.1} words a sentence"));
        }
    }
    println!("{all} words");
    if all > WORDS {
        offenders.push(format!("{all} words in all, at most {WORDS}"));
    }
    none(&offenders, "Say it once, in short sentences; references are made from the code:");
}

#[test]
fn every_link_leads_somewhere() {
    none(&broken_links(), "A reader who follows one of these is lost:");
}
