//! The rule on `docs/systems.md`: the page, the code and the test of each part exist.

use std::collections::BTreeMap;

use house::text::anchors;
use house::tree::{code, files, has_word};

use crate::none;

const PAGE: &str = "docs/systems.md";

/// Number of parts that the source documents name.
const PARTS: usize = 46;

/// Words in front of a name that a file defines.
const DEFINING: [&str; 5] = ["struct", "enum", "trait", "fn", "mod"];

/// The rows of the tables: number, part, page, code, test.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let rows = rows.map(|row| row.split(" | ").map(str::trim).collect::<Vec<_>>());
    rows.filter(|row| row[0].starts_with(|c: char| c.is_ascii_digit())).collect()
}

/// What stands between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The targets of links.
fn links(cell: &str) -> impl Iterator<Item = &str> {
    cell.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// Whether a link of a page in `docs` leads to a file, and its anchor to a heading there.
fn resolves(files: &BTreeMap<String, String>, link: &str) -> bool {
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let Some(text) = files.get(&format!("docs/{file}")) else { return false };
    heading.is_empty() || anchors(text).iter().any(|known| known == heading)
}

/// Whether a file defines a name, outside of its tests.
fn defines(text: &str, name: &str) -> bool {
    let definitions = DEFINING.map(|word| format!("{word} {name}"));
    code(text).iter().any(|(_, line)| definitions.iter().any(|definition| has_word(line, definition)))
}

/// Whether code exists: a file, or with `::` a name that it defines.
fn is_code(files: &BTreeMap<String, String>, place: &str) -> bool {
    match place.split_once("::") {
        Some((path, name)) => files.get(path).is_some_and(|text| defines(text, name)),
        None => files.contains_key(place),
    }
}

/// Whether a test or a case of the suite exists: the path of its file, `::`, the name of its function.
fn is_test(files: &BTreeMap<String, String>, place: &str) -> bool {
    let Some((path, name)) = place.split_once("::") else { return false };
    files.get(path).is_some_and(|text| text.contains(&format!("fn {name}(")))
}

#[test]
fn each_part_has_its_page_its_code_and_its_test() {
    let files = files();
    let text = files.get(PAGE).expect("the page");
    let (mut offenders, mut numbers) = (Vec::new(), Vec::new());
    for row in rows(text) {
        let [number, _, page, code, test] = row[..] else {
            offenders.push(format!("not five cells: {row:?}"));
            continue;
        };
        numbers.push(number);
        let counts = [links(page).count(), quoted(code).count(), quoted(test).count()];
        if counts.contains(&0) {
            offenders.push(format!("{number}: no page, no code or no test"));
        }
        let pages = links(page).filter(|link| !resolves(&files, link));
        offenders.extend(pages.map(|link| format!("{number}: {link} leads nowhere")));
        let missing = quoted(code).filter(|place| !is_code(&files, place));
        offenders.extend(missing.map(|place| format!("{number}: there is no `{place}`")));
        let missing = quoted(test).filter(|place| !is_test(&files, place));
        offenders.extend(missing.map(|place| format!("{number}: there is no test `{place}`")));
    }
    let all: Vec<String> = (1..=PARTS).map(|number| number.to_string()).collect();
    if numbers != all {
        offenders.push(format!("the numbers are not 1 to {PARTS}: {numbers:?}"));
    }
    none(&offenders, "docs/systems.md shows where each part of the source documents is:");
}

#[test]
fn a_name_is_defined_by_its_whole_word() {
    let text = "//! Doc.\n\n/// Like struct Topic.\npub struct TopicSpec;\n\npub async fn shutdown() {}\n";
    assert!(defines(text, "TopicSpec"));
    assert!(defines(text, "shutdown"));
    assert!(!defines(text, "Topic"));
    assert!(!defines(text, "down"));
}
