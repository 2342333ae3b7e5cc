//! The sources of the book: the pages of `docs` as they are, and references that are made from the code.
//!
//! A link of a page leads to a file of the repository. In the book it leads to that file's page; to the repository's own site where
//! the file has none; and where it names a heading of `docs/reference.md` that has a page of its own, to that page.

mod keys;
mod metrics;
mod scripts;
mod settings;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::faults::faults;
use crate::text::{anchors, links};
use crate::tree::{files, read, root};

/// The contents of the book, in the order of need.
pub const SUMMARY: &str = "docs/SUMMARY.md";

/// What stands in for the references where these cannot be: each has a heading there.
pub const REFERENCE: &str = "docs/reference.md";

/// Makes a page.
type Make = fn() -> Result<String>;

/// References by the heading of [`REFERENCE`].
const MADE: [(&str, Make); 5] = [
    ("settings", || Ok(settings::page())),
    ("metrics", metrics::page),
    ("scripts", scripts::page),
    ("keys", keys::page),
    ("faults", faults_page),
];

/// References that programs print, by the heading; `cargo xtask book` puts them beside the others.
pub const PRINTED: [&str; 2] = ["cli", "json"];

/// Where the code is.
const REPOSITORY: &str = "https://github.com/millstream-rs/millstream";

/// Writes the sources of the book below a folder: `src`, with a page for each entry of [`SUMMARY`]. Pages that programs print
/// are there already, or are missing.
///
/// # Errors
/// If a link leads nowhere, or a reference cannot be made.
pub fn write(folder: &Path) -> Result<()> {
    let broken = broken_links();
    ensure!(broken.is_empty(), "links that lead nowhere:\n  {}", broken.join("\n  "));
    let all = files();
    let src = folder.join("src");
    for (name, make) in MADE {
        put(&src.join(format!("{name}.md")), &in_book(&format!("docs/{name}.md"), &make()?, &all))?;
    }
    for name in PRINTED {
        let path = src.join(format!("{name}.md"));
        let page = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        put(&path, &in_book(&format!("docs/{name}.md"), &page, &all))?;
    }
    for (path, text) in &all {
        if let Some(place) = place(path) {
            put(&src.join(place), &in_book(path, text, &all))?;
        }
    }
    for entry in fs::read_dir(root().join("docs/images"))? {
        let path = entry?.path();
        let name = path.file_name().context("a file has a name")?;
        fs::create_dir_all(src.join("images"))?;
        fs::copy(&path, src.join("images").join(name))?;
    }
    put(&folder.join("book.toml"), &read("docs/book.toml").context("docs/book.toml")?)
}

fn put(path: &Path, text: &str) -> Result<()> {
    fs::create_dir_all(path.parent().context("a file is in a folder")?)?;
    fs::write(path, text).with_context(|| path.display().to_string())
}

/// The place of a file of the repository below `src`, if it is a page of the book.
fn place(path: &str) -> Option<String> {
    if let Some(page) = path.strip_prefix("docs/").filter(|page| page.ends_with(".md")) {
        return Some(page.to_owned());
    }
    ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "SUPPORT.md"]
        .contains(&path)
        .then(|| format!("project/{path}"))
}

/// A page as it is in the book: with other links.
fn in_book(path: &str, text: &str, all: &BTreeMap<String, String>) -> String {
    let here = place(path).unwrap_or_default();
    let mut page = String::new();
    let mut copied = 0;
    for (at, link) in links(text) {
        let Some((target, heading)) = resolve(path, link) else { continue };
        let made = MADE.iter().map(|(name, _)| *name).chain(PRINTED);
        let made: Vec<_> = made.filter(|name| target == REFERENCE && heading == *name).collect();
        let new = if let [name] = made[..] {
            relative(&here, &format!("{name}.md"))
        } else if let Some(there) = place(&target) {
            relative(&here, &there) + &if heading.is_empty() { String::new() } else { format!("#{heading}") }
        } else if target.starts_with("docs/images/") {
            relative(&here, &target["docs/".len()..])
        } else {
            let kind = if all.contains_key(&target) { "blob" } else { "tree" };
            format!("{REPOSITORY}/{kind}/main/{target}")
        };
        page += &text[copied..at.start];
        page += &new;
        copied = at.end;
    }
    page + &text[copied..]
}

