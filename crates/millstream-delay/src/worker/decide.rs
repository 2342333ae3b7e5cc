//! What to tell the server of a task: a function of what the handler said and the policies, without effects but that
//! panics of user code are reported.

use std::time::Duration;

use millstream_core::event::{Event, Handled};
use millstream_core::panics::{Policies, UserCode};
use millstream_core::policy::{Decision, Failure, FailureKind, Verdict as Judgement};
use millstream_core::schedule::Due;
use millstream_core::tasks::Verdict;
use millstream_core::{BoxError, History, Outcome, Reason, wire};

/// What came of a task, before policies have judged it.
#[derive(Debug)]
pub(super) enum Said {
    /// The handler (or the check before it) said this.
    Outcome(Outcome),
    /// It panicked with this message.
    Panicked(String),
    /// It took longer than this.
    TimedOut(Duration),
    /// The codec could not read the payload.
    Undecodable(BoxError),
    /// The body is not a message.
    Malformed(String),
    /// Somebody deleted the body.
    Orphan,
    /// It was not worked on, or not to its end, because the worker ends.
    Unfinished,
}

/// Which attempt this was.
pub(super) struct Attempt<'a> {
    pub(super) number: u32,
    /// What the ones before failed with.
    pub(super) history: &'a History,
    /// The server's time, in milliseconds.
    pub(super) now: u64,
    /// The source of jitter.
    pub(super) entropy: u64,
}

/// A panic as an error, so that policies can look at it.
#[derive(Debug, thiserror::Error)]
#[error("handler panicked: {0}")]
struct Panicked(String);

/// A timeout as an error, so that policies can look at it.
#[derive(Debug, thiserror::Error)]
#[error("handler timed out after {0:?}")]
struct TimedOut(Duration);

/// What to tell the server, and what to tell observers: `None` if the task is handed back.
pub(super) fn decide(
    said: &Said,
    attempt: &Attempt<'_>,
    policies: &Policies<'_>,
) -> (Verdict, Option<Handled>) {
    // What was never handed to the handler has not used this attempt.
    let unseen = attempt.number.saturating_sub(1);
    let (verdict, handled) = match said {
        Said::Outcome(Outcome::Ack) => (Verdict::Complete, Handled::Acked),
        Said::Outcome(Outcome::Retry(error)) => failed(error, FailureKind::Error, None, attempt, policies),
        Said::Outcome(Outcome::RetryAfter(after, error)) => {
            failed(error, FailureKind::Error, Some(Due::In(*after)), attempt, policies)
        }
        Said::Outcome(Outcome::RetryAt(time, error)) => {
            failed(error, FailureKind::Error, Some(Due::from(*time)), attempt, policies)
        }
        Said::Outcome(Outcome::Snooze(after)) => (put_off(Due::In(*after), attempt), Handled::Snoozed),
        Said::Outcome(Outcome::DeadLetter(error)) => {
            give_up(Reason::Rejected, attempt.number, policies.text_of(error), attempt, policies)
        }
        // An outcome of a newer core than this crate: the task is kept rather than guessed about.
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
        Said::Unfinished => return (put_off(Due::NOW, attempt), None),
    };
    (verdict, Some(handled))
}

/// The same attempt, later: nothing has failed.
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
    let elapsed = attempt.history.since().map_or(0, |since| attempt.now.saturating_sub(since));
    let wished = wish.map(|wish| match wish {
        Due::In(after) => after,
        Due::At(at) => Duration::from_millis(at.saturating_sub(attempt.now)),
    });
    let failure = Failure::new(attempt.number, kind, &**error, attempt.entropy)
        .since(Duration::from_millis(elapsed))
        .wishing(wished);
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
    match policies.judge(&reason, attempts, &error) {
        Judgement::Keep => {
            let history = attempt.history.clone();
            (Verdict::Dead { reason, attempts, error, history }, Handled::Dead)
        }
        Judgement::Discard => (Verdict::Complete, Handled::Discarded),
    }
}
