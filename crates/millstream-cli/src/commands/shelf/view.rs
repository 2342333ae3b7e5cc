//! What failed, as commands show it.

use anyhow::Result;
use millstream::admin::{Facts, Failed, Retry};
use millstream::delay::DeadTask;
use millstream::{DeadLetter, Timestamp};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use crate::commands::message::{Body, json, sanitize};
use crate::commands::shared::view::FailedAttempt;
use crate::{human, output};

/// A dead letter, for programs.
#[derive(Serialize, JsonSchema)]
pub(in crate::commands) struct LetterView<'a> {
    id: String,
    topic: &'a str,
    partition: u32,
    group: &'a str,
    died_ms: u64,
    reason: &'a str,
    attempts: u32,
    /// The error of the last attempt.
    error: &'a str,
    /// The id of the message in the log.
    origin: String,
    /// The failed attempts, as far as they are known.
    history: Vec<FailedAttempt>,
    #[serde(flatten)]
    body: Body,
}

impl<'a> LetterView<'a> {
    pub(in crate::commands) fn of(it: &'a DeadLetter) -> Self {
        Self {
            id: it.id.to_string(),
            topic: it.topic_partition.topic.as_str(),
            partition: it.topic_partition.partition.0,
            group: it.group.as_str(),
            died_ms: it.id.ms,
            reason: it.reason.as_str(),
            attempts: it.attempts,
            error: &it.error,
            origin: it.origin.to_string(),
            history: FailedAttempt::all(&it.history),
            body: Body::of(&it.body),
        }
    }
}

/// A dead task, for programs.
#[derive(Serialize, JsonSchema)]
pub(in crate::commands) struct TaskView<'a> {
    task: &'a str,
    /// The id of the record of its death.
    id: String,
    shard: u32,
    died_ms: u64,
    reason: &'a str,
    attempts: u32,
    /// The error of the last attempt.
    error: &'a str,
    /// The failed attempts, as far as they are known.
    history: Vec<FailedAttempt>,
    #[serde(flatten)]
    body: Body,
}

impl<'a> TaskView<'a> {
    pub(in crate::commands) fn of(it: &'a DeadTask) -> Self {
        Self {
            task: it.task.as_str(),
            id: it.id.to_string(),
            shard: it.shard.shard,
            died_ms: it.id.ms,
            reason: it.reason.as_str(),
            attempts: it.attempts,
            error: &it.error,
            history: FailedAttempt::all(&it.history),
            body: Body::of(&it.body),
        }
    }
}

/// A waiting message, for programs.
#[derive(Serialize, JsonSchema)]
pub(in crate::commands) struct RetryView<'a> {
    id: String,
    partition: u32,
    /// The number of the next attempt, if it is known.
    attempt: Option<u32>,
    /// `parked`, or `ready` if it is due and in the retry log.
    #[schemars(extend("enum" = ["parked", "ready"]))]
    state: &'static str,
    #[schemars(with = "u64")]
    due_ms: Timestamp,
    /// The error of the last attempt.
    error: &'a str,
    #[serde(flatten)]
    body: Body,
}

impl<'a> RetryView<'a> {
    pub(in crate::commands) fn of(retry: &'a Retry, ready: bool) -> Self {
        Self {
            id: retry.parked.origin.to_string(),
            partition: retry.topic_partition.partition.0,
            attempt: Some(retry.parked.attempt).filter(|attempt| *attempt > 0),
            state: if ready { "ready" } else { "parked" },
            due_ms: retry.parked.due,
            error: &retry.parked.error,
            body: Body::of(&retry.parked.body),
        }
    }

    fn row(&self, now: Timestamp) -> [String; 7] {
        let due = match self.state {
            "parked" if self.due_ms >= now => human::duration(self.due_ms.saturating_duration_since(now)),
            _ => "due".to_owned(),
        };
        let key = match &self.body {
            Body::Message(it) => human::or_none(it.key.as_ref(), |key| sanitize::line(key)),
            Body::Malformed(..) => "-".to_owned(),
        };
        [
            self.id.clone(),
            self.partition.to_string(),
            human::or_none(self.attempt, |attempt| attempt.to_string()),
            human::time(self.due_ms),
            due,
            key,
            sanitize::short(self.error.as_bytes()),
        ]
    }

