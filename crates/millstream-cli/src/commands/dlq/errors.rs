//! `millstream dlq errors`.

use anyhow::Result;
use clap::Args;
use millstream::layers::core::error_groups::MAX_GROUPS;
use serde::Serialize;

use crate::commands::dlq::select::{Wanted, open};
use crate::commands::group::Of;
use crate::commands::shared::count_progress::CountProgress;
use crate::commands::shared::errors::ErrorsView;
use crate::context::Context;
use crate::exit::Exit;

/// Groups dead letters by their errors, the most frequent first
///
/// Errors that differ only in numbers, ids, quoted strings, paths, addresses or times are one group, with one fingerprint:
/// `list`, `count`, `export`, `replay` and `purge` select its letters with --fingerprint. The example is the newest letter.
/// All letters are read.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream dlq errors orders billing
  millstream dlq errors orders billing --from '1h ago' --limit 5
  millstream dlq errors orders billing --json | jq -r '.errors[0].fingerprint'
  millstream dlq replay orders billing --fingerprint 8f3c0a51d27be694")]
pub(super) struct Errors {
    #[command(flatten)]
    of: Of,
    #[command(flatten)]
    wanted: Wanted,
    /// Maximum number of groups to show
    #[arg(long, value_name = "N", default_value_t = 50)]
    limit: usize,
}

/// The newest letter with an error.
#[derive(Debug, Serialize)]
struct Example {
    partition: u32,
    id: String,
}

impl Errors {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let filter = self.wanted.filter(cx).await?;
        let queue = open(cx, &self.of, &filter).await?;
        let mut progress = CountProgress::new();
        let groups =
            queue.errors(&filter, MAX_GROUPS, |read| progress.set(read, "letter", "letters")).await?;
        drop(progress);
        let view = ErrorsView::of(groups, self.limit, |(partition, id)| Example {
            partition: partition.0,
            id: id.to_string(),
        });
        cx.output.show(&view, |view| view.table(|example| example.id.clone()))?;
        view.notes("dead letter", "dead letters").iter().for_each(|note| cx.output.note(note));
        Ok(Exit::Done)
    }
}
