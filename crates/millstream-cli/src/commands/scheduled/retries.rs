//! `millstream retries`: failed messages of a group that wait for their next attempt.

use anyhow::Result;
use clap::{Args, Subcommand};
use millstream::admin::{PartError, Retry};
use millstream::layers::core::inspect::Parked;
use millstream::{Partition, Timestamp};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::commands::group::Of;
use crate::commands::message::{Body, sanitize};
use crate::commands::shared::failures::Failed;
use crate::context::Context;
use crate::exit::Exit;
use crate::human;
use crate::output;

/// Lists messages that wait for a retry
///
/// A message that a group failed to handle waits until its retry is due, and then returns to this group only. Until
/// then it is neither pending nor dead.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream retries list orders billing")]
pub(crate) struct Retries {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lists waiting messages in the order of their due times
    ///
    /// Shows the number of the next attempt and the error of the last one. Consumers of the group move due messages to
    /// its retry log and read them from there; until then they are shown as `due`. In JSON `state` is `parked`, or `ready`
    /// in the retry log.
    #[command(after_help = "Examples:
  millstream retries list orders billing
  millstream retries list orders billing --limit 1000 --json | jq -r '.retries[].error' | sort | uniq -c")]
    List {
        #[command(flatten)]
        of: Of,
        /// Maximum number of messages
        #[arg(long, default_value_t = 100, value_name = "N")]
        limit: usize,
    },
}

#[derive(Debug, Serialize)]
struct View {
    topic: String,
    group: String,
    /// The number of waiting messages, including those that are due and not delivered yet; `null` if it is unknown.
    total: Option<u64>,
    retries: Vec<Entry>,
    /// The parts that could not be read.
    errors: Vec<Failed>,
}

/// A waiting message.
#[derive(Debug)]
struct Entry {
    partition: Partition,
    parked: Parked,
    /// Whether it is due and in the retry log.
    ready: bool,
    body: Body,
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.parked.origin.to_string())?;
        map.serialize_entry("partition", &self.partition.0)?;
        map.serialize_entry("attempt", &self.attempt())?;
        map.serialize_entry("state", if self.ready { "ready" } else { "parked" })?;
        map.serialize_entry("due_ms", &self.parked.due)?;
        map.serialize_entry("error", &self.parked.error)?;
        self.body.entries(&mut map)?;
        map.end()
    }
}

impl Entry {
    fn of(Retry { partition, parked, ready, .. }: Retry) -> Self {
        Self { partition, body: Body::of(&parked.body), parked, ready }
    }

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
}

impl Retries {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        match self.what {
            What::List { of, limit } => list(cx, &of, limit).await,
        }
    }
}

async fn list(cx: &Context, of: &Of, limit: usize) -> Result<Exit> {
    of.known(cx).await?;
    let found = cx.admin().retries(&of.topic, &of.group, limit).await?;
    let (topic, group) = (of.topic.to_string(), of.group.to_string());
    let failed = |error: &PartError| Failed {
        topic: Some(topic.clone()),
        group: Some(group.clone()),
        error: error.error.to_string(),
    };
    let errors: Vec<_> = found.errors.iter().map(failed).collect();
    let retries = found.retries.into_iter().map(Entry::of).collect();
    let view = View { topic, group, total: found.total, retries, errors };
    let now = cx.now().await?;
    cx.output.show(&view, |view| {
        let titles = ["id", ">partition", ">attempt", "due", ">in", "key", "error"];
        output::table(&titles, view.retries.iter().map(|it| it.row(now)))
    })?;
    let shown = view.retries.len() as u64;
    if let Some(total) = view.total.filter(|total| shown < *total) {
        let (shown, total) = (human::count(shown), human::count(total));
        cx.output.note(&format!("{shown} of {total}; --limit shows more"));
    }
    Failed::end(cx, &view.errors)
}
