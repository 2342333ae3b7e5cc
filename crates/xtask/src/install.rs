//! Installs what the tests need: in CI as it is, elsewhere only when asked to.

use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result, bail, ensure};

use crate::needs::{Looked, Need, list, look};
use crate::run::{cargo, in_ci, program};

/// Keeps a package that is being installed from starting its service, which would take its usual port.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// What to do about missing things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Install,
    Ask,
    Stop,
}

/// Looks for all that the tests need, and gets what is missing if that may be done. An error lists what is missing then.
pub(crate) fn ensure_all(without: &[&'static Need], told: bool) -> Result<Looked> {
    let mut looked = look(without);
    if looked.missing.is_empty() {
        return Ok(looked);
    }
    let packages = names(&looked, |need| need.get.apt);
    let crates = names(&looked, |need| need.get.cargo);
    let can = crates.len() + packages.len() > 0 && (packages.is_empty() || is_root_with_apt());
    let asked = match answer(in_ci(), told, io::stdin().is_terminal(), can) {
        Answer::Install => true,
        Answer::Ask => ask(&packages, &crates)?,
        Answer::Stop => false,
    };
    if asked {
        if !packages.is_empty() {
            install(&packages)?;
        }
        if !crates.is_empty() {
            cargo(["install", "--locked"].into_iter().chain(crates)).run()?;
        }
        looked = look(without);
    }
    if !looked.missing.is_empty() {
        bail!("{}", list(&looked.missing, without));
    }
    Ok(looked)
}

/// Never into a system that is not CI, unless somebody says so. What cannot be installed from here is listed.
fn answer(in_ci: bool, told: bool, terminal: bool, can: bool) -> Answer {
    match (can, in_ci || told, terminal) {
        (true, true, _) => Answer::Install,
        (true, false, true) => Answer::Ask,
        (false, ..) | (true, false, false) => Answer::Stop,
    }
}

fn names(looked: &Looked, of: fn(&Need) -> &'static [&'static str]) -> Vec<&'static str> {
    looked.missing.iter().flat_map(|(need, _)| of(need)).copied().collect()
}

fn is_root_with_apt() -> bool {
    let root = program("id", ["-u"]).output().is_some_and(|id| id.trim() == "0");
    root && program("apt-get", ["--version"]).works()
}

fn ask(packages: &[&str], crates: &[&str]) -> Result<bool> {
    print!("install {}? [y/N] ", [packages, crates].concat().join(", "));
    io::stdout().flush()?;
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    Ok(is_yes(&line))
}

fn is_yes(line: &str) -> bool {
    ["y", "yes"].contains(&line.trim().to_lowercase().as_str())
}

/// Installs packages of Debian, after an update of their list.
fn install(packages: &[&str]) -> Result<()> {
    println!("installing {}", packages.join(", "));
    // Never change a policy that is there.
    let is_ours = match OpenOptions::new().write(true).create_new(true).mode(0o755).open(POLICY) {
        Ok(mut file) => {
            file.write_all(b"#!/bin/sh\nexit 101\n").context(POLICY)?;
            true
        }
        Err(error) => {
            ensure!(fs::exists(POLICY).unwrap_or(false), "{POLICY}: {error}");
            false
        }
    };
    let apt = |args: &[&str]| {
        let args = ["-qq", "-o", "Acquire::Retries=3"].iter().chain(args).copied();
        program("apt-get", args).env("DEBIAN_FRONTEND", "noninteractive").run()
    };
    let all = [&["install", "-y", "--no-install-recommends"], packages].concat();
    let installed = apt(&["update"]).and_then(|()| apt(&all));
    if is_ours {
        // Services that somebody installs later are to start.
        fs::remove_file(POLICY).context(POLICY)?;
    }
    installed
}

#[cfg(test)]
mod tests {
    use super::{Answer, answer, is_yes};

    #[test]
    fn nothing_is_installed_without_a_word_outside_of_ci() {
        let [ci, told, terminal, can] = [true; 4];
        assert_eq!(answer(ci, false, false, can), Answer::Install);
        assert_eq!(answer(false, told, false, can), Answer::Install);
        assert_eq!(answer(false, told, terminal, can), Answer::Install);
        assert_eq!(answer(false, false, terminal, can), Answer::Ask);
        assert_eq!(answer(false, false, false, can), Answer::Stop);
    }

    #[test]
    fn what_cannot_be_installed_is_listed() {
        for (ci, told, terminal) in [(true, false, false), (false, true, true), (false, false, true)] {
            assert_eq!(answer(ci, told, terminal, false), Answer::Stop);
        }
    }

    #[test]
    fn only_a_yes_is_one() {
        assert!(is_yes("y\n") && is_yes("Yes\n"));
        assert!(!is_yes("\n") && !is_yes("") && !is_yes("n\n") && !is_yes("yellow\n"));
    }
}
