//! Doctor: reads the state of the server from the backend, and judges it with a pure function.

use std::fmt;

use millstream_core::Result;
use millstream_core::inspect::Server;

use crate::Admin;
use crate::faults::{self, Level, Version};

/// Report on one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Severity.
    pub level: Level,
    /// Address of the server that it is about; `None` where there is one server, or if it is about all.
    pub node: Option<String>,
    /// Subject of the report: `version`, `memory`, …
    pub subject: String,
    /// Observed state.
    pub found: String,
    /// Advice; empty if nothing is to be done.
    pub advice: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: ", self.level, self.subject)?;
        if let Some(node) = &self.node {
            write!(f, "{node}: ")?;
        }
        write!(f, "{}", self.found)?;
        if !self.advice.is_empty() {
            write!(f, ". {}", self.advice)?;
        }
        Ok(())
    }
}

/// Clock difference, in ms, above which times shown to people differ noticeably from the server's.
const SKEW_MS: u64 = 1_000;
/// Round trip time, in ms, above which every message is slowed down.
const SLOW_MS: u128 = 10;
/// Memory in use, in percent of the limit, from which a report is raised.
const TIGHT: u64 = 80;
/// Connections, in percent of the limit, from which a report is raised.
const CROWDED: u64 = 90;

impl Admin {
    /// Examines the server, or each primary of a cluster. Returns one report per subject and server, the worst first.
    ///
    /// # Errors
    /// Transient ones, if no server can be asked.
    pub async fn doctor(&self) -> Result<Vec<Report>> {
        Ok(diagnose(&self.servers().await?))
    }

    /// Returns the state of each server as read, without a judgement. See
    /// [`Inspect::servers`](millstream_core::Inspect::servers).
    ///
    /// # Errors
    /// Transient ones, if no server can be asked.
    pub async fn servers(&self) -> Result<Vec<Server>> {
        self.backend.inspect()?.servers().await
    }

    /// Returns the state of the server, or of one of several, as read, without a judgement.
    ///
    /// # Errors
    /// Transient ones.
    pub async fn server(&self) -> Result<Server> {
        self.backend.inspect()?.server().await
    }
}

/// Judges the state of all servers.
#[must_use]
pub fn diagnose(servers: &[Server]) -> Vec<Report> {
    let mut reports: Vec<Report> = servers.iter().flat_map(diagnose_one).collect();
    let mut versions: Vec<_> = servers.iter().filter_map(|server| server.version.as_deref()).collect();
    versions.sort_unstable();
    versions.dedup();
    if versions.len() > 1 {
        reports.push(Report {
            level: Level::Warn,
            node: None,
            subject: "versions".to_owned(),
            found: format!("the servers have different ones: {}", versions.join(", ")),
            advice: "Use one version on all of them, but while they are upgraded".to_owned(),
        });
    }
    // Servers stay in their order.
    reports.sort_by_key(|report| std::cmp::Reverse(report.level));
    reports
}

fn diagnose_one(server: &Server) -> Vec<Report> {
    let mut reports = Vec::new();
    let mut say = |level, subject: &str, found: String, advice: &str| {
        let (subject, advice, node) = (subject.to_owned(), advice.to_owned(), server.address.clone());
        reports.push(Report { level, node, subject, found, advice });
    };
    if let Some(why) = &server.away {
        let advice = "Messages of its partitions wait until it answers, or a replica takes its place";
        say(Level::Error, "server", format!("cannot be asked: {why}"), advice);
        return reports;
    }
    let version = server.version.as_deref().unwrap_or("of unknown version");
    if server.kind == "memory" {
        let advice = "Use it for tests and small tools: everything ends with the process";
        say(Level::Warn, "server", format!("in this process, {version}"), advice);
        return reports;
    }
    let product = format!("{} {version}", server.kind);
    let parsed = server.version.as_deref().and_then(Version::parse);
    let known: Vec<_> = parsed.map(|version| faults::known(&server.kind, version)).unwrap_or_default();
    if known.is_empty() {
        let level = if parsed.is_some() { Level::Ok } else { Level::Warn };
        say(level, "version", product.clone(), "");
    }
    for fault in known {
        say(fault.level, "version", format!("{product}: {}", fault.what), fault.advice);
    }
    for risk in &server.risks {
        say(Level::Error, &risk.setting, format!("is {:?}", risk.value), &risk.reason);
    }
    if server.risks.is_empty() {
        say(Level::Ok, "persistence", "no setting that loses messages was seen".to_owned(), "");
    }
    memory(server, &mut say);
    commands(server, &mut say);
    match server.ahead_ms {
        Some(ahead) if ahead.unsigned_abs() > SKEW_MS => {
            let found = format!("the server's clock is {ahead} ms ahead of this one");
            say(Level::Warn, "clock", found, "Delays and leases go by the server's: set both by NTP");
        }
        Some(ahead) => say(Level::Ok, "clock", format!("{ahead} ms apart"), ""),
        None => {}
    }
    if let Some(latency) = server.latency {
        let slow = latency.as_millis() > SLOW_MS;
        let (level, advice) = if slow {
            (Level::Warn, "Move closer to the server, or look at its load (SLOWLOG, LATENCY DOCTOR)")
        } else {
            (Level::Ok, "")
        };
        say(level, "latency", format!("{latency:?} for a round trip"), advice);
    }
    topology(server, &mut say);
    if server.disk_ok == Some(false) {
        let advice = "Look at its log, free the disk: while this lasts, the server may refuse every write";
        say(
            Level::Error,
            "disk",
            "the last write of a snapshot or of the append-only file failed".to_owned(),
            advice,
        );
    }
    if let Some((clients, most)) = server.clients {
        let crowded = most > 0 && clients.saturating_mul(100) >= most.saturating_mul(CROWDED);
        let (level, advice) = if crowded {
            (Level::Warn, "Raise maxclients, or find who opens so many")
        } else {
            (Level::Ok, "")
        };
        say(level, "connections", format!("{clients} of {most}"), advice);
    }
    if !server.features.is_empty() {
        say(Level::Ok, "features", server.features.join(", "), "");
    }
    if !server.unknown.is_empty() {
        let advice = "Let this user ask (+info +config|get +command|info), and rename none of these commands";
        say(Level::Warn, "unknown", format!("not told: {}", server.unknown.join("; ")), advice);
    }
    reports
}

