//! `millstream dlq consume`: handles dead letters as they arrive, and settles each.

pub(super) mod handler;
mod question;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use millstream::{DeadLetterConfig, DeadLetterReport, Topic};
use tokio::time::MissedTickBehavior;

use crate::commands::exec::Exec;
use crate::commands::group::GroupOf;
use crate::commands::{DryRun, StopWithin};
use crate::context::{self, Context};
use crate::exit::{Exit, Interrupted, Usage};
use crate::{human, parse};
use handler::{Choice, LetterHandler};

/// Interval between two checks for new letters.
const POLL: Duration = Duration::from_secs(1);

/// The interval where the command ends as soon as there is no letter.
const SOON: Duration = Duration::from_millis(200);

/// Time for which a letter stays hidden in a dry run, so that none is shown twice.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Prints dead letters as they arrive; each is left, replayed to its group, or purged
///
/// Any number of processes can do this at the same time; each letter is claimed by one of them. A letter that is left
/// stays stored, and can be claimed again after --leave-for. The command runs until it is stopped, and then releases
/// its claims. If it is stopped before --limit or --until-empty is reached, the exit code is 130.
///
/// With --exec the shell runs the command for each letter. If the command exits with 0, --then applies; otherwise the
/// letter is left. Its stdin is the payload. Its environment is that of `consume --exec`, with the id of the letter,
/// and with `MILLSTREAM_REASON`, `MILLSTREAM_ERROR` and `MILLSTREAM_ORIGIN`. For an entry that is not a message, stdin
/// is its fields as JSON, and `MILLSTREAM_MALFORMED` is the reason. A second signal does not wait for commands.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream dlq consume orders billing
  millstream dlq consume orders billing --then ask
  millstream dlq consume orders billing --then purge --until-empty --yes --json >> letters.ndjson
  millstream dlq consume orders billing --then replay --exec 'jq -e .mended' --yes")]
pub(super) struct DlqConsume {
    #[command(flatten)]
    of: GroupOf,
    /// Action for each letter
    #[arg(long, value_enum, default_value_t = Then::Leave)]
    then: Then,
    /// Runs this command for each letter; if it fails, the letter is left
    #[arg(long, value_name = "COMMAND", conflicts_with = "dry_run")]
    exec: Option<String>,
    /// Maximum number of commands at the same time in each partition
    #[arg(long, value_name = "N", default_value_t = 1, requires = "exec", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    concurrency: u16,
    /// Maximum time of a command; after that it is killed and has failed. Default: no limit
    #[arg(long, value_name = "TIME", value_parser = parse::duration, requires = "exec")]
    timeout: Option<Duration>,
    /// Time for which a letter that is left is not claimed again by any consumer of dead letters
    #[arg(long, value_name = "TIME", value_parser = parse::duration, default_value = "1h")]
    leave_for: Duration,
    /// Ends after this many letters, including those that are left
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// Ends when no letter can be claimed, because all others are claimed or were left; with exit code 1 if a partition cannot be
    /// read
    #[arg(long)]
    until_empty: bool,
    #[command(flatten)]
    stop: StopWithin,
    #[command(flatten)]
    dry: DryRun,
}

/// The action for a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Then {
    /// It stays stored
    Leave,
    /// It returns to its group, as a first attempt
    Replay,
    /// It is deleted permanently
    Purge,
    /// Prompts for each letter
    Ask,
}

/// The fate of a letter, if it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Leave,
    Replay,
    Purge,
}

impl Then {
    /// Returns the fate; `None` if the user has to be prompted.
    fn fate(self) -> Option<Fate> {
        match self {
            Self::Leave => Some(Fate::Leave),
            Self::Replay => Some(Fate::Replay),
            Self::Purge => Some(Fate::Purge),
            Self::Ask => None,
        }
    }
}

impl Fate {
    fn as_str(self) -> &'static str {
        match self {
            Self::Leave => "leave",
            Self::Replay => "replay",
            Self::Purge => "purge",
        }
    }
}

/// The end of the command.
#[derive(Debug)]
enum DlqConsumeEnded {
    /// It finished what was requested.
    Done,
    /// A signal, or the answer to a prompt, stopped it.
    Stopped,
    Failed(anyhow::Error),
}

