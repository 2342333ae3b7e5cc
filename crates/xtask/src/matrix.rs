//! Runs what depends on a server on each line of servers, on a cluster, behind TLS and as a user with few rights.

use std::fmt::Write as _;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::cluster::Cluster;
use crate::run::{cargo, program, target};
use crate::server::{Builder, Server};
use crate::servers::{Fetched, LINES, Line, folder};
use crate::test::{Totals, count, nextest_config, nextest_threads};

/// What depends on a server.
const ON_SERVERS: &str = "(package(millstream-redis) & binary(scripts)) + binary_id(millstream-cli::commands) \
    + (binary_id(integration-tests::servers) - test(/^(bank|chaos|examples|mutants|outbox)::/)) \
    + (binary_id(integration-tests::conformance) - test(/^(packed_)?memory::/))";
/// The cases of the suite on a cluster.
const ON_CLUSTER: &str = "binary_id(integration-tests::conformance) & test(/^(packed_)?cluster::/)";
/// What uses the shared server by its URL alone.
const BY_URL: &str = "binary_id(millstream-cli::commands) \
    + (binary_id(integration-tests::conformance) & test(/^(redis|packed):/)) \
    + (binary_id(integration-tests::servers) & test(/^(consumers::(control|groups)|delay::races|operator::metrics)::/))";

const NOT_ON_CLUSTER: &str = "the others connect to a single server, or start servers of their own";
/// The user of the rows with few rights, and its password.
const USER: [&str; 2] = ["tester", "secret"];
const NOT_BY_URL: &str = "the others start servers of their own, or open plain connections as the default user; the \
    cluster has its own row";

/// A row of the table.
#[derive(Debug)]
struct Row {
    server: String,
    version: String,
    totals: Totals,
    /// Why tests were not run.
    why: String,
}

impl Row {
    fn run(&self) -> u32 {
        self.totals.passed + self.totals.failed
    }
}

/// Where the tests of a row connect to.
struct Place<'a> {
    program: &'a Path,
    url: &'a str,
    cluster: &'a str,
    env: Vec<(&'static str, String)>,
}

