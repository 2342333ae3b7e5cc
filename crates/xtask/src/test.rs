//! Runs the tests and doctests on servers of their own, and counts.

use std::num::NonZero;
use std::path::PathBuf;
use std::{env, fs, thread};

use anyhow::{Context, Result, bail, ensure};

use crate::cluster::Cluster;
use crate::install::ensure_all;
use crate::junit::{cases, failed, slowest};
use crate::needs::{Need, filtersets, parse_without, tests_of};
use crate::postgres::Postgres;
use crate::run::{cargo, in_ci, root};
use crate::server::Server;

/// How many of the slowest tests are named.
const SLOWEST: usize = 20;

/// How many tests passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
}

/// What to run, and what to do about what is missing.
#[derive(Default)]
pub(crate) struct Options<'a> {
    /// Only tests whose name contains it.
    filter: Option<&'a str>,
    /// What the tests must do without: those that need it are not run.
    without: Vec<&'static Need>,
    /// Whether what is missing is installed.
    install: bool,
}

impl<'a> Options<'a> {
    /// From arguments such as `leases --without postgres,npm`.
    pub(crate) fn parse(args: &[&'a str]) -> Result<Self> {
        let mut options = Self::default();
        let mut args = args.iter().copied();
        while let Some(arg) = args.next() {
            match arg {
                "--install" => options.install = true,
                "--without" => {
                    options.without.extend(parse_without(args.next().unwrap_or_default())?);
                }
                _ if arg.starts_with("--without=") => {
                    options.without.extend(parse_without(&arg["--without=".len()..])?);
                }
                _ if arg.starts_with('-') => bail!("unknown option of `cargo xtask test`: {arg}"),
                _ if options.filter.is_some() => bail!("more than one filter: {arg}"),
                _ => options.filter = Some(arg),
            }
        }
        Ok(options)
    }
}

/// Runs the tests. Returns `N passed, N failed`; an error if any failed, or if there was none to run.
pub(crate) fn run(options: &Options<'_>) -> Result<String> {
    run_with(options, || {})
}

/// The same, with a call once the tests are built and the first of them starts.
pub(crate) fn run_with(options: &Options<'_>, mut started: impl FnMut() + Send) -> Result<String> {
    let Options { filter, without, install } = options;
    let found = ensure_all(without, *install)?;
    let (server, url) = match env::var("MILLSTREAM_TEST_REDIS") {
        Ok(url) => (None, url),
        Err(_) => {
            let server = Server::start();
            let url = server.url();
            (Some(server), url)
        }
    };
    println!("the shared server is {url}");
    let (cluster, nodes) = match env::var("MILLSTREAM_TEST_CLUSTER") {
        Ok(url) => (None, url),
        Err(_) => {
            let cluster = Cluster::start(3, 1);
            let url = cluster.url();
            (Some(cluster), url)
        }
    };
    println!("the shared cluster is {nodes}");
    let (postgres, database) = match env::var("MILLSTREAM_TEST_POSTGRES") {
        Ok(url) => (None, url),
        Err(_) if found.place("postgres").is_empty() => (None, String::new()),
        Err(_) => {
            let server = Postgres::start();
            let url = server.url();
            (Some(server), url)
        }
    };
    let mut variables = vec![
        ("MILLSTREAM_TEST_REDIS", url.as_str()),
        ("MILLSTREAM_TEST_CLUSTER", &nodes),
        ("REDIS_SERVER", found.place("redis")),
    ];
    if !database.is_empty() {
        println!("the shared PostgreSQL is {database}");
        variables.push(("MILLSTREAM_TEST_POSTGRES", &database));
    }
    // Valkey is one of the topologies of the runs under faults, and `apt` may offer a Redis that has no WAITAOF.
    let places = [
        ("POSTGRES_BIN", "postgres"),
        ("MILLSTREAM_TEST_VALKEY", "valkey"),
        ("MILLSTREAM_TEST_REDIS_8", "redis8"),
    ];
    let places = places.map(|(variable, name)| (variable, found.place(name)));
    variables.extend(places.into_iter().filter(|(_, place)| !place.is_empty()));

    let left_out = tests_of(without);
    let all_others = format!("not ({left_out})");
    let (config, threads) = (nextest_config(), nextest_threads());
    // Only doctests may match the filter: no test is no error.
    let mut tests = vec!["nextest", "run", "--workspace", "--no-tests=pass", "--tool-config-file", &config];
    tests.extend(["--test-threads", &threads]);
    if !without.is_empty() {
        tests.extend(["-E", &all_others]);
    }
    let mut doctests = vec!["test", "--doc", "--workspace", "--no-fail-fast"];
    tests.extend(filter);
    doctests.extend(filter);

    // That of an earlier run is none of this one.
    let _ = fs::remove_file(report());
    let mut totals = Totals::default();
    let mut broken = Vec::new();
    for (args, nextest) in [(tests, true), (doctests, false)] {
        let what = args[..2].join(" ");
        let cargo = variables.iter().fold(cargo(args), |cargo, (name, value)| cargo.env(name, value));
        let (success, lines) = cargo.watch_each(|line| {
            if is_start(line) {
                started();
            }
        })?;
        let found = count(lines.iter().map(String::as_str), nextest);
        totals.passed += found.passed;
        totals.failed += found.failed;
        if !success && found.failed == 0 {
            broken.push(format!("`cargo {what}` failed"));
        }
    }
    drop((server, cluster, postgres));

    let cases = cases(&fs::read_to_string(report()).unwrap_or_default());
    let failures = failed(&cases);
    print!("\n{}", slowest(cases, SLOWEST));
    let Totals { passed, failed } = totals;
    let mut result = format!("{passed} passed, {failed} failed");
    if !without.is_empty() {
        let names: Vec<_> = without.iter().map(|need| need.name).collect();
        let not_run = tests_that_match(&left_out, *filter)?;
        if !not_run.is_empty() {
            println!("\nnot run without {}:\n  {}", names.join(", "), not_run.join("\n  "));
        }
        result += &format!(", {} not run without {}", not_run.len(), names.join(", "));
    }
    ensure!(broken.is_empty(), "{}; {result}\n{failures}", broken.join(" and "));
    match (passed, failed) {
        (0, 0) => bail!("no test was run"),
        (_, 0) => {}
        _ => bail!("{result}\n{failures}"),
    }
    // A row whose tests have other names now would leave nothing out.
    let is_checked = |name: &str| in_ci() || without.iter().any(|need| need.name == name);
    for (name, tests) in filtersets().filter(|(name, _)| filter.is_none() && is_checked(name)) {
        ensure!(!tests_that_match(tests, None)?.is_empty(), "no test matches the row {name} of needs.rs");
    }
    Ok(result)
}

/// The tests that match a filterset, and whose names contain the filter.
fn tests_that_match(filterset: &str, filter: Option<&str>) -> Result<Vec<String>> {
    let mut args = vec!["nextest", "list", "--workspace", "--message-format", "oneline", "-E", filterset];
    args.extend(filter);
    let listed = cargo(args).output().context("`cargo nextest list` failed")?;
    Ok(listed.lines().map(plain).filter(|line| !line.trim().is_empty()).collect())
}

/// Where nextest writes its report, as `nextest.toml` names it.
fn report() -> PathBuf {
    // Below the root, wherever the target folder is.
    root().join("target/nextest/default/junit.xml")
}

/// Whether cargo has built the tests, and says that it runs the first ones now.
fn is_start(line: &str) -> bool {
    let line = plain(line);
    ["Starting ", "Running ", "Doc-tests "].iter().any(|start| line.trim_start().starts_with(start))
}

/// Where nextest finds how much of the machine a test takes, as a value of `--tool-config-file`.
pub(crate) fn nextest_config() -> String {
    format!("xtask:{}", root().join("crates/xtask/nextest.toml").display())
}

/// Five threads for each core, of which `nextest.toml` gives a test two, or one if it only waits: most tests wait most of the
/// time, together they need about a quarter of two cores if two run at a time. A value of `--test-threads`.
pub(crate) fn nextest_threads() -> String {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    (5 * cores).to_string()
}

/// Adds up the results that `cargo test` prints for every binary, or nextest once.
///
/// Only one of the two: nextest shows what failed as it was printed, with the results of that one test.
pub(crate) fn count<'a>(lines: impl Iterator<Item = &'a str>, nextest: bool) -> Totals {
    let (start, then) = if nextest { ("Summary [", " run: ") } else { ("test result: ", ". ") };
    let mut totals = Totals::default();
    for line in lines {
        let line = plain(line);
        let Some((_, results)) = line.trim_start().strip_prefix(start).and_then(|line| line.split_once(then))
        else {
            continue;
        };
        // `3 passed; 0 failed; 1 ignored; …` and `8 passed (1 slow), 1 failed, 1 timed out, 2 skipped`.
        for part in results.split([';', ',', '(']).map(str::trim) {
            let Some((number, word)) = part.split_once(' ') else { continue };
            let Ok(number) = number.parse::<u32>() else { continue };
            match word {
                "passed" => totals.passed += number,
                "failed" | "timed out" | "exec failed" => totals.failed += number,
                _ => {}
            }
        }
    }
    totals
}

