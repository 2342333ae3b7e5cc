//! `millstream memory`: the memory that topics use on the server, and when it will be full.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use futures_util::stream::{self, StreamExt};
use millstream::admin::{Memory as Measured, ServerMemory, Size};
use millstream::{ErrorKind, TopicName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::schemas::{Table, of};
use crate::commands::shared::AT_ONCE;
use crate::commands::shared::failures::Failed;
use crate::context::Context;
use crate::exit::Exit;
use crate::human::ms;
use crate::{human, output, parse};

/// Maximum number of the largest partitions that are shown to people.
const SHOWN: usize = 10;

/// Shows the server memory of topics: of one by structure, group and partition; of several as a sum with one line each
///
/// The server estimates the bytes from samples. With --over it measures twice, and shows when the server is full at the
/// same growth. The JSON output has all values for every topic. What cannot be read is named on stderr, and in
/// `errors` of JSON; the exit code is then 1.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream memory
  millstream memory orders payments
  millstream memory orders --over 1m
  millstream memory --json | jq '.data.topics[] | {topic, bytes}'")]
pub(crate) struct Memory {
    /// The topics. Default: all
    #[arg(value_name = "TOPIC")]
    topics: Vec<TopicName>,
    /// Measures again after this time, and shows when the server is full
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    over: Option<Duration>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct MemoryView {
    /// The memory of all these topics.
    bytes: u64,
    topics: Vec<MemoryTopicView>,
    /// The parts that could not be read, and are missing in the sums.
    errors: Vec<Failed>,
    /// The total memory in use on the server.
    server_used_bytes: Option<u64>,
    /// `null` for no limit.
    server_max_bytes: Option<u64>,
    growth: Option<Growth>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct MemoryTopicView {
    topic: String,
    bytes: u64,
    /// The growth between two samples, if there were two.
    growth_bytes: Option<i64>,
    structures: Vec<MemoryLine>,
    groups: Vec<MemoryLine>,
    partitions: Vec<MemoryLine>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct MemoryLine {
    #[serde(flatten)]
    of: MemoryOf,
    items: u64,
    bytes: u64,
    bytes_per_item: Option<u64>,
}

/// The structure that uses it: `"structure": "log"`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum MemoryOf {
    Structure(&'static str),
    Group(String),
    Partition(u32),
}

/// The change between two samples.
#[derive(Debug, Serialize, JsonSchema)]
struct Growth {
    over_ms: u64,
    topics_bytes: i64,
    server_bytes: Option<i64>,
    /// `null` if it did not grow, or has no limit.
    full_in_ms: Option<u64>,
}

/// The measurements of each topic, with their time.
struct MemoryLook {
    at: Instant,
    topics: Vec<(TopicName, Measured)>,
    errors: Vec<Failed>,
    /// The measurement of the servers as a whole.
    server: ServerMemory,
}

impl MemoryLook {
    fn bytes(&self) -> u64 {
        self.topics.iter().map(|(_, it)| it.bytes()).sum()
    }

    fn of(&self, topic: &TopicName) -> Option<&Measured> {
        self.topics.iter().find(|(name, _)| name == topic).map(|(_, it)| it)
    }
}

fn grown(before: u64, after: u64) -> i64 {
    after as i64 - before as i64
}

impl MemoryLine {
    fn new(of: MemoryOf, size: &Size) -> Self {
        Self { of, items: size.items, bytes: size.bytes, bytes_per_item: size.each() }
    }

    fn row(&self) -> [String; 4] {
        let name = match &self.of {
            MemoryOf::Structure(name) => (*name).to_owned(),
            MemoryOf::Group(name) => name.clone(),
            MemoryOf::Partition(number) => number.to_string(),
        };
        let each = human::or_none(self.bytes_per_item, human::bytes);
        [name, human::count(self.items), human::bytes(self.bytes), each]
    }

    fn table(title: &str, lines: &[&Self]) -> String {
        output::table(&[title, ">items", ">bytes", ">bytes per item"], lines.iter().map(|line| line.row()))
    }
}

fn lines<K>(sizes: &BTreeMap<K, Size>, of: impl Fn(&K) -> MemoryOf) -> Vec<MemoryLine> {
    sizes.iter().map(|(key, size)| MemoryLine::new(of(key), size)).collect()
}

impl Growth {
    fn between(earlier: &MemoryLook, later: &MemoryLook) -> Self {
        let over = later.at.duration_since(earlier.at);
        let (before, after) = (&earlier.server, &later.server);
        Self {
            over_ms: ms(over),
            topics_bytes: grown(earlier.bytes(), later.bytes()),
            server_bytes: before.used.zip(after.used).map(|(before, after)| grown(before, after)),
            full_in_ms: after.full_in(before, over).map(ms),
        }
    }

    fn text(&self, what: &str, max: Option<u64>) -> String {
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
        format!("in {over} {what} {}, the server {server}: {full}", by(self.topics_bytes))
    }
}

impl MemoryTopicView {
    fn of((topic, memory): &(TopicName, Measured), before: Option<&Measured>) -> Self {
        Self {
            topic: topic.to_string(),
            bytes: memory.bytes(),
            growth_bytes: before.map(|before| grown(before.bytes(), memory.bytes())),
            structures: lines(&memory.structures, |it| MemoryOf::Structure(it.as_str())),
            groups: lines(&memory.groups, |it| MemoryOf::Group(it.to_string())),
            partitions: lines(&memory.partitions, |it| MemoryOf::Partition(it.0)),
        }
    }

    fn items(&self) -> u64 {
        self.structures.iter().map(|line| line.items).sum()
    }

    fn tables(&self) -> String {
        let mut largest: Vec<&MemoryLine> = self.partitions.iter().collect();
        largest.sort_by_key(|line| Reverse(line.bytes));
        largest.truncate(SHOWN);
        let title = if largest.len() < self.partitions.len() { "largest partitions" } else { "partition" };
        let tables = [
            ("structure", self.structures.iter().collect::<Vec<_>>()),
            ("group", self.groups.iter().collect()),
            (title, largest),
        ];
        let tables = tables.iter().filter(|(_, lines)| !lines.is_empty());
        tables.map(|(title, lines)| MemoryLine::table(title, lines)).collect::<Vec<_>>().join("\n\n")
    }
}

impl MemoryView {
    fn of(look: &MemoryLook, before: Option<&MemoryLook>) -> Self {
        let topic = |of: &(TopicName, Measured)| MemoryTopicView::of(of, before.and_then(|it| it.of(&of.0)));
        Self {
            bytes: look.bytes(),
            topics: look.topics.iter().map(topic).collect(),
            errors: look.errors.clone(),
            server_used_bytes: look.server.used,
            server_max_bytes: look.server.max,
            growth: before.map(|before| Growth::between(before, look)),
        }
    }

    fn text(&self) -> String {
        let used = self.server_used_bytes.map_or_else(|| "unknown".to_owned(), human::bytes);
        let max = self.server_max_bytes.map_or_else(|| "no limit".to_owned(), human::bytes);
        let (name, what, tables) = match &self.topics[..] {
            [only] if self.unmeasured().next().is_none() => {
                (("topic", only.topic.clone()), "the topic", only.tables())
            }
            several => (("topics", human::count(several.len() as u64)), "they", self.table()),
        };
        let takes = ("takes", format!("about {}", human::bytes(self.bytes)));
        let mut head = vec![name, takes, ("server", format!("{used} in use, {max}"))];
        if let Some(growth) = &self.growth {
            head.push(("growth", growth.text(what, self.server_max_bytes)));
        }
        format!("{}\n\n{tables}", output::list(head))
    }

    /// Returns the unreadable topics.
    fn unmeasured(&self) -> impl Iterator<Item = &str> {
        let failed = self.errors.iter().filter_map(|it| it.topic.as_deref());
        failed.filter(|name| self.topics.iter().all(|it| it.topic != *name))
    }

    /// Formats a line for each topic, the largest first, and their sum.
    fn table(&self) -> String {
        let grew = |bytes: Option<i64>| {
            human::or_none(bytes, |bytes| {
                let sign = if bytes < 0 { "-" } else { "+" };
                format!("{sign}{}", human::bytes(bytes.unsigned_abs()))
            })
        };
        let row = |name: &str, items, bytes, growth| {
            let mut row = vec![name.to_owned(), human::count(items), human::bytes(bytes)];
            row.extend(self.growth.as_ref().map(|_| grew(growth)));
            row
        };
        let mut topics: Vec<_> = self.topics.iter().collect();
        topics.sort_by_key(|it| Reverse(it.bytes));
        let mut rows: Vec<_> =
            topics.iter().map(|it| row(&it.topic, it.items(), it.bytes, it.growth_bytes)).collect();
        rows.extend(self.unmeasured().map(|name| {
            let unknown = std::iter::repeat_n("?".to_owned(), if self.growth.is_some() { 3 } else { 2 });
            std::iter::once(name.to_owned()).chain(unknown).collect()
        }));
        let items = topics.iter().map(|it| it.items()).sum();
        rows.push(row("all", items, self.bytes, self.growth.as_ref().map(|it| it.topics_bytes)));
        let titles = ["topic", ">items", ">bytes", ">growth"];
        output::table(&titles[..rows[0].len()], rows)
    }
}

/// The data that the command prints as JSON.
pub(in crate::commands) const DATA: Table = &[("memory", of::<MemoryView>())];

impl Memory {
    pub(crate) async fn run(mut self, cx: &Context) -> Result<Exit> {
        // A topic that is named twice is counted once.
        self.topics.sort_unstable();
        self.topics.dedup();
        let first = self.look(cx).await?;
        let view = match self.over {
            None => MemoryView::of(&first, None),
            Some(over) => {
                cx.output.note(&format!("looking again in {}", human::duration(over)));
                tokio::time::sleep(over).await;
                MemoryView::of(&self.look(cx).await?, Some(&first))
            }
        };
        cx.output.show(&view, MemoryView::text)?;
        Failed::end(cx, &view.errors)
    }

    async fn look(&self, cx: &Context) -> Result<MemoryLook> {
        let admin = &cx.admin();
        let names = if self.topics.is_empty() { admin.topics().await? } else { self.topics.clone() };
        let at = Instant::now();
        let (mut topics, mut errors) = (Vec::new(), Vec::new());
        let measured = stream::iter(names).map(|name| async move { (admin.memory(&name).await, name) });
        let mut measured = std::pin::pin!(measured.buffered(AT_ONCE));
        while let Some((measured, name)) = measured.next().await {
            match measured {
                Err(error) if error.kind() == ErrorKind::NotFound && self.topics.is_empty() => {
                    errors.extend(Failed::missing(cx, &name).await?);
                }
                // A topic that cannot be measured does not prevent the others from being shown.
                Err(error)
                    if !error.is_transient()
                        && error.kind() != ErrorKind::NotFound
                        && self.topics.len() != 1 =>
                {
                    errors.push(Failed::topic(&name, &error));
                }
                measured => {
                    let measured = measured?;
                    let unread = measured.unreadable.iter().cloned();
                    errors.extend(unread.map(|reason| Failed::reason(&name, reason)));
                    topics.push((name, measured));
                }
            }
        }
        let server = ServerMemory::of(&admin.servers().await?);
        Ok(MemoryLook { at, topics, errors, server })
    }
}
