//! `millstream message cancel`: cancels a message or task.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use millstream::admin::{Cancel as Cancelling, CancelEnd, CancelState};
use millstream::{GroupName, MessageId, ResultId, TopicPartition};
use schemars::JsonSchema;
use serde::Serialize;

use super::sanitize;
use crate::commands::DryRun;
use crate::commands::schemas::{Table, of};
use crate::context::Context;
use crate::exit::Exit;
use crate::{human, output, parse};

/// Cancels a message or task, and says what became of it: for each group
///
/// What has not begun does not begin; a handler that runs is asked to stop. The answers are: cancelled (no handler has begun), stopped (it
/// has ended), done, dead and gone. Where something may run they are withdrawn (no handler will begin, but one of a former owner may run)
/// and asked (nobody has answered in time). The exit code is 3 for these two, else 0; of a dry run it is 0.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream message cancel imports/3/0af7651916cd43dd8448eb211c80319c/1700000000000-0
  millstream message cancel orders/3/1700000000000-0 --group billing
  millstream message cancel queue/mails/0/0af7651916cd43dd8448eb211c80319c/welcome-42 --within 1m")]
pub(super) struct Cancel {
    /// Id of its result, with the id of the message or task at its end; or topic, partition and id of a message
    id: Wanted,
    /// The only group for which a message is cancelled. Default: all
    #[arg(long)]
    group: Option<GroupName>,
    /// How long to wait for answers
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse::duration)]
    within: Duration,
    #[command(flatten)]
    dry: DryRun,
}

#[derive(Clone, Debug)]
enum Wanted {
    Result(ResultId),
    Message(TopicPartition, MessageId),
}

impl std::str::FromStr for Wanted {
    type Err = millstream::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some((place, id)) = text.rsplit_once('/')
            && let Some((topic, partition)) = place.split_once('/')
            && let (Ok(topic), Ok(partition), Ok(id)) = (topic.parse(), partition.parse(), id.parse())
        {
            return Ok(Self::Message(TopicPartition::new(topic, partition), id));
        }
        text.parse().map(Self::Result)
    }
}

#[derive(Debug, Serialize, JsonSchema)]
struct CancelView {
    id: String,
    ends: Vec<CancelEndView>,
    dry_run: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct CancelEndView {
    /// The group; `null` of a task.
    group: Option<String>,
    #[schemars(extend("enum" = ["cancelled", "stopped", "withdrawn", "done", "dead", "gone", "asked"]))]
    state: &'static str,
    /// Id of the dead letter.
    letter: Option<String>,
}

/// The data that the command prints as JSON.
pub(in crate::commands) const DATA: Table = &[("message cancel", of::<CancelView>())];

impl CancelEndView {
    fn of(it: &CancelEnd) -> Self {
        let letter = match &it.state {
            CancelState::Dead(letter, _) => Some(letter.to_string()),
            _ => None,
        };
        Self { group: it.group.as_ref().map(ToString::to_string), state: it.state.as_str(), letter }
    }

    fn row(&self) -> [String; 3] {
        let text = |text: Option<&String>| human::or_none(text, |text| sanitize::short(text.as_bytes()));
        [text(self.group.as_ref()), self.state.to_owned(), text(self.letter.as_ref())]
    }
}

impl Cancel {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let admin = cx.mq.admin();
        let (id, cancel): (_, Cancelling) = match &self.id {
            Wanted::Result(id) => (id.to_string(), admin.cancel(id)),
            Wanted::Message(tp, id) => {
                (format!("{}/{}/{id}", tp.topic, tp.partition), admin.cancel_message(tp, *id))
            }
        };
        let cancel = match self.group {
            Some(group) => cancel.in_group(group),
            None => cancel,
        };
        let dry_run = self.dry.dry_run;
        if dry_run {
            cx.output.note("dry run: nothing was done. What is asked would be asked:");
        }
        let cancel = if dry_run { cancel.dry_run() } else { cancel.within(self.within) };
        let ends = cancel.await?;
        let may_run =
            !dry_run && ends.iter().any(|it| matches!(it.state, CancelState::Asked | CancelState::Withdrawn));
        let view = CancelView { id, ends: ends.iter().map(CancelEndView::of).collect(), dry_run };
        cx.output.show(&view, |view| match view.ends.is_empty() {
            true => "the topic has no group: nobody handles the message".to_owned(),
            false => {
                output::table(&["group", "state", "dead letter"], view.ends.iter().map(CancelEndView::row))
            }
        })?;
        Ok(if may_run { Exit::Wrong } else { Exit::Done })
    }
}
