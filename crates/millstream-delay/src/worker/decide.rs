//! Decides how a task is settled: a function of the handler's result and the policies. Its only side effect is that
//! panics of user code are reported.

use std::time::Duration;

use millstream_core::event::{Cause, Event, Handled};
use millstream_core::panics::{Policies, UserCode};
use millstream_core::policy::{Decision, Failure, FailureKind, GivenUp, Verdict as Judgement};
use millstream_core::schedule::Due;
use millstream_core::span::CANCELLED;
use millstream_core::tasks::Verdict;
use millstream_core::{BoxError, Envelope, History, Outcome, Reason, Shard, Timestamp, wire};

/// Result of working on a task, before policies are applied.
#[derive(Debug)]
pub(super) enum Said {
    /// The handler, or the check before it, returned this.
    Outcome(Outcome),
    /// The handler panicked with this message.
    Panicked(String),
    /// The handler exceeded this time limit.
    TimedOut(Duration),
    /// The codec could not decode the payload.
    Undecodable(BoxError),
    /// The body is not a message.
    Malformed(String),
    /// The body was deleted.
    Orphan,
    /// The work was not begun, because the worker is shutting down.
    Unbegun,
    /// The handler was dropped, because the worker is shutting down.
    Unfinished,
}

impl Said {
    /// Returns the kind of the failure, if it is one.
    pub(super) fn error(&self) -> Option<&'static str> {
        let cause = match self {
            Self::Outcome(Outcome::Ack | Outcome::Snooze(_)) | Self::Unbegun => return None,
            Self::Outcome(Outcome::Retry(_) | Outcome::RetryAfter(..) | Outcome::RetryAt(..)) => Cause::Error,
            Self::Outcome(_) => Cause::Rejected,
            Self::Panicked(_) => Cause::Panic,
            Self::TimedOut(_) => Cause::Timeout,
            Self::Undecodable(_) => Cause::Undecodable,
            Self::Malformed(_) | Self::Orphan => Cause::Malformed,
            Self::Unfinished => return Some(CANCELLED),
        };
        Some(cause.as_str())
    }
}

/// Data of the current attempt.
pub(super) struct Attempt<'a> {
    pub(super) number: u32,
    /// Errors of the earlier attempts.
    pub(super) history: &'a History,
    /// Server time.
    pub(super) now: Timestamp,
    /// Source of jitter.
    pub(super) entropy: u64,
    pub(super) shard: &'a Shard,
    /// The task's message, if a policy needs it and it could be read.
    pub(super) message: Option<&'a Envelope>,
}

/// Panic as an error, so that policies can inspect it.
#[derive(Debug, thiserror::Error)]
#[error("handler panicked: {0}")]
struct Panicked(String);

/// Timeout as an error, so that policies can inspect it.
#[derive(Debug, thiserror::Error)]
#[error("handler timed out after {0:?}")]
struct TimedOut(Duration);

