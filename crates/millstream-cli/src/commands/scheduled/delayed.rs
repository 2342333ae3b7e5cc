//! `millstream delayed`: delayed messages that are still waiting.

use anyhow::Result;
use clap::{Args, Subcommand};
use futures_util::stream::{self, StreamExt};
use millstream::crates::core::schedule::{Scheduled, Waiting};
use millstream::crates::core::{Place, wire};
use millstream::{DelayedMessages, Limits, Partition, Timestamp, Topic, TopicName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::message::content::DueArgs;
use crate::commands::message::{Body, sanitize};
use crate::commands::schemas::{Table, of};
use crate::commands::shared::failures::Failed;
use crate::commands::shared::ids::{self, Words};
use crate::commands::{DryRun, Running};
use crate::context::Context;
use crate::exit::{Exit, Usage};
use crate::{human, output, parse};

/// Number of places that are read at the same time.
const AT_ONCE: usize = 8;

/// Lists, cancels and reschedules delayed messages
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream delayed list reminders
  millstream delayed cancel reminders trial-ends:42")]
pub(crate) struct Delayed {
    #[command(subcommand)]
    what: DelayedCommand,
}

#[derive(Debug, Subcommand)]
enum DelayedCommand {
    /// Lists waiting messages in the order of their due times
    ///
    /// `produce --format json` accepts the messages of the JSON output. A partition that cannot be read is named on stderr, and in
    /// `errors` of JSON; the exit code is then 1.
    #[command(after_help = "Examples:
  millstream delayed list reminders --limit 20
  millstream delayed list reminders --json | jq -r '.data.messages[].id'")]
    List {
        /// The topic
        topic: TopicName,
        /// Maximum number of messages
        #[arg(long, default_value_t = 100, value_name = "N", value_parser = parse::limit)]
        limit: usize,
    },
    /// Cancels delayed messages: they will never be read
    #[command(after_help = "Examples:
  millstream delayed cancel reminders trial-ends:42 trial-ends:43
  millstream delayed cancel reminders trial-ends:42 --yes")]
    Cancel(DelayedNamed),
    /// Changes the due time of delayed messages
    #[command(after_help = "Examples:
  millstream delayed reschedule reminders trial-ends:42 --delay 2h
  millstream delayed reschedule reminders trial-ends:42 --at 2026-01-31T12:00:00Z")]
    Reschedule {
        #[command(flatten)]
        some: DelayedNamed,
        #[command(flatten)]
        due: DueArgs,
    },
    /// Makes delayed messages due immediately
    #[command(after_help = "Examples:
  millstream delayed now reminders trial-ends:42")]
    Now(DelayedNamed),
}

/// Selected delayed messages
#[derive(Args, Debug)]
struct DelayedNamed {
    /// The topic
    topic: TopicName,
    /// Ids of the messages
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    #[command(flatten)]
    dry: DryRun,
}

/// The waiting messages.
#[derive(Debug, Serialize, JsonSchema)]
struct DelayedList {
    topic: String,
    total: u64,
    /// The number of them that are due, and about to be moved.
    overdue: u64,
    messages: Vec<Waits>,
    /// The parts that could not be read.
    errors: Vec<Failed>,
}

/// A message or task that waits.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::commands) struct Waits {
    pub(in crate::commands) id: String,
    /// The due time in RFC 3339.
    #[serde(rename = "due")]
    due_text: String,
    #[serde(rename = "due_ms")]
    #[schemars(with = "u64")]
    pub(in crate::commands) due: Timestamp,
    /// The partition, for messages of a topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u32")]
    partition: Option<u32>,
    #[serde(flatten)]
    pub(in crate::commands) body: Body,
}

impl Waits {
    pub(in crate::commands) fn new(
        id: String,
        due: Timestamp,
        partition: Option<Partition>,
        body: Body,
    ) -> Self {
        Self { id, due_text: human::time(due), due, partition: partition.map(|it| it.0), body }
    }

    fn of(place: &Place, message: &Scheduled) -> Self {
        let body = match wire::decode_body(&message.fields, &Limits::NONE) {
            Ok(envelope) => Body::Message(envelope),
            Err(_) if message.fields.is_empty() => {
                Body::Malformed("its body was deleted".to_owned(), Vec::new())
            }
            Err(why) => Body::Malformed(why.to_string(), Vec::new()),
        };
        let partition = if let Place::Partition(tp) = place { Some(tp.partition) } else { None };
        Self::new(message.id.to_string(), message.due, partition, body)
    }

    /// Returns the columns: id, due time, time from now until then, key and payload.
    pub(in crate::commands) fn row(&self, now: Timestamp) -> Vec<String> {
        let left = if self.due < now {
            "due".to_owned()
        } else {
            human::duration(self.due.saturating_duration_since(now))
        };
        let (key, payload) = match &self.body {
            Body::Message(it) => {
                (human::or_none(it.key.as_ref(), |key| sanitize::line(key)), sanitize::short(&it.payload))
            }
            Body::Malformed(why, _) => ("-".to_owned(), format!("no message: {why}")),
        };
        vec![sanitize::line(self.id.as_bytes()), human::time(self.due), left, key, payload]
    }
}

/// The data that these commands print as JSON.
pub(in crate::commands) const DATA: Table = &[
    ("delayed list", of::<DelayedList>()),
    ("delayed cancel", of::<ids::Outcome>()),
    ("delayed reschedule", of::<ids::Outcome>()),
    ("delayed now", of::<ids::Outcome>()),
];

