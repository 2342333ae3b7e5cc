//! What a release publishes: in which order, whether a registry would take it, and every file of it. The workflow publishes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::package;
use crate::run::{cargo, root};

/// What crates.io accepts: bytes of a package, keywords and categories.
const MOST_BYTES: u64 = 10 * 1024 * 1024;
const MOST_WORDS: usize = 5;

/// A crate that is published.
#[derive(Clone, Debug, Default)]
struct Published {
    name: String,
    version: String,
    folder: PathBuf,
    /// What is asked of each, and what it says.
    says: BTreeMap<&'static str, String>,
    keywords: usize,
    categories: usize,
    uses: Vec<Used>,
}

/// A dependency inside of the workspace.
#[derive(Clone, Debug, Default)]
struct Used {
    name: String,
    /// `*` without a version.
    version: String,
    is_for_tests: bool,
}

impl Used {
    /// Whether the package names it: what is for tests alone and has no version is left out.
    fn is_named(&self) -> bool {
        !self.is_for_tests || self.version != "*"
    }
}

/// `--dry-run`: all of a release that needs no network. `--order`: the names, for the workflow.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    match args {
        ["--dry-run"] => dry_run(),
        ["--order"] => {
            order(&published()?)?.iter().for_each(|name| println!("{name}"));
            Ok(())
        }
        _ => bail!(
            "nothing is published from here: .github/workflows/release.yml does it for a tag `v…`. Try `cargo xtask release --dry-run`"
        ),
    }
}

/// Prints everything, and fails at the end with all that is wrong.
fn dry_run() -> Result<()> {
    let crates = published()?;
    let version = crates.first().context("no crate is published")?.version.clone();
    let order = order(&crates)?;
    println!("{} crates of version {version}, in the order of publication:", order.len());
    for (at, name) in order.iter().enumerate() {
        println!("{:>3} {name}", at + 1);
    }
    let mut wrong: Vec<String> = crates.iter().flat_map(|one| faults(one, &crates)).collect();
    for one in &crates {
        let readme = one.folder.join(one.says.get("readme").map_or("", String::as_str));
        if !readme.is_file() {
            wrong.push(format!("{}: its readme is not there", one.name));
        }
    }
    let changelog = fs::read_to_string(root().join("CHANGELOG.md")).context("CHANGELOG.md")?;
    if !has_section(&changelog, &version) {
        wrong.push(format!("CHANGELOG.md has no section `## [{version}]`"));
    }
    if env::var("GITHUB_REF_TYPE").is_ok_and(|kind| kind == "tag") {
        let tag = env::var("GITHUB_REF_NAME").unwrap_or_default();
        if tag != format!("v{version}") {
            wrong.push(format!("the tag is {tag}, and the version {version}"));
        }
    }
    let made = package::make()?;
    for name in &order {
        let member = format!("{name}-{version}");
        ensure!(made.contains(&member), "there is no package {member}");
        wrong.extend(list(&member)?);
    }
    ensure!(wrong.is_empty(), "this cannot be released:\n  {}", wrong.join("\n  "));
    println!("\n{} crates can be published", order.len());
    Ok(())
}

/// Prints the files of a package, each with its size. Returns what is wrong with it.
fn list(member: &str) -> Result<Option<String>> {
    let package = package::folder().join("package").join(format!("{member}.crate"));
    let bytes = fs::metadata(&package).with_context(|| package.display().to_string())?.len();
    let mut files = BTreeMap::new();
    let folder = package::unpacked().join(member);
    walk(&folder, &folder, &mut files)?;
    println!("\n{member}: {} files, {bytes} bytes packed", files.len());
    for (path, size) in &files {
        println!("{size:>9} {path}");
    }
    Ok((bytes > MOST_BYTES).then(|| format!("{member}: {bytes} bytes packed, at most {MOST_BYTES}")))
}

