//! `queue dead trim`.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use millstream::DeadLetterRetention;
use millstream::crates::core::QueueName;
use millstream::delay::DeadTasksTrimmed;
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::scheduled::recurring;
use crate::commands::shared::view::DeadLetterRetentionView;
use crate::context::Context;
use crate::exit::{Exit, Usage};
use crate::{human, parse};

/// Drops dead tasks by age and number
///
/// The running workers of a queue apply its retention of dead tasks by themselves. This command applies it at once, also to
/// a queue without workers, or applies another one.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue dead trim mails --dry-run
  millstream queue dead trim mails --retention age:30d,length:100000")]
pub(super) struct DeadTaskTrim {
    /// The delay queue
    queue: QueueName,
    /// Which tasks stay: `age:30d`, `length:100000` (the newest of each shard), or both with a comma. Default: the retention
    /// of dead tasks of the queue
    #[arg(long, value_name = "RETENTION", value_parser = parse::dead_letter_retention)]
    retention: Option<DeadLetterRetention>,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct DeadTaskTrimmed {
    /// The number of dropped tasks; in a dry run, of those that would be.
    dropped: u64,
    /// Those that were too old.
    aged: u64,
    /// Those that had too many newer ones.
    excess: u64,
    /// The number of dropped tasks by shard.
    shards: BTreeMap<u32, u64>,
    retention: DeadLetterRetentionView,
    dry_run: bool,
}

impl DeadTaskTrimmed {
    fn of(trimmed: &DeadTasksTrimmed, retention: DeadLetterRetention, dry_run: bool) -> Self {
        Self {
            dropped: trimmed.dropped(),
            aged: trimmed.aged,
            excess: trimmed.excess,
            shards: trimmed.shards.clone(),
            retention: DeadLetterRetentionView::of(retention),
            dry_run,
        }
    }

    fn text(&self) -> String {
        let tasks = human::of(self.dropped, "dead task", "dead tasks");
        let done = if self.dry_run { "would be dropped" } else { "dropped" };
        let (aged, excess) = (human::count(self.aged), human::count(self.excess));
        format!("{tasks} {done}: {aged} too old, {excess} too many")
    }
}

impl DeadTaskTrim {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let queue = recurring::queue(cx, &self.queue).await?;
        let retention = self.retention.unwrap_or(queue.settings().dead_letter_retention);
        if retention.is_keep() {
            let message = format!("delay queue {} keeps dead tasks: --retention says which stay", self.queue);
            return Err(Usage(message).into());
        }
        let would = queue.dead().would_trim(retention).await?;
        if self.dry.dry_run {
            cx.output.show(&DeadTaskTrimmed::of(&would, retention, true), DeadTaskTrimmed::text)?;
            return Ok(Exit::Done);
        }
        if would.dropped() > 0 {
            let tasks = human::of(would.dropped(), "dead task", "dead tasks");
            cx.confirm(&format!("Drop {tasks} of {} permanently?", self.queue))?;
        }
        let trimmed = queue.dead().trim(retention).await?;
        cx.output.show(&DeadTaskTrimmed::of(&trimmed, retention, false), DeadTaskTrimmed::text)?;
        Ok(Exit::Done)
    }
}