/// Returns the settlement for the server, and the result for observers: `None` if the task is handed back.
pub(super) fn decide(
    said: &Said,
    attempt: &Attempt<'_>,
    policies: &Policies<'_>,
) -> (Verdict, Option<Handled>) {
    // A task that never reached the handler has not used this attempt.
    let unseen = attempt.number.saturating_sub(1);
    let (verdict, handled) = match said {
        Said::Outcome(Outcome::Ack) => (Verdict::Complete, Handled::Acked),
        Said::Outcome(Outcome::Retry(error)) => failed(error, FailureKind::Error, None, attempt, policies),
        Said::Outcome(Outcome::RetryAfter(after, error)) => {
            failed(error, FailureKind::Error, Some(Due::In(*after)), attempt, policies)
        }
        Said::Outcome(Outcome::RetryAt(time, error)) => {
            failed(error, FailureKind::Error, Some(Due::At(*time)), attempt, policies)
        }
        Said::Outcome(Outcome::Snooze(after)) => (put_off(Due::In(*after), attempt), Handled::Snoozed),
        Said::Outcome(Outcome::DeadLetter(error)) => {
            give_up(Reason::Rejected, attempt.number, policies.text_of(error), attempt, policies)
        }
        // Outcome of a newer core than this crate: the task is kept as a dead task, since its meaning is unknown.
        Said::Outcome(other) => {
            let error = format!("unknown outcome {other:?}");
            give_up(Reason::Rejected, attempt.number, error, attempt, policies)
        }
        Said::Panicked(message) => {
            policies.observer.observe(&Event::Panicked { code: UserCode::Handler, text: message });
            let error: BoxError = Box::new(Panicked(message.clone()));
            failed(&error, FailureKind::Panic, None, attempt, policies)
        }
        Said::TimedOut(after) => {
            let error: BoxError = Box::new(TimedOut(*after));
            failed(&error, FailureKind::Timeout, None, attempt, policies)
        }
        Said::Undecodable(error) => {
            give_up(Reason::Undecodable, unseen, policies.text_of(error), attempt, policies)
        }
        Said::Malformed(why) => give_up(Reason::Malformed, unseen, why.clone(), attempt, policies),
        Said::Orphan => {
            let error = "the body of the task is gone".to_owned();
            give_up(Reason::Orphan, unseen, error, attempt, policies)
        }
        Said::Unbegun => return (put_off(Due::NOW, attempt), None),
        Said::Unfinished => {
            // The same attempt again. The history shows that it had begun, so the check is asked before it does again.
            let (attempt, history) = (attempt.number, attempt.history.clone());
            let error = "the worker ended before the handler did".to_owned();
            return (Verdict::Retry { due: Due::NOW, attempt, error, history }, None);
        }
    };
    (verdict, Some(handled))
}

/// Retries the same attempt later, since nothing has failed.
fn put_off(due: Due, attempt: &Attempt<'_>) -> Verdict {
    let history = attempt.history.clone();
    Verdict::Retry { due, attempt: attempt.number, error: String::new(), history }
}

fn failed(
    error: &BoxError,
    kind: FailureKind,
    wish: Option<Due>,
    attempt: &Attempt<'_>,
    policies: &Policies<'_>,
) -> (Verdict, Handled) {
    let elapsed =
        attempt.history.since().map_or(Duration::ZERO, |since| attempt.now.saturating_duration_since(since));
    let wished = wish.map(|wish| match wish {
        Due::In(after) => after,
        Due::At(at) => at.saturating_duration_since(attempt.now),
    });
    let failure =
        Failure::new(attempt.number, kind, &**error, attempt.entropy).since(elapsed).wishing(wished);
    let failure = failure.of(attempt.message);
    let mut text = policies.text_of(error);
    match policies.decide(&failure, &mut text) {
        Decision::RetryAfter(after) => {
            let due = wish.unwrap_or(Due::In(after));
            let next = attempt.number.saturating_add(1);
            let history = attempt.history.clone();
            let error = wire::cut(&text).to_owned();
            (Verdict::Retry { due, attempt: next, error, history }, Handled::Retried)
        }
        Decision::GiveUp => give_up(Reason::Exhausted, attempt.number, text, attempt, policies),
    }
}

fn give_up(
    reason: Reason,
    attempts: u32,
    error: String,
    attempt: &Attempt<'_>,
    policies: &Policies<'_>,
) -> (Verdict, Handled) {
    let mut error = error;
    error.truncate(wire::cut(&error).len());
    let Shard { queue, shard, .. } = attempt.shard;
    let given_up = GivenUp::new(&reason, attempts, &error).of(queue.as_str(), *shard);
    let history = match policies.judge(&given_up.with_message(attempt.message)) {
        Judgement::Discard => return (Verdict::Complete, Handled::Discarded),
        Judgement::KeepWith(notes) => attempt.history.clone().with_notes(notes),
        _ => attempt.history.clone(),
    };
    (Verdict::Dead { reason, attempts, error, history }, Handled::Dead)
}
