//! `queue dead edit`.

use anyhow::{Result, bail};
use clap::Args;
use millstream::Limits;
use millstream::crates::core::QueueName;
use millstream::crates::core::wire;
use schemars::JsonSchema;
use serde::Serialize;

use super::inspect::DeadTaskShown;
use super::{dead, newest};
use crate::commands::DryRun;
use crate::commands::dlq::edit::{EditArgs, by_hand};
use crate::commands::message::sanitize;
use crate::context::Context;
use crate::exit::Exit;

/// Schedules a dead task again with changes, due immediately, as a first attempt
///
/// Without options for the changes, the payload is opened in $VISUAL or $EDITOR. If the process dies after the task was
/// scheduled and before it is removed from the dead ones, it is in both places.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue dead edit mails welcome-42
  millstream queue dead edit mails welcome-42 --set-payload '{\"to\":\"a@example.com\"}'")]
pub(super) struct Edit {
    /// The delay queue
    queue: QueueName,
    /// Id of the task. If tasks with this id died several times, the newest is meant
    task: String,
    #[command(flatten)]
    edit: EditArgs,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Edited<'a> {
    /// Whether it is scheduled; in a dry run, whether it would be.
    scheduled: bool,
    /// The task as it was.
    before: DeadTaskShown<'a>,
    dry_run: bool,
}

impl Edit {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let dead = dead(cx, &self.queue).await?;
        let (task, _) = newest(&dead, &self.queue, &self.task).await?;
        let mut edit = self.edit.edit()?;
        if !self.dry.dry_run && (self.edit.edit || edit.is_empty()) {
            edit.payload = Some(by_hand(&task.body)?);
        }
        let message = edit.apply(&task.body);
        if let Err(why) = wire::decode_body(&message, &Limits::NONE) {
            bail!("with these changes the task is no message: {why}; nothing was done");
        }
        let scheduled = self.dry.dry_run || dead.replay_as(&task, message).await?;
        let id = sanitize::line(self.task.as_bytes());
        if !scheduled {
            bail!("{id} could not be scheduled: its id is in use; it stays dead");
        }
        let edited = Edited { scheduled, before: DeadTaskShown(&task), dry_run: self.dry.dry_run };
        cx.output.show(&edited, |it| {
            let done = if it.dry_run { "would be scheduled again" } else { "scheduled again, with changes" };
            format!("{id}: {done}")
        })?;
        Ok(Exit::Done)
    }
}
