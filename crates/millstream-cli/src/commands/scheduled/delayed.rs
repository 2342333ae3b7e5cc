//! `millstream delayed`: delayed messages that are still waiting.

use anyhow::Result;
use clap::{Args, Subcommand};
use millstream::{DelayedMessage, DelayedMessages, Partition, Timestamp, Topic, TopicName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::message::content::DueArgs;
use crate::commands::message::{Body, sanitize};
use crate::commands::schemas::{Table, of};
use crate::commands::shared::ids::{self, Words};
use crate::commands::{DryRun, Running};
use crate::context::Context;
use crate::exit::{Exit, Usage};
use crate::{human, output, parse};

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
    /// `produce --format json` accepts the messages of the JSON output.
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

    fn of(message: DelayedMessage) -> Self {
        let body = match message.envelope {
            Ok(envelope) => Body::Message(envelope),
            Err(why) => Body::Malformed(why.to_string(), Vec::new()),
        };
        let partition = Some(message.topic_partition.partition);
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

async fn list(cx: &Context, topic: TopicName, limit: usize) -> Result<Exit> {
    let waiting = waiting(cx, &topic).await?;
    let count = waiting.count().await?;
    let (mut messages, mut last) = (Vec::new(), None);
    while messages.len() < limit {
        let page = waiting.list(last.as_ref(), limit - messages.len()).await?;
        let Some(end) = page.last() else { break };
        last = Some(end.clone());
        messages.extend(page.into_iter().map(Waits::of));
    }
    let list = DelayedList { topic: topic.to_string(), total: count.total, overdue: count.overdue, messages };
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
    Ok(Exit::Done)
}
