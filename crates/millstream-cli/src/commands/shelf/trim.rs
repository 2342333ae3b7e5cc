//! Trims of dead letters and dead tasks.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use millstream::DeadLetterRetention;
use millstream::admin::Trimmed;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Kind, Opened};
use crate::commands::DryRun;
use crate::commands::shared::view::DeadLetterRetentionView;
use crate::context::Context;
use crate::exit::{Exit, Usage};
use crate::{human, parse};

/// Which ones are dropped
#[derive(Args, Debug)]
pub(in crate::commands) struct Trim {
    /// Which ones stay: `age:30d`, `length:100000` (the newest of each partition or shard), or both with a comma. Default: the
    /// retention that is stored
    #[arg(long, value_name = "RETENTION", value_parser = parse::dead_letter_retention)]
    retention: Option<DeadLetterRetention>,
    #[command(flatten)]
    dry: DryRun,
}

/// The result.
#[derive(Serialize, JsonSchema)]
pub(in crate::commands) struct TrimView {
    /// The number of those that were dropped; in a dry run, of those that would be.
    dropped: u64,
    /// Those that were too old.
    aged: u64,
    /// Those that had too many newer ones.
    excess: u64,
    /// The dead letters that stay because they are claimed.
    claimed: u64,
    #[serde(flatten)]
    by: TrimmedBy,
    retention: DeadLetterRetentionView,
    dry_run: bool,
}

/// The number of those that were dropped, by their place.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
enum TrimmedBy {
    Letters { partitions: BTreeMap<u32, u64> },
    Tasks { shards: BTreeMap<u32, u64> },
}

impl Trim {
    pub(in crate::commands) async fn run(&self, cx: &Context, opened: &Opened) -> Result<Exit> {
        let (shelf, of, (one, many)) = (&opened.shelf, &opened.of, opened.kind.noun());
        let retention = self.retention.unwrap_or(shelf.retention());
        if retention.is_keep() {
            return Err(Usage(format!("all {many} of {of} are kept: --retention says which stay")).into());
        }
        let would = shelf.would_trim(retention).await?;
        if !self.dry.dry_run && would.dropped() > 0 {
            cx.confirm(&format!("Drop {} of {of} permanently?", human::of(would.dropped(), one, many)))?;
        }
        let trimmed = if self.dry.dry_run { would } else { shelf.trim(retention).await? };
        let done = if self.dry.dry_run { "would be dropped" } else { "dropped" };
        let dropped = trimmed.dropped();
        let Trimmed { aged, excess, claimed, partitions } = trimmed;
        let by: BTreeMap<_, _> = partitions.into_iter().map(|(lane, count)| (lane.0, count)).collect();
        let by = match opened.kind {
            Kind::Tasks => TrimmedBy::Tasks { shards: by },
            _ => TrimmedBy::Letters { partitions: by },
        };
        let view = TrimView {
            dropped,
            aged,
            excess,
            claimed,
            by,
            retention: DeadLetterRetentionView::of(retention),
            dry_run: self.dry.dry_run,
        };
        cx.output.show(&view, |_| {
            let stay = match claimed {
                0 => String::new(),
                claimed => {
                    format!("; {} claimed", human::of(claimed, "stays, since it is", "stay, since they are"))
                }
            };
            let (aged, excess) = (human::count(aged), human::count(excess));
            format!("{} {done}: {aged} too old, {excess} too many{stay}", human::of(dropped, one, many))
        })?;
        Ok(Exit::Done)
    }
}