/// The file, by its path from the root, and the heading that a link of a page leads to. Nothing if it leaves the repository.
fn resolve(page: &str, link: &str) -> Option<(String, String)> {
    // A path of Rust is for rustdoc.
    if link.contains("://") || link.starts_with("mailto:") || link.contains("::") || link.contains(' ') {
        return None;
    }
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    if file.is_empty() {
        return Some((page.to_owned(), heading.to_owned()));
    }
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    Some((parts.join("/"), heading.to_owned()))
}

/// The link from one page of the book to another one.
fn relative(from: &str, to: &str) -> String {
    "../".repeat(from.matches('/').count()) + to
}

/// The links of all pages of the repository that lead nowhere, and pages of the book that its contents do not name.
#[must_use]
pub fn broken_links() -> Vec<String> {
    let all = files();
    let mut broken = Vec::new();
    for (page, text) in all.iter().filter(|(path, _)| path.ends_with(".md") && !path.contains("/src/")) {
        for (_, link) in links(text) {
            let Some((target, heading)) = resolve(page, link) else { continue };
            let there = root().join(&target);
            let made = page == SUMMARY
                && MADE
                    .iter()
                    .map(|(name, _)| *name)
                    .chain(PRINTED)
                    .any(|name| target == format!("docs/{name}.md"));
            if !there.exists() && !made {
                broken.push(format!("{page}: {link}: there is no {target}"));
            } else if !heading.is_empty() && target.ends_with(".md") {
                let known = all.get(&target).map(|text| anchors(text)).unwrap_or_default();
                if !known.contains(&heading) {
                    broken.push(format!("{page}: {link}: {target} has no such heading"));
                }
            }
        }
    }
    let summary = all.get(SUMMARY).map(String::as_str).unwrap_or_default();
    let named: Vec<_> = links(summary)
        .into_iter()
        .filter_map(|(_, link)| resolve(SUMMARY, link))
        .map(|(file, _)| file)
        .collect();
    let pages =
        all.keys().filter(|path| path.starts_with("docs/") && path.ends_with(".md") && *path != SUMMARY);
    broken.extend(
        pages.filter(|page| !named.contains(page)).map(|page| format!("{SUMMARY} does not name {page}")),
    );
    broken
}

/// The table of faults and that of limits.
fn faults_page() -> Result<String> {
    let all = faults()?;
    let mut page = "# Faults and limits\n\nMade from `docs/faults.toml`. How the tests work: [reliability](reliability.md). A test is \
                    named by its file and its function.\n\n## Faults\n\n| | fault | what happens | tests |\n|---|---|---|---|\n"
        .to_owned();
    let code = |tests: &[String]| tests.iter().map(|test| format!("`{test}`")).collect::<Vec<_>>().join(", ");
    for one in &all.faults {
        let tests = if one.tests.is_empty() { format!("none: {}", one.untested) } else { code(&one.tests) };
        let _ = writeln!(page, "| {} | {} | {} | {tests} |", one.number, one.fault, one.answer);
    }
    page +=
        "\n## Limits\n\n| what | refused | what slows down | what stays | tests |\n|---|---|---|---|---|\n";
    for one in &all.limits {
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} |",
            one.what,
            one.refused,
            one.slows,
            one.stays,
            code(&one.tests)
        );
    }
    if all.faults.is_empty() || all.limits.is_empty() {
        bail!("there are no faults");
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{MADE, in_book, relative, resolve};

    #[test]
    fn every_reference_is_made_from_the_code() {
        for (name, make) in MADE {
            let page = make().unwrap_or_else(|error| panic!("{name}: {error:#}"));
            let rows = page.lines().filter(|line| line.starts_with("| ")).count();
            assert!(rows > 50, "{name} has {rows} rows");
        }
    }

    #[test]
    fn links_lead_to_pages_of_the_book_or_to_the_repository() {
        let files = BTreeMap::from([("lua/a.lua".to_owned(), String::new())]);
        let page = "[a](../cli.md) [b](../reference.md#cli) [c](../../lua/a.lua) [d](../../lua) [e](#f) [g](https://h) [i](../../SUPPORT.md#j)";
        let expected = "[a](../cli.md) [b](../cli.md) [c](https://github.com/millstream-rs/millstream/blob/main/lua/a.lua) \
                        [d](https://github.com/millstream-rs/millstream/tree/main/lua) [e](../guides/p.md#f) [g](https://h) \
                        [i](../project/SUPPORT.md#j)";
        assert_eq!(in_book("docs/guides/p.md", page, &files), expected);
        assert_eq!(resolve("docs/a.md", "guides/b.md#c"), Some(("docs/guides/b.md".into(), "c".into())));
        assert_eq!(relative("project/a.md", "b.md"), "../b.md");
    }
}
