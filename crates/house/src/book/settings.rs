//! The reference of the settings is made from the comments of the code.

use std::fmt::Write as _;

use crate::tree::read;

const HEAD: &str = "# Settings

All settings of the library, with what they mean, their units and their defaults. Made from the comments of the code. The settings of the
command are in [its reference](reference.md#cli). How to choose them: [tuning](guides/tune.md).
";

/// What has settings: the heading, how it is reached, the file, the type, and whether its fields or its methods are shown.
const TYPES: [(&str, &str, &str, &str, Shown); 19] = [
    ("Connection", "`Millstream::at(url)`", "crates/millstream/src/millstream.rs", "Builder", Shown::Methods),
    (
        "Redis",
        "`RedisConfig::new(url)`, for `RedisBackend::connect`",
        "crates/millstream-redis/src/config.rs",
        "RedisConfig",
        Shown::Fields,
    ),
    ("TLS", "`TlsConfig::new()`", "crates/millstream-redis/src/config.rs", "TlsConfig", Shown::Fields),
    ("Topic", "`Topic::new(name)`", "crates/millstream-core/src/topic.rs", "Topic", Shown::Methods),
    (
        "Producer",
        "`mq.producer(topic)`, whose methods have {names}",
        "crates/millstream-runtime/src/producer/config.rs",
        "ProducerConfig",
        Shown::Fields,
    ),
    (
        "Consumer",
        "`mq.consumer(topic, group)`, whose methods have {names}",
        "crates/millstream-runtime/src/consumer/config.rs",
        "ConsumerConfig",
        Shown::Fields,
    ),
    (
        "Consumer of batches",
        "`BatchConfig::new(size)`, for `start_batch`",
        "crates/millstream-engine/src/handler/batch.rs",
        "BatchConfig",
        Shown::Fields,
    ),
    (
        "Consumer of dead letters",
        "`mq.dead_letter_consumer(topic, group)`",
        "crates/millstream-runtime/src/dead_letters.rs",
        "DeadLetterConfig",
        Shown::Fields,
    ),
    (
        "Delay queue",
        "`mq.delay_queue(name)`",
        "crates/millstream-delay/src/queue.rs",
        "DelayQueueBuilder",
        Shown::Methods,
    ),
    (
        "Worker of a delay queue",
        "`queue.worker()`",
        "crates/millstream-delay/src/worker/config.rs",
        "WorkerConfig",
        Shown::Fields,
    ),
    (
        "Promoter",
        "`PromoterConfig::default()`",
        "crates/millstream-delay/src/promoter.rs",
        "PromoterConfig",
        Shown::Fields,
    ),
    ("Lock", "`mq.lock(name)`", "crates/millstream-lock/src/builder.rs", "LockBuilder", Shown::Methods),
    (
        "Leader election",
        "`mq.leader(name)`",
        "crates/millstream-lock/src/leader.rs",
        "LeaderBuilder",
        Shown::Methods,
    ),
    (
        "Inbox",
        "`Inbox::builder(&database)`",
        "crates/millstream-sql/src/inbox/builder.rs",
        "InboxBuilder",
        Shown::Methods,
    ),
    (
        "Relay of the outbox",
        "`mq.outbox(&database)`",
        "crates/millstream-sql/src/outbox/relay/config.rs",
        "OutboxRelayConfig",
        Shown::Fields,
    ),
    (
        "Metrics",
        "`MetricsConfig::default()`",
        "crates/millstream-metrics/src/registry.rs",
        "MetricsConfig",
        Shown::Fields,
    ),
    (
        "Sampler",
        "`SamplerConfig::default()`",
        "crates/millstream-metrics/src/sampler.rs",
        "SamplerConfig",
        Shown::Fields,
    ),
    (
        "Metrics over HTTP",
        "`ServerConfig::default()`",
        "crates/millstream-metrics/src/http.rs",
        "ServerConfig",
        Shown::Fields,
    ),
    (
        "Tracing",
        "`OpenTelemetry::global()`",
        "crates/millstream-metrics/src/otel/tracer.rs",
        "OpenTelemetry",
        Shown::Methods,
    ),
];

/// Builders with methods for the fields of a type: the type, and the file with the methods.
const BUILDERS: [(&str, &str); 2] = [
    ("ProducerConfig", "crates/millstream-runtime/src/producer/mod.rs"),
    ("ConsumerConfig", "crates/millstream-runtime/src/consumer/builder.rs"),
];

/// Methods that have another name than the field that they set.
const OTHER_NAMES: [(&str, &str); 2] = [("start", "start_from"), ("pinned", "pin")];

/// Says which fields of a type have no method of the same name.
fn names(config: &str, settings: &[Setting]) -> String {
    let file = BUILDERS.iter().find(|(name, _)| *name == config).map(|(_, file)| *file);
    let Some(source) = file.map(|file| read(file).unwrap_or_else(|| panic!("no file {file}"))) else {
        return String::new();
    };
    let has = |method: &str| ["(", "<"].iter().any(|end| source.contains(&format!("pub fn {method}{end}")));
    let others: Vec<_> = settings.iter().map(|it| it.name.as_str()).filter(|name| !has(name)).collect();
    let others = others.iter().map(|name| match OTHER_NAMES.iter().find(|(field, _)| field == name) {
        Some((_, method)) => {
            assert!(has(method), "there is no method {method}");
            format!("`{name}` (`{method}`)")
        }
        None => format!("`{name}` (by `config` alone)"),
    });
    let others = others.collect::<Vec<_>>().join(", ");
    if others.is_empty() { "the same names".into() } else { format!("the same names, but for {others}") }
}

#[derive(Clone, Copy)]
enum Shown {
    Fields,
    Methods,
}

/// A setting: its name, its type, and its comment in one line.
struct Setting {
    name: String,
    takes: String,
    comment: String,
}

/// Reads the settings of a type. Hidden items have none.
fn settings(source: &str, name: &str, shown: Shown) -> Vec<Setting> {
    let begins = |line: &str, word: &str| {
        line.strip_prefix(word).is_some_and(|rest| {
            rest.strip_prefix(name).is_some_and(|rest| !rest.starts_with(|it: char| it.is_alphanumeric()))
        })
    };
    let (mut found, mut comment, mut hidden, mut inside) = (Vec::new(), Vec::new(), false, false);
    for line in source.lines() {
        if line.starts_with('}') {
            inside = false;
        } else if !line.starts_with(' ') && line.ends_with('{') {
            let plain = line.split_once("> ").filter(|_| line.starts_with("impl<"));
            let plain = plain.map_or_else(|| line.to_owned(), |(_, rest)| format!("impl {rest}"));
            inside = match shown {
                Shown::Fields => begins(line, "pub struct "),
                Shown::Methods => begins(&plain, "impl "),
            };
        }
        let Some(item) = line.strip_prefix("    ").filter(|item| inside && !item.starts_with(' ')) else {
            continue;
        };
        if let Some(text) = item.strip_prefix("///") {
            comment.push(text.trim().to_owned());
        } else if item.starts_with("#[") {
            hidden |= item.starts_with("#[doc(hidden)]");
        } else {
            let setting = match shown {
                Shown::Fields => item.strip_prefix("pub ").and_then(|item| item.split_once(": ")),
                Shown::Methods => method(item),
            };
            let comment = one_line(&std::mem::take(&mut comment));
            if let Some((name, takes)) = setting.filter(|_| !std::mem::take(&mut hidden)) {
                let takes = takes.trim_end_matches(',').to_owned();
                found.push(Setting { name: name.to_owned(), takes, comment });
            }
            hidden = false;
        }
    }
    found
}

/// Returns name and argument of a method that returns the changed settings.
fn method(item: &str) -> Option<(&str, &str)> {
    let item = item.strip_prefix("pub fn ").or_else(|| item.strip_prefix("pub const fn "))?;
    let (head, returns) = item.split_once(") -> ").unwrap_or((item, "Self"));
    let (name, args) = head.split_once('(')?;
    let args = args.strip_prefix("mut self").or_else(|| args.strip_prefix("self"))?;
    let name = name.split('<').next()?;
    let takes = args.trim_start_matches(", ").split_once(": ").map_or("", |(_, takes)| takes);
    returns.starts_with("Self").then_some((name, takes))
}

/// Joins the lines of a comment up to its first list or example, with the text of its links alone.
fn one_line(comment: &[String]) -> String {
    let lines = comment.iter().take_while(|line| !line.starts_with("```") && !line.starts_with("- "));
    let mut rest = lines.map(String::as_str).collect::<Vec<_>>().join(" ");
    let mut text = String::new();
    while let Some((before, link)) = rest.split_once('[') {
        text += before;
        let Some((name, after)) = link.split_once(']') else {
            text.push('[');
            rest = link.to_owned();
            continue;
        };
        text += name;
        let target = after.strip_prefix('(').and_then(|after| after.split_once(')'));
        rest = target.map_or(after, |(_, after)| after).to_owned();
    }
    text += &rest;
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

pub(super) fn page() -> String {
    let mut page = HEAD.to_owned();
    for (title, reached, file, name, shown) in TYPES {
        let source = read(file).unwrap_or_else(|| panic!("no file {file}"));
        let settings = settings(&source, name, shown);
        assert!(!settings.is_empty(), "{file} has no settings of {name}");
        let reached = reached.replace("{names}", &names(name, &settings));
        let what = match shown {
            Shown::Fields => "the fields of",
            Shown::Methods => "the methods of",
        };
        let _ = write!(
            page,
            "\n## {title}\n\n{reached}; {what} `{name}`.\n\n| setting | type | meaning |\n|---|---|---|\n"
        );
        for Setting { name, takes, comment } in settings {
            let takes = if takes.is_empty() { "–".to_owned() } else { format!("`{takes}`") };
            let _ = writeln!(page, "| `{name}` | {takes} | {comment} |");
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::{Shown, settings};

    #[test]
    fn settings_are_read_from_fields_and_methods() {
        let source = "pub struct Config {\n    /// A limit, see [`Other`](crate::Other). Default: 3.\n    ///\n    /// Second.\n    \
                      pub limit: usize,\n    /// For tests.\n    #[doc(hidden)]\n    pub secret: bool,\n}\n\
                      impl<T: Send + 'static> Config {\n    /// Sets a time.\n    pub fn time(mut self, time: Duration) -> Self {\n\
                      \x20       self\n    }\n    /// Ends.\n    pub fn build(self) -> Result<T> {\n    }\n}\n\
                      impl ConfigOf {\n    /// Not this.\n    pub fn other(self) -> Self {\n    }\n}\n";
        let of = |shown| {
            let all = settings(source, "Config", shown);
            all.into_iter().map(|it| (it.name, it.takes, it.comment)).collect::<Vec<_>>()
        };
        let row =
            |name: &str, takes: &str, comment: &str| (name.to_owned(), takes.to_owned(), comment.to_owned());
        assert_eq!(of(Shown::Fields), [row("limit", "usize", "A limit, see `Other`. Default: 3. Second.")]);
        assert_eq!(of(Shown::Methods), [row("time", "Duration", "Sets a time.")]);
    }
}
