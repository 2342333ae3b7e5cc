//! `retries list` and `errors`.

use anyhow::Result;
use clap::Args;
use millstream::admin::{PartError, Retry, WaitingRetry};
use millstream::crates::core::error_groups::MAX_GROUPS;
use millstream::crates::core::inspect::Parked;
use millstream::{Partition, Timestamp};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::{RetriesWanted, open};
use crate::commands::group::GroupOf;
use crate::commands::message::{Body, sanitize};
use crate::commands::schemas::schema_as;
use crate::commands::shared::count_progress::CountProgress;
use crate::commands::shared::errors::ErrorsView;
use crate::commands::shared::failures::Failed;
use crate::commands::shared::watch::WatchArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::{human, output};

/// Lists waiting messages in the order of their due times
///
/// Shows the number of the next attempt and the error of the last one. Consumers of the group move due messages to
/// its retry log and read them from there; until then they are shown as `due`, if there is no filter. In JSON `state` is
/// `parked`, or `ready` in the retry log.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream retries list orders billing
  millstream retries list orders billing --error 'connection refused' --limit 20
  millstream retries list orders billing --json | jq -r '.data.retries[].id'")]
pub(super) struct List {
    #[command(flatten)]
    of: GroupOf,
    #[command(flatten)]
    wanted: RetriesWanted,
    /// Maximum number of messages
    #[arg(long, default_value_t = 100, value_name = "N")]
    limit: usize,
    #[command(flatten)]
    watch: WatchArgs,
}

/// Groups waiting messages by the errors of their last attempts, the most frequent first
///
/// Errors that differ only in numbers, ids, quoted strings, paths, addresses or times are one group, with one fingerprint:
/// `list`, `now` and `kill` select its messages with --fingerprint. `first` and `last` are due times. All retries are read.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream retries errors orders billing
  millstream retries now orders billing --fingerprint 8f3c0a51d27be694")]
pub(super) struct RetriesErrors {
    #[command(flatten)]
    of: GroupOf,
    #[command(flatten)]
    wanted: RetriesWanted,
    /// Maximum number of groups to show
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RetriesView {
    topic: String,
    group: String,
    /// The number of waiting messages, including those that are due and not delivered yet, whatever the filter; `null` if it
    /// is unknown.
    total: Option<u64>,
    retries: Vec<RetryEntry>,
    /// The parts that could not be read.
    errors: Vec<Failed>,
}

/// A waiting message.
#[derive(Debug)]
pub(super) struct RetryEntry {
    partition: Partition,
    parked: Parked,
    /// Whether it is due and in the retry log.
    ready: bool,
    body: Body,
}

impl From<Retry> for RetryEntry {
    fn from(Retry { topic_partition, parked, .. }: Retry) -> Self {
        Self { partition: topic_partition.partition, body: Body::of(&parked.body), parked, ready: false }
    }
}

impl From<WaitingRetry> for RetryEntry {
    fn from(WaitingRetry { partition, parked, ready, .. }: WaitingRetry) -> Self {
        Self { partition, body: Body::of(&parked.body), parked, ready }
    }
}

/// A waiting message, for programs.
#[derive(Serialize, JsonSchema)]
struct RetryLine<'a> {
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
    body: &'a Body,
}

impl Serialize for RetryEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let line = RetryLine {
            id: self.parked.origin.to_string(),
            partition: self.partition.0,
            attempt: self.attempt(),
            state: if self.ready { "ready" } else { "parked" },
            due_ms: self.parked.due,
            error: &self.parked.error,
            body: &self.body,
        };
        line.serialize(serializer)
    }
}

schema_as!(RetryEntry, RetryLine<'_>);

impl RetryEntry {
    /// Returns the number of the next attempt, if there is one.
    fn attempt(&self) -> Option<u32> {
        Some(self.parked.attempt).filter(|attempt| *attempt > 0)
    }

    fn row(&self, now: Timestamp) -> [String; 7] {
        let due = if self.ready || self.parked.due < now {
            "due".to_owned()
        } else {
            human::duration(self.parked.due.saturating_duration_since(now))
        };
        let key = match &self.body {
            Body::Message(it) => human::or_none(it.key.as_ref(), |key| sanitize::line(key)),
            Body::Malformed(..) => "-".to_owned(),
        };
        [
            self.parked.origin.to_string(),
            self.partition.to_string(),
            human::or_none(self.attempt(), |attempt| attempt.to_string()),
            human::time(self.parked.due),
            due,
            key,
            sanitize::short(self.parked.error.as_bytes()),
        ]
    }

    /// Formats a table of waiting messages.
    pub(super) fn table(retries: &[Self], now: Timestamp) -> String {
        let titles = ["id", ">partition", ">attempt", "due", ">in", "key", "error"];
        output::table(&titles, retries.iter().map(|it| it.row(now)))
    }
}

impl List {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        self.watch.run(cx, || Box::pin(self.show(cx))).await
    }

    async fn show(&self, cx: &Context) -> Result<Exit> {
        let Self { of, wanted, limit, .. } = self;
        let limit = *limit;
        let filter = wanted.filter(cx, &[]).await?;
        let queue = open(cx, of, &filter).await?;
        let (topic, group) = (of.topic.to_string(), of.group.to_string());
        let found = cx
            .admin()
            .waiting_retries(&of.topic, &of.group, if filter.is_empty() { limit } else { 0 })
            .await?;
        let failed = |error: &PartError| Failed {
            topic: Some(topic.clone()),
            group: Some(group.clone()),
            error: error.error.to_string(),
        };
        let errors: Vec<_> = found.errors.iter().map(failed).collect();
        let retries: Vec<RetryEntry> = if filter.is_empty() {
            found.retries.into_iter().map(RetryEntry::from).collect()
        } else {
            queue.list(&filter, limit).await?.into_iter().map(RetryEntry::from).collect()
        };
        let view = RetriesView { topic, group, total: found.total, retries, errors };
        let now = cx.now().await?;
        cx.output.show(&view, |view| RetryEntry::table(&view.retries, now))?;
        let shown = view.retries.len() as u64;
        if !filter.is_empty() {
            if shown == limit as u64 {
                cx.output.note(&format!("the first {}; --limit shows more", human::count(shown)));
            }
        } else if let Some(total) = view.total.filter(|total| shown < *total) {
            let (shown, total) = (human::count(shown), human::count(total));
            cx.output.note(&format!("{shown} of {total}; --limit shows more"));
        }
        Failed::end(cx, &view.errors)
    }
}

/// The message with an error that is due last.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RetriesExample {
    partition: u32,
    id: String,
}

impl RetriesErrors {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let filter = self.wanted.filter(cx, &[]).await?;
        let queue = open(cx, &self.of, &filter).await?;
        let mut progress = CountProgress::new();
        let groups = queue.errors(&filter, MAX_GROUPS, |read| progress.set(read, "retry", "retries")).await?;
        drop(progress);
        let view = ErrorsView::of(groups, self.limit, |(partition, id)| RetriesExample {
            partition: partition.0,
            id: id.to_string(),
        });
        cx.output.show(&view, |view| view.table(|example| example.id.clone()))?;
        view.notes("retry", "retries").iter().for_each(|note| cx.output.note(note));
        Ok(Exit::Done)
    }
}
