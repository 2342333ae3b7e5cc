//! `millstream message status`: where a message or task is.

use anyhow::Result;
use clap::Args;
use millstream::ResultId;
use millstream::admin::{WorkState, WorkStatus};
use schemars::JsonSchema;
use serde::Serialize;

use super::follow::FollowView;
use super::sanitize;
use crate::commands::schemas::{Table, of};
use crate::context::Context;
use crate::exit::Exit;
use crate::{human, output};

/// Shows where a message or task is that asks for its result: for each group, and what came of it
///
/// The id is that of the result, as for `message follow`, with the id of the message or task at its end: without that only the result is
/// looked for. `find` looks for other messages. The exit code says nothing of the
/// message.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream message status imports/3/0af7651916cd43dd8448eb211c80319c/1700000000000-0
  millstream message status queue/mails/0/0af7651916cd43dd8448eb211c80319c/welcome-42 --json | jq .data.work[0].state")]
pub(super) struct Status {
    /// Id of the result
    id: ResultId,
}

#[derive(Debug, Serialize, JsonSchema)]
struct StatusView {
    id: String,
    /// What came of it; `null` if there is no result: not yet, or not any longer.
    result: Option<FollowView>,
    work: Vec<WorkView>,
    /// Number of groups that were not looked at.
    left: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
struct WorkView {
    /// The group; `null` of a task.
    group: Option<String>,
    #[schemars(extend("enum" = ["waiting", "delayed", "handed out", "running", "retrying", "waits in step", "dead", "cancelled", "settled", "gone", "unknown"]))]
    state: &'static str,
    /// Name of the wait in its steps, of `waits in step`.
    step: Option<String>,
    /// When it began, is due or died.
    at: Option<String>,
    /// Who has it.
    by: Option<String>,
    attempt: Option<u32>,
    error: String,
}

/// The data that the command prints as JSON.
pub(in crate::commands) const DATA: Table = &[("message status", of::<StatusView>())];

impl WorkView {
    fn of(it: &WorkStatus) -> Self {
        let (at, by) = match &it.state {
            WorkState::Running(by, since) => (Some(*since), Some(by.clone())),
            WorkState::HandedOut { to, .. } => (None, to.clone()),
            WorkState::Delayed(at) | WorkState::Retrying { at, .. } => (Some(*at), None),
            WorkState::InStep { until, .. } => (Some(*until), None),
            WorkState::Dead(letter, _) => (Some(letter.timestamp()), None),
            _ => (None, None),
        };
        Self {
            group: it.group.as_ref().map(ToString::to_string),
            state: it.state.as_str(),
            step: match &it.state {
                WorkState::InStep { wait, .. } => Some(wait.clone()),
                _ => None,
            },
            at: at.map(|at| at.to_string()),
            by,
            attempt: it.attempt,
            error: it.error.clone(),
        }
    }

    fn row(&self) -> [String; 6] {
        let text = |text: Option<&String>| human::or_none(text, |text| sanitize::short(text.as_bytes()));
        [
            text(self.group.as_ref()),
            match &self.step {
                Some(step) => format!("{} {}", self.state, sanitize::short(step.as_bytes())),
                None => self.state.to_owned(),
            },
            text(self.at.as_ref()),
            text(self.by.as_ref()),
            human::or_none(self.attempt, |attempt| attempt.to_string()),
            sanitize::short(self.error.as_bytes()),
        ]
    }
}

impl Status {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let status = cx.mq.status(&self.id).await?;
        let view = StatusView {
            id: self.id.to_string(),
            work: status.work.iter().map(WorkView::of).collect(),
            result: status.result.map(FollowView::result),
            left: status.left,
        };
        cx.output.show(&view, |view| {
            let titles = ["group", "state", "at", "by", ">attempt", "error"];
            let result = view
                .result
                .as_ref()
                .map_or_else(|| "no result: not yet, or not any longer".to_owned(), FollowView::line);
            match view.work.is_empty() {
                true => result,
                false => format!(
                    "{}\n{result}",
                    output::table(&titles, view.work.iter().map(WorkView::row)).trim_end()
                ),
            }
        })?;
        if view.left > 0 {
            cx.output.note(&format!("{} were not looked at", human::of(view.left as u64, "group", "groups")));
        }
        Ok(Exit::Done)
    }
}
