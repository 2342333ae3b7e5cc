//! `millstream retries`: failed messages of a group that wait for their next attempt.

use anyhow::Result;
use clap::{Args, Subcommand};
use futures_util::future::try_join_all;
use millstream::layers::core::inspect::Parked;
use millstream::{GroupName, MessageId, Partition, Timestamp, TopicPartition};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::commands::group::Of;
use crate::commands::message::{Body, sanitize};
use crate::context::Context;
use crate::exit::Exit;
use crate::human;
use crate::output;

/// Maximum number of messages of one request.
const PAGE: usize = 500;

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
    /// its retry log; without a running consumer they stay here.
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
    /// The number of waiting messages, including those that are due and not delivered yet.
    total: u64,
    retries: Vec<Entry>,
}

/// A waiting message.
#[derive(Debug)]
struct Entry {
    partition: Partition,
    parked: Parked,
    body: Body,
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.parked.origin.to_string())?;
        map.serialize_entry("partition", &self.partition.0)?;
        map.serialize_entry("attempt", &self.attempt())?;
        map.serialize_entry("due_ms", &self.parked.due)?;
        map.serialize_entry("error", &self.parked.error)?;
        self.body.entries(&mut map)?;
        map.end()
    }
}

impl Entry {
    /// Returns the number of the next attempt, if there is one.
    fn attempt(&self) -> Option<u32> {
        Some(self.parked.attempt).filter(|attempt| *attempt > 0)
    }

    fn row(&self, now: Timestamp) -> [String; 7] {
        let due = if self.parked.due < now {
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
    let spec = cx.admin().topic(&of.topic).await?;
    let stats = cx.mq.backend().catalog().stats(&spec, &of.group).await?;
    let all = spec.iter().collect::<Vec<_>>();
    let parked = try_join_all(all.iter().map(|it| first(cx, it, &of.group, limit))).await?;
    let mut retries: Vec<Entry> = parked.into_iter().flatten().collect();
    retries.sort_by_key(|it| (it.parked.due, it.partition, it.parked.origin));
    retries.truncate(limit);
    let total = stats.iter().map(|it| it.retrying).sum();
    let view = View { topic: of.topic.to_string(), group: of.group.to_string(), total, retries };
    let now = cx.now().await?;
    cx.output.show(&view, |view| {
        let titles = ["id", ">partition", ">attempt", "due", ">in", "key", "error"];
        output::table(&titles, view.retries.iter().map(|it| it.row(now)))
    })?;
    let shown = view.retries.len() as u64;
    if shown < view.total {
        let (shown, total) = (human::count(shown), human::count(view.total));
        cx.output
            .note(&format!("{shown} of {total}; --limit shows more, but for what is due and on its way"));
    }
    Ok(Exit::Done)
}

/// Returns the first messages of a partition by due time.
async fn first(cx: &Context, of: &TopicPartition, group: &GroupName, limit: usize) -> Result<Vec<Entry>> {
    let mut found = Vec::new();
    let mut after: Option<(Timestamp, MessageId)> = None;
    while found.len() < limit {
        let page = cx.mq.backend().inspect()?.parked(of, group, after, PAGE.min(limit - found.len())).await?;
        let Some(last) = page.items.last() else { break };
        after = Some((last.due, last.origin));
        found.extend(page.items.into_iter().map(|parked| Entry {
            partition: of.partition,
            body: Body::of(&parked.body),
            parked,
        }));
        if !page.more {
            break;
        }
    }
    Ok(found)
}
