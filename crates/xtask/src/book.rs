//! Builds the book: pages of `docs`, references that are made from the code, and the pages of rustdoc.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::api::FEATURES;
use crate::run::{Program, cargo, in_ci, program, target};

/// The version of mdBook that is installed if there is none.
const MDBOOK: &str = "0.5.4";

/// References that the command prints of itself, by the name of their page.
const PRINTED: [(&str, &[&str]); 2] = [("cli", &["markdown"]), ("json", &["markdown", "json"])];

/// Builds it below `target/book/html`, with the pages of rustdoc if asked.
pub(crate) fn run(with_api: bool) -> Result<()> {
    let folder = target().join("book");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    let src = folder.join("src");
    fs::create_dir_all(&src)?;
    for (name, args) in PRINTED {
        let page =
            command(args).output().with_context(|| format!("`millstream {}` failed", args.join(" ")))?;
        fs::write(src.join(format!("{name}.md")), page)?;
    }
    let place = folder.to_str().context("the path of the target folder is not valid UTF-8")?;
    cargo(["run", "--quiet", "--package", "house", "--", "book", place]).run()?;
    let mdbook = mdbook()?;
    program(&mdbook.display().to_string(), ["build", place]).run()?;
    let first = folder.join("html/index.html");
    ensure!(first.is_file(), "there is no {}", first.display());
    if with_api {
        cargo(["doc", "--workspace", "--lib", "--no-deps", "--features", FEATURES]).run()?;
        let doc = target().join("doc").display().to_string();
        program("cp", ["-r", &doc, &format!("{place}/html/api")]).run()?;
    }
    println!("the book is {}", first.display());
    Ok(())
}

/// The command `millstream`. In CI the one that the tests have built: another call of cargo would choose other features of
/// its dependencies, and build them again.
fn command(args: &[&str]) -> Program {
    let built = target().join("debug/millstream");
    if in_ci() && built.is_file() {
        return program(&built.display().to_string(), args.iter().copied());
    }
    let cargo_args = ["run", "--quiet", "--package", "millstream-cli", "--bin", "millstream", "--"];
    cargo(cargo_args.into_iter().chain(args.iter().copied()))
}

/// Where mdBook is; installed below the target folder if it is not there.
fn mdbook() -> Result<PathBuf> {
    if program("mdbook", ["--version"]).output().is_some_and(|version| version.contains(" v0.5.")) {
        return Ok("mdbook".into());
    }
    let tools = target().join("tools");
    let installed = tools.join("bin/mdbook");
    if !installed.is_file() {
        let root = tools.to_str().context("the path of the target folder is not valid UTF-8")?;
        let install = ["install", "mdbook", "--version", MDBOOK, "--locked", "--no-default-features"];
        // A target folder of its own would be a temporary one, and nothing of it kept.
        cargo(install.into_iter().chain(["--features", "search", "--root", root])).run()?;
    }
    Ok(installed)
}
