//! `queue delete`.

use anyhow::{Result, bail};
use clap::Args;
use millstream::crates::core::QueueName;
use schemars::JsonSchema;
use serde::Serialize;

use super::QueueCounts;
use crate::commands::DryRun;
use crate::commands::scheduled::recurring;
use crate::context::{Context, to_the_end};
use crate::exit::Exit;
use crate::human;

/// Deletes a delay queue with all its tasks
///
/// The tasks are those that wait, are claimed or are dead, and the recurring ones. A queue with claimed tasks is not
/// deleted. Stop its workers first, and the programs that schedule tasks: they are not registered, and what they schedule
/// afterwards is left behind.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue delete mails --dry-run
  millstream queue delete mails --yes")]
pub(super) struct QueueDelete {
    /// The delay queue
    queue: QueueName,
    /// Deletes it even if workers have claimed tasks
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    dry: DryRun,
}

/// The data that is, or was, deleted with the queue.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct QueueView {
    queue: String,
    deleted: bool,
    dry_run: bool,
    waiting: u64,
    claimed: u64,
    dead: u64,
    /// The number of recurring rules.
    recurring: usize,
}

impl QueueView {
    fn text(&self) -> String {
        let recurring = human::of(self.recurring as u64, "recurring rule", "recurring rules");
        format!(
            "delay queue {} with {}, {} claimed, {} dead and {recurring}",
            self.queue,
            human::of(self.waiting, "waiting task", "waiting tasks"),
            human::count(self.claimed),
            human::count(self.dead),
        )
    }
}

impl QueueDelete {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let queue = recurring::queue(cx, &self.queue).await?;
        let counts = QueueCounts::of(&queue).await?;
        let mut view = QueueView {
            queue: self.queue.to_string(),
            deleted: false,
            dry_run: self.dry.dry_run,
            waiting: counts.waiting,
            claimed: counts.claimed,
            dead: counts.dead,
            recurring: queue.recurring_list().await?.len(),
        };
        let in_use = view.claimed > 0 && !self.force;
        if view.dry_run {
            let refused = if in_use { "it is in use, and needs --force. " } else { "" };
            cx.output.note(&format!("dry run: nothing was done. {refused}What would be deleted:"));
        } else if in_use {
            let claimed = human::of(view.claimed, "task", "tasks");
            bail!(
                "workers have claimed {claimed} of delay queue {}: stop them first, or --force it",
                self.queue
            );
        } else {
            if !cx.output.is_json() {
                cx.output.note(&view.text());
            }
            cx.confirm(&format!("Delete delay queue {}, for ever?", self.queue))?;
            to_the_end(queue.delete()).await?;
            view.deleted = true;
        }
        cx.output.show(&view, |view| match view.deleted {
            true => format!("delay queue {} is deleted", view.queue),
            false => view.text(),
        })?;
        Ok(Exit::Done)
    }
}
