//! What the tests need beside Rust: one table, which says how to get each thing, and which tests need it.

use std::env;
use std::fmt::Write as _;

use anyhow::{Result as Anyhow, bail, ensure};

use crate::postgres::find_programs;
use crate::run::program;
use crate::servers;

/// The oldest server that can run the scripts.
const OLDEST_SERVER: (u32, u32) = (7, 0);

/// A thing that tests need.
pub(crate) struct Need {
    /// The word for `--without`.
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// Returns where it is, for the tests, or an empty text; an error says what is wrong.
    look: fn() -> Result<String, String>,
    pub(crate) get: Get,
    /// A filterset of nextest: the tests that need it. Without one nothing can be run without it.
    ///
    /// Only names of tests and packages: nextest refuses a name of a test binary that is not there, and tests move between
    /// these. `cargo xtask test` checks that each filterset has a test.
    tests: &'static str,
}

/// Where a thing is to be had.
pub(crate) struct Get {
    /// Packages of Debian and Ubuntu.
    pub(crate) apt: &'static [&'static str],
    /// Packages of Fedora.
    pub(crate) dnf: &'static [&'static str],
    /// Formulae of Homebrew.
    pub(crate) brew: &'static [&'static str],
    /// Packages of crates.io.
    pub(crate) cargo: &'static [&'static str],
    /// What else can be done.
    pub(crate) or: &'static str,
}

const NOWHERE: Get = Get { apt: &[], dnf: &[], brew: &[], cargo: &[], or: "" };

/// All of it. A test that needs something new gets a row here.
pub(crate) static NEEDS: [Need; 12] = [
    Need {
        name: "nextest",
        what: "cargo-nextest, which runs the tests",
        look: || works("cargo", &["nextest", "--version"]),
        get: Get { cargo: &["cargo-nextest"], ..NOWHERE },
        tests: "",
    },
    Need {
        name: "redis",
        what: "redis-server 7.0 or newer",
        look: redis,
        get: Get {
            apt: &["redis-server"],
            dnf: &["valkey", "valkey-compat-redis"],
            brew: &["redis"],
            or: "name a redis-server in REDIS_SERVER",
            ..NOWHERE
        },
        tests: "",
    },
    Need {
        name: "postgres",
        what: "PostgreSQL 13 or newer: the programs postgres and initdb",
        look: postgres,
        get: Get {
            apt: &["postgresql"],
            dnf: &["postgresql-server"],
            brew: &["postgresql@17"],
            or: "name the folder with postgres and initdb in POSTGRES_BIN",
            ..NOWHERE
        },
        tests: "(package(millstream-sql) & test(/(^|tests::)(fences|figures|handlers|inbox|markers|migrations|outbox)\
            ::(on_postgres::)?[^:]+$/)) \
            + (package(integration-tests) & test(/^postgres::|(^|::)outbox::[^:]+$|(^|bank::)windows::[^:]+$/)) \
            + (package(integration-tests) & test(/(^|outbox::)(faults|kills|rate|rows|shards|watermark)::[^:]+$/) \
            - test(/_on_sqlite_/)) \
            + (package(integration-tests) & test(/_on_postgres_|lost_replies_show_in_the_balances$/))",
    },
    Need {
        name: "pgbouncer",
        what: "PgBouncer, behind which databases are tried",
        look: || works("pgbouncer", &["--version"]),
        get: Get { apt: &["pgbouncer"], dnf: &["pgbouncer"], brew: &["pgbouncer"], ..NOWHERE },
        tests: "package(integration-tests) & test(/(^|::)outbox::behind_a_pooler_/)",
    },
    Need {
        name: "netfilter",
        what: "the programs nft and ip, with which packets are dropped",
        look: || works("nft", &["-V"]).and(works("ip", &["-V"])),
        get: Get {
            apt: &["nftables", "iproute2"],
            dnf: &["nftables", "iproute"],
            or: "Linux alone has them; they may be in /usr/sbin",
            ..NOWHERE
        },
        tests: "package(integration-tests) & test(/(^|::)(topology::packets|equipment::network)::/)",
    },
    Need {
        name: "root",
        what: "the right to make a network and to mount a small disk",
        look: || may("--net", "make a network").and(may("--mount", "mount a disk")),
        get: Get { or: "run the tests as root, on Linux", ..NOWHERE },
        tests: "package(integration-tests) & test(/(^|::)(topology::packets::|equipment::network::|fault_rows::disk::\
            |topologies::(standalone|valkey)_|mistakes::[a-z_]+_is_found$)/)",
    },
    Need {
        name: "prometheus",
        what: "promtool, which evaluates the alerts",
        look: || works("promtool", &["--version"]),
        get: Get {
            apt: &["prometheus"],
            dnf: &["golang-github-prometheus"],
            brew: &["prometheus"],
            ..NOWHERE
        },
        tests: "package(integration-tests) & test(/(^|::)operator::alerts::/)",
    },
    Need {
        name: "python",
        what: "python3, which runs the script of the wire format",
        look: || works("python3", &["--version"]),
        get: Get { apt: &["python3"], dnf: &["python3"], brew: &["python3"], ..NOWHERE },
        tests: "package(integration-tests) & test(/(^|::)python::[^:]+$/)",
    },
    Need {
        name: "chromium",
        what: "chromium, in which the dashboard is tried",
        look: || works("chromium", &["--version"]),
        get: Get {
            apt: &["chromium"],
            dnf: &["chromium"],
            or: "any Chromium or Chrome that starts as `chromium`; on Ubuntu: snap install chromium",
            ..NOWHERE
        },
        tests: BROWSER,
    },
    Need {
        name: "npm",
        what: "npm, which fetches what finds inaccessible pages",
        look: || works("npm", &["--version"]),
        get: Get { apt: &["npm"], dnf: &["nodejs-npm"], brew: &["node"], ..NOWHERE },
        tests: BROWSER,
    },
    Need {
        name: "valkey",
        what: "valkey-server 9",
        look: || newer("MILLSTREAM_TEST_VALKEY", "valkey-9", "valkey-server", (9, 0)),
        get: Get {
            brew: &["valkey"],
            or: "name a valkey-server in MILLSTREAM_TEST_VALKEY; on Debian it is fetched below target/servers",
            ..NOWHERE
        },
        tests: "package(integration-tests) & test(/(^|::)topologies::valkey_/)",
    },
    Need {
        name: "redis8",
        what: "redis-server 8",
        look: || newer("MILLSTREAM_TEST_REDIS_8", "redis-8.0", "redis-server", (8, 0)),
        get: Get {
            brew: &["redis"],
            or: "name a redis-server in MILLSTREAM_TEST_REDIS_8; on Debian it is fetched below target/servers",
            ..NOWHERE
        },
        tests: "package(integration-tests) & test(/(^|::)topology::power::/)",
    },
];

