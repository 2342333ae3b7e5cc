//! What has to be known beside the figures: server, machine, date.

use std::fs;
use std::time::SystemTime;

use anyhow::Result;
use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;

use super::args::General;
use super::measure::Stage;

/// What has to be known beside the figures.
#[derive(Clone, Debug, Serialize)]
pub(super) struct About {
    /// When it began, in UTC.
    pub(super) date: String,
    /// Name and version of the server.
    pub(super) server: String,
    /// Whether it was started for this.
    pub(super) private: bool,
    /// Where it is, if it was not: without a password.
    pub(super) url: Option<String>,
    /// How it writes its append-only file; not known of a server of others.
    pub(super) aof: Option<&'static str>,
    pub(super) millstream: &'static str,
    /// How many CPUs this machine lets us use.
    pub(super) cpus: usize,
    /// What the CPU calls itself, where that can be told.
    pub(super) cpu: Option<String>,
    /// The operating system, with its version where that can be told.
    pub(super) system: String,
    /// Built without optimisation, and so worth nothing.
    pub(super) debug_build: bool,
    pub(super) payload_bytes: u32,
    /// Of the payloads.
    pub(super) seed: u64,
    pub(super) runs: u32,
}

impl About {
    pub(super) async fn new(stage: &Stage, general: &General, seed: u64, runs: u32) -> Result<Self> {
        Ok(Self {
            date: DateTime::<Utc>::from(SystemTime::now()).to_rfc3339_opts(SecondsFormat::Secs, true),
            server: stage.probe.version().await?,
            private: general.url.is_none(),
            url: general.url.as_deref().map(without_password),
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

    /// In one line, for people.
    pub(super) fn line(&self) -> String {
        let aof = match self.aof {
            None => String::new(),
            Some("no") => " without persistence".to_owned(),
            Some(fsync) => format!(" with an append-only file ({fsync})"),
        };
        let cpu = self.cpu.as_ref().map(|cpu| format!(" ({cpu})")).unwrap_or_default();
        let day = self.date.split('T').next().unwrap_or_default();
        let place = self.url.as_ref().map(|url| format!(" at {url}")).unwrap_or_default();
        format!(
            "{day}, {}{place}{aof}, millstream {}, {} CPUs{cpu}, {}, payloads of {} bytes, medians of {} runs",
            self.server, self.millstream, self.cpus, self.system, self.payload_bytes, self.runs
        )
    }
}

/// `redis://user:password@host` as `redis://host`. What is behind the host may have a password as well.
fn without_password(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("redis", url));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}://{}", host.split('?').next().unwrap_or_default())
}

/// The first model that the list of CPUs names.
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
    fn a_place_is_told_without_what_is_secret() {
        for (url, told) in [
            ("redis://h:1/2", "redis://h:1/2"),
            ("rediss://u:p@x@h:1", "rediss://h:1"),
            ("redis+unix:///s?pass=x", "redis+unix:///s"),
        ] {
            assert_eq!(without_password(url), told);
        }
    }

    #[test]
    fn the_model_is_what_stands_behind_its_name() {
        assert_eq!(model("processor\t: 0\nmodel name\t: AMD EPYC\n").as_deref(), Some("AMD EPYC"));
        assert_eq!(model("processor\t: 0\n"), None);
    }
}
