//! The conditions of a measurement: server, machine, date.

use std::fs;
use std::time::SystemTime;

use anyhow::Result;
use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;

use crate::args::General;
use crate::measure::Stage;

/// The conditions of a measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct About {
    /// The start time, in UTC.
    pub(crate) date: String,
    /// Name and version of the server.
    pub(crate) server: String,
    /// Whether the server was started for this measurement.
    pub(crate) private: bool,
    /// The URL of a server that was not, without its password.
    pub(crate) url: Option<String>,
    /// Whether Millstream connects over TLS, and without it for the baseline; unknown for a server that was not started
    /// here.
    pub(crate) tls: Option<bool>,
    /// The mode of its append-only file; unknown for a server that was not started here.
    pub(crate) aof: Option<&'static str>,
    pub(crate) millstream: &'static str,
    /// The number of CPUs that this process may use.
    pub(crate) cpus: usize,
    /// The model of the CPU, if it is known.
    pub(crate) cpu: Option<String>,
    /// The operating system, with its version if it is known.
    pub(crate) system: String,
    /// Whether this is a debug build, whose figures are meaningless.
    pub(crate) debug_build: bool,
    pub(crate) payload_bytes: u32,
    /// The seed of the payloads.
    pub(crate) seed: u64,
    pub(crate) runs: u32,
}

impl About {
    pub(crate) async fn new(stage: &Stage, general: &General, seed: u64, runs: u32) -> Result<Self> {
        Ok(Self {
            date: DateTime::<Utc>::from(SystemTime::now()).to_rfc3339_opts(SecondsFormat::Secs, true),
            server: stage.probe.version().await?,
            private: general.url.is_none(),
            url: general.url.as_deref().map(without_password),
            tls: general.url.is_none().then_some(general.tls),
            aof: general.url.is_none().then_some(general.aof.name()),
            millstream: env!("CARGO_PKG_VERSION"),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            cpu: fs::read_to_string("/proc/cpuinfo").ok().as_deref().and_then(model),
            system: system(),
            debug_build: cfg!(debug_assertions),
            payload_bytes: general.payload,
            seed,
            runs,
        })
    }

    /// Formats the conditions in one line, for people.
    pub(crate) fn line(&self) -> String {
        let aof = match self.aof {
            None => String::new(),
            Some("no") => " without persistence".to_owned(),
            Some(fsync) => format!(" with an append-only file ({fsync})"),
        };
        let cpu = self.cpu.as_ref().map(|cpu| format!(" ({cpu})")).unwrap_or_default();
        let day = self.date.split('T').next().unwrap_or_default();
        let place = self.url.as_ref().map(|url| format!(" at {url}")).unwrap_or_default();
        let tls = if self.tls == Some(true) { " over TLS" } else { "" };
        format!(
            "{day}, {}{place}{aof}{tls}, millstream {}, {} CPUs{cpu}, {}, payloads of {} bytes, medians of {} runs",
            self.server, self.millstream, self.cpus, self.system, self.payload_bytes, self.runs
        )
    }
}

/// Shortens `redis://user:password@host` to `redis://host`. The part after the host is removed, as it may contain a
/// password too.
fn without_password(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("redis", url));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}://{}", host.split('?').next().unwrap_or_default())
}

/// Returns the first model in the list of CPUs.
fn model(cpus: &str) -> Option<String> {
    let line = cpus.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn system() -> String {
    let name = std::env::consts::OS;
    match fs::read_to_string("/proc/sys/kernel/osrelease") {
        Ok(release) => format!("{name} {}", release.trim()),
        Err(_) => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_its_password() {
        for (url, shown) in [
            ("redis://h:1/2", "redis://h:1/2"),
            ("rediss://u:p@x@h:1", "rediss://h:1"),
            ("redis+unix:///s?pass=x", "redis+unix:///s"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }

    #[test]
    fn the_model_is_what_stands_behind_its_name() {
        assert_eq!(model("processor\t: 0\nmodel name\t: AMD EPYC\n").as_deref(), Some("AMD EPYC"));
        assert_eq!(model("processor\t: 0\n"), None);
    }
}
