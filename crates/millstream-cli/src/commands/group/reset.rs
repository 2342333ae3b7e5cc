//! `group reset`: moves the position of a group.

use anyhow::Result;
use clap::Args;
use millstream::SeekPreview;
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::group::Of;
use crate::context::{Context, to_the_end};
use crate::exit::Exit;
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
  millstream group reset orders billing --to 1700000000000-0 --json")]
pub(super) struct Reset {
    #[command(flatten)]
    of: Of,
    /// New position: `earliest`, `latest`, an id (this entry is read next), a time (`2026-01-31T12:00:00Z`) or `2h ago`
    #[arg(long, value_name = "POSITION", value_parser = parse::position)]
    to: Position,
    /// Moves the position
    #[arg(long, conflicts_with = "dry_run")]
    execute: bool,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct View {
    topic: String,
    group: String,
    dry_run: bool,
    /// Entries that were delivered before, and will be again. Counted up to a million in each partition.
    reread: u64,
    /// Entries that were not delivered, and will never be.
    skipped: u64,
    pending: u64,
    partitions: Vec<PartitionView>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct PartitionView {
    partition: u32,
    position: Option<String>,
    reread: u64,
    skipped: u64,
    pending: u64,
}

impl PartitionView {
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

impl View {
    fn text(&self) -> String {
        let titles = [">partition", "position", ">again", ">never", ">pending"];
        let mut rows: Vec<_> = self.partitions.iter().map(PartitionView::row).collect();
        let cut =
            |of: fn(&PartitionView) -> u64| self.partitions.iter().any(|it| of(it) >= SeekPreview::LIMIT);
        let sum = |number, cut: bool| human::at_least(Some(number).filter(|_| !cut), number);
        let (again, never) = (sum(self.reread, cut(|it| it.reread)), sum(self.skipped, cut(|it| it.skipped)));
        rows.push(["all".to_owned(), String::new(), again, never, human::count(self.pending)]);
        output::table(&titles, rows)
    }
}

impl Reset {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let Of { topic, group } = &self.of;
        let start = self.to.start(cx.now().await?);
        let admin = cx.admin();
        self.of.known(cx).await?;
        let previews = admin.reset_group_preview(topic, group, start).await?;
        let sum = |of: fn(&SeekPreview) -> u64| previews.iter().map(of).sum();
        let view = View {
            topic: topic.to_string(),
            group: group.to_string(),
            dry_run: !self.execute,
            reread: sum(|it| it.reread),
            skipped: sum(|it| it.skipped),
            pending: sum(|it| it.pending),
            partitions: previews.iter().map(PartitionView::of).collect(),
        };
        if self.execute {
            if !cx.output.is_json() {
                cx.output.note(&view.text());
            }
            cx.confirm(&format!("Move group {group} of topic {topic}?"))?;
            to_the_end(admin.reset_group(topic, group, start)).await?;
        } else {
            cx.output.note("dry run: nothing was done; --execute does it");
        }
        cx.output.show(&view, |view| match view.dry_run {
            true => view.text(),
            false => format!("group {group} of topic {topic} was moved"),
        })?;
        Ok(Exit::Done)
    }
}