/// Runs the tests whose name contains `filter`, or all that depend on a server, for the rows whose name contains `row`,
/// and prints the table. An error if a test failed, or if none was run.
pub(crate) fn run(row: &str, filter: Option<&str>) -> Result<()> {
    ensure!(
        cargo(["nextest", "--version"]).works(),
        "the matrix selects tests by expressions: install cargo-nextest"
    );
    let lines = LINES.iter().filter(|line| line.name.contains(row));
    let mut rows: Vec<Row> = lines.map(|line| on_line(line, filter)).collect();
    type Special = fn(&Path, Option<&str>) -> Result<(Totals, &'static str)>;
    let special: [(&str, Special); 4] = [
        ("cluster 3+3", cluster),
        ("TLS", tls),
        ("ACL user", acl),
        ("cluster 3+3, TLS, ACL user", all_at_once),
    ];
    let special = special.map(|(name, run)| (format!("{}, {name}", LINES[0].name), run));
    for (name, run) in special.into_iter().filter(|(name, _)| name.contains(row)) {
        rows.push(match LINES[0].fetch() {
            Ok(server) => run_row(&name, &server.version, || {
                run(&server.path, filter).map(|(totals, why)| (totals, why.to_owned()))
            }),
            Err(error) => unavailable(&name, &error),
        });
    }
    println!("\n{}", table(&rows));
    verdict(&rows)
}

/// Lines on which each change is tried, beside the server that is installed.
const NEWER: [&str; 2] = ["redis-8.0", "valkey-9"];

/// Runs the suite on newer servers than the one that the tests use. A server changes what it accepts from one line to the
/// next, and the whole matrix takes too long for each change.
pub(crate) fn newer() -> Result<String> {
    let mut passed = 0;
    for line in LINES.iter().filter(|line| NEWER.contains(&line.name)) {
        let Fetched { version, path } = line.fetch()?;
        let server = builder(&path).start();
        println!("the suite on {} {version}", line.name);
        for cases in ["redis:", "packed:"] {
            // A dot for each case: names are of use only where one failed, and those are listed.
            let args = ["test", "--workspace", "--test", "conformance", "--", "--format", "terse", cases];
            let cargo = cargo(args).env("REDIS_SERVER", &path).env("MILLSTREAM_TEST_REDIS", server.url());
            let (success, lines) = cargo.watch()?;
            let totals = count(lines.iter().map(String::as_str), false);
            ensure!(
                success && totals.passed > 0,
                "{} of the suite failed on {} {version}",
                totals.failed,
                line.name
            );
            passed += totals.passed;
        }
    }
    Ok(format!("{passed} passed on {}", NEWER.join(" and ")))
}

fn verdict(rows: &[Row]) -> Result<()> {
    let failed: u32 = rows.iter().map(|row| row.totals.failed).sum();
    let run: u32 = rows.iter().map(Row::run).sum();
    let all = rows.iter().map(Row::run).max().unwrap_or_default();
    ensure!(run > 0, "no test was run");
    ensure!(failed == 0, "{failed} of {run} tests failed");
    let unexplained = |row: &&Row| row.why.starts_with(BROKEN) || row.why.is_empty() && row.run() < all;
    let broken = rows.iter().filter(unexplained).count();
    ensure!(broken == 0, "{broken} of {} rows were not run as they should", rows.len());
    Ok(())
}

/// How the reason begins where a row should have been run and was not.
const BROKEN: &str = "broken: ";

/// Runs a row. What goes wrong there is in the row: the others are run all the same.
fn run_row(server: &str, version: &str, run: impl FnOnce() -> Result<(Totals, String)>) -> Row {
    println!("\n== {server} {version}");
    // A server that does not start is a panic in the code that the tests share.
    let result = catch_unwind(AssertUnwindSafe(run));
    let (totals, why) = match result {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => (Totals::default(), format!("{BROKEN}{error:#}")),
        Err(_) => (Totals::default(), format!("{BROKEN}a server does not start")),
    };
    let row = Row { server: server.to_owned(), version: version.to_owned(), totals, why };
    // For whoever does not wait for the end.
    println!("== {server} {version}: {} passed, {} failed {}", totals.passed, totals.failed, row.why);
    row
}

/// A row whose server cannot be fetched.
fn unavailable(name: &str, error: &anyhow::Error) -> Row {
    let why = format!("the server is not to be had: {error:#}");
    run_row(name, "-", || Ok((Totals::default(), why)))
}

fn on_line(line: &Line, filter: Option<&str>) -> Row {
    let Fetched { version, path } = match line.fetch() {
        Ok(fetched) => fetched,
        Err(error) => return unavailable(line.name, &error),
    };
    run_row(line.name, &version, || {
        if !line.too_old {
            return Ok((on_all(&path, filter)?, String::new()));
        }
        let why = format!("it is refused when connecting: `{}`", refusal(&path)?);
        Ok((Totals::default(), why))
    })
}

fn on_all(program: &Path, filter: Option<&str>) -> Result<Totals> {
    let server = builder(program).start();
    let cluster = start_cluster(program);
    let place = Place { program, url: &server.url(), cluster: &cluster.url(), env: Vec::new() };
    tests(ON_SERVERS, filter, &place)
}

fn cluster(program: &Path, filter: Option<&str>) -> Result<(Totals, &'static str)> {
    let cluster = start_cluster(program);
    // No test of this row connects to a single server.
    let place = Place { program, url: "redis://127.0.0.1:1", cluster: &cluster.url(), env: Vec::new() };
    Ok((tests(ON_CLUSTER, filter, &place)?, NOT_ON_CLUSTER))
}

/// A cluster behind TLS, used by a user with few rights.
fn all_at_once(program: &Path, filter: Option<&str>) -> Result<(Totals, &'static str)> {
    let certificates = certificates()?;
    let cluster = Cluster::start_tls(3, 1, &certificates, |builder| builder.program(program.to_owned()));
    // Each node has rules of its own.
    cluster.nodes.iter().try_for_each(create_user)?;
    let plain = cluster.nodes[0].url();
    let env = vec![("SSL_CERT_FILE", in_folder(&certificates, "ca.pem")), ("MILLSTREAM_TEST_CONSOLE", plain)];
    let url = as_user(&cluster.tls_url());
    let place = Place { program, url: "redis://127.0.0.1:1", cluster: &url, env };
    Ok((tests(ON_CLUSTER, filter, &place)?, NOT_ON_CLUSTER))
}

fn tls(program: &Path, filter: Option<&str>) -> Result<(Totals, &'static str)> {
    let certificates = certificates()?;
    let server = builder(program).tls(&certificates).start();
    // Without a CA of their own clients trust the system's: for these tests that is ours.
    let env = vec![
        ("SSL_CERT_FILE", in_folder(&certificates, "ca.pem")),
        ("MILLSTREAM_TEST_CONSOLE", server.url()),
    ];
    let port = server.tls_port().context("a port with TLS")?;
    let place = Place { program, url: &format!("rediss://localhost:{port}"), cluster: "", env };
    Ok((tests(BY_URL, filter, &place)?, NOT_BY_URL))
}

fn acl(program: &Path, filter: Option<&str>) -> Result<(Totals, &'static str)> {
    let server = builder(program).start();
    create_user(&server)?;
    let env = vec![("MILLSTREAM_TEST_CONSOLE", server.url())];
    let place = Place { program, url: &as_user(&server.url()), cluster: "", env };
    Ok((tests(BY_URL, filter, &place)?, NOT_BY_URL))
}

/// Creates a user with the rules that the command prints for an administrator.
fn create_user(server: &Server) -> Result<()> {
    let printed = millstream(&["acl", "admin", "--topic", "t"])?;
    let rules = with_all_keys(&printed).context("`millstream acl` prints no command")?;
    let [name, secret] = USER;
    let password = format!(">{secret}");
    let mut command = vec!["ACL", "SETUSER", name, "reset", "on", &password];
    command.extend(rules.iter().map(String::as_str));
    server.try_cli(&command).context("ACL SETUSER")?;
    Ok(())
}

/// The URL with the name and the password of that user.
fn as_user(url: &str) -> String {
    let [name, secret] = USER;
    url.replacen("://", &format!("://{name}:{secret}@"), 1)
}

fn in_folder(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

fn builder(program: &Path) -> Builder {
    Server::builder().program(program.to_owned())
}

fn start_cluster(program: &Path) -> Cluster {
    Cluster::start_with(3, 1, |builder| builder.program(program.to_owned()))
}

fn tests(expression: &str, filter: Option<&str>, place: &Place<'_>) -> Result<Totals> {
    let (config, threads) = (nextest_config(), nextest_threads());
    // The whole workspace, so that nothing is built again for the matrix.
    let mut args = vec!["nextest", "run", "--workspace", "--no-tests=pass", "--no-fail-fast"];
    args.extend(["--status-level", "fail", "--tool-config-file", &config, "-E", expression]);
    args.extend(["--test-threads", &threads]);
    args.extend(filter);
    let mut cargo = cargo(args).env("REDIS_SERVER", place.program);
    cargo = cargo.env("MILLSTREAM_TEST_REDIS", place.url).env("MILLSTREAM_TEST_CLUSTER", place.cluster);
    for (name, value) in &place.env {
        cargo = cargo.env(name, value);
    }
    let (success, lines) = cargo.watch()?;
    let totals = count(lines.iter().map(String::as_str), true);
    ensure!(success || totals.failed > 0, "`cargo nextest` failed");
    Ok(totals)
}

/// What the command says about a server that is too old.
fn refusal(program: &Path) -> Result<String> {
    let server = builder(program).start();
    let said = millstream(&["--url", &server.url(), "doctor"])?;
    let about = about_version(&said).map(str::to_owned);
    about.with_context(|| format!("`doctor` says nothing about the version: {said}"))
}

/// What the command writes, whether it succeeds or not. Of the whole workspace, so that the build is that of the tests.
fn millstream(args: &[&str]) -> Result<String> {
    cargo(["build", "-q", "--workspace", "--bin", "millstream"]).run()?;
    let built = target().join("debug/millstream");
    let (_, lines) = program(&built.display().to_string(), args.iter().copied()).watch()?;
    Ok(lines.join("\n"))
}

/// What a message says about the version, without the address that comes first.
fn about_version(said: &str) -> Option<&str> {
    let start = said.find("the server is version ")?;
    said[start..].lines().next()
}

/// The rules in a printed `ACL SETUSER name reset on rule …`, for every key.
fn with_all_keys(printed: &str) -> Option<Vec<String>> {
    let line = printed.lines().find(|line| line.starts_with("ACL SETUSER "))?;
    let rules = line.split_whitespace().skip(5);
    let rules = rules.filter(|rule| !rule.starts_with(['~', '%']));
    Some(rules.map(str::to_owned).chain(["~*".to_owned()]).collect())
}

/// Makes an authority and a certificate for this machine; returns their folder.
fn certificates() -> Result<PathBuf> {
    let to = folder().join("certificates");
    fs::create_dir_all(&to).with_context(|| to.display().to_string())?;
    // The nodes of a cluster are named by their addresses.
    fs::write(to.join("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n")?;
    let file = |name: &str| in_folder(&to, name);
    let (ca, ca_key, key) = (file("ca.pem"), file("ca.key"), file("server.key"));
    let (request, signed, names) = (file("server.csr"), file("server.pem"), file("names"));
    let new = ["req", "-newkey", "rsa:2048", "-nodes", "-keyout"];
    let openssl = |args: &[&str]| program("openssl", args.iter().copied()).collected();
    openssl(
        &[&new[..], &[&ca_key, "-x509", "-days", "30", "-subj", "/CN=an authority", "-out", &ca]].concat(),
    )?;
    openssl(&[&new[..], &[&key, "-subj", "/CN=localhost", "-out", &request]].concat())?;
    let sign = ["x509", "-req", "-days", "30", "-in", &request, "-CA", &ca, "-CAkey", &ca_key];
    openssl(&[&sign[..], &["-CAcreateserial", "-extfile", &names, "-out", &signed]].concat())?;
    Ok(to)
}

/// The rows in Markdown. What was not run is counted from the largest row.
fn table(rows: &[Row]) -> String {
    let all = rows.iter().map(Row::run).max().unwrap_or_default();
    let mut table =
        "| server | version | passed | failed | not run, and why |\n|---|---|---|---|---|\n".to_owned();
    for row in rows {
        let Row { server, version, totals: Totals { passed, failed }, why } = row;
        let why = why.replace('|', "\\|").replace('\n', " ");
        let missing = match (all - row.run(), why.is_empty()) {
            (0, true) => "0".to_owned(),
            (missing, true) => format!("{missing}: no reason is known"),
            (missing, false) => format!("{missing}: {why}"),
        };
        let _ = writeln!(table, "| {server} | {version} | {passed} | {failed} | {missing} |");
    }
    table
}

#[cfg(test)]
mod tests {
    use super::{BROKEN, Row, about_version, table, verdict, with_all_keys};
    use crate::test::Totals;

    fn row(server: &str, passed: u32, failed: u32, why: &str) -> Row {
        let totals = Totals { passed, failed };
        Row { server: server.to_owned(), version: "1.2".to_owned(), totals, why: why.to_owned() }
    }

    #[test]
    fn the_table_counts_what_each_row_lacks() {
        let rows = [row("a", 9, 1, ""), row("b", 3, 0, "others|need\nmore"), row("c", 9, 0, "")];
        let lines = "| a | 1.2 | 9 | 1 | 0 |\n| b | 1.2 | 3 | 0 | 7: others\\|need more |\n\
                     | c | 1.2 | 9 | 0 | 1: no reason is known |\n";
        assert!(table(&rows).ends_with(lines), "{}", table(&rows));
    }

    #[test]
    fn a_failure_and_a_row_that_could_not_be_run_are_errors() {
        let said = |rows: &[Row]| verdict(rows).err().map(|error| error.to_string());
        assert_eq!(said(&[row("a", 2, 0, ""), row("b", 0, 0, "the server is not to be had")]), None);
        assert_eq!(said(&[row("a", 2, 1, "")]).as_deref(), Some("1 of 3 tests failed"));
        let broken = format!("{BROKEN}no compiler");
        assert_eq!(
            said(&[row("a", 2, 0, ""), row("b", 0, 0, &broken)]).as_deref(),
            Some("1 of 2 rows were not run as they should")
        );
        let fewer = [row("a", 2, 0, ""), row("b", 1, 0, "")];
        assert_eq!(said(&fewer).as_deref(), Some("1 of 2 rows were not run as they should"));
        assert_eq!(said(&[row("a", 0, 0, "")]).as_deref(), Some("no test was run"));
    }

    #[test]
    fn the_rules_of_a_user_keep_their_commands_and_get_all_keys() {
        let rules = with_all_keys("ACL SETUSER admin reset on -@all resetkeys +get +xadd ~mq:{t}* %R~mq:x\n");
        assert_eq!(rules.unwrap_or_default(), ["-@all", "resetkeys", "+get", "+xadd", "~*"]);
        assert_eq!(with_all_keys("nothing"), None);
    }

    #[test]
    fn what_is_said_about_the_version_is_one_line_without_the_address() {
        let said =
            "error: connect to redis://127.0.0.1:1: the server is version 6.2.14, at least 7.0 is needed\n$";
        assert_eq!(about_version(said), Some("the server is version 6.2.14, at least 7.0 is needed"));
        assert_eq!(about_version("connect to redis://127.0.0.1: refused"), None);
    }
}
