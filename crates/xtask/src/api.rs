//! The public items of each library crate as text, `crates/xtask/api/CRATE.txt`: a change of the API is seen in a review.
//!
//! `public-api` reads them from the JSON that rustdoc writes. That form changes with the compiler, so `rust-toolchain.toml` pins
//! one, and the manifest the version of `public-api` that reads its form.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::run::{cargo, program, root, target};
use crate::rustdoc;

/// The library crates. `millstream-lua` has only scripts, whose texts `lua/scripts.lock` holds.
const CRATES: [&str; 16] = [
    "millstream-core",
    "millstream-engine",
    "millstream-memory",
    "millstream-redis",
    "millstream-runtime",
    "millstream-delay",
    "millstream-lock",
    "millstream-sql",
    "millstream-packing",
    "millstream-payload",
    "millstream-metrics",
    "millstream-admin",
    "millstream-testkit",
    "millstream",
    "millstream-dashboard",
    "millstream-keda",
];

const FOLDER: &str = "crates/xtask/api";

/// Features that nothing else in the workspace turns on. The lists show every public item, as docs.rs does.
pub(crate) const FEATURES: &str =
    "millstream/claim-check,millstream/cloudevents,millstream/zstd,millstream/encryption";

/// Documents the workspace without warnings, and compares the lists or, if asked, rewrites them.
pub(crate) fn run(accept: bool) -> Result<()> {
    // All members, which turn on each other's features.
    let args = ["doc", "--workspace", "--lib", "--no-deps", "--keep-going", "--features", FEATURES];
    let flags = "-D warnings -D missing_docs -Z unstable-options --output-format json";
    rustdoc::unstable(cargo(args))?.env("RUSTDOCFLAGS", flags).run()?;
    compare(&target().join("doc"), accept)
}

fn compare(doc: &Path, accept: bool) -> Result<()> {
    let folder = root().join(FOLDER);
    let mut changes = String::new();
    for name in CRATES {
        let now = listing(&doc.join(name.replace('-', "_")).with_extension("json"))?;
        let path = folder.join(format!("{name}.txt"));
        if accept {
            fs::create_dir_all(&folder)?;
            fs::write(&path, now).with_context(|| path.display().to_string())?;
        } else {
            let kept = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            changes += &difference(name, &kept, &now);
        }
    }
    if changes.is_empty() {
        return Ok(());
    }
    print!("{changes}");
    let compiler = program("rustc", ["--version"]).output().unwrap_or_default();
    bail!(
        "the public API is not that of {FOLDER}: review the lines above, note the change in CHANGELOG.md, and accept it with \
         `cargo xtask api`. Another compiler may write items in another form: this is {}",
        compiler.trim()
    );
}

/// A line for each public item of a crate. What types have of all types, or by themselves (`Send`), is left out, and so are
/// the methods of traits that they implement: the trait has them.
fn listing(json: &Path) -> Result<String> {
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .build()
        .with_context(|| json.display().to_string())?;
    let (mut list, mut of_trait) = (String::new(), false);
    for item in api.items().map(ToString::to_string) {
        if item.starts_with("impl") {
            of_trait = item.contains(" for ");
        } else if !["pub fn ", "pub async fn ", "pub const fn ", "pub const "]
            .iter()
            .any(|start| item.starts_with(start))
        {
            of_trait = of_trait && item.starts_with("pub type ");
        } else if of_trait {
            continue;
        }
        // What the compiler adds to `PartialEq` is no trait that a user can name.
        if !item.contains("StructuralPartialEq") {
            list += &short(&item);
            list.push('\n');
        }
    }
    Ok(list)
}

/// An item with the names of the standard library without their modules, and without what `async-trait` adds.
fn short(item: &str) -> String {
    let item = item.split(" where Self: 'async_trait").next().unwrap_or_default();
    let mut text = String::new();
    for part in item.split_inclusive(|end: char| !end.is_alphanumeric() && !['_', ':'].contains(&end)) {
        let standard = ["core::", "alloc::", "std::"].iter().any(|start| part.starts_with(start));
        text += if standard { part.rsplit("::").next().unwrap_or(part) } else { part };
    }
    text
}

/// Lines that are only in one of two lists.
fn difference(name: &str, kept: &str, now: &str) -> String {
    let (before, after): (BTreeSet<&str>, BTreeSet<&str>) = (kept.lines().collect(), now.lines().collect());
    let gone = before.difference(&after).map(|line| format!("- {name}: {line}\n"));
    let new = after.difference(&before).map(|line| format!("+ {name}: {line}\n"));
    gone.chain(new).collect()
}

#[cfg(test)]
mod tests {
    use super::{difference, short};

    #[test]
    fn names_of_the_standard_library_are_short() {
        let item = "pub fn a::B::c(&self, core::option::Option<a::D>) -> alloc::vec::Vec<u8> where Self: 'async_trait, 'a: 'b";
        assert_eq!(short(item), "pub fn a::B::c(&self, Option<a::D>) -> Vec<u8>");
    }

    #[test]
    fn a_difference_has_what_is_gone_and_what_is_new() {
        let (kept, now) = ("pub fn x::a()\npub fn x::b()\n", "pub fn x::a()\npub fn x::b(u8)\n");
        assert_eq!(difference("x", kept, now), "- x: pub fn x::b()\n+ x: pub fn x::b(u8)\n");
        assert_eq!(difference("x", kept, kept), "");
    }
}
