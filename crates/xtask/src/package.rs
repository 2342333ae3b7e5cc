//! Packages every published crate and checks what is in the packages, as a user would get it.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result, ensure};

use crate::run::{cargo, in_ci, program, root, target};

/// Packages are made and unpacked apart from everything else.
const FOLDER: &str = "target/verify";

/// The folder of the packages.
pub(crate) fn folder() -> PathBuf {
    root().join(FOLDER)
}

/// Where they are unpacked, each in a folder `name-version`.
pub(crate) fn unpacked() -> PathBuf {
    folder().join("unpacked")
}

/// Packages all, unpacks them beside each other, and checks them as one workspace. `cargo package` would build each from its own
/// package with dependencies of its own, which takes ten times as long and finds no more: what one feature needs of another is
/// a step of its own.
pub(crate) fn run() -> Result<()> {
    let (members, unpacked) = (make()?, unpacked());
    fs::write(
        unpacked.join("Cargo.toml"),
        workspace(&members, &fs::read_to_string(root().join("Cargo.toml"))?),
    )?;
    // The same dependencies as everything else, of which most are checked already.
    fs::copy(root().join("Cargo.lock"), unpacked.join("Cargo.lock"))?;
    let (manifest, target) = (unpacked.join("Cargo.toml"), target());
    cargo(["check", "--workspace", "--manifest-path", text(&manifest)?, "--target-dir", text(&target)?]).run()
}

/// Packages all and unpacks them, with what each must have. Returns their names, `name-version`.
pub(crate) fn make() -> Result<Vec<String>> {
    let folder = folder();
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    let unpublished = unpublished()?;
    let mut args = vec!["package", "--workspace", "--no-verify", "--target-dir", FOLDER];
    for name in &unpublished {
        args.extend(["--exclude", name]);
    }
    if !in_ci() {
        args.push("--allow-dirty");
    }
    cargo(args).run()?;

    let unpacked = unpacked();
    fs::create_dir(&unpacked)?;
    let mut members = Vec::new();
    for package in
        entries(&folder.join("package"))?.filter(|path| path.extension().is_some_and(|end| end == "crate"))
    {
        let (file, to) = (text(&package)?, text(&unpacked)?);
        // Packages have one time for all files, however often they change: without a new one cargo would not check them again.
        program("tar", ["-xzmf", file, "-C", to]).run()?;
        let member = name(&package).trim_end_matches(".crate").to_owned();
        for wanted in ["LICENSE-APACHE", "LICENSE-MIT", "README.md"] {
            ensure!(unpacked.join(&member).join(wanted).is_file(), "{wanted} is not in the package {member}");
        }
        members.push(member);
    }
    ensure!(!members.is_empty(), "there are no packages in {}", folder.display());
    Ok(members)
}

/// The manifest of a workspace of these packages, `name-version`, in which each is the one that the others depend on. Profiles
/// are those of the root's manifest.
fn workspace(members: &[String], root: &str) -> String {
    let list: Vec<String> = members.iter().map(|member| format!("{member:?}")).collect();
    let mut manifest =
        format!("[workspace]\nresolver = \"3\"\nmembers = [{}]\n\n[patch.crates-io]\n", list.join(", "));
    for member in members {
        // The version begins with the first digit behind a hyphen.
        let version = member
            .match_indices('-')
            .find(|(at, _)| member[at + 1..].starts_with(|first: char| first.is_ascii_digit()));
        let name = version.map_or(member.as_str(), |(at, _)| &member[..at]);
        manifest += &format!("{name} = {{ path = {member:?} }}\n");
    }
    let mut is_profile = false;
    for line in root.lines() {
        if line.starts_with('[') {
            is_profile = line.starts_with("[profile.");
        }
        if is_profile {
            manifest += line;
            manifest.push('\n');
        }
    }
    manifest
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not valid UTF-8", path.display()))
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

#[cfg(test)]
mod tests {
    use super::workspace;

    #[test]
    fn packages_depend_on_each_other_and_have_the_profiles_of_the_root() {
        let members = ["some-core-0.1.0".to_owned(), "some-0.1.0-rc.1".to_owned()];
        let root = "[workspace]\nmembers = [\"x\"]\n\n[profile.dev]\ndebug = 0\n\n[lints]\na = 1\n";
        let expected = "[workspace]\nresolver = \"3\"\nmembers = [\"some-core-0.1.0\", \"some-0.1.0-rc.1\"]\n\n[patch.crates-io]\n\
                        some-core = { path = \"some-core-0.1.0\" }\nsome = { path = \"some-0.1.0-rc.1\" }\n\
                        [profile.dev]\ndebug = 0\n\n";
        assert_eq!(workspace(&members, root), expected);
    }
}