    /// Formats a table of waiting messages.
    pub(in crate::commands) fn table(retries: &[Self], now: Timestamp) -> String {
        let titles = ["id", ">partition", ">attempt", "due", ">in", "key", "error"];
        output::table(&titles, retries.iter().map(|it| it.row(now)))
    }
}

/// What failed, of any kind, for programs.
pub(in crate::commands) struct Shown<'a>(pub(in crate::commands) &'a Failed);

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Failed::Letter(it) => LetterView::of(it).serialize(serializer),
            Failed::Retry(it) => RetryView::of(it, false).serialize(serializer),
            Failed::Task(it) => TaskView::of(it).serialize(serializer),
            _ => serializer.serialize_none(),
        }
    }
}

/// Formats a table, of retries with their due times from `now` on.
pub(in crate::commands) fn table(items: &[Failed], now: Timestamp) -> String {
    if let Some(Failed::Retry(_)) = items.first() {
        let retries = items.iter().filter_map(|it| match it {
            Failed::Retry(it) => Some(RetryView::of(it, false)),
            _ => None,
        });
        return RetryView::table(&retries.collect::<Vec<_>>(), now);
    }
    let row = |it: &Failed| {
        let it = it.facts();
        let (key, payload) = match Body::of(it.body) {
            Body::Message(it) => (it.key, sanitize::short(&it.payload)),
            Body::Malformed(why, _) => (None, why),
        };
        [
            sanitize::line(it.name().as_bytes()),
            it.partition.to_string(),
            human::time(it.at),
            it.reason.map_or_else(String::new, |reason| sanitize::line(reason.as_str().as_bytes())),
            it.attempts.to_string(),
            sanitize::cut(&sanitize::line(it.error.as_bytes())),
            human::or_none(key, |key| sanitize::cut(&sanitize::line(&key))),
            payload,
        ]
    };
    let is_task = matches!(items.first(), Some(Failed::Task(_)));
    let (name, partition) = if is_task { ("task", ">shard") } else { ("id", ">partition") };
    let titles = [name, partition, "died", "reason", ">attempts", "error", "key", "payload"];
    output::table(&titles, items.iter().map(row))
}

/// Formats all known values of a dead letter or a dead task, for people. `place` says whose it is.
pub(in crate::commands) fn story(it: &Facts<'_>, place: Vec<(&'static str, String)>) -> String {
    let line = |text: &str| sanitize::line(text.as_bytes());
    let mut pairs = place;
    pairs.push(("died", human::time(it.at)));
    pairs.extend(it.reason.map(|reason| ("reason", line(reason.as_str()))));
    pairs.push(("attempts", it.attempts.to_string()));
    pairs.push(("error", line(it.error)));
    if it.task.is_none() {
        pairs.push(("origin", format!("{}, sent {}", it.origin, human::time(it.origin.timestamp()))));
    }
    for failed in it.history.failures() {
        let (at, attempt, error) = (human::time(failed.at), failed.attempt, line(&failed.error));
        pairs.push(("failed", format!("{at} attempt {attempt}: {error}")));
    }
    content(pairs, &Body::of(it.body))
}

/// Formats all known values of a dead letter, for people.
pub(in crate::commands) fn letter_story(letter: &DeadLetter) -> String {
    let place = vec![
        ("letter", letter.id.to_string()),
        ("topic", letter.topic_partition.topic.to_string()),
        ("partition", letter.topic_partition.partition.to_string()),
        ("group", letter.group.to_string()),
    ];
    story(&Failed::Letter(letter.clone()).facts(), place)
}

/// Formats pairs, and beneath them the key, headers and payload of a message.
pub(in crate::commands) fn content(mut pairs: Vec<(&'static str, String)>, body: &Body) -> String {
    match body {
        Body::Message(envelope) => {
            pairs.push(("key", human::or_none(envelope.key.as_ref(), |key| sanitize::line(key))));
            for (name, value) in envelope.headers.iter() {
                let (name, value) = (sanitize::line(name.as_bytes()), sanitize::line(value));
                pairs.push(("header", format!("{name}={value}")));
            }
            format!("{}\n{}", output::list(pairs), sanitize::text(&envelope.payload))
        }
        Body::Malformed(why, fields) => {
            pairs.push(("malformed", why.clone()));
            format!("{}\n{}", output::list(pairs), json::fields(fields))
        }
    }
}
