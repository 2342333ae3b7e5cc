//! Risks: reads the server's settings when connecting, and finds those with which messages can be lost.

use std::fmt;

use millstream_core::error::{Error, ErrorKind, Result};
use redis::Pipeline;

use crate::config::OnRisk;
use crate::conn::connection::Line;
use crate::conn::replies::reply;

/// A setting of the server with which messages can be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Risk {
    /// Name of the setting on the server.
    pub setting: &'static str,
    /// Value of the setting.
    pub value: String,
    /// Possible loss, and the recommended value.
    pub reason: &'static str,
}

impl fmt::Display for Risk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {:?}: {}", self.setting, self.value, self.reason)
    }
}

/// Settings of a server; `None` for one that could not be read.
#[derive(Clone, Debug, Default)]
struct Settings {
    appendonly: Option<bool>,
    /// When the append-only file is synced; unknown where only `INFO` is allowed.
    appendfsync: Option<String>,
    /// Snapshot rules; unknown where only `INFO` is allowed.
    save: Option<String>,
    maxmemory: Option<u64>,
    policy: Option<String>,
    min_replicas: Option<u64>,
    replicas: Option<u64>,
}

impl Settings {
    /// Collects the settings from pairs of `CONFIG GET` and the text of `INFO`. The former take precedence.
    fn new(config: &[(String, String)], info: &str) -> Self {
        let set = |name: &str| config.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let told = |name: &str| {
            let mut lines = info.lines().filter_map(|line| line.trim().split_once(':'));
            lines.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        let number = |text: Option<String>| text.and_then(|text| text.parse().ok());
        Self {
            appendonly: set("appendonly")
                .map(|it| it == "yes")
                .or_else(|| told("aof_enabled").map(|it| it == "1")),
            appendfsync: set("appendfsync"),
            save: set("save"),
            maxmemory: number(set("maxmemory").or_else(|| told("maxmemory"))),
            policy: set("maxmemory-policy").or_else(|| told("maxmemory_policy")),
            min_replicas: number(set("min-replicas-to-write")),
            replicas: number(told("connected_slaves")),
        }
    }

    fn is_known(&self) -> bool {
        self.appendonly.is_some() && self.policy.is_some()
    }

    fn risks(&self) -> Vec<Risk> {
        let mut risks = Vec::new();
        let mut add = |setting, value: &dyn fmt::Display, reason| {
            risks.push(Risk { setting, value: value.to_string(), reason });
        };
        if self.appendonly == Some(false) {
            let reason = match self.save.as_deref() {
                Some("") => "nothing is written to disk: a restart loses every message. Set `appendonly yes`",
                _ => {
                    "there are snapshots at most: a restart loses what came after the last one. Set `appendonly yes`"
                }
            };
            add("appendonly", &"no", reason);
        } else if self.appendfsync.as_deref() == Some("no") {
            let reason = "the system syncs the append-only file when it likes, after half a minute as a rule: a crash of the \
                          machine loses what came since. Set `everysec`";
            add("appendfsync", &"no", reason);
        }
        if let Some(policy) = self.policy.as_deref().filter(|policy| *policy != "noeviction")
            && self.maxmemory.is_none_or(|bytes| bytes > 0)
        {
            let reason = if policy.starts_with("volatile") {
                "leases can be evicted when memory is full, and partitions change hands. Set `noeviction`"
            } else {
                "messages are evicted when memory is full, without a word. Set `noeviction`"
            };
            add("maxmemory-policy", &policy, reason);
        }
        if self.min_replicas == Some(0) && self.replicas.is_some_and(|replicas| replicas > 0) {
            let reason = "a primary that is cut off from its replicas goes on accepting messages, which a fail-over \
                          loses. Set it to 1, and `min-replicas-max-lag` to 10 or less";
            add("min-replicas-to-write", &0, reason);
        }
        risks
    }
}

/// Reads the settings and applies `on_risk`: logs every risk, or fails.
pub(crate) async fn check(line: &dyn Line, on_risk: OnRisk) -> Result<()> {
    if on_risk == OnRisk::Ignore {
        return Ok(());
    }
    let settings = read(line).await?;
    let risks = settings.risks();
    match on_risk {
        OnRisk::Ignore => {}
        OnRisk::Warn => {
            for risk in &risks {
                tracing::warn!("messages can be lost: {risk}");
            }
            if !settings.is_known() {
                tracing::warn!("whether messages can be lost is not known: CONFIG and INFO are refused");
            }
        }
        OnRisk::Refuse if !settings.is_known() => {
            let why = "the server's settings cannot be read, so its durability is not known: allow CONFIG|GET or INFO";
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        OnRisk::Refuse => {
            let mut problems = millstream_core::error::Problems::new("the server's durability");
            for risk in &risks {
                problems.require(false, || risk.to_string());
            }
            problems.finish()?;
        }
    }
    Ok(())
}

/// Returns the risks of a server; empty if its settings, as far as they can be read, let it lose nothing.
pub(crate) async fn risks(line: &dyn Line) -> Result<Vec<Risk>> {
    Ok(read(line).await?.risks())
}

/// Reads the settings in one request. A setting that the user may not read stays unknown.
async fn read(line: &dyn Line) -> Result<Settings> {
    const NAMES: [&str; 6] =
        ["appendonly", "appendfsync", "save", "maxmemory", "maxmemory-policy", "min-replicas-to-write"];
    const SECTIONS: [&str; 3] = ["persistence", "memory", "replication"];
    let mut pipe = Pipeline::new();
    pipe.cmd("CONFIG").arg("GET").arg(&NAMES);
    for section in SECTIONS {
        pipe.cmd("INFO").arg(section);
    }
    let mut replies = line.send(&pipe).await?.into_iter();
    let texts = |value| {
        let pairs = reply::pairs(reply::ok(value)?)?;
        pairs.into_iter().map(|(name, value)| Ok((reply::text(name)?, reply::text(value)?))).collect()
    };
    let config: Vec<_> = match replies.next().map(texts) {
        Some(Ok(pairs)) => pairs,
        // An ACL or a hosted service refuses CONFIG GET; INFO has most of the settings.
        Some(Err::<_, Error>(error)) => {
            tracing::debug!("CONFIG GET is refused: {error}");
            Vec::new()
        }
        None => Vec::new(),
    };
    let mut info = String::new();
    for answer in replies {
        match reply::text(answer) {
            Ok(text) => info.push_str(&text),
            Err(error) => tracing::debug!("INFO is refused: {error}"),
        }
    }
    Ok(Settings::new(&config, &info))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(config: &[(&str, &str)], info: &str) -> Vec<&'static str> {
        let config: Vec<_> = config.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        Settings::new(&config, info).risks().iter().map(|risk| risk.setting).collect()
    }

    #[test]
    fn each_risk_is_named() {
        let safe = [("appendonly", "yes"), ("maxmemory", "0"), ("maxmemory-policy", "noeviction")];
        assert!(named(&safe, "connected_slaves:0\r\n").is_empty());
        assert_eq!(named(&[("appendonly", "no"), ("save", "")], ""), ["appendonly"]);
        assert_eq!(named(&[("appendonly", "no"), ("save", "3600 1")], ""), ["appendonly"]);
        assert_eq!(named(&[("appendonly", "yes"), ("appendfsync", "no")], ""), ["appendfsync"]);
        assert_eq!(
            named(&[("appendonly", "no"), ("appendfsync", "no")], ""),
            ["appendonly"],
            "there is no file"
        );
        for policy in ["always", "everysec"] {
            assert!(named(&[("appendonly", "yes"), ("appendfsync", policy)], "").is_empty());
        }
        let evicts = [("maxmemory", "100"), ("maxmemory-policy", "allkeys-lru")];
        assert_eq!(named(&evicts, ""), ["maxmemory-policy"]);
        let harmless = [("maxmemory", "0"), ("maxmemory-policy", "allkeys-lru")];
        assert!(named(&harmless, "").is_empty(), "without a limit nothing is evicted");
        assert_eq!(
            named(&[("min-replicas-to-write", "0")], "connected_slaves:2\r\n"),
            ["min-replicas-to-write"]
        );
        assert!(named(&[("min-replicas-to-write", "0")], "connected_slaves:0\r\n").is_empty());
    }

    #[test]
    fn info_tells_where_config_is_refused() {
        let info = "aof_enabled:0\r\nmaxmemory:5\r\nmaxmemory_policy:volatile-ttl\r\n";
        assert_eq!(named(&[], info), ["appendonly", "maxmemory-policy"]);
        assert!(!Settings::new(&[], "").is_known());
    }
}
