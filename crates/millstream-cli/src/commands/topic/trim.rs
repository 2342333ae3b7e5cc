//! `topic trim`.

use anyhow::Result;
use clap::Args;
use millstream::admin::{PartitionTrimmed, TrimPreview};
use millstream::{Retention, TopicName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::shared::view::RetentionView;
use crate::context::{Context, to_the_end};
use crate::exit::{Exit, Usage};
use crate::{human, output, parse};

/// Drops the log entries that the retention of a topic does not keep
///
/// The running consumers of a topic do this by themselves. This command does it at once for a topic whose consumers are
/// stopped, or applies another retention. Where consumers run, nothing is done. With --dry-run it shows what would be
/// dropped now, in any case.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream topic trim orders --dry-run
  millstream topic trim orders --retention age:7d")]
pub(super) struct Trim {
    /// The topic
    topic: TopicName,
    /// Which entries stay: `consumed`, `consumed-after:7d`, `age:7d` or `length:1000000`. Default: the retention of the
    /// topic
    #[arg(long, value_name = "RETENTION", value_parser = parse::retention)]
    retention: Option<Retention>,
    #[command(flatten)]
    dry: DryRun,
}

/// The entries of a partition that are dropped.
#[derive(Debug, Serialize, JsonSchema)]
struct Row {
    partition: u32,
    dropped: u64,
    /// Those that groups have not settled.
    lost: Vec<Loss>,
    /// A group with consumers, which trim the partition by themselves: nothing was done.
    in_use_by: Option<String>,
}

/// Entries that a group loses; `null` where their number is not known before.
#[derive(Debug, Serialize, JsonSchema)]
struct Loss {
    group: String,
    unread: Option<u64>,
    pending: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Outcome {
    topic: String,
    retention: RetentionView,
    /// The number of dropped entries; in a dry run, of those that would be.
    dropped: u64,
    /// Whether `dropped` is a lower bound: counting stops at 1,000,000 entries of a partition.
    at_least: bool,
    partitions: Vec<Row>,
    dry_run: bool,
}

impl Row {
    fn preview(it: TrimPreview) -> Self {
        let lost = it.lost.into_iter().map(|lost| Loss {
            group: lost.group.to_string(),
            unread: lost.unread,
            pending: lost.pending,
        });
        Self { partition: it.partition.0, dropped: it.dropped, lost: lost.collect(), in_use_by: None }
    }

    fn trimmed(it: PartitionTrimmed) -> Self {
        let lost = it.lost.into_iter().map(|lost| Loss {
            group: lost.group.to_string(),
            unread: Some(lost.unread),
            pending: Some(lost.pending),
        });
        let in_use_by = it.in_use_by.map(|group| group.to_string());
        Self { partition: it.partition.0, dropped: it.dropped, lost: lost.collect(), in_use_by }
    }

    fn row(&self) -> [String; 3] {
        let number = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), human::count);
        let lost = self
            .lost
            .iter()
            .map(|it| format!("{}: {} unread, {} pending", it.group, number(it.unread), number(it.pending)));
        let lost: Vec<_> = lost.collect();
        let lost = match (&self.in_use_by, lost.is_empty()) {
            (Some(group), _) => format!("nothing done: consumers of group {group} trim it"),
            (None, true) => "-".to_owned(),
            (None, false) => lost.join("; "),
        };
        [self.partition.to_string(), human::count(self.dropped), lost]
    }
}

impl Outcome {
    fn text(&self) -> String {
        let entries = self.entries();
        let done = if self.dry_run { "would be dropped" } else { "dropped" };
        let titles = [">partition", ">dropped", "not settled"];
        let rows = self.partitions.iter().filter(|row| row.dropped > 0 || row.in_use_by.is_some());
        let rows: Vec<_> = rows.map(Row::row).collect();
        let table =
            if rows.is_empty() { String::new() } else { format!("\n{}", output::table(&titles, rows)) };
        format!("{entries} {done}{table}")
    }

    fn entries(&self) -> String {
        let bound = if self.at_least { ">= " } else { "" };
        format!("{bound}{}", human::of(self.dropped, "entry", "entries"))
    }
}

impl Trim {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let admin = cx.admin();
        let retention = match self.retention {
            Some(retention) => retention,
            None => admin.topic(&self.topic).await?.retention,
        };
        if retention == Retention::Keep {
            let message = format!("topic {} keeps all entries: --retention says which stay", self.topic);
            return Err(Usage(message).into());
        }
        let previews = admin.trim_topic_preview(&self.topic, retention).await?;
        let at_least = previews.iter().any(|it| it.dropped >= TrimPreview::LIMIT && it.dropped < it.length);
        let rows: Vec<_> = previews.into_iter().map(Row::preview).collect();
        let would = self.outcome(rows, retention, at_least);
        if self.dry.dry_run {
            cx.output.show(&would, Outcome::text)?;
            return Ok(Exit::Done);
        }
        if would.dropped > 0 {
            let lossy = if would.partitions.iter().any(|row| !row.lost.is_empty()) {
                ", also what groups have not settled"
            } else {
                ""
            };
            cx.confirm(&format!("Drop {} of topic {} permanently{lossy}?", would.entries(), self.topic))?;
        }
        let trimmed = to_the_end(admin.trim_topic(&self.topic, retention)).await?;
        let rows: Vec<_> = trimmed.into_iter().map(Row::trimmed).collect();
        cx.output.show(&self.outcome(rows, retention, false), Outcome::text)?;
        Ok(Exit::Done)
    }

    fn outcome(&self, partitions: Vec<Row>, retention: Retention, at_least: bool) -> Outcome {
        Outcome {
            topic: self.topic.to_string(),
            retention: RetentionView::of(retention),
            dropped: partitions.iter().map(|row| row.dropped).sum(),
            at_least,
            partitions,
            dry_run: self.dry.dry_run,
        }
    }
}