fn walk(folder: &Path, from: &Path, files: &mut BTreeMap<String, u64>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.metadata()?)))?;
        if kind.is_dir() {
            walk(&path, from, files)?;
        } else {
            files.insert(path.strip_prefix(from)?.display().to_string(), kind.len());
        }
    }
    Ok(())
}

/// The published members, as cargo reads their manifests.
fn published() -> Result<Vec<Published>> {
    let args = ["metadata", "--no-deps", "--offline", "--format-version=1"];
    let text = cargo(args).output().context("cargo metadata says nothing")?;
    let packages = serde_json::from_str::<Value>(&text)?;
    let packages = packages["packages"].as_array().context("cargo metadata names no packages")?;
    Ok(packages.iter().filter_map(read).collect())
}

/// From what `cargo metadata` says of a package. Nothing if it is not published.
fn read(package: &Value) -> Option<Published> {
    if package["publish"].as_array().is_some_and(Vec::is_empty) {
        return None;
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().trim().to_owned();
    let count = |value: &Value| value.as_array().map_or(0, Vec::len);
    let uses = package["dependencies"].as_array()?.iter().filter(|it| it["path"].is_string());
    let uses = uses.map(|it| Used {
        name: text(&it["name"]),
        version: text(&it["req"]),
        is_for_tests: it["kind"] == "dev",
    });
    Some(Published {
        name: text(&package["name"]),
        version: text(&package["version"]),
        folder: Path::new(package["manifest_path"].as_str()?).parent()?.to_owned(),
        says: ["description", "license", "readme", "repository"].map(|it| (it, text(&package[it]))).into(),
        keywords: count(&package["keywords"]),
        categories: count(&package["categories"]),
        uses: uses.collect(),
    })
}

/// Why a registry would refuse a crate, or have it apart from the others.
fn faults(one: &Published, all: &[Published]) -> Vec<String> {
    let mut wrong = Vec::new();
    let empty = one.says.iter().filter(|(_, text)| text.is_empty());
    wrong.extend(empty.map(|(what, _)| format!("no {what}")));
    for (what, count) in [("keywords", one.keywords), ("categories", one.categories)] {
        if count > MOST_WORDS {
            wrong.push(format!("{count} {what}, at most {MOST_WORDS}"));
        }
    }
    if let Some(first) = all.first().filter(|first| first.version != one.version) {
        wrong.push(format!("version {}, but {} has {}", one.version, first.name, first.version));
    }
    for used in one.uses.iter().filter(|used| used.is_named()) {
        match all.iter().find(|other| other.name == used.name) {
            _ if used.version == "*" => wrong.push(format!("{} has a path and no version", used.name)),
            None => wrong.push(format!("{} is not published", used.name)),
            Some(other) if used.version != format!("^{}", other.version) => {
                wrong.push(format!("needs {} {}, which is {}", used.name, used.version, other.version));
            }
            Some(_) => {}
        }
    }
    wrong.iter().map(|why| format!("{}: {why}", one.name)).collect()
}

/// An order in which each crate comes after those that its package names, those for its tests too: cargo looks for all of them.
fn order(crates: &[Published]) -> Result<Vec<String>> {
    let names: BTreeSet<&str> = crates.iter().map(|one| one.name.as_str()).collect();
    let mut waiting: BTreeMap<&str, BTreeSet<&str>> = crates
        .iter()
        .map(|one| {
            let uses = one.uses.iter().filter(|used| used.is_named()).map(|used| used.name.as_str());
            (one.name.as_str(), uses.filter(|name| names.contains(name)).collect())
        })
        .collect();
    let mut order = Vec::new();
    while !waiting.is_empty() {
        let ready = waiting.iter().find(|(_, uses)| uses.is_empty()).map(|(name, _)| *name);
        let Some(ready) = ready else {
            bail!("these wait for each other: {}", waiting.into_keys().collect::<Vec<_>>().join(", "));
        };
        waiting.remove(ready);
        for uses in waiting.values_mut() {
            uses.remove(ready);
        }
        order.push(ready.to_owned());
    }
    Ok(order)
}

/// Whether the changelog has a heading for that version: `## [0.1.0] - 2026-01-31`.
fn has_section(changelog: &str, version: &str) -> bool {
    let heading = format!("## [{version}]");
    changelog.lines().any(|line| line.starts_with(&heading))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Published, Used, faults, has_section, order, read, run};

    fn used(name: &str, version: &str, is_for_tests: bool) -> Used {
        Used { name: name.to_owned(), version: version.to_owned(), is_for_tests }
    }

    fn one(name: &str, uses: &[Used]) -> Published {
        let says = ["description", "license", "readme", "repository"].map(|it| (it, "x".to_owned())).into();
        let (name, version) = (name.to_owned(), "0.1.0".to_owned());
        Published { name, version, says, uses: uses.to_vec(), ..Published::default() }
    }

    #[test]
    fn a_crate_comes_after_those_that_it_needs() {
        let crates = [
            one("a", &[used("c", "^0.1.0", false), used("b", "^0.1.0", true)]),
            one("b", &[used("a", "*", true)]),
            one("c", &[used("b", "^0.1.0", false), used("elsewhere", "^1", false)]),
        ];
        assert_eq!(order(&crates).unwrap(), ["b", "c", "a"]);
    }

    #[test]
    fn a_circle_is_named() {
        let crates =
            [one("a", &[used("b", "^0.1.0", false)]), one("b", &[used("a", "^0.1.0", false)]), one("c", &[])];
        assert_eq!(order(&crates).unwrap_err().to_string(), "these wait for each other: a, b");
    }

    #[test]
    fn what_a_registry_would_refuse_is_said() {
        let good = one("good", &[]);
        assert_eq!(faults(&good, std::slice::from_ref(&good)), Vec::<String>::new());
        let uses = [
            used("good", "*", false),
            used("good", "^0.2.0", true),
            used("inner", "^0.1.0", false),
            used("inner", "*", true),
        ];
        let mut bad = Published { version: "0.2.0".to_owned(), keywords: 6, ..one("bad", &uses) };
        bad.says.insert("license", String::new());
        let wrong = [
            "bad: no license",
            "bad: 6 keywords, at most 5",
            "bad: version 0.2.0, but good has 0.1.0",
            "bad: good has a path and no version",
            "bad: needs good ^0.2.0, which is 0.1.0",
            "bad: inner is not published",
        ];
        assert_eq!(faults(&bad, &[good, bad.clone()]), wrong);
    }

    #[test]
    fn what_cargo_says_is_read() {
        let mut package = json!({
            "name": "a", "version": "0.1.0", "manifest_path": "/x/a/Cargo.toml", "publish": null, "license": "MIT",
            "description": null, "readme": "README.md", "repository": "r", "keywords": ["k"], "categories": [],
            "dependencies": [
                { "name": "b", "req": "^0.1.0", "kind": null, "path": "/x/b" },
                { "name": "c", "req": "*", "kind": "dev", "path": "/x/c" },
                { "name": "serde", "req": "^1", "kind": null },
            ],
        });
        let one = read(&package).unwrap();
        assert_eq!((one.name.as_str(), one.keywords, one.says["description"].as_str()), ("a", 1, ""));
        let uses: Vec<_> = one.uses.iter().map(|it| (it.name.as_str(), it.is_named())).collect();
        assert_eq!(uses, [("b", true), ("c", false)]);
        package["publish"] = json!([]);
        assert!(read(&package).is_none());
    }

    #[test]
    fn a_version_has_its_section() {
        assert!(has_section("# Changelog\n\n## [0.1.0] - 2026-01-31\n", "0.1.0"));
        assert!(!has_section("## [Unreleased]\n\nThe first one is 0.1.0\n## [0.1.0-rc.1]\n", "0.1.0"));
    }

    #[test]
    fn nothing_is_published_from_here() {
        let said = run(&[]).unwrap_err().to_string();
        assert!(said.contains("release.yml") && said.contains("--dry-run"), "{said}");
        assert!(run(&["--now"]).is_err());
    }
}
