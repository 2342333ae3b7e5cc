//! Packages every published crate and builds each from its package, as a user would get it.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use anyhow::{Context, Result};

use crate::run::{cargo, in_ci, root};

/// Packages are built apart from everything else; see [`forget_former_packages`].
const TARGET: &str = "target/verify";

pub(crate) fn run() -> Result<()> {
    forget_former_packages()?;
    let unpublished = unpublished()?;
    let mut args = vec!["package", "--workspace", "--target-dir", TARGET];
    for name in &unpublished {
        args.extend(["--exclude", name]);
    }
    if !in_ci() {
        args.push("--allow-dirty");
    }
    // What matters is that it builds.
    args.extend(["--config", r#"profile.dev.package."*".opt-level=0"#]);
    cargo(args).env("CARGO_PROFILE_DEV_DEBUG", "0").run()
}

/// `cargo package` lets the packages depend on each other through a temporary registry. For cargo a version in a
/// registry never changes, so it would go on to build against the sources and artifacts of an earlier run: a crate could
/// be verified against a neighbour as it was last week. Both are thrown away first.
fn forget_former_packages() -> Result<()> {
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo_home = cargo_home.or_else(|| Some(env::home_dir()?.join(".cargo"))).context("no home")?;
    // A registry without a host, which is one on this disk, is named `-` and a hash.
    for registry in entries(&cargo_home.join("registry/src"))?.filter(|path| name(path).starts_with('-')) {
        remove_ours(&registry)?;
    }
    remove_ours(&root().join(TARGET).join("debug/.fingerprint"))?;
    remove_ours(&root().join(TARGET).join("package"))
}

fn remove_ours(from: &Path) -> Result<()> {
    for path in entries(from)?.filter(|path| path.is_dir() && name(path).starts_with("millstream")) {
        fs::remove_dir_all(&path).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// The names of the members that say `publish = false`.
fn unpublished() -> Result<Vec<String>> {
    let root = root();
    let mut names = Vec::new();
    for dir in entries(&root.join("crates"))?.chain(entries(&root)?) {
        let Ok(manifest) = fs::read_to_string(dir.join("Cargo.toml")) else { continue };
        let mut lines = manifest.lines();
        if manifest.contains("\npublish = false") {
            let name = lines.find_map(|line| line.strip_prefix("name = ")).context("a crate has a name")?;
            names.push(name.trim().trim_matches('"').to_owned());
        }
    }
    Ok(names)
}

/// What is in a folder; nothing if there is no such folder.
fn entries(dir: &Path) -> Result<impl Iterator<Item = PathBuf> + use<>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => Some(entries),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(|| dir.display().to_string()),
    };
    Ok(entries.into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path()))
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}