const BROWSER: &str =
    "package(millstream-dashboard) & test(/(^|::)on_(redis|cluster)::(live|pages|work)::|(^|::)browser::/)";

impl Need {
    /// Whether there are tests that can be run without it.
    pub(crate) fn can_be_left_out(&self) -> bool {
        !self.tests.is_empty()
    }
}

/// What there is, and what is missing.
#[derive(Default)]
pub(crate) struct Looked {
    /// The names, and where each thing is.
    found: Vec<(&'static str, String)>,
    /// What is missing, and what is wrong with it.
    pub(crate) missing: Vec<(&'static Need, String)>,
}

impl Looked {
    /// Where that thing is; an empty text if it is left out.
    pub(crate) fn place(&self, name: &str) -> &str {
        self.found.iter().find(|(found, _)| *found == name).map_or("", |(_, place)| place)
    }
}

/// Looks for all that is not left out.
pub(crate) fn look(without: &[&'static Need]) -> Looked {
    let mut looked = Looked::default();
    let wanted = NEEDS.iter().filter(|need| !without.iter().any(|other| other.name == need.name));
    for need in wanted {
        match (need.look)() {
            Ok(place) => {
                println!("{:<11}{}", need.name, if place.is_empty() { "found" } else { &place });
                looked.found.push((need.name, place));
            }
            Err(wrong) => {
                println!("{:<11}{wrong}", need.name);
                looked.missing.push((need, wrong));
            }
        }
    }
    looked
}

/// The rows that a list such as `redis8,valkey` names. An error says which names there are.
pub(crate) fn parse_without(list: &str) -> Anyhow<Vec<&'static Need>> {
    let mut rows: Vec<&'static Need> = Vec::new();
    for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let Some(need) = NEEDS.iter().find(|need| need.name == name) else {
            bail!("--without knows no {name:?}; it knows {}", optional().join(", "));
        };
        ensure!(
            need.can_be_left_out(),
            "nothing runs without {name}; `cargo xtask quick` runs tests that need no server. --without knows {}",
            optional().join(", ")
        );
        if !rows.iter().any(|row| row.name == name) {
            rows.push(need);
        }
    }
    ensure!(!rows.is_empty(), "--without needs a name: {}", optional().join(", "));
    Ok(rows)
}

/// The names that can be left out.
fn optional() -> Vec<&'static str> {
    NEEDS.iter().filter(|need| need.can_be_left_out()).map(|need| need.name).collect()
}