impl DlqConsume {
    pub(super) async fn run(self, cx: &Context) -> Result<Exit> {
        self.of.known(cx).await?;
        let GroupOf { topic, group } = &self.of;
        let choice = self.choice(cx)?;
        match self.then {
            _ if self.dry.dry_run => cx.output.note("dry run: every letter is left as it is"),
            Then::Leave | Then::Ask => {}
            Then::Replay => cx.confirm(&format!("Replay the dead letters of {group} as they come?"))?,
            Then::Purge => {
                cx.confirm(&format!("Delete the dead letters of {group} for good as they come?"))?;
            }
        }
        let (letter_handler, mut ends) = LetterHandler::new(cx.output, choice, self.limit, self.dry.dry_run);
        let letter_handler = Arc::new(letter_handler);
        let stopped = context::stopped();
        tokio::pin!(stopped);
        // Letters are printed as soon as it has started, so from now on signals are handled and do not end the
        // process.
        if context::is_ready(&mut stopped).await? {
            return self.is_stopped();
        }
        let handler = {
            let letter_handler = letter_handler.clone();
            move |letter: millstream::Letter<Bytes>| {
                let letter_handler = letter_handler.clone();
                async move { letter_handler.handle(&letter.dead).await }
            }
        };
        let dead = cx.mq.dead_letter_consumer(Topic::raw("").named(topic.as_str()), group.as_str());
        let consumer = dead.config(self.config()).start(handler).await?;
        let mut looks = tokio::time::interval(SOON);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = loop {
            tokio::select! {
                biased;
                stopped = &mut stopped => break stopped.map_or_else(DlqConsumeEnded::Failed, |()| DlqConsumeEnded::Stopped),
                Some(ended) = ends.recv() => break ended,
                _ = looks.tick(), if self.until_empty => {
                    if consumer.report().idle > 0 {
                        break DlqConsumeEnded::Done;
                    }
                }
            }
        };
        // A prompt needs no answer any more; running commands may finish.
        letter_handler.stop();
        let report = self.stop.end(consumer.shutdown(), || letter_handler.cut()).await?;
        if let DlqConsumeEnded::Failed(error) = ended {
            return Err(error);
        }
        cx.output.note(&summary(report, letter_handler.untouched(), letter_handler.failed()));
        if matches!(ended, DlqConsumeEnded::Stopped) {
            return self.is_stopped();
        }
        if report.unreadable > 0 {
            let partitions = human::of(report.unreadable, "partition", "partitions");
            bail!("{partitions} could not be read; `millstream verify` shows the faults");
        }
        Ok(Exit::Done)
    }

    /// Returns the result of being stopped: success if the command has no end of its own.
    fn is_stopped(&self) -> Result<Exit> {
        if self.limit.is_some() || self.until_empty { Err(Interrupted.into()) } else { Ok(Exit::Done) }
    }

    fn choice(&self, cx: &Context) -> Result<Choice> {
        Ok(match (self.then.fate(), &self.exec) {
            (Some(fate), Some(command)) => {
                Choice::Command(Exec::new(command, Some(&self.of.group), self.timeout, cx.output), fate)
            }
            (Some(fate), None) => Choice::Fixed(fate),
            (None, Some(_)) => return Err(Usage("--then ask goes without --exec".to_owned()).into()),
            (None, None) => {
                question::possible()?;
                Choice::Asked
            }
        })
    }

    fn config(&self) -> DeadLetterConfig {
        let mut config = DeadLetterConfig::default();
        config.poll = if self.until_empty { SOON } else { POLL };
        config.leave_for = self.leave_for;
        config.concurrency = usize::from(self.concurrency);
        config.shutdown_timeout = self.stop.shutdown_timeout;
        if self.dry.dry_run {
            config.sweep = NEVER;
        }
        config
    }
}

/// Formats the report for people. `untouched` letters were only returned; for `failed` ones a command failed.
fn summary(report: DeadLetterReport, untouched: u64, failed: u64) -> String {
    let DeadLetterReport { deleted, replayed, left, lost, .. } = report;
    let left = left.saturating_sub(untouched);
    let mut text = human::of(deleted + replayed + left + lost, "letter", "letters");
    let parts = [
        (replayed, "replayed"),
        (deleted, "purged"),
        (left, "left"),
        (failed, "failed"),
        (lost, "claimed by others meanwhile"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    for (at, (count, what)) in parts.enumerate() {
        text += if at == 0 { ": " } else { ", " };
        text += &format!("{} {what}", human::count(*count));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_that_were_only_released_are_not_counted() {
        let mut report = DeadLetterReport::default();
        assert_eq!(summary(report, 0, 0), "0 letters");
        (report.deleted, report.left, report.replayed) = (1, 5, 1_000);
        assert_eq!(summary(report, 3, 1), "1,003 letters: 1,000 replayed, 1 purged, 2 left, 1 failed");
    }
}
