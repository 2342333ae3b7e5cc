//! Rules on words: one concept has one word, and one type has one name.

use std::collections::{BTreeMap, BTreeSet};

use house::tree::{code, read, shipped_files};

use crate::none;

const GLOSSARY: &str = "docs/glossary.md";

/// The rows of the glossary: line number, term, cell of places.
fn rows(text: &str) -> Vec<(usize, String, String)> {
    let rows = text.lines().enumerate().filter_map(|(at, line)| {
        let cells: Vec<_> = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
        let [term, _, places] = cells[..] else { return None };
        let is_head = term == "term" || term.starts_with("---") || term.starts_with(":-");
        (!is_head).then(|| (at + 1, term.to_lowercase(), places.to_owned()))
    });
    rows.collect()
}

#[test]
fn the_glossary_has_each_word_once_and_its_files_exist() {
    let text = read(GLOSSARY).expect("the glossary");
    let rows = rows(&text);
    assert!(rows.len() > 50, "the table is not found: {} rows", rows.len());
    let (mut seen, mut offenders) = (BTreeSet::new(), Vec::new());
    for (line, term, places) in &rows {
        for word in term.split(',').map(str::trim) {
            if !seen.insert(word.to_owned()) {
                offenders.push(format!("{GLOSSARY}:{line}: `{word}` stands there twice"));
            }
        }
        for place in places.split('`').skip(1).step_by(2).filter(|place| place.contains('/')) {
            if read(place).or_else(|| read(&format!("crates/{place}"))).is_none() {
                offenders.push(format!("{GLOSSARY}:{line}: {place} does not exist"));
            }
        }
    }
    let sorted: Vec<_> = rows.iter().map(|(_, term, _)| term).collect();
    if !sorted.is_sorted() {
        let wrong = sorted.windows(2).find(|pair| pair[0] > pair[1]).map(|pair| pair[1]);
        offenders.push(format!("{GLOSSARY}: not in the order of the alphabet at {wrong:?}"));
    }
    none(&offenders, "One word for each concept, and where it lives:");
}

/// Of a hundred types of a crate, so many may have the name of another type of the same crate. Crates that are not here: [`CLASHES`].
/// A number here may go down, not up.
const CLASHES_OF: [(&str, usize); 1] = [("xtask", 24)];

/// The same for all other crates.
const CLASHES: usize = 10;

/// The names of the types that a text defines.
fn types(text: &str) -> impl Iterator<Item = String> {
    let names = code(text).into_iter().filter_map(|(_, line)| {
        let line = line.trim_start();
        let line = line.strip_prefix("pub").map_or(line, |rest| {
            rest.strip_prefix('(')
                .and_then(|rest| rest.split_once(')'))
                .map_or(rest, |(_, rest)| rest)
                .trim_start()
        });
        let (kind, rest) = line.split_once(' ')?;
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        matches!(kind, "struct" | "enum" | "trait" | "union").then_some(name)
    });
    names.filter(|name| name.starts_with(char::is_uppercase)).collect::<Vec<_>>().into_iter()
}

#[test]
fn few_types_of_a_crate_have_the_name_of_another_one() {
    let mut crates: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for (path, text) in shipped_files() {
        let Some((name, _)) = path.strip_prefix("crates/").and_then(|rest| rest.split_once('/')) else {
            continue;
        };
        let of = crates.entry(name.to_owned()).or_default();
        of.extend(types(&text).map(|it| (it, path.clone())));
    }
    let mut offenders = Vec::new();
    for (name, types) in &crates {
        let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        types.iter().for_each(|(it, path)| places.entry(it).or_default().push(path));
        places.retain(|_, paths| paths.len() > 1);
        let clashes: usize = places.values().map(Vec::len).sum();
        let allowed = CLASHES_OF.iter().find(|(it, _)| it == name).map_or(CLASHES, |(_, allowed)| *allowed);
        if clashes * 100 > types.len() * allowed {
            offenders.push(format!(
                "{name}: {clashes} of {} types, {allowed} of a hundred are allowed",
                types.len()
            ));
            offenders.extend(places.iter().map(|(it, paths)| format!("  {it}: {}", paths.join(", "))));
        }
    }
    none(&offenders, "One name, one type (docs/glossary.md). Say in the name of a type what it is of:");
}
