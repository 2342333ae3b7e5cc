//! `millstream message steps` and `signal`: what the handler of a message has done so far, and what it waits for.

use anyhow::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use clap::Args;
use millstream::admin::{batch_of, step_word};
use millstream::crates::core::steps::{StepKind, StepRecord, check_name};
use millstream::{Signalled, Timestamp, WorkId};
use schemars::JsonSchema;
use serde::Serialize;

use super::sanitize;
use crate::commands::DryRun;
use crate::commands::schemas::{Table, of};
use crate::context::Context;
use crate::exit::Exit;
use crate::{human, output};

/// Shows the steps of a message for a group, or of a task: what is done, what it waits for, and which signals have come
///
/// The id is that of its steps, which its handler has: topic, partition, group and id of the message; of a task `queue`, the delay queue, its
/// shard and the id of the task. Results of steps and values of signals are shown, as payloads are by `tail`. The steps of a dead letter are
/// in its header `millstream-steps`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream message steps signups/3/welcome/1700000000000-0
  millstream message steps queue/mails/1/welcome-42 --json | jq '.data.steps[] | select(.what == \"waits\")'")]
pub(super) struct Steps {
    /// Id of the message for its group, or of the task
    id: WorkId,
}

/// Signals a message or task that waits for this in its steps, or will
///
/// The answers are: woken (it is stored, and the message that waits is due), stored (nobody waits for it yet), known (one of this name is
/// there, which stays), late (the time for it is over) and gone (there is no such message or task). The exit code is 3 for the last two, else 0;
/// of a dry run it is 0.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream message signal signups/3/welcome/1700000000000-0 confirmed --value true
  millstream message signal queue/mails/1/welcome-42 approved --value '{\"by\":\"Ada\"}' --dry-run")]
pub(super) struct Signal {
    /// Id of the message for its group, or of the task
    id: WorkId,
    /// Name of the signal
    #[arg(value_parser = name)]
    name: String,
    /// What it says, as JSON
    #[arg(long, value_name = "JSON", default_value = "null", value_parser = json)]
    value: String,
    #[command(flatten)]
    dry: DryRun,
}

fn name(text: &str) -> Result<String, millstream::Error> {
    check_name(text).map(|()| text.to_owned())
}

fn json(text: &str) -> Result<String, serde_json::Error> {
    serde_json::from_str::<serde::de::IgnoredAny>(text).map(|_| text.to_owned())
}

#[derive(Debug, Serialize, JsonSchema)]
struct StepsView {
    id: String,
    steps: Vec<StepView>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct StepView {
    name: String,
    /// `done` is a step with its result, `sent` the note of the members that a step has sent, `waits` a wait, also one that is over, and `signal` a
    /// signal that has come.
    #[schemars(extend("enum" = ["done", "sent", "waits", "signal"]))]
    what: &'static str,
    /// When it ended, ends, or came, by the server's clock.
    #[schemars(with = "u64")]
    at_ms: Timestamp,
    /// Size of the value.
    bytes: usize,
    /// The batch of the members that it has sent.
    batch: Option<String>,
    /// The result, or what the signal says, if it is text.
    value: Option<String>,
    /// The same, if it is not.
    value_base64: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SignalView {
    id: String,
    name: String,
    /// What became of it; `null` if a dry run does not know.
    #[schemars(extend("enum" = ["woken", "stored", "known", "late", "gone", null]))]
    state: Option<&'static str>,
    dry_run: bool,
}

/// The data that the commands print as JSON.
pub(in crate::commands) const DATA: Table =
    &[("message steps", of::<StepsView>()), ("message signal", of::<SignalView>())];

impl StepView {
    fn of(record: &StepRecord) -> Self {
        let (name, batch) = (record.step(), batch_of(record));
        let shown = record.kind != StepKind::Wait;
        let text = std::str::from_utf8(&record.value).ok().filter(|_| shown);
        Self {
            name: name.to_owned(),
            what: step_word(record),
            at_ms: record.at,
            bytes: if shown { record.value.len() } else { 0 },
            batch: batch.map(|batch| batch.to_string()),
            value: text.map(str::to_owned),
            value_base64: (shown && text.is_none()).then(|| BASE64.encode(&record.value)),
        }
    }

    fn row(&self) -> [String; 5] {
        let name = match &self.batch {
            Some(batch) => format!("{} (batch {batch})", self.name),
            None => self.name.clone(),
        };
        let value = self.value.as_ref().or(self.value_base64.as_ref());
        [
            sanitize::short(name.as_bytes()),
            self.what.to_owned(),
            human::time(self.at_ms),
            human::bytes(self.bytes as u64),
            human::or_none(value, |value| sanitize::short(value.as_bytes())),
        ]
    }
}

impl Steps {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let steps = cx.admin().steps(&self.id).await?;
        let view =
            StepsView { id: self.id.to_string(), steps: steps.records.iter().map(StepView::of).collect() };
        cx.output.show(&view, |view| match view.steps.is_empty() {
            true => "it has no steps: it has begun none, is done or dead, or never was there".to_owned(),
            false => output::table(
                &["name", "what", "time", ">bytes", "value"],
                view.steps.iter().map(StepView::row),
            ),
        })?;
        Ok(Exit::Done)
    }
}

impl Signal {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        let Self { id, name, value, dry: DryRun { dry_run } } = self;
        let admin = cx.admin();
        let became = match dry_run {
            true => admin.steps(&id).await?.foreseen(&name),
            false => Some(admin.signal(&id, &name, Bytes::from(value)).await?),
        };
        let view = SignalView { id: id.to_string(), name, state: became.map(Signalled::as_str), dry_run };
        if dry_run {
            cx.output.note("dry run: nothing was done");
        }
        cx.output.show(&view, |view| match view.state {
            Some(state) => state.to_owned(),
            None => "it would be sent: it is not there yet, and no wait for it is over".to_owned(),
        })?;
        let is_lost = matches!(became, Some(Signalled::Late | Signalled::Gone));
        Ok(if is_lost && !dry_run { Exit::Wrong } else { Exit::Done })
    }
}
