//! `millstream dlq trim`.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use millstream::DeadLetterRetention;
use millstream::admin::{DeadLetterFilter, DeadLettersTrimmed};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::dlq::select;
use crate::commands::group::GroupOf;
use crate::commands::shared::view::DeadLetterRetentionView;
use crate::context::Context;
use crate::exit::{Exit, Usage};
use crate::{human, parse};

/// Drops dead letters by age and number
///
/// The running consumers of a group apply the retention of dead letters of their topic by themselves. This command applies
/// it at once, also to a group without consumers, or applies another one. Letters that are claimed, by a consumer of dead
/// letters or a replay, are not dropped.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream dlq trim orders billing --dry-run
  millstream dlq trim orders billing --retention age:30d,length:100000")]
pub(super) struct DlqTrim {
    #[command(flatten)]
    of: GroupOf,
    /// Which letters stay: `age:30d`, `length:100000` (the newest of each partition), or both with a comma. Default: the
    /// retention of dead letters of the topic
    #[arg(long, value_name = "RETENTION", value_parser = parse::dead_letter_retention)]
    retention: Option<DeadLetterRetention>,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct DlqTrimmed {
    /// The number of dropped letters; in a dry run, of those that would be.
    dropped: u64,
    /// Those that were too old.
    aged: u64,
    /// Those that had too many newer ones.
    excess: u64,
    /// The letters that stay because they are claimed.
    claimed: u64,
    /// The number of dropped letters by partition.
    partitions: BTreeMap<u32, u64>,
    retention: DeadLetterRetentionView,
    dry_run: bool,
}

impl DlqTrimmed {
    fn of(trimmed: &DeadLettersTrimmed, retention: DeadLetterRetention, dry_run: bool) -> Self {
        Self {
            dropped: trimmed.dropped(),
            aged: trimmed.aged,
            excess: trimmed.excess,
            claimed: trimmed.claimed,
            partitions: trimmed
                .partitions
                .iter()
                .map(|(partition, letters)| (partition.0, *letters))
                .collect(),
            retention: DeadLetterRetentionView::of(retention),
            dry_run,
        }
    }

    fn text(&self) -> String {
        let letters = human::of(self.dropped, "dead letter", "dead letters");
        let done = if self.dry_run { "would be dropped" } else { "dropped" };
        let (aged, excess) = (human::count(self.aged), human::count(self.excess));
        let claimed = match self.claimed {
            0 => String::new(),
            claimed => {
                format!("; {} claimed", human::of(claimed, "stays, since it is", "stay, since they are"))
            }
        };
        format!("{letters} {done}: {aged} too old, {excess} too many{claimed}")
    }
}

impl DlqTrim {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let queue = select::open(cx, &self.of, &DeadLetterFilter::default()).await?;
        let retention = self.retention.unwrap_or(queue.topic().dead_letter_retention);
        if retention.is_keep() {
            let message = format!("topic {} keeps dead letters: --retention says which stay", self.of.topic);
            return Err(Usage(message).into());
        }
        let would = queue.would_trim(retention).await?;
        if self.dry.dry_run {
            cx.output.show(&DlqTrimmed::of(&would, retention, true), DlqTrimmed::text)?;
            return Ok(Exit::Done);
        }
        if would.dropped() > 0 {
            let letters = human::of(would.dropped(), "dead letter", "dead letters");
            cx.confirm(&format!("Drop {letters} of {} permanently?", self.of.group))?;
        }
        let trimmed = queue.trim(retention).await?;
        cx.output.show(&DlqTrimmed::of(&trimmed, retention, false), DlqTrimmed::text)?;
        Ok(Exit::Done)
    }
}