/// The line without colours.
fn plain(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain += part.split_once('m').map_or(part, |(_, rest)| rest);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::{Options, Totals, count, is_start};

    #[test]
    fn options_come_in_any_order() {
        let names = |options: &Options<'_>| options.without.iter().map(|need| need.name).collect::<Vec<_>>();
        let options = Options::parse(&["--without", "npm,root", "leases", "--install"]).unwrap();
        assert_eq!((options.filter, options.install), (Some("leases"), true));
        assert_eq!(names(&options), ["npm", "root"]);
        let options = Options::parse(&["--without=valkey"]).unwrap();
        assert_eq!((options.filter, options.install), (None, false));
        assert_eq!(names(&options), ["valkey"]);
    }

    #[test]
    fn wrong_options_are_refused() {
        for wrong in [&["a", "b"][..], &["--whithout", "npm"], &["--without"], &["--without", "redis"]] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_start_of_the_tests_is_seen() {
        for line in [
            "\u{1b}[32;1m    Starting\u{1b}[0m \u{1b}[1m8\u{1b}[0m tests across 2 binaries",
            "     Running unittests src/lib.rs (target/debug/deps/millstream)",
            "   Doc-tests millstream",
        ] {
            assert!(is_start(line), "{line}");
        }
        assert!(!is_start("   Compiling millstream-core v0.1.0"));
    }

    #[test]
    fn the_results_of_all_binaries_are_added_up() {
        let lines = "running 3 tests\ntest a ... ok\n\
                     test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
                     a test printed: 7 passed, 1 failed\n\
                     test result: FAILED. 1 passed; 2 failed; 0 ignored";
        assert_eq!(count(lines.lines(), false), Totals { passed: 4, failed: 2 });
    }

    #[test]
    fn only_the_summary_of_nextest_counts() {
        let check = |lines: &str, passed, failed| {
            assert_eq!(count(lines.lines(), true), Totals { passed, failed }, "{lines}");
        };
        check("     Summary [   0.012s] 8 tests run: 8 passed, 0 skipped", 8, 0);
        check("\u{1b}[32;1m Summary\u{1b}[0m [ 2s] \u{1b}[1m1\u{1b}[0m test run: 1 passed, 3 skipped", 1, 0);
        check("Summary [ 1.2s] 9 tests run: 5 passed (1 slow, 2 flaky), 3 failed, 1 timed out", 5, 4);
        check("test result: FAILED. 0 passed; 1 failed\nSummary [ 1s] 2 tests run: 1 passed, 1 failed", 1, 1);
    }
}