/// The filterset of all tests that need one of these.
pub(crate) fn tests_of(needs: &[&Need]) -> String {
    needs.iter().map(|need| format!("({})", need.tests)).collect::<Vec<_>>().join(" + ")
}

/// The filterset of each row that can be left out.
pub(crate) fn filtersets() -> impl Iterator<Item = (&'static str, &'static str)> {
    NEEDS.iter().filter(|need| need.can_be_left_out()).map(|need| (need.name, need.tests))
}

/// What is missing and how to get it: a line for each thing, a command for each system.
pub(crate) fn list(missing: &[(&Need, String)], without: &[&Need]) -> String {
    let names: Vec<_> = missing.iter().map(|(need, _)| need.name).collect();
    let mut text = format!("the tests need what is not here: {}\n\n", names.join(", "));
    for (need, wrong) in missing {
        let _ = writeln!(text, "  {:<11}{}: {wrong}", need.name, need.what);
    }
    let all = |of: fn(&Get) -> &'static [&'static str]| {
        let mut names: Vec<_> = missing.iter().flat_map(|(need, _)| of(&need.get)).copied().collect();
        names.dedup();
        names.join(" ")
    };
    let commands = [
        ("Debian, Ubuntu", "sudo apt-get install", all(|get| get.apt)),
        ("Fedora", "sudo dnf install", all(|get| get.dnf)),
        ("macOS", "brew install", all(|get| get.brew)),
        ("all", "cargo install --locked", all(|get| get.cargo)),
    ];
    text.push('\n');
    for (system, command, names) in commands.iter().filter(|(_, _, names)| !names.is_empty()) {
        let _ = writeln!(text, "  {system:<16}{command} {names}");
    }
    for (need, _) in missing.iter().filter(|(need, _)| !need.get.or.is_empty()) {
        let _ = writeln!(text, "  {:<16}{}", need.name, need.get.or);
    }
    text.push('\n');
    let required = missing.iter().any(|(need, _)| !need.can_be_left_out());
    if required {
        text += "Tests that need no server: cargo xtask quick CRATE";
    } else {
        let names = without.iter().copied().chain(missing.iter().map(|(need, _)| *need));
        let names: Vec<_> = names.map(|need| need.name).collect();
        let _ = write!(text, "Without it: cargo xtask test --without {}", names.join(","));
    }
    text
}

fn works(name: &str, args: &[&str]) -> Result<String, String> {
    let works = program(name, args.iter().copied()).works();
    if works { Ok(String::new()) } else { Err(format!("there is no {name} that runs")) }
}

/// Whether this process may have a part of the system of its own, as `unshare` names it.
fn may(part: &str, what: &str) -> Result<String, String> {
    let may = program("unshare", [part, "true"]).works();
    if may { Ok(String::new()) } else { Err(format!("this user may not {what}")) }
}

/// What `REDIS_SERVER` names, or the one on the search path.
fn redis() -> Result<String, String> {
    let (named, path) = match env::var("REDIS_SERVER") {
        Ok(path) => ("REDIS_SERVER=", path),
        Err(_) => ("", "redis-server".to_owned()),
    };
    let version = version(&path).ok_or_else(|| format!("there is no {named}{path} that runs"))?;
    enough(&path, version, OLDEST_SERVER)
}

/// The folder with `postgres` and `initdb`.
fn postgres() -> Result<String, String> {
    let found = find_programs().ok_or("they are in no known folder")?;
    found.into_os_string().into_string().map_err(|_| "the folder is not valid UTF-8".to_owned())
}

