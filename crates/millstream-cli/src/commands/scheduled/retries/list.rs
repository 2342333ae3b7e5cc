//! `retries list` and `errors`.

use anyhow::Result;
use clap::Args;
use millstream::Timestamp;
use millstream::admin::Retry;
use millstream::layers::core::error_groups::MAX_GROUPS;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{Wanted, open};
use crate::commands::group::Of;
use crate::commands::message::{Body, sanitize};
use crate::commands::shared::count_progress::CountProgress;
use crate::commands::shared::errors::ErrorsView;
use crate::commands::shared::watch::WatchArgs;
use crate::context::Context;
use crate::exit::Exit;
use crate::{human, output};

/// Lists waiting messages in the order of their due times
///
/// Shows the number of the next attempt and the error of the last one. Consumers of the group move due messages to
/// its retry log; without a running consumer they stay here.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream retries list orders billing
  millstream retries list orders billing --error 'connection refused' --limit 20
  millstream retries list orders billing --json | jq -r '.retries[].id'")]
pub(super) struct List {
    #[command(flatten)]
    of: Of,
    #[command(flatten)]
    wanted: Wanted,
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
pub(super) struct Errors {
    #[command(flatten)]
    of: Of,
    #[command(flatten)]
    wanted: Wanted,
    /// Maximum number of groups to show
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
}

#[derive(Debug, Serialize)]
struct View {
    topic: String,
    group: String,
    /// The number of waiting messages, including those that are due and not delivered yet, whatever the filter.
    total: u64,
    retries: Vec<Entry>,
}

/// A waiting message.
#[derive(Debug)]
pub(super) struct Entry {
    retry: Retry,
    body: Body,
}

impl From<Retry> for Entry {
    fn from(retry: Retry) -> Self {
        Self { body: Body::of(&retry.parked.body), retry }
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Retry { topic_partition, parked, .. } = &self.retry;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &parked.origin.to_string())?;
        map.serialize_entry("partition", &topic_partition.partition.0)?;
        map.serialize_entry("attempt", &self.attempt())?;
        map.serialize_entry("due_ms", &parked.due)?;
        map.serialize_entry("error", &parked.error)?;
        self.body.entries(&mut map)?;
        map.end()
    }
}

impl Entry {
    /// Returns the number of the next attempt, if there is one.
    fn attempt(&self) -> Option<u32> {
        Some(self.retry.parked.attempt).filter(|attempt| *attempt > 0)
    }

    fn row(&self, now: Timestamp) -> [String; 7] {
        let Retry { topic_partition, parked, .. } = &self.retry;
        let due = if parked.due < now {
            "due".to_owned()
        } else {
            human::duration(parked.due.saturating_duration_since(now))
        };
        let key = match &self.body {
            Body::Message(it) => human::or_none(it.key.as_ref(), |key| sanitize::line(key)),
            Body::Malformed(..) => "-".to_owned(),
        };
        [
            parked.origin.to_string(),
            topic_partition.partition.to_string(),
            human::or_none(self.attempt(), |attempt| attempt.to_string()),
            human::time(parked.due),
            due,
            key,
            sanitize::short(parked.error.as_bytes()),
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
        self.watch.run(cx, async || self.show(cx).await).await
    }

    async fn show(&self, cx: &Context) -> Result<Exit> {
        let Self { of, wanted, limit, .. } = self;
        let limit = *limit;
        let filter = wanted.filter(cx, &[]).await?;
        let queue = open(cx, of, &filter).await?;
        let stats = cx.mq.backend().catalog().stats(queue.topic(), &of.group).await?;
        let retries: Vec<Entry> = queue.list(&filter, limit).await?.into_iter().map(Entry::from).collect();
        let total = stats.iter().map(|it| it.retrying).sum();
        let view = View { topic: of.topic.to_string(), group: of.group.to_string(), total, retries };
        let now = cx.now().await?;
        cx.output.show(&view, |view| Entry::table(&view.retries, now))?;
        let shown = view.retries.len() as u64;
        if !filter.is_empty() {
            if shown == limit as u64 {
                cx.output.note(&format!("the first {}; --limit shows more", human::count(shown)));
            }
        } else if shown < view.total {
            let (shown, total) = (human::count(shown), human::count(view.total));
            cx.output
                .note(&format!("{shown} of {total}; --limit shows more, but for what is due and on its way"));
        }
        Ok(Exit::Done)
    }
}

/// The message with an error that is due last.
#[derive(Debug, Serialize)]
struct Example {
    partition: u32,
    id: String,
}

impl Errors {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let filter = self.wanted.filter(cx, &[]).await?;
        let queue = open(cx, &self.of, &filter).await?;
        let mut progress = CountProgress::new();
        let groups = queue.errors(&filter, MAX_GROUPS, |read| progress.set(read, "retry", "retries")).await?;
        drop(progress);
        let view = ErrorsView::of(groups, self.limit, |(partition, id)| Example {
            partition: partition.0,
            id: id.to_string(),
        });
        cx.output.show(&view, |view| view.table(|example| example.id.clone()))?;
        view.notes("retry", "retries").iter().for_each(|note| cx.output.note(note));
        Ok(Exit::Done)
    }
}
