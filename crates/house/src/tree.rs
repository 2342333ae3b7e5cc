//! Reading the tree: its files, and their code.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("a member is two folders deep").to_owned()
}

/// The text of a file, by its path from the root. Nothing if there is none.
pub fn read(path: &str) -> Option<String> {
    fs::read_to_string(root().join(path)).ok()
}

/// The path from the root.
pub fn from_root(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// All text files that are tracked, or would be if they were added, by path from the root.
pub fn files() -> BTreeMap<String, String> {
    let output = Command::new("git")
        // The tree may belong to somebody else.
        .args(["-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    assert!(output.status.success(), "git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    let paths = String::from_utf8(output.stdout).expect("paths are UTF-8");
    // What cannot be read as text is not a text file; what is deleted but still listed is gone.
    let files: BTreeMap<_, _> =
        paths.split_terminator('\0').filter_map(|path| Some((path.to_owned(), read(path)?))).collect();
    assert!(files.len() > 20, "where are the files? {:?}", files.keys());
    files
}

/// The Rust files.
pub fn rust_files() -> impl Iterator<Item = (String, String)> {
    files().into_iter().filter(|(path, _)| path.ends_with(".rs"))
}

/// The Rust files of the crates' `src` and of `lua/`: what a user gets. Files of tests are not among them.
pub fn shipped_files() -> impl Iterator<Item = (String, String)> {
    rust_files().filter(|(path, _)| {
        let in_src = path.starts_with("crates/") && path.contains("/src/");
        let of_tests = path.contains("/tests/") || path.ends_with("/tests.rs");
        (in_src || path.starts_with("lua/")) && !of_tests
    })
}

/// The lines of code, numbered from 1: without blank lines, comments and what stands under `#[cfg(test)]`.
pub fn code(text: &str) -> Vec<(usize, &str)> {
    let mut code = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let trimmed = line.trim();
        if trimmed == "#[cfg(test)]" {
            skip_item(&mut lines, line.len() - line.trim_start().len());
        } else if !trimmed.is_empty() && !trimmed.starts_with("//") {
            code.push((number + 1, line));
        }
    }
    code
}

/// Passes over one item of formatted code: up to the line that ends or closes it at its own depth.
fn skip_item<'a>(lines: &mut impl Iterator<Item = (usize, &'a str)>, depth: usize) {
    for (_, line) in lines {
        let at_depth = line.len() - line.trim_start().len() == depth;
        let ends = line.ends_with([';', ',', '}']);
        if at_depth && ends && !line.trim_start().starts_with("#[") {
            return;
        }
    }
}

/// Whether `word` stands in the line and is not the end of a longer name.
pub fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let in_name = |next: Option<char>| next.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let goes_on = in_name(after) && word.ends_with(|c: char| c.is_alphanumeric());
        !in_name(before) && !goes_on
    })
}

/// The lines of code in `files` for which `bad` holds, as `path:line: text`.
pub fn offenders(
    files: impl Iterator<Item = (String, String)>,
    bad: impl Fn(&str, &str) -> bool,
) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in files {
        let lines = code(&text).into_iter().filter(|(_, line)| bad(&path, line));
        found.extend(lines.map(|(number, line)| format!("{path}:{number}: {}", line.trim())));
    }
    found
}

#[test]
fn code_is_what_is_neither_blank_nor_comment_nor_test() {
    let text = "//! Doc.\n\nuse a;\n#[cfg(test)]\nmod tests;\n\n/// Doc.\nfn f() {\n    // why\n    g(); // what\n}\n\n\
                #[cfg(test)]\n#[allow(x)]\nmod tests {\n    fn t() {\n    }\n\n    const X: u8 = 1;\n}\nfn h() {}\n";
    let lines: Vec<_> = code(text).into_iter().map(|(number, line)| (number, line.trim())).collect();
    assert_eq!(lines, [(3, "use a;"), (8, "fn f() {"), (10, "g(); // what"), (11, "}"), (21, "fn h() {}")]);
}

#[test]
fn a_word_is_not_the_end_of_a_longer_one() {
    assert!(has_word("use redis::aio;", "redis::"));
    assert!(!has_word("use millstream_redis::Redis;", "redis::"));
    assert!(has_word("use std::time::{Duration, Instant};", "Instant"));
    assert!(!has_word("let instantly = Instantly;", "Instant"));
}
