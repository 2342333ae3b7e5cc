//! `group reset` and `group positions`: moves the position of a group, and prints it for a file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use millstream::admin::parse_positions;
use millstream::{MessageId, Partition, SeekPreview, Start};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::group::GroupOf;
use crate::context::{Context, to_the_end};
use crate::exit::{Exit, Usage, not_found};
use crate::parse::{self, Position};
use crate::{human, output};

/// Moves the position of a group without running consumers: back, to handle messages again, or forward, to skip some
///
/// Without --execute it only shows the effect, as numbers of entries: `again` were handed out before and would be
/// handed out again, `never` were not and never would be, `pending` are handed out and not settled. Messages that wait
/// for a retry and dead letters are not affected.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream group reset orders billing --to earliest
  millstream group reset orders billing --to '2h ago' --execute --yes
  millstream group reset orders billing --to 1700000000000-0 --partition 3 --json
  millstream group positions orders billing > positions.csv
  millstream group reset orders billing --from-file positions.csv --execute")]
pub(super) struct Reset {
    #[command(flatten)]
    of: GroupOf,
    /// New position: `earliest`, `latest`, an id (this entry is read next), a time (`2026-01-31T12:00:00Z`) or `2h ago`
    #[arg(long, value_name = "POSITION", value_parser = parse::position, required_unless_present = "from_file")]
    to: Option<Position>,
    /// Only these partitions. Only they must have no consumer. Default: all, or those of the file
    #[arg(long, value_name = "N", value_delimiter = ',')]
    partition: Vec<u32>,
    /// New positions of partitions, as `group positions` prints them; `-` for stdin
    #[arg(long, value_name = "FILE", conflicts_with = "to")]
    from_file: Option<PathBuf>,
    /// Moves the position
    #[arg(long, conflicts_with = "dry_run")]
    execute: bool,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct GroupResetView {
    topic: String,
    group: String,
    dry_run: bool,
    /// Entries that were delivered before, and will be again. Counted up to a million in each partition.
    reread: u64,
    /// Entries that were not delivered, and will never be.
    skipped: u64,
    pending: u64,
    partitions: Vec<GroupResetPartitionView>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct GroupResetPartitionView {
    partition: u32,
    position: Option<String>,
    reread: u64,
    skipped: u64,
    pending: u64,
}

impl GroupResetPartitionView {
    fn of(preview: &SeekPreview) -> Self {
        Self {
            partition: preview.partition.0,
            position: preview.position.map(|id| id.to_string()),
            reread: preview.reread,
            skipped: preview.skipped,
            pending: preview.pending,
        }
    }

    fn row(&self) -> [String; 5] {
        [
            self.partition.to_string(),
            self.position.clone().unwrap_or_else(|| "missing".to_owned()),
            counted(self.reread),
            counted(self.skipped),
            human::count(self.pending),
        ]
    }
}

/// Formats a count that has an upper limit.
fn counted(number: u64) -> String {
    human::at_least(Some(number).filter(|number| *number < SeekPreview::LIMIT), number)
}

impl GroupResetView {
    fn text(&self) -> String {
        let titles = [">partition", "position", ">again", ">never", ">pending"];
        let mut rows: Vec<_> = self.partitions.iter().map(GroupResetPartitionView::row).collect();
        let cut = |of: fn(&GroupResetPartitionView) -> u64| {
            self.partitions.iter().any(|it| of(it) >= SeekPreview::LIMIT)
        };
        let sum = |number, cut: bool| human::at_least(Some(number).filter(|_| !cut), number);
        let (again, never) = (sum(self.reread, cut(|it| it.reread)), sum(self.skipped, cut(|it| it.skipped)));
        rows.push(["all".to_owned(), String::new(), again, never, human::count(self.pending)]);
        output::table(&titles, rows)
    }
}

impl Reset {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let GroupOf { topic, group } = &self.of;
        let admin = cx.admin();
        self.of.known(cx).await?;
        let starts = self.starts(cx).await?;
        // One position for all partitions may be behind the end of some: they start at their end.
        let whole =
            starts.values().next().copied().filter(|_| self.from_file.is_none() && self.partition.is_empty());
        let previews = match whole {
            Some(start) => admin.reset_group_preview(topic, group, start).await?,
            None => admin.reset_partitions_preview(topic, group, &starts).await?,
        };
        let sum = |of: fn(&SeekPreview) -> u64| previews.iter().map(of).sum();
        let view = GroupResetView {
            topic: topic.to_string(),
            group: group.to_string(),
            dry_run: !self.execute,
            reread: sum(|it| it.reread),
            skipped: sum(|it| it.skipped),
            pending: sum(|it| it.pending),
            partitions: previews.iter().map(GroupResetPartitionView::of).collect(),
        };
        if self.execute {
            if !cx.output.is_json() {
                cx.output.note(&view.text());
            }
            cx.confirm(&format!("Move group {group} of topic {topic}?"))?;
            match whole {
                Some(start) => to_the_end(admin.reset_group(topic, group, start)).await?,
                None => to_the_end(admin.reset_partitions(topic, group, &starts)).await?,
            }
        } else {
            cx.output.note("dry run: nothing was done; --execute does it");
        }
        cx.output.show(&view, |view| match view.dry_run {
            true => view.text(),
            false => format!("group {group} of topic {topic} was moved"),
        })?;
        Ok(Exit::Done)
    }

    /// Returns the new position of each partition that is to be moved.
    async fn starts(&self, cx: &Context) -> Result<BTreeMap<Partition, Start>> {
        let topic = &self.of.topic;
        let all: BTreeMap<_, _> = match (&self.from_file, self.to) {
            (Some(file), _) => {
                let text = match file.to_str() {
                    Some("-") => std::io::read_to_string(std::io::stdin()).context("cannot read stdin"),
                    _ => std::fs::read_to_string(file)
                        .with_context(|| format!("cannot read {}", file.display())),
                };
                let positions = parse_positions(topic, &text?).map_err(|error| Usage(error.to_string()))?;
                positions.into_iter().map(|(partition, id)| (partition, Start::After(id))).collect()
            }
            (None, Some(to)) => {
                let start = to.start(cx.now().await?);
                cx.admin().topic(topic).await?.iter().map(|it| (it.partition, start)).collect()
            }
            (None, None) => return Err(Usage("--to or --from-file is missing".to_owned()).into()),
        };
        if self.partition.is_empty() {
            return Ok(all);
        }
        let chosen = self.partition.iter().map(|number| {
            let partition = Partition(*number);
            let start = all.get(&partition).ok_or_else(|| match &self.from_file {
                Some(file) => Usage(format!("{} has no partition {number}", file.display())).into(),
                None => not_found(format!("topic {topic} has no partition {number}")),
            });
            start.map(|start| (partition, *start))
        });
        chosen.collect()
    }
}

/// Prints the position of a group in each partition, as lines of topic, partition and position
///
/// The position is the id behind which the group has to read to handle all that it has not settled. `group reset --from-file`
/// moves this group, or another one of the topic, there. Messages that were settled behind a pending one are then handled
/// again. Messages that wait for a retry and dead letters are not included.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream group positions orders billing > positions.csv
  millstream group reset orders billing --from-file positions.csv
  millstream group positions orders billing | millstream group reset orders audit --from-file - --execute --yes")]
pub(super) struct Positions {
    #[command(flatten)]
    of: GroupOf,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PositionView {
    topic: String,
    partition: u32,
    /// The id behind which the group has to read.
    position: String,
}

impl Positions {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let GroupOf { topic, group } = &self.of;
        self.of.known(cx).await?;
        let positions = cx.admin().group_positions(topic, group).await?;
        let view = |(partition, id): (&Partition, &MessageId)| PositionView {
            topic: topic.to_string(),
            partition: partition.0,
            position: id.to_string(),
        };
        let view: Vec<_> = positions.iter().map(view).collect();
        cx.output.show(&view, |view| {
            let line = |it: &PositionView| format!("{},{},{}\n", it.topic, it.partition, it.position);
            view.iter().map(line).collect()
        })?;
        Ok(Exit::Done)
    }
}