/// Advice for a server that refuses to write, by a word of its reason.
const REFUSALS: [(&str, &str); 6] = [
    ("OOM", "Raise maxmemory, or look for what fills it: a group that does not read, keys of others"),
    ("MISCONF", "It cannot save: look at its log, and free or mend the disk. Clients wait meanwhile"),
    ("READONLY", "It is a replica: connect to its primary"),
    ("NOREPLICAS", "Bring its replicas back, or lower min-replicas-to-write. Clients wait meanwhile"),
    ("BUSY", "A script of another client holds it up: SCRIPT KILL ends one that has not written"),
    ("", "Look at its log. Clients wait until it writes again"),
];

fn commands(server: &Server, say: &mut impl FnMut(Level, &str, String, &str)) {
    if let Some(why) = &server.refuses {
        let advice = REFUSALS.iter().find(|(word, _)| why.contains(word)).map_or("", |(_, advice)| advice);
        say(Level::Error, "writes", format!("refused: {why}"), advice);
    }
    if !server.missing.is_empty() {
        let advice = "Nothing works without them: take rename-command out of its configuration, or use a service that has them";
        say(Level::Error, "commands", format!("not there: {}", server.missing.join(", ")), advice);
    }
    if !server.denied.is_empty() {
        let advice = "Allow these commands and keys (ACL SETUSER); scripts stop half-way without";
        say(Level::Error, "rights", format!("not allowed: {}", server.denied.join(", ")), advice);
    } else if server.refuses.is_none() && server.missing.is_empty() {
        say(Level::Ok, "rights", "every command that is needed is allowed".to_owned(), "");
    }
}

/// Returns a size in MiB.
fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn memory(server: &Server, say: &mut impl FnMut(Level, &str, String, &str)) {
    let (Some(used), Some(most)) = (server.used_memory, server.max_memory) else { return };
    if most == 0 {
        let advice =
            "Set maxmemory below what the machine has: else the system ends the server when it is full";
        say(Level::Warn, "memory", format!("{} in use, without a limit", mebibytes(used)), advice);
    } else if used.saturating_mul(100) >= most.saturating_mul(TIGHT) {
        let advice =
            "When it is full, appends are refused: look for a group that does not read, or raise maxmemory";
        say(Level::Error, "memory", format!("{} of {} in use", mebibytes(used), mebibytes(most)), advice);
    } else {
        say(Level::Ok, "memory", format!("{} of {} in use", mebibytes(used), mebibytes(most)), "");
    }
    if let Some(evicted) = server.evicted.filter(|evicted| *evicted > 0) {
        let advice =
            "Some may have been messages or leases: set maxmemory-policy noeviction, then verify every topic";
        say(Level::Error, "eviction", format!("{evicted} keys were evicted"), advice);
    }
}