/// What the variable names, or a program on the search path, or one that is fetched below the target folder.
fn newer(variable: &str, line: &str, path: &str, oldest: (u32, u32)) -> Result<String, String> {
    if let Ok(path) = env::var(variable) {
        let version = version(&path).ok_or_else(|| format!("{variable}={path} does not run"))?;
        return enough(&path, version, oldest);
    }
    if let Some(version) = version(path).filter(|version| *version >= oldest) {
        return enough(path, version, oldest);
    }
    servers::path(line).map_err(|error| format!("{error:#}"))
}

fn enough(path: &str, version: (u32, u32), oldest: (u32, u32)) -> Result<String, String> {
    let ((major, minor), (oldest_major, oldest_minor)) = (version, oldest);
    if version < oldest {
        return Err(format!(
            "{path} is version {major}.{minor}, and {oldest_major}.{oldest_minor} is needed"
        ));
    }
    Ok(path.to_owned())
}

fn version(path: &str) -> Option<(u32, u32)> {
    parse_version(&program(path, ["--version"]).output()?)
}

/// From `Redis server v=7.0.15 sha=…`; Valkey writes the same.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split_whitespace().find_map(|word| word.strip_prefix("v="))?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{NEEDS, enough, list, optional, parse_version, parse_without, tests_of};

    #[test]
    fn versions_are_read_from_what_servers_print() {
        assert_eq!(parse_version("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0"), Some((7, 0)));
        assert_eq!(parse_version("Valkey server v=9.1.2 sha=00000000:0 bits=64"), Some((9, 1)));
        assert_eq!(parse_version("something else"), None);
    }

    #[test]
    fn a_server_that_is_too_old_is_named_with_its_version() {
        assert_eq!(enough("x", (7, 0), (7, 0)).as_deref(), Ok("x"));
        assert_eq!(enough("x", (6, 2), (7, 0)), Err("x is version 6.2, and 7.0 is needed".to_owned()));
    }

    #[test]
    fn names_are_unique_and_each_thing_can_be_had() {
        for (at, need) in NEEDS.iter().enumerate() {
            assert!(NEEDS[..at].iter().all(|other| other.name != need.name), "{}", need.name);
            let get = &need.get;
            assert!(!(get.or.is_empty() && get.apt.is_empty() && get.cargo.is_empty()), "{}", need.name);
            assert_eq!(need.tests.matches('(').count(), need.tests.matches(')').count(), "{}", need.name);
        }
    }

    #[test]
    fn what_is_left_out_is_named_once_each() {
        let rows = parse_without("redis8, valkey,redis8").unwrap();
        assert_eq!(rows.iter().map(|row| row.name).collect::<Vec<_>>(), ["redis8", "valkey"]);
        let tests = tests_of(&rows);
        assert!(tests.starts_with('(') && tests.contains(") + ("), "{tests}");
    }

    #[test]
    fn unknown_and_required_names_are_refused_with_the_list() {
        for wrong in ["posgres", "redis", "nextest", "", ",", "postgres,x"] {
            let Err(error) = parse_without(wrong) else { panic!("{wrong:?} is accepted") };
            let said = error.to_string();
            assert!(optional().iter().all(|name| said.contains(name)), "{said}");
        }
    }

    #[test]
    fn the_list_says_what_is_missing_and_how_to_get_it() {
        let row = |name: &str| NEEDS.iter().find(|need| need.name == name).unwrap();
        let missing = [(row("postgres"), "not there".to_owned()), (row("npm"), "not there".to_owned())];
        let text = list(&missing, &[row("root")]);
        for line in [
            "  postgres   PostgreSQL 13 or newer: the programs postgres and initdb: not there",
            "  Debian, Ubuntu  sudo apt-get install postgresql npm",
            "  Fedora          sudo dnf install postgresql-server nodejs-npm",
            "  macOS           brew install postgresql@17 node",
            "  postgres        name the folder with postgres and initdb in POSTGRES_BIN",
            "Without it: cargo xtask test --without root,postgres,npm",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let text = list(&[(row("redis"), "not there".to_owned())], &[]);
        assert!(text.ends_with("cargo xtask quick CRATE"), "{text}");
    }
}
