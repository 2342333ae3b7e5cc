//! `millstream memory`: what topics take of the server's memory, and when it is full.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use millstream::TopicName;
use millstream::admin::{Memory as Measured, Size};
use serde::Serialize;

use super::view::ms;
use crate::context::Context;
use crate::exit::Exit;
use crate::{human, output, parse};

/// So many of the largest partitions are shown to people.
const SHOWN: usize = 10;

/// What a topic takes of the server's memory, by structure, group and partition
///
/// Bytes are estimated from samples, by the server. With --over it looks twice, and says when the server is full if it goes on
/// as it did in between.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream memory orders
  millstream memory orders --over 1m
  millstream memory orders --json | jq .bytes")]
pub(crate) struct Memory {
    /// The topic
    topic: TopicName,
    /// Looks again after so long, and says when the server is full
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    over: Option<Duration>,
}

#[derive(Debug, Serialize)]
struct View {
    topic: String,
    bytes: u64,
    structures: Vec<Line>,
    groups: Vec<Line>,
    partitions: Vec<Line>,
    /// What the server has in use, for everything.
    server_used_bytes: Option<u64>,
    /// `null` for no limit.
    server_max_bytes: Option<u64>,
    growth: Option<Growth>,
}

#[derive(Debug, Serialize)]
struct Line {
    #[serde(flatten)]
    of: Of,
    items: u64,
    bytes: u64,
    bytes_per_item: Option<u64>,
}

/// What takes it: `"structure": "log"`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Of {
    Structure(&'static str),
    Group(String),
    Partition(u32),
}

/// What became of it between two looks.
#[derive(Debug, Serialize)]
struct Growth {
    over_ms: u64,
    topic_bytes: i64,
    server_bytes: Option<i64>,
    /// `null` if it did not grow, or has no limit.
    full_in_ms: Option<u64>,
}

impl Line {
    fn new(of: Of, size: &Size) -> Self {
        Self { of, items: size.items, bytes: size.bytes, bytes_per_item: size.each() }
    }

    fn row(&self) -> [String; 4] {
        let name = match &self.of {
            Of::Structure(name) => (*name).to_owned(),
            Of::Group(name) => name.clone(),
            Of::Partition(number) => number.to_string(),
        };
        let each = human::or_none(self.bytes_per_item, human::bytes);
        [name, human::count(self.items), human::bytes(self.bytes), each]
    }

    fn table(title: &str, lines: &[&Self]) -> String {
        output::table(&[title, ">items", ">bytes", ">bytes per item"], lines.iter().map(|line| line.row()))
    }
}

fn lines<K>(sizes: &BTreeMap<K, Size>, of: impl Fn(&K) -> Of) -> Vec<Line> {
    sizes.iter().map(|(key, size)| Line::new(of(key), size)).collect()
}

impl Growth {
    fn between(earlier: &Measured, later: &Measured, over: Duration) -> Self {
        let grown = |before: u64, after: u64| after as i64 - before as i64;
        Self {
            over_ms: ms(over),
            topic_bytes: grown(earlier.bytes(), later.bytes()),
            server_bytes: earlier.used.zip(later.used).map(|(before, after)| grown(before, after)),
            full_in_ms: later.full_in(earlier, over).map(ms),
        }
    }

    fn text(&self, max: Option<u64>) -> String {
        let over = human::duration(Duration::from_millis(self.over_ms));
        let by = |bytes: i64| {
            let word = if bytes < 0 { "shrank" } else { "grew" };
            format!("{word} by {}", human::bytes(bytes.unsigned_abs()))
        };
        let full = match (self.full_in_ms, max) {
            (Some(ms), _) => format!("full in {} if it goes on", human::duration(Duration::from_millis(ms))),
            (None, None) => "it has no limit".to_owned(),
            (None, Some(_)) => "not getting full".to_owned(),
        };
        let server = self.server_bytes.map_or_else(|| "is not known".to_owned(), by);
        format!("in {over} the topic {}, the server {server}: {full}", by(self.topic_bytes))
    }
}

impl View {
    fn of(topic: &TopicName, memory: &Measured, growth: Option<Growth>) -> Self {
        Self {
            topic: topic.to_string(),
            bytes: memory.bytes(),
            structures: lines(&memory.structures, |it| Of::Structure(it.as_str())),
            groups: lines(&memory.groups, |it| Of::Group(it.to_string())),
            partitions: lines(&memory.partitions, |it| Of::Partition(it.0)),
            server_used_bytes: memory.used,
            server_max_bytes: memory.max,
            growth,
        }
    }

    fn text(&self) -> String {
        let used = self.server_used_bytes.map_or_else(|| "unknown".to_owned(), human::bytes);
        let max = self.server_max_bytes.map_or_else(|| "no limit".to_owned(), human::bytes);
        let mut head = vec![
            ("topic", self.topic.clone()),
            ("takes", format!("about {}", human::bytes(self.bytes))),
            ("server", format!("{used} in use, {max}")),
        ];
        if let Some(growth) = &self.growth {
            head.push(("growth", growth.text(self.server_max_bytes)));
        }
        let mut largest: Vec<&Line> = self.partitions.iter().collect();
        largest.sort_by_key(|line| Reverse(line.bytes));
        largest.truncate(SHOWN);
        let title = if largest.len() < self.partitions.len() { "largest partitions" } else { "partition" };
        let mut parts = vec![output::list(head)];
        for (title, lines) in [
            ("structure", self.structures.iter().collect::<Vec<_>>()),
            ("group", self.groups.iter().collect()),
            (title, largest),
        ] {
            if !lines.is_empty() {
                parts.push(Line::table(title, &lines));
            }
        }
        parts.join("\n\n")
    }
}

impl Memory {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        let (admin, topic) = (cx.admin(), &self.topic);
        let first = admin.memory(topic).await?;
        let view = match self.over {
            None => View::of(topic, &first, None),
            Some(over) => {
                let since = Instant::now();
                cx.output.note(&format!("looking again in {}", human::duration(over)));
                tokio::time::sleep(over).await;
                let second = admin.memory(topic).await?;
                let growth = Growth::between(&first, &second, since.elapsed());
                View::of(topic, &second, Some(growth))
            }
        };
        cx.output.show(&view, View::text)?;
        Ok(Exit::Done)
    }
}