impl Delayed {
    pub(crate) fn run(self, cx: &Context) -> Running<'_> {
        match self.what {
            DelayedCommand::List { topic, limit } => Box::pin(list(cx, topic, limit)),
            DelayedCommand::Cancel(some) => Box::pin(some.cancel(cx)),
            DelayedCommand::Reschedule { some, due } => Box::pin(some.reschedule(cx, due)),
            DelayedCommand::Now(some) => Box::pin(some.run_now(cx)),
        }
    }
}

impl DelayedNamed {
    async fn cancel(self, cx: &Context) -> Result<Exit> {
        let (waiting, count) = (self.waiting(cx).await?, self.ids.len() as u64);
        if !self.dry.dry_run {
            let what = human::of(count, "message", "messages");
            cx.confirm(&format!("Cancel {what} of topic {}?", self.topic))?;
        }
        self.each(cx, &waiting, "cancelled", async |id| Ok(waiting.cancel(id).await?)).await
    }

    async fn reschedule(self, cx: &Context, due: DueArgs) -> Result<Exit> {
        let due =
            due.due().ok_or_else(|| Usage("when are they to be due? --delay or --at says it".into()))?;
        let waiting = self.waiting(cx).await?;
        self.each(cx, &waiting, "rescheduled", async |id| Ok(waiting.reschedule(id, due).await?)).await
    }

    async fn run_now(self, cx: &Context) -> Result<Exit> {
        let waiting = self.waiting(cx).await?;
        self.each(cx, &waiting, "due now", async |id| Ok(waiting.run_now(id).await?)).await
    }

    async fn waiting(&self, cx: &Context) -> Result<DelayedMessages> {
        waiting(cx, &self.topic).await
    }

    async fn each(
        &self,
        cx: &Context,
        waiting: &DelayedMessages,
        done: &'static str,
        act: impl AsyncFn(&str) -> Result<bool>,
    ) -> Result<Exit> {
        let words = Words { done, missing: "it does not wait (any more)" };
        let is_there = async |id: &str| Ok(waiting.get(id).await?.is_some());
        ids::each(cx, self.dry, words, &self.ids, is_there, act).await
    }
}

async fn waiting(cx: &Context, topic: &TopicName) -> Result<DelayedMessages> {
    Ok(cx.mq.delayed(&Topic::raw("").named(topic.as_str())).await?)
}

/// Returns the number of what waits at places, the first ones of it, and what could not be read.
pub(in crate::commands) async fn first(
    cx: &Context,
    places: &[Place],
    limit: usize,
) -> Result<(Waiting, Vec<Waits>, Vec<Failed>)> {
    let (mut sum, mut all, mut failed) = (Waiting::default(), Vec::new(), Vec::new());
    let mut parts =
        std::pin::pin!(stream::iter(places.iter().map(|place| first_at(cx, place, limit))).buffered(AT_ONCE));
    let mut places = places.iter();
    while let (Some(part), Some(place)) = (parts.next().await, places.next()) {
        match (part, place) {
            (Ok((waiting, some)), _) => {
                sum.total += waiting.total;
                sum.overdue += waiting.overdue;
                all.extend(some);
            }
            (Err(error), _) if error.is_transient() => return Err(error.into()),
            (Err(error), Place::Partition(tp)) => failed.push(Failed::topic(&tp.topic, &error)),
            (Err(error), Place::Shard(shard)) => failed.push(Failed::queue(&shard.queue, &error)),
        }
    }
    all.sort_by(|one, other| (one.due, &one.id).cmp(&(other.due, &other.id)));
    all.truncate(limit);
    Ok((sum, all, failed))
}

async fn first_at(cx: &Context, place: &Place, limit: usize) -> millstream::Result<(Waiting, Vec<Waits>)> {
    let schedule = cx.mq.backend().schedule();
    let waiting = schedule.waiting(place).await?;
    let (mut some, mut after) = (Vec::new(), None);
    while some.len() < limit {
        let page = schedule.scheduled(place, after, limit - some.len()).await?;
        let Some(last) = page.last() else { break };
        after = Some((last.due, last.id.clone()));
        some.extend(page.iter().map(|it| Waits::of(place, it)));
    }
    Ok((waiting, some))
}

async fn list(cx: &Context, topic: TopicName, limit: usize) -> Result<Exit> {
    let spec = cx.admin().topic(&topic).await?;
    let (count, messages, errors) =
        first(cx, &spec.iter().map(Place::from).collect::<Vec<_>>(), limit).await?;
    let topic = topic.to_string();
    let list = DelayedList { topic, total: count.total, overdue: count.overdue, messages, errors };
    let now = cx.now().await?;
    cx.output.show(&list, |list| {
        let rows = list.messages.iter().map(|message| {
            let mut row = message.row(now);
            row.insert(1, human::or_none(message.partition, |partition| partition.to_string()));
            row
        });
        output::table(&["id", ">partition", "due", ">in", "key", "payload"], rows)
    })?;
    if (list.messages.len() as u64) < list.total {
        let (shown, total) = (list.messages.len() as u64, list.total);
        cx.output.note(&format!("{} of {}; --limit shows more", human::count(shown), human::count(total)));
    }
    Failed::end(cx, &list.errors)
}
