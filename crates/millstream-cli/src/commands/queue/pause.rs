//! `queue pause` and `queue resume`.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use millstream::crates::core::QueueName;
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::DryRun;
use crate::commands::scheduled::recurring;
use crate::context::{Context, to_the_end};
use crate::exit::Exit;
use crate::{human, parse};

/// Pauses all workers of a delay queue until the queue is resumed
///
/// When the command ends, no task is claimed any more. Tasks that workers have claimed are worked on to their end. Tasks can be
/// scheduled, and those that become due wait.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue pause mails
  millstream queue pause mails --wait 30s")]
pub(super) struct Pause {
    /// The delay queue
    queue: QueueName,
    /// Also waits until nothing is worked on, at most for this time; the exit code is 3 if something is left
    #[arg(long, value_name = "TIME", value_parser = parse::duration)]
    wait: Option<Duration>,
    #[command(flatten)]
    dry: DryRun,
}

/// Ends the pause of a delay queue
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue resume mails")]
pub(super) struct QueueResume {
    /// The delay queue
    queue: QueueName,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct QueuePauseView {
    queue: String,
    paused: bool,
    /// Whether the state changed, or would change.
    changed: bool,
    /// The number of tasks that workers have claimed.
    claimed: u64,
    dry_run: bool,
}

impl Pause {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        set(cx, &self.queue, true, self.wait, self.dry.dry_run).await
    }
}

impl QueueResume {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        set(cx, &self.queue, false, None, self.dry.dry_run).await
    }
}

async fn set(
    cx: &Context,
    name: &QueueName,
    paused: bool,
    wait: Option<Duration>,
    dry_run: bool,
) -> Result<Exit> {
    let queue = recurring::queue(cx, name).await?;
    let changed = if dry_run {
        cx.output.note("dry run: nothing was done");
        queue.count().await?.paused.is_some() != paused
    } else if paused {
        to_the_end(queue.pause()).await?
    } else {
        to_the_end(queue.resume()).await?
    };
    let claimed = match wait {
        Some(wait) if !dry_run => queue.pause_and_wait(wait).await?,
        _ => queue.count().await?.claimed,
    };
    let view = QueuePauseView { queue: name.to_string(), paused, changed, claimed, dry_run };
    cx.output.show(&view, |_| {
        let what = match (changed, dry_run, paused) {
            (false, _, true) => "is already paused",
            (false, _, false) => "was not paused",
            (true, true, true) => "would be paused",
            (true, true, false) => "would be resumed",
            (true, false, true) => "is paused",
            (true, false, false) => "is resumed",
        };
        let left = match claimed {
            0 => String::new(),
            some => format!("; {} worked on", human::of(some, "task is", "tasks are")),
        };
        format!("delay queue {name} {what}{left}")
    })?;
    Ok(if wait.is_some() && claimed > 0 { Exit::Wrong } else { Exit::Done })
}
