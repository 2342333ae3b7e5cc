//! `millstream find`: the places of a message, by its id or its key.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use millstream::TopicName;
use millstream::admin::{Locate, Located};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::schemas::{Table, of};
use crate::context::Context;
use crate::exit::Exit;
use crate::{human, output, parse};

/// Finds a message by its id or its key: in logs, dead letters, retries, delayed messages and delay queues
///
/// An id is that of a message (also of one that died: its letter is found), of a dead letter, of a delayed message or of a task. A key is
/// compared with the newest messages, the dead letters and the retries. What was not looked through is named on stderr, and in
/// `left` of JSON. The exit code is 3 if it was found nowhere.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream find 1700000000000-0
  millstream find customer-42 --topic orders --looks 1000000 --time 1m
  millstream find welcome-42 --json | jq '.data.places[] | .place'")]
pub(crate) struct Find {
    /// The id, or the key
    #[arg(value_name = "ID|KEY")]
    wanted: String,
    /// Looks only there; can be repeated. Default: in all topics and delay queues
    #[arg(long, value_name = "TOPIC")]
    topic: Vec<TopicName>,
    /// Maximum number of entries of a log, of dead letters, and of retries of a group that are examined for a key
    #[arg(long, value_name = "N", default_value_t = 5_000)]
    looks: u64,
    /// Time after which no further topic is begun
    #[arg(long, value_name = "TIME", value_parser = parse::duration, default_value = "10s")]
    time: Duration,
}

#[derive(Debug, Serialize, JsonSchema)]
struct FindView {
    wanted: String,
    places: Vec<PlaceView>,
    /// What was not looked through, and why.
    left: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PlaceView {
    #[schemars(extend("enum" = ["log", "dead letters", "retries", "delayed", "tasks", "dead tasks"]))]
    place: &'static str,
    topic: Option<String>,
    group: Option<String>,
    queue: Option<String>,
    /// The partition, or the shard.
    partition: u32,
    id: String,
    /// The id that a dead letter had in its log.
    origin: Option<String>,
    /// When it was appended, died, or is due.
    at: String,
    error: String,
}

/// The data that the command prints as JSON.
pub(in crate::commands) const DATA: Table = &[("find", of::<FindView>())];

impl PlaceView {
    fn of(it: &Located) -> Self {
        Self {
            place: it.place.as_str(),
            topic: it.topic.as_ref().map(ToString::to_string),
            group: it.group.as_ref().map(ToString::to_string),
            queue: it.queue.as_ref().map(ToString::to_string),
            partition: it.partition.0,
            id: it.id.clone(),
            origin: it.origin.map(|it| it.to_string()),
            at: it.at.to_string(),
            error: it.error.clone(),
        }
    }

    fn row(&self) -> [String; 7] {
        let of = self.topic.clone().or_else(|| self.queue.clone()).unwrap_or_default();
        let group = human::or_none(self.group.as_deref(), str::to_owned);
        let id = self
            .origin
            .as_ref()
            .map_or_else(|| self.id.clone(), |origin| format!("{} (was {origin})", self.id));
        [
            self.place.to_owned(),
            of,
            self.partition.to_string(),
            id,
            group,
            self.at.clone(),
            self.error.clone(),
        ]
    }
}

impl Find {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        let mut ask = Locate { looks: self.looks, time: self.time, ..Locate::new(self.wanted) };
        if self.topic.is_empty() {
            ask.topics = cx.admin().topics().await?.into_iter().map(|topic| (topic, true)).collect();
            ask.queues = match cx.mq.backend().tasks() {
                Ok(tasks) => tasks.queues().await?,
                Err(_) => Vec::new(),
            };
        } else {
            for topic in self.topic {
                cx.admin().topic(&topic).await?;
                ask.topics.push((topic, true));
            }
        }
        let found = cx.admin().locate(&ask).await?;
        let places = found.places.iter().map(PlaceView::of).collect();
        let view = FindView { wanted: ask.wanted, places, left: found.left };
        cx.output.show(&view, |view| {
            let titles = ["in", "of", ">partition", "id", "group", "at", "error"];
            output::table(&titles, view.places.iter().map(PlaceView::row))
        })?;
        for left in view.left.iter().filter(|_| !cx.output.is_json()) {
            cx.output.note(&format!("not looked through: {left}"));
        }
        Ok(if view.places.is_empty() { Exit::Wrong } else { Exit::Done })
    }
}