fn topology(server: &Server, say: &mut impl FnMut(Level, &str, String, &str)) {
    let role = server.role.as_deref().unwrap_or("unknown");
    if role == "replica" {
        let advice = "It takes no writes: connect to its primary";
        say(Level::Error, "role", "this is a replica".to_owned(), advice);
    }
    let mode = server.mode.as_deref().unwrap_or("unknown");
    if server.cluster_ok == Some(false) {
        say(
            Level::Error,
            "cluster",
            "some slots are not served".to_owned(),
            "Look at CLUSTER INFO and CLUSTER NODES",
        );
    } else if mode != "unknown" {
        let replicas = server.replicas.map_or_else(String::new, |replicas| format!(", {replicas} replicas"));
        say(Level::Ok, "topology", format!("{mode}, {role}{replicas}"), "");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millstream_core::inspect::Risk;

    use super::*;

    fn sound() -> Server {
        let mut server = Server::default();
        server.kind = "redis".into();
        server.version = Some("7.0.15".into());
        (server.mode, server.role) = (Some("standalone".into()), Some("master".into()));
        (server.used_memory, server.max_memory) = (Some(10), Some(1_000));
        (server.ahead_ms, server.latency) = (Some(-3), Some(Duration::from_micros(80)));
        server.clients = Some((10, 10_000));
        server
    }

    fn bad(server: &Server) -> Vec<(Level, String)> {
        let reports =
            diagnose(std::slice::from_ref(server)).into_iter().filter(|report| report.level > Level::Ok);
        reports.map(|report| (report.level, report.subject)).collect()
    }

    #[test]
    fn a_sound_server_has_nothing_but_ok() {
        assert_eq!(bad(&sound()), []);
        assert!(diagnose(&[sound()]).iter().all(|report| report.advice.is_empty()));
    }

    #[test]
    fn each_trouble_is_named_with_what_to_do() {
        type Change = fn(&mut Server);
        let cases: [(Change, Level, &str); 16] = [
            (|it| it.max_memory = Some(0), Level::Warn, "memory"),
            (|it| it.used_memory = Some(800), Level::Error, "memory"),
            (|it| it.evicted = Some(1), Level::Error, "eviction"),
            (|it| it.denied = vec!["XADD".into()], Level::Error, "rights"),
            (|it| it.missing = vec!["EVAL".into()], Level::Error, "commands"),
            (|it| it.refuses = Some("MISCONF Redis is configured".into()), Level::Error, "writes"),
            (|it| it.refuses = Some("what is new".into()), Level::Error, "writes"),
            (|it| it.ahead_ms = Some(-1_001), Level::Warn, "clock"),
            (|it| it.latency = Some(Duration::from_millis(11)), Level::Warn, "latency"),
            (|it| it.role = Some("replica".into()), Level::Error, "role"),
            (|it| it.cluster_ok = Some(false), Level::Error, "cluster"),
            (|it| it.disk_ok = Some(false), Level::Error, "disk"),
            (|it| it.clients = Some((9_000, 10_000)), Level::Warn, "connections"),
            (|it| it.unknown = vec!["INFO".into()], Level::Warn, "unknown"),
            (|it| it.version = Some("8.2.1".into()), Level::Error, "version"),
            (
                |it| {
                    let risk = Risk { setting: "appendonly".into(), value: "no".into(), reason: "x".into() };
                    it.risks = vec![risk];
                },
                Level::Error,
                "appendonly",
            ),
        ];
        for (change, level, subject) in cases {
            let mut server = sound();
            change(&mut server);
            let found = bad(&server);
            assert!(found.contains(&(level, subject.to_owned())), "{subject}: {found:?}");
            let advised = diagnose(&[server]).into_iter().filter(|report| report.level > Level::Ok);
            assert!(advised.map(|report| report.advice).all(|advice| !advice.is_empty()), "{subject}");
        }
    }

    #[test]
    fn the_worst_comes_first() {
        let mut server = sound();
        (server.max_memory, server.disk_ok) = (Some(0), Some(false));
        assert!(diagnose(&[server]).is_sorted_by_key(|report| std::cmp::Reverse(report.level)));
    }

    #[test]
    fn each_report_names_the_server_that_it_is_about() {
        let mut servers = ["a:1", "b:2", "c:3"].map(|address| {
            let mut server = sound();
            server.address = Some(address.into());
            server
        });
        assert!(diagnose(&servers).iter().all(|report| report.level == Level::Ok));
        servers[1].max_memory = Some(0);
        servers[1].version = Some("7.0.14".into());
        servers[2] = Server::default();
        (servers[2].address, servers[2].away) = (Some("c:3".into()), Some("no answer".into()));
        let reports = diagnose(&servers);
        let bad: Vec<_> = reports.iter().filter(|report| report.level > Level::Ok).collect();
        let of: Vec<_> = bad.iter().map(|report| (&*report.subject, report.node.as_deref())).collect();
        assert_eq!(of, [("server", Some("c:3")), ("memory", Some("b:2")), ("versions", None)]);
        assert_eq!(
            bad[0].to_string().split(". ").next(),
            Some("error server: c:3: cannot be asked: no answer")
        );
        let about = |node: &str| reports.iter().filter(|report| report.node.as_deref() == Some(node)).count();
        assert!(about("a:1") > 1 && about("a:1") == about("b:2"), "{reports:?}");
        assert_eq!(about("c:3"), 1, "nothing else is known of it");
    }
}
