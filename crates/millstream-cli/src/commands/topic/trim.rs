//! `topic trim`.

use anyhow::Result;
use clap::Args;
use millstream::admin::{PartitionTrimmed, TrimPreview};
use millstream::{MessageId, Partition, Retention, TopicName};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::shared::view::RetentionView;
use crate::context::{Context, to_the_end};
use crate::exit::{Exit, Usage};
use crate::{human, output, parse};

/// Drops the log entries that the retention of a topic does not keep
///
/// The running consumers of a topic do this by themselves, and its producers too if the retention is `age` or `length`. This
/// command does it at once, for any topic, or applies another retention. With --before it drops all entries below an id. With
/// --dry-run it shows what would be dropped now.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream topic trim orders --dry-run
  millstream topic trim orders --retention age:7d
  millstream topic trim orders --before 1764313200000-0 --partition 3")]
pub(super) struct Trim {
    /// The topic
    topic: TopicName,
    /// Which entries stay: `consumed`, `consumed-after:7d`, `age:7d` or `length:1000000`. Default: the retention of the
    /// topic
    #[arg(long, value_name = "RETENTION", value_parser = parse::retention)]
    retention: Option<Retention>,
    /// Drops all entries with lower ids, whether groups have settled them or not
    #[arg(long, value_name = "ID", conflicts_with = "retention")]
    before: Option<MessageId>,
    /// Drops only entries of this partition
    #[arg(long, value_name = "N", requires = "before")]
    partition: Option<u32>,
    #[command(flatten)]
    dry: DryRun,
}

/// The messages of a partition that are dropped.
#[derive(Debug, Serialize, JsonSchema)]
struct TopicTrimRow {
    partition: u32,
    dropped: u64,
    /// Those that groups have not settled.
    lost: Vec<Loss>,
}

/// Messages that a group loses; `null` where their number is not known before.
#[derive(Debug, Serialize, JsonSchema)]
struct Loss {
    group: String,
    unread: Option<u64>,
    pending: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TopicTrimOutcome {
    topic: String,
    /// The retention that was applied; `null` with --before.
    retention: Option<RetentionView>,
    /// The id below which entries are dropped.
    before: Option<String>,
    /// The number of dropped messages; in a dry run, of those that would be.
    dropped: u64,
    /// Whether `dropped` is a lower bound: counting stops at 1,000,000 of a partition.
    at_least: bool,
    partitions: Vec<TopicTrimRow>,
    dry_run: bool,
}

impl TopicTrimRow {
    fn preview(it: TrimPreview) -> Self {
        let lost = it.lost.into_iter().map(|lost| Loss {
            group: lost.group.to_string(),
            unread: lost.unread,
            pending: lost.pending,
        });
        Self { partition: it.partition.0, dropped: it.dropped, lost: lost.collect() }
    }

    fn trimmed(it: PartitionTrimmed) -> Self {
        let lost = it.lost.into_iter().map(|lost| Loss {
            group: lost.group.to_string(),
            unread: Some(lost.unread),
            pending: Some(lost.pending),
        });
        Self { partition: it.partition.0, dropped: it.dropped, lost: lost.collect() }
    }

    fn row(&self) -> [String; 3] {
        let number = |number: Option<u64>| number.map_or_else(|| "?".to_owned(), human::count);
        let lost = self
            .lost
            .iter()
            .map(|it| format!("{}: {} unread, {} pending", it.group, number(it.unread), number(it.pending)));
        let lost: Vec<_> = lost.collect();
        let lost = if lost.is_empty() { "-".to_owned() } else { lost.join("; ") };
        [self.partition.to_string(), human::count(self.dropped), lost]
    }
}

impl TopicTrimOutcome {
    fn text(&self) -> String {
        let messages = self.messages();
        let done = if self.dry_run { "would be dropped" } else { "dropped" };
        let titles = [">partition", ">dropped", "not settled"];
        let rows = self.partitions.iter().filter(|row| row.dropped > 0);
        let rows: Vec<_> = rows.map(TopicTrimRow::row).collect();
        let table =
            if rows.is_empty() { String::new() } else { format!("\n{}", output::table(&titles, rows)) };
        format!("{messages} {done}{table}")
    }

    fn messages(&self) -> String {
        let bound = if self.at_least { ">= " } else { "" };
        format!("{bound}{}", human::of(self.dropped, "message", "messages"))
    }
}

impl Trim {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let (admin, partition) = (cx.admin(), self.partition.map(Partition));
        let (retention, previews) = match (self.before, self.retention) {
            (Some(id), _) => (None, admin.trim_topic_below_preview(&self.topic, partition, id).await?),
            (None, retention) => {
                let retention = match retention {
                    Some(retention) => retention,
                    None => admin.topic(&self.topic).await?.retention,
                };
                if retention == Retention::Keep {
                    let message =
                        format!("topic {} keeps all entries: --retention says which stay", self.topic);
                    return Err(Usage(message).into());
                }
                (Some(retention), admin.trim_topic_preview(&self.topic, retention).await?)
            }
        };
        let at_least = previews.iter().any(|it| it.dropped >= TrimPreview::LIMIT && it.dropped < it.length);
        let rows: Vec<_> = previews.into_iter().map(TopicTrimRow::preview).collect();
        let would = self.outcome(rows, retention, at_least);
        if self.dry.dry_run {
            cx.output.show(&would, TopicTrimOutcome::text)?;
            return Ok(Exit::Done);
        }
        if would.dropped > 0 {
            let lossy = if would.partitions.iter().any(|row| !row.lost.is_empty()) {
                ", also what groups have not settled"
            } else {
                ""
            };
            cx.confirm(&format!("Drop {} of topic {} permanently{lossy}?", would.messages(), self.topic))?;
        }
        let trimmed = match (retention, self.before) {
            (Some(retention), _) => to_the_end(admin.trim_topic(&self.topic, retention)).await?,
            (None, before) => {
                let id = before.unwrap_or(MessageId::ZERO);
                to_the_end(admin.trim_topic_below(&self.topic, partition, id)).await?
            }
        };
        let rows: Vec<_> = trimmed.into_iter().map(TopicTrimRow::trimmed).collect();
        cx.output.show(&self.outcome(rows, retention, false), TopicTrimOutcome::text)?;
        Ok(Exit::Done)
    }

    fn outcome(
        &self,
        partitions: Vec<TopicTrimRow>,
        retention: Option<Retention>,
        at_least: bool,
    ) -> TopicTrimOutcome {
        TopicTrimOutcome {
            topic: self.topic.to_string(),
            retention: retention.map(RetentionView::of),
            before: self.before.map(|id| id.to_string()),
            dropped: partitions.iter().map(|row| row.dropped).sum(),
            at_least,
            partitions,
            dry_run: self.dry.dry_run,
        }
    }
}
