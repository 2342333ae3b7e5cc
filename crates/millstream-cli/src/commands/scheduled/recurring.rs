//! The place of recurring messages: an existing topic or delay queue.

use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use chrono_tz::Tz;
use millstream::crates::core::{Place, QueueName};
use millstream::delay::{DelayQueue, Recur, RecurringEntry, RecurringMessages};
use millstream::{ErrorKind, Limits, Timestamp, Topic, TopicName};

use crate::commands::message::sanitize;
use crate::commands::shared::failures::Failed;
use crate::context::Context;
use crate::exit::not_found;
use crate::human;

/// A topic or a delay queue.
#[derive(Debug)]
pub(in crate::commands) enum Home {
    Topic(Box<RecurringMessages<Bytes>>),
    Queue(DelayQueue<Bytes>),
}

impl Home {
    /// Opens an existing place. The library would create a missing one.
    ///
    /// # Errors
    /// If it does not exist.
    pub(in crate::commands) async fn open(cx: &Context, name: &str, is_queue: bool) -> Result<Self> {
        if is_queue {
            return Ok(Self::Queue(queue(cx, &name.parse()?).await?));
        }
        let name: TopicName = name.parse()?;
        let spec = match cx.admin().topic(&name).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let why = format!("topic {name} does not exist; for a delay queue say --queue");
                return Err(not_found(why));
            }
            other => other?,
        };
        let topic = Topic::raw("");
        let messages = RecurringMessages::new(cx.mq.backend().clone(), spec, topic.codec());
        // The content is checked where it is read.
        let messages = messages.limits(Limits::NONE);
        Ok(Self::Topic(Box::new(messages)))
    }

    pub(in crate::commands) fn recur(&self, id: &str) -> Recur<'_, Bytes> {
        match self {
            Self::Topic(messages) => messages.id(id),
            Self::Queue(queue) => queue.recurring(id),
        }
    }

    /// Lists the recurring messages, and what could not be read.
    pub(in crate::commands) async fn list(&self) -> Result<(Vec<RecurringEntry>, Vec<Failed>)> {
        let lists = match self {
            Self::Topic(messages) => messages.list_by_place().await?,
            Self::Queue(queue) => queue.recurring_by_place().await?,
        };
        let (mut all, mut failed) = (Vec::new(), Vec::new());
        for (place, list) in lists {
            match (list, place) {
                (Ok(list), _) => all.extend(list),
                (Err(error), _) if error.is_transient() => return Err(error.into()),
                (Err(error), Place::Partition(tp)) => failed.push(Failed::topic(&tp.topic, &error)),
                (Err(error), Place::Shard(shard)) => failed.push(Failed::queue(&shard.queue, &error)),
            }
        }
        Ok((all, failed))
    }
}

/// Opens an existing delay queue.
///
/// # Errors
/// If it does not exist.
pub(in crate::commands) async fn queue(cx: &Context, name: &QueueName) -> Result<DelayQueue<Bytes>> {
    let backend = cx.mq.backend();
    let spec = match backend.tasks()?.queue(name).await {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(not_found(format!(
                "delay queue {name} does not exist; `millstream queue create` creates it"
            )));
        }
        other => other?,
    };
    // What is too large is decided by the programs that use the queue.
    Ok(DelayQueue::raw(name.as_str()).shards(spec.shards).limits(Limits::NONE).open(backend).await?)
}

/// A rule in readable form, and the time zone of its times.
#[derive(Debug)]
pub(in crate::commands) struct RecurringShown {
    pub(in crate::commands) text: String,
    pub(in crate::commands) zone: Tz,
}

impl RecurringShown {
    /// Converts a stored rule to the words of the command line: `every 2000 anchor 1700000000000 once` to `every 2s`, and
    /// `cron Europe/Zurich once 0 9 * * *` to `cron 0 9 * * * in Europe/Zurich`. An unknown rule is shown unchanged.
    pub(in crate::commands) fn of(rule: &str) -> Self {
        let words: Vec<&str> = rule.split_whitespace().collect();
        let known = match words.as_slice() {
            ["every", period, "anchor", _, policy @ ..] => period
                .parse()
                .ok()
                .map(|ms| (format!("every {}", human::exact(Duration::from_millis(ms))), policy, Tz::UTC)),
            ["cron", zone, rest @ ..] => zone.parse().ok().map(|zone: Tz| {
                let (policy, pattern) = rest.split_at(rest.iter().take_while(|it| is_policy(it)).count());
                (format!("cron {} in {zone}", pattern.join(" ")), policy, zone)
            }),
            _ => None,
        };
        let Some((mut text, policy, zone)) = known else {
            return Self { text: sanitize::line(rule.as_bytes()), zone: Tz::UTC };
        };
        for word in policy {
            match word.strip_prefix("grace:").map(|ms| (ms, ms.parse())) {
                Some((_, Ok(ms))) => text += &format!(", grace {}", human::exact(Duration::from_millis(ms))),
                Some((ms, Err(_))) => text += &format!(", grace {ms} ms"),
                // Missed occurrences are made up for once, which is not shown.
                None if *word == "once" => {}
                None => text += &format!(", missed {word}"),
            }
        }
        Self { text: sanitize::line(text.as_bytes()), zone }
    }

    /// Formats a time in its zone: `2026-01-31T09:00:00+01:00`.
    pub(in crate::commands) fn time(&self, time: Timestamp) -> String {
        let ms = time.as_millis();
        let precision = if ms.is_multiple_of(1_000) { SecondsFormat::Secs } else { SecondsFormat::Millis };
        let date = i64::try_from(ms).ok().and_then(DateTime::<Utc>::from_timestamp_millis);
        date.map_or_else(
            || human::time(time),
            |date| date.with_timezone(&self.zone).to_rfc3339_opts(precision, true),
        )
    }
}

fn is_policy(word: &str) -> bool {
    matches!(word, "skip" | "once") || word.starts_with("all:") || word.starts_with("grace:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_read_by_people() {
        for (stored, text) in [
            ("every 2000 anchor 1795320915609 all:3", "every 2s, missed all:3"),
            ("every 1500 anchor 0 once", "every 1500ms"),
            ("every 3600000 anchor 7 skip grace:300000", "every 1h, missed skip, grace 5m"),
            ("cron Europe/Zurich once 0 9 * * *", "cron 0 9 * * * in Europe/Zurich"),
            ("cron UTC skip grace:1 0 9 * * 1-5", "cron 0 9 * * 1-5 in UTC, missed skip, grace 1ms"),
            ("moon full once", "moon full once"),
        ] {
            assert_eq!(RecurringShown::of(stored).text, text);
            assert!(
                stored.starts_with("moon") || stored.parse::<millstream::delay::Rule>().is_ok(),
                "{stored}"
            );
        }
    }

    #[test]
    fn a_time_is_that_of_the_zone() {
        let zurich = RecurringShown::of("cron Europe/Zurich once 0 9 * * *");
        assert_eq!(zurich.time(Timestamp::from_millis(1_700_000_000_000)), "2023-11-14T23:13:20+01:00");
        assert_eq!(
            RecurringShown::of("every 2000 anchor 0 once").time(Timestamp::from_millis(1_700_000_000_123)),
            "2023-11-14T22:13:20.123Z"
        );
    }
}
