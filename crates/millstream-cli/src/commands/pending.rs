//! `millstream pending`: entries that were delivered and are not settled.

use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use millstream::Timestamp;
use millstream::admin::{Cursor, Owners, PendingEntry, PendingOrder, PendingQuery};
use millstream::crates::core::log::Source;
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::group::GroupOf;
use crate::commands::schemas::{Table, of};
use crate::commands::shared::failures::Failed;
use crate::context::Context;
use crate::exit::Exit;
use crate::human::ms;
use crate::{human, output, parse};

/// Lists the pending entries of a group in all partitions
///
/// A partition that cannot be read is named on stderr, and in `errors` of JSON; the exit code is then 1.
///
/// Most pending entries wait in the process that read them. `running since` says of which a handler has run for a second or longer;
/// `millstream owners` lists those, longest first.
///
/// The list has pages: `next` is the cursor of the next one. Sorted by idle time or deliveries, each page reads all pending
/// entries. An entry that is handed out again between two pages may come again, or, sorted by deliveries, in none.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream pending orders billing
  millstream pending orders billing --sort idle --min-idle 5m --limit 20
  millstream pending orders billing --min-deliveries 3
  millstream pending orders billing --after 1700000000000-0.3 --json")]
pub(crate) struct Pending {
    #[command(flatten)]
    of: GroupOf,
    /// Order of the entries
    #[arg(long, value_enum, default_value_t = PendingSort::Id)]
    sort: PendingSort,
    /// Maximum number of entries
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Cursor of the page, from `next` of the page before, with the same options
    #[arg(long, value_name = "CURSOR")]
    after: Option<Cursor>,
    /// Only entries with at least this idle time
    #[arg(long, alias = "idle", value_name = "TIME", value_parser = parse::duration)]
    min_idle: Option<Duration>,
    /// Only entries that were handed out at least this often
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    min_deliveries: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PendingSort {
    /// Oldest first
    Id,
    /// Longest idle time first
    Idle,
    /// Most deliveries first
    Deliveries,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PendingView {
    topic: String,
    group: String,
    entries: Vec<PendingLine>,
    /// The start of the next page.
    next: Option<String>,
    /// The parts that could not be read.
    errors: Vec<Failed>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PendingLine {
    partition: u32,
    /// `log` or `retry`.
    #[schemars(extend("enum" = ["log", "retry"]))]
    source: &'static str,
    id: String,
    /// The holder: the member that owns the partition, or the one that received the entry in shared mode. `null` if
    /// the partition has no owner now.
    consumer: Option<String>,
    /// Since when its handler has run, by the server's clock: as the member said with its last heartbeat, of a handler that runs for a
    /// second or longer.
    #[schemars(with = "Option<u64>")]
    running_since_ms: Option<Timestamp>,
    /// The limit and key whose units it waits for, as the member said with its last heartbeat; it names the 20 that have waited longest.
    waits_for: Option<String>,
    idle_ms: u64,
    deliveries: u64,
    /// The next attempt, from the note of the entry.
    attempt: Option<u32>,
    due_in_ms: Option<u64>,
    suspicions: u32,
    error: Option<String>,
}

/// The data that the command prints as JSON.
pub(in crate::commands) const DATA: Table = &[("pending", of::<PendingView>())];

impl PendingLine {
    fn of(entry: &PendingEntry, owners: &Owners) -> Self {
        let pending = &entry.pending;
        let note = pending.note.as_ref();
        Self {
            partition: entry.topic_partition.partition.0,
            source: match entry.source {
                Source::Log => "log",
                Source::Retry => "retry",
            },
            id: pending.id.to_string(),
            consumer: owners.holder(entry.topic_partition.partition, &pending.consumer).map(str::to_owned),
            running_since_ms: owners
                .runs(entry.topic_partition.partition, entry.source, pending.id)
                .map(|(_, it)| it.since),
            waits_for: owners
                .waits(entry.topic_partition.partition, entry.source, pending.id)
                .map(|it| it.key.to_string()),
            idle_ms: ms(pending.idle),
            deliveries: pending.deliveries,
            attempt: note.map(|note| note.attempt).filter(|attempt| *attempt > 0),
            due_in_ms: note.map(|note| ms(note.left())),
            suspicions: note.map_or(0, |note| note.suspicions),
            error: note.map(|note| note.error.clone()).filter(|error| !error.is_empty()),
        }
    }

    fn row(&self) -> [String; 8] {
        let mut noted = Vec::new();
        if let Some(attempt) = self.attempt {
            let due = human::duration(Duration::from_millis(self.due_in_ms.unwrap_or(0)));
            noted.push(format!("attempt {attempt} in {due}"));
        }
        if self.suspicions > 0 {
            noted.push(format!("suspected {}", human::of(self.suspicions.into(), "time", "times")));
        }
        noted.extend(self.waits_for.as_ref().map(|key| format!("waits for {key}")));
        noted.extend(self.error.clone());
        [
            self.id.clone(),
            self.partition.to_string(),
            self.source.to_owned(),
            human::or_none(self.consumer.as_deref(), human::member),
            human::or_none(self.running_since_ms, human::time),
            human::duration(Duration::from_millis(self.idle_ms)),
            human::count(self.deliveries),
            noted.join("; "),
        ]
    }
}

impl Pending {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        let order = match self.sort {
            PendingSort::Id => PendingOrder::Id,
            PendingSort::Idle => PendingOrder::Idle,
            PendingSort::Deliveries => PendingOrder::Deliveries,
        };
        let query = PendingQuery {
            order,
            limit: self.limit as usize,
            after: self.after,
            idle: self.min_idle.unwrap_or_default(),
            deliveries: self.min_deliveries,
        };
        self.of.known(cx).await?;
        let page = cx.admin().pending(&self.of.topic, &self.of.group, &query).await?;
        let owners = cx.admin().owners(&self.of.topic, &self.of.group).await?;
        let failed = |error: String| Failed::in_group(&self.of.topic, &self.of.group, &error);
        let unread = page.errors.iter().map(|it| it.error.to_string());
        let errors = unread.chain(owners.reasons().map(str::to_owned)).map(failed).collect();
        let view = PendingView {
            topic: self.of.topic.to_string(),
            group: self.of.group.to_string(),
            entries: page.entries.iter().map(|it| PendingLine::of(it, &owners)).collect(),
            next: page.next.map(|next| next.to_string()),
            errors,
        };
        cx.output.show(&view, |view| {
            let titles =
                ["id", ">partition", "source", "consumer", "running since", ">idle", ">deliveries", "noted"];
            output::table(&titles, view.entries.iter().map(PendingLine::row))
        })?;
        if let Some(next) = view.next.as_ref().filter(|_| !cx.output.is_json()) {
            cx.output.note(&format!("there is more: --after {next}"));
        }
        Failed::end(cx, &view.errors)
    }
}
