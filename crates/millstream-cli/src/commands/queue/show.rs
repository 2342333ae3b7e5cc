//! `queue show`.

use anyhow::Result;
use clap::Args;
use millstream::crates::core::QueueName;
use schemars::JsonSchema;
use serde::Serialize;

use super::waits;
use crate::commands::message::sanitize;
use crate::commands::scheduled::delayed::Waits;
use crate::commands::scheduled::recurring;
use crate::commands::shelf::view::content;
use crate::context::Context;
use crate::exit::{Exit, not_found};
use crate::human;

/// Shows a waiting task with its due time, headers and payload
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream queue show mails welcome-42
  millstream queue show mails welcome-42 --json | jq .data.payload")]
pub(super) struct Show {
    /// The delay queue
    queue: QueueName,
    /// Id of the task
    task: String,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct QueueShown {
    queue: String,
    #[serde(flatten)]
    task: Waits,
}

impl Show {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let queue = recurring::queue(cx, &self.queue).await?;
        let Some(task) = queue.get(&self.task).await? else {
            return Err(not_found(format!(
                "task {:?} does not wait in delay queue {}: it is done, worked on, or dead (`queue dead show`)",
                self.task, self.queue
            )));
        };
        let now = cx.now().await?;
        let shown = QueueShown { queue: self.queue.to_string(), task: waits(&task) };
        cx.output.show(&shown, |it| {
            let left = if it.task.due < now {
                "it is due".to_owned()
            } else {
                format!("in {}", human::duration(it.task.due.saturating_duration_since(now)))
            };
            let pairs = vec![
                ("task", sanitize::line(it.task.id.as_bytes())),
                ("queue", it.queue.clone()),
                ("due", format!("{}, {left}", human::time(it.task.due))),
            ];
            content(pairs, &it.task.body)
        })?;
        Ok(Exit::Done)
    }
}
