//! Decides the fate of letters, by options, a command, or a prompt; and prints it.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use millstream::{DeadLetter, DeadLetterOutcome};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::{mpsc, watch};

use crate::commands::dlq::consume::{DlqConsumeEnded, Fate, question};
use crate::commands::dlq::inspect;
use crate::commands::exec::Exec;
use crate::commands::message::{Body, MessageView, sanitize};
use crate::commands::shelf::view::LetterView;
use crate::output::Output;

/// The source of the decision on a letter.
#[derive(Debug)]
pub(super) enum Choice {
    Fixed(Fate),
    /// A prompt for each letter.
    Asked,
    /// A command, and the fate of the letter if the command succeeds.
    Command(Exec, Fate),
}

/// The stage of shutting down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Open,
    /// No more prompts.
    Stopping,
    /// Commands are killed.
    Cut,
}

/// Handles letters. Shared by all that are handled concurrently.
#[derive(Debug)]
pub(super) struct LetterHandler {
    output: Output,
    choice: Choice,
    dry_run: bool,
    /// The number of letters that may still be started.
    left: AtomicU64,
    /// The number of letters that have not ended yet, of a limit.
    open: AtomicU64,
    /// The number of letters that were returned unchanged.
    untouched: AtomicU64,
    /// The number of letters for which a command failed.
    failed: AtomicU64,
    stage: watch::Sender<Stage>,
    ends: mpsc::UnboundedSender<DlqConsumeEnded>,
    /// Whether the titles were printed; locked while a line is printed.
    titled: Mutex<bool>,
}

/// A letter with its fate, for programs.
#[derive(Serialize, JsonSchema)]
pub(in crate::commands::dlq) struct ConsumeLine<'a> {
    #[serde(flatten)]
    letter: LetterView<'a>,
    /// `leave`, `replay` or `purge`.
    #[schemars(extend("enum" = ["leave", "replay", "purge"]))]
    then: &'a str,
}

/// Returns the letter immediately, without a report.
const UNTOUCHED: DeadLetterOutcome = DeadLetterOutcome::LeaveFor(Duration::ZERO);

impl LetterHandler {
    /// Creates a handler with the channel to which it reports its end.
    pub(super) fn new(
        output: Output,
        choice: Choice,
        limit: Option<u64>,
        dry_run: bool,
    ) -> (Self, mpsc::UnboundedReceiver<DlqConsumeEnded>) {
        let (ends, ended) = mpsc::unbounded_channel();
        let limit = limit.unwrap_or(u64::MAX);
        let handler = Self {
            output,
            choice,
            dry_run,
            left: AtomicU64::new(limit),
            open: AtomicU64::new(limit),
            untouched: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            stage: watch::Sender::new(Stage::Open),
            ends,
            titled: Mutex::new(!std::io::stdout().is_terminal()),
        };
        (handler, ended)
    }

    /// Stops prompting.
    pub(super) fn stop(&self) {
        self.stage.send_replace(Stage::Stopping);
    }

    /// Kills the commands.
    pub(super) fn cut(&self) {
        self.stage.send_replace(Stage::Cut);
    }

    /// Returns the number of letters that were returned unchanged.
    pub(super) fn untouched(&self) -> u64 {
        self.untouched.load(Ordering::Relaxed)
    }

    /// Returns the number of letters for which a command failed.
    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Returns the outcome of a letter, after printing it.
    pub(super) async fn handle(&self, letter: &DeadLetter) -> DeadLetterOutcome {
        let begun = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if begun.is_err() || *self.stage.borrow() != Stage::Open {
            return self.untouched_letter();
        }
        let fate = match self.chosen(letter).await {
            Ok(Some(fate)) => fate,
            Ok(None) => return self.untouched_letter(),
            Err(error) => {
                self.end(DlqConsumeEnded::Failed(error));
                return self.untouched_letter();
            }
        };
        if let Err(error) = self.print(letter, fate) {
            // A letter that could not be printed is not settled.
            self.end(DlqConsumeEnded::Failed(error));
            return self.untouched_letter();
        }
        if self.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.end(DlqConsumeEnded::Done);
        }
        match fate {
            _ if self.dry_run => UNTOUCHED,
            Fate::Purge => DeadLetterOutcome::Delete,
            Fate::Replay => DeadLetterOutcome::Replay,
            Fate::Leave => DeadLetterOutcome::Leave,
        }
    }

    /// Returns the decision; `None` if it was stopped before.
    async fn chosen(&self, letter: &DeadLetter) -> Result<Option<Fate>> {
        match &self.choice {
            Choice::Fixed(fate) => Ok(Some(*fate)),
            Choice::Asked => {
                let answer = tokio::select! {
                    biased;
                    () = self.reached(Stage::Stopping) => return Ok(None),
                    answer = question::ask(letter) => answer?,
                };
                if answer.is_none() {
                    self.end(DlqConsumeEnded::Stopped);
                }
                Ok(answer)
            }
            Choice::Command(exec, fate) => {
                let (view, more) = described(letter);
                let ended = tokio::select! {
                    biased;
                    () = self.reached(Stage::Cut) => return Ok(None),
                    ended = exec.run(&view, &more) => ended,
                };
                match ended {
                    Ok(()) => Ok(Some(*fate)),
                    Err(error) => {
                        self.failed.fetch_add(1, Ordering::Relaxed);
                        let place = &letter.topic_partition;
                        self.output.note(&format!("{place} {}: {error:#}: it is left", letter.id));
                        Ok(Some(Fate::Leave))
                    }
                }
            }
        }
    }

    async fn reached(&self, stage: Stage) {
        // The sender lives as long as this handler.
        let _ = self.stage.subscribe().wait_for(|now| *now >= stage).await;
    }

    /// Prints the fate. With a command, the text output is left to the command; JSON is printed in any case.
    fn print(&self, letter: &DeadLetter, fate: Fate) -> Result<()> {
        if !self.output.is_json() && matches!(self.choice, Choice::Command(..)) {
            return Ok(());
        }
        let mut titled = self.titled.lock().unwrap_or_else(PoisonError::into_inner);
        let had_titles = std::mem::replace(&mut *titled, true);
        self.output.show(&ConsumeLine { letter: LetterView::of(letter), then: fate.as_str() }, |_| {
            let titles = if had_titles { "" } else { inspect::TITLES };
            format!("{titles}{}", inspect::line(letter, fate.as_str()))
        })
    }

    fn untouched_letter(&self) -> DeadLetterOutcome {
        self.untouched.fetch_add(1, Ordering::Relaxed);
        UNTOUCHED
    }

    fn end(&self, ended: DlqConsumeEnded) {
        // If the receiver is gone, the command has ended already.
        let _ = self.ends.send(ended);
    }
}

/// Returns the message and environment variables that describe a letter to a command.
fn described(letter: &DeadLetter) -> (MessageView, [(&'static str, String); 3]) {
    let view = MessageView {
        topic_partition: letter.topic_partition.clone(),
        id: letter.id,
        attempt: Some(letter.attempts),
        body: Body::of(&letter.body),
    };
    let more = [
        ("MILLSTREAM_REASON", sanitize::line(letter.reason.as_str().as_bytes())),
        ("MILLSTREAM_ERROR", letter.error.clone()),
        ("MILLSTREAM_ORIGIN", letter.origin.to_string()),
    ];
    (view, more)
}
