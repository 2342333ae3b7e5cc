//! Makes sure that there are a `redis-server`, a PostgreSQL, packet filters, `promtool`, Python and a browser for the tests.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result, bail, ensure};

use crate::postgres::find_programs;
use crate::run::program;

/// The oldest server that can run the scripts.
const NEEDED: (u32, u32) = (7, 0);

/// Keeps a package that is being installed from starting its service, which would take its usual port.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// The path of a `redis-server` that is new enough: what `REDIS_SERVER` names, or the one on the search path, or one
/// that is installed now.
pub(crate) fn ensure_server() -> Result<String> {
    if let Some(path) = env::var_os("REDIS_SERVER") {
        let path = path.into_string().ok().context("REDIS_SERVER is not valid UTF-8")?;
        let version = version(&path).with_context(|| format!("REDIS_SERVER={path} does not run"))?;
        return accept(path, version);
    }
    let path = "redis-server".to_owned();
    if version(&path).is_none() {
        let otherwise = "redis-server 7.0 or newer is missing. Install it (Debian, Ubuntu: `apt-get install redis-server`), \
                         name one in REDIS_SERVER, or run this as root on Debian";
        install("redis-server", otherwise)?;
    }
    let version = version(&path).context("redis-server does not run")?;
    accept(path, version)
}

/// The folder with `postgres` and `initdb`, which are installed now if they are missing.
pub(crate) fn ensure_postgres() -> Result<String> {
    if find_programs().is_none() {
        let otherwise = "PostgreSQL 13 or newer is missing. Install it (Debian, Ubuntu: `apt-get install postgresql`), name \
                         the folder with postgres and initdb in POSTGRES_BIN, or run this as root on Debian";
        install("postgresql", otherwise)?;
    }
    let found = find_programs().context("postgres and initdb are in no known folder")?;
    let found =
        found.into_os_string().into_string().ok().context("the folder of PostgreSQL is not valid UTF-8")?;
    println!("PostgreSQL in {found}");
    Ok(found)
}

/// Makes sure that tests can have a network of their own that drops packets.
pub(crate) fn ensure_packet_filters() -> Result<()> {
    for (package, command) in [("nftables", "nft"), ("iproute2", "ip")] {
        if !program(command, ["-V"]).works() {
            let otherwise = format!(
                "{command} is missing, which the tests use to drop packets in a network of their own. Install it (Debian, Ubuntu: \
                 `apt-get install {package}`), or run this as root on Debian"
            );
            install(package, &otherwise)?;
        }
    }
    Ok(())
}

/// Makes sure that the alerts can be evaluated.
pub(crate) fn ensure_promtool() -> Result<()> {
    if program("promtool", ["--version"]).works() {
        return Ok(());
    }
    let otherwise = "promtool is missing, which evaluates the alerts. Install it (Debian, Ubuntu: `apt-get install prometheus`), \
                     or run this as root on Debian";
    install("prometheus", otherwise)
}

/// Makes sure that the script of the wire format runs.
pub(crate) fn ensure_python() -> Result<()> {
    if program("python3", ["--version"]).works() {
        return Ok(());
    }
    let otherwise = "python3 is missing, which runs the script of the wire format. Install it (Debian, Ubuntu: `apt-get install \
                     python3`), or run this as root on Debian";
    install("python3", otherwise)
}

/// Makes sure that the dashboard can be tried in a browser, and `npm` can fetch what finds inaccessible pages.
pub(crate) fn ensure_browser() -> Result<()> {
    for (package, command) in [("chromium", "chromium"), ("npm", "npm")] {
        if !program(command, ["--version"]).works() {
            let otherwise = format!(
                "{command} is missing, with which the tests look at the dashboard. Install it (Debian, Ubuntu: `apt-get install \
                 {package}`), or run this as root on Debian"
            );
            install(package, &otherwise)?;
        }
    }
    Ok(())
}

fn accept(path: String, version: (u32, u32)) -> Result<String> {
    let ((major, minor), (needed_major, needed_minor)) = (version, NEEDED);
    ensure!(
        version >= NEEDED,
        "{path} is version {major}.{minor}, but {needed_major}.{needed_minor} is needed: \
         install a newer redis-server, or name one in REDIS_SERVER"
    );
    println!("{path} {major}.{minor}");
    Ok(path)
}

fn version(path: &str) -> Option<(u32, u32)> {
    parse_version(&program(path, ["--version"]).output()?)
}

/// From `Redis server v=7.0.15 sha=…`; Valkey writes the same.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split_whitespace().find_map(|word| word.strip_prefix("v="))?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn install(package: &str, otherwise: &str) -> Result<()> {
    let root = program("id", ["-u"]).output().is_some_and(|id| id.trim() == "0");
    if !root || !program("apt-get", ["--version"]).works() {
        bail!("{otherwise}");
    }
    println!("{package} is missing: installing it");
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
    let installed =
        apt(&["update"]).and_then(|()| apt(&["install", "-y", "--no-install-recommends", package]));
    if is_ours {
        // Services that somebody installs later are to start.
        fs::remove_file(POLICY).context(POLICY)?;
    }
    installed
}

#[cfg(test)]
mod tests {
    use super::parse_version;

    #[test]
    fn versions_are_read_from_what_servers_print() {
        assert_eq!(parse_version("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0"), Some((7, 0)));
        assert_eq!(parse_version("Valkey server v=9.1.2 sha=00000000:0 bits=64"), Some((9, 1)));
        assert_eq!(parse_version("something else"), None);
    }
}
