//! Decides what becomes of a message or task: a function of what its handler returned and the policies. Its only side effect is that
//! panics of user code are reported.

use std::time::Duration;

use millstream_core::batches::{Demand, MAX_MEMBER_RESULT};
use millstream_core::event::{Cause, Event, Handled};
use millstream_core::panics::{Policies, UserCode};
use millstream_core::policy::{Decision, Failure, FailureKind, GivenUp, Verdict as Judgement};
use millstream_core::results::{self, MessageResult, StoredResult};
use millstream_core::schedule::Due;
use millstream_core::steps::StepWait;
use millstream_core::{BoxError, Envelope, History, Outcome, Reason, wire};

use crate::handler::Verdict;

/// Data of the current attempt.
#[derive(Clone, Copy)]
pub struct CurrentAttempt<'a> {
    /// Its number, from 1.
    pub number: u32,
    /// Error of the attempt before. A message that comes back without having failed keeps it.
    pub last_error: Option<&'a str>,
    /// Errors of the earlier attempts.
    pub history: &'a History,
    /// Time since the first failure.
    pub elapsed: Duration,
    /// The server's time in milliseconds since 1970, if it is known.
    pub now: Option<u64>,
    /// Source of jitter.
    pub entropy: u64,
    /// Where the message is: the name of its topic or queue, and the number of its partition or shard.
    pub place: (&'a str, u32),
    /// The message, if a policy needs it and it could be read.
    pub message: Option<&'a Envelope>,
}

impl CurrentAttempt<'_> {
    /// Returns the number of attempts of a message that never reached the handler, and so has not used this one.
    fn unused(&self) -> u32 {
        self.number.saturating_sub(1)
    }
}

/// A panic as an error, so that policies can inspect it.
#[derive(Debug)]
struct Panicked(String);

impl std::fmt::Display for Panicked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "handler panicked: {}", self.0)
    }
}

impl std::error::Error for Panicked {}

/// A timeout as an error, so that policies can inspect it.
#[derive(Debug)]
struct TimedOut(Duration);

impl std::fmt::Display for TimedOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "handler timed out after {:?}", self.0)
    }
}

impl std::error::Error for TimedOut {}

/// End of an attempt. Who settles it makes it a settlement of a log, a verdict on a task, or a note.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// The message is done.
    Done,
    /// It comes back as this attempt.
    Again {
        /// When.
        due: Due,
        /// The number of that attempt.
        attempt: u32,
        /// The error of this one, or of the last one that failed.
        error: String,
        /// The errors before it.
        history: History,
        /// The wait for which its handler has handed it back.
        wait: Option<Box<StepWait>>,
    },
    /// It is given up and kept.
    Dead {
        /// Why.
        reason: Reason,
        /// How many attempts were made.
        attempts: u32,
        /// The last error.
        error: String,
        /// The errors before it.
        history: History,
    },
    /// It is given up and dropped, with this error.
    Dropped(String),
}

/// What becomes of a message.
#[derive(Debug, PartialEq)]
pub struct Decided {
    /// How the attempt ends.
    pub ending: Ending,
    /// The same for observers.
    pub handled: Handled,
}

impl Decided {
    fn new(ending: Ending, handled: Handled) -> Self {
        Self { ending, handled }
    }

    /// Returns the error that observers get: `None` if nothing failed. The text of a codec, and what is said of a malformed entry,
    /// may quote the message, so nobody but the dead letter gets it.
    #[must_use]
    pub fn told(&self, verdict: &Verdict) -> Option<&str> {
        match (verdict.cause(), verdict) {
            (_, Verdict::OverLimit(_) | Verdict::Cancelled(_)) => self.error(),
            (None | Some(Cause::Undecodable), _) | (_, Verdict::Malformed(_)) => None,
            _ => self.error(),
        }
    }

    /// Returns the error of this attempt, or that of an earlier one if this one did not fail.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match &self.ending {
            Ending::Done => None,
            Ending::Again { error, .. } | Ending::Dead { error, .. } | Ending::Dropped(error) => Some(error),
        }
    }
}

/// Decides what becomes of a message. Calls `attempt` only if the message is not done.
pub fn decide<'a>(
    verdict: &Verdict,
    attempt: impl FnOnce() -> CurrentAttempt<'a>,
    policies: &Policies<'_>,
) -> Decided {
    match verdict {
        Verdict::Said(Outcome::Ack | Outcome::Reply(_)) => Decided::new(Ending::Done, Handled::Acked),
        Verdict::Duplicate(_) => Decided::new(Ending::Done, Handled::Duplicate),
        Verdict::Checked => Decided::new(Ending::Done, Handled::Checked),
        Verdict::OverLimit(key) => {
            Decided::new(Ending::Dropped(format!("over the limit {key}")), Handled::Discarded)
        }
        Verdict::Cancelled(_) => {
            Decided::new(Ending::Dropped(results::CANCELLED_ERROR.to_owned()), Handled::Cancelled)
        }
        other => not_done(other, attempt(), policies),
    }
}

/// What a consumer or worker stores for whoever sent a message.
#[derive(Clone, Copy, Debug)]
pub struct Answering {
    /// Whether its backend keeps results, and notes for batches.
    pub kept: (bool, bool),
    /// Whether it is there to reply. If not, it stores no result but a reply.
    pub replies: bool,
    /// Most bytes of a reply.
    pub limit: usize,
    /// Whether its handlers have steps, which are dropped at the end. Those of a task are in any case.
    pub steps: bool,
}

/// Returns what to store of a message or task that ends, if it demands something that this consumer or worker has.
#[must_use]
pub fn stored(
    mut demand: Demand,
    verdict: &Verdict,
    ending: &Ending,
    attempt: u32,
    answering: &Answering,
) -> Option<Box<StoredResult>> {
    let Answering { kept: (results, notes), replies, mut limit, steps } = *answering;
    let is_reply = matches!(verdict, Verdict::Said(Outcome::Reply(_)) | Verdict::Duplicate(Some(_)));
    demand.result = demand.result.filter(|_| results && (replies || is_reply));
    demand.member = demand.member.filter(|_| notes);
    demand.steps = demand.steps.filter(|_| steps);
    if demand.member.as_ref().is_some_and(|member| member.keeps_result) {
        limit = limit.min(MAX_MEMBER_RESULT);
    }
    if demand.is_empty() {
        return None;
    }
    Some(Box::new(StoredResult { demand, result: result_of(verdict, ending, attempt, limit)? }))
}

/// Returns the result of a message or task; `None` if it comes again. A reply of more than `limit` bytes is not kept.
fn result_of(verdict: &Verdict, ending: &Ending, attempt: u32, limit: usize) -> Option<MessageResult> {
    Some(match (verdict, ending) {
        (Verdict::Said(Outcome::Reply(reply)) | Verdict::Duplicate(Some(reply)), Ending::Done) => {
            let result = MessageResult::replied(reply, attempt, limit);
            if let MessageResult::Failed { reason, error, .. } = &result {
                tracing::warn!(reason, error, "a message is done, and its reply is not kept");
            }
            result
        }
        (_, Ending::Done) => MessageResult::Done,
        (_, Ending::Dead { reason, attempts, error, .. }) => MessageResult::dead(reason, *attempts, error),
        (Verdict::Cancelled(begun), _) => {
            let attempts = if *begun { attempt } else { attempt.saturating_sub(1) };
            MessageResult::cancelled(attempts)
        }
        (_, Ending::Dropped(error)) => MessageResult::failed(results::DISCARDED, attempt, error),
        (_, Ending::Again { .. }) => return None,
    })
}

/// Not generic: compiled once, however many callers there are.
fn not_done(verdict: &Verdict, attempt: CurrentAttempt<'_>, policies: &Policies<'_>) -> Decided {
    match verdict {
        Verdict::Said(Outcome::Retry(error)) => failed(error, FailureKind::Error, None, attempt, policies),
        Verdict::Said(Outcome::RetryAfter(after, error)) => {
            failed(error, FailureKind::Error, Some(Due::In(*after)), attempt, policies)
        }
        Verdict::Said(Outcome::RetryAt(time, error)) => {
            failed(error, FailureKind::Error, Some(Due::from(*time)), attempt, policies)
        }
        Verdict::Said(Outcome::Snooze(delay)) => {
            let error = attempt.last_error.unwrap_or_default().to_owned();
            Decided::new(again(attempt.number, Due::In(*delay), error, attempt), Handled::Snoozed)
        }
        Verdict::Waits(parked) => {
            // It has come this far: what is behind the wait has attempts and a time of its own.
            let (due, wait) = (parked.due, Some(Box::new(parked.wait.clone())));
            let (attempt, error, history) = (1, String::new(), History::default());
            Decided::new(Ending::Again { due, attempt, error, history, wait }, Handled::Snoozed)
        }
        Verdict::Said(Outcome::DeadLetter(error)) => {
            give_up(Reason::Rejected, attempt.number, policies.text_of(error), attempt, policies)
        }
        Verdict::Panicked(message) => {
            policies.observer.observe(&Event::Panicked { code: UserCode::Handler, text: message });
            let error: BoxError = Box::new(Panicked(message.clone()));
            failed(&error, FailureKind::Panic, None, attempt, policies)
        }
        Verdict::TimedOut(after) => {
            let error: BoxError = Box::new(TimedOut(*after));
            failed(&error, FailureKind::Timeout, None, attempt, policies)
        }
        Verdict::Undecodable(error) => {
            give_up(Reason::Undecodable, attempt.unused(), policies.text_of(error), attempt, policies)
        }
        Verdict::Malformed(why) => {
            give_up(Reason::Malformed, attempt.unused(), why.to_string(), attempt, policies)
        }
        Verdict::Orphan => {
            let error = "the body of the task is gone".to_owned();
            give_up(Reason::Orphan, attempt.unused(), error, attempt, policies)
        }
        Verdict::Crashed(processes) => {
            let error = format!("{processes} processes ended while handling it");
            give_up(Reason::Crashed, attempt.number, error, attempt, policies)
        }
        // An outcome of a newer core than this crate: keeping the message is safer than guessing.
        other => {
            let error = format!("unknown outcome {other:?}");
            give_up(Reason::Rejected, attempt.number, error, attempt, policies)
        }
    }
}

fn failed(
    error: &BoxError,
    kind: FailureKind,
    wish: Option<Due>,
    attempt: CurrentAttempt<'_>,
    policies: &Policies<'_>,
) -> Decided {
    let delay = wish.and_then(|wish| match wish {
        Due::In(delay) => Some(delay),
        Due::At(at) => attempt.now.map(|now| Duration::from_millis(at.as_millis().saturating_sub(now))),
    });
    let failure = Failure::new(attempt.number, kind, &**error, attempt.entropy);
    let failure = failure.since(attempt.elapsed).wishing(delay).of(attempt.message);
    let mut text = policies.text_of(error);
    match policies.decide(&failure, &mut text) {
        Decision::RetryAfter(after) => {
            let (next, due) = (attempt.number.saturating_add(1), wish.unwrap_or(Due::In(after)));
            Decided::new(again(next, due, wire::cut(&text).to_owned(), attempt), Handled::Retried)
        }
        Decision::GiveUp => give_up(Reason::Exhausted, attempt.number, text, attempt, policies),
    }
}

/// Returns the ending that brings the message back as attempt `next`, with the error of the one before.
fn again(next: u32, due: Due, error: String, attempt: CurrentAttempt<'_>) -> Ending {
    Ending::Again { due, attempt: next, error, history: attempt.history.clone(), wait: None }
}

fn give_up(
    reason: Reason,
    attempts: u32,
    error: String,
    attempt: CurrentAttempt<'_>,
    policies: &Policies<'_>,
) -> Decided {
    let mut error = error;
    error.truncate(wire::cut(&error).len());
    let (name, number) = attempt.place;
    let given_up = GivenUp::new(&reason, attempts, &error).of(name, number);
    let history = match policies.judge(&given_up.with_message(attempt.message)) {
        Judgement::Discard => return Decided::new(Ending::Dropped(error), Handled::Discarded),
        Judgement::KeepWith(notes) => attempt.history.clone().with_notes(notes),
        _ => attempt.history.clone(),
    };
    Decided::new(Ending::Dead { reason, attempts, error, history }, Handled::Dead)
}

#[cfg(test)]
mod tests {
    use millstream_core::Timestamp;

    use super::*;
    use millstream_core::event::Ignore;
    use millstream_core::policy::{Discard, Fixed, Keep, Never, Within};
    use millstream_core::{DeadLetterPolicy, RetryPolicy};
    use std::sync::LazyLock;
    use std::time::UNIX_EPOCH;

    const AFTER: Duration = Duration::from_secs(7);

    fn attempt(number: u32) -> CurrentAttempt<'static> {
        static NONE: LazyLock<History> = LazyLock::new(History::default);
        let (last_error, now, message) = (None, None, None);
        let (history, elapsed, place) = (&*NONE, Duration::ZERO, ("flights", 2));
        CurrentAttempt { number, last_error, history, elapsed, now, entropy: 0, place, message }
    }

    fn decided(verdict: &Verdict, attempt: CurrentAttempt<'_>, policies: &Policies<'_>) -> (Ending, Handled) {
        let decided = decide(verdict, || attempt, policies);
        (decided.ending, decided.handled)
    }

    fn check(verdict: &Verdict, number: u32, retry: &dyn RetryPolicy, keep: bool) -> (Ending, Handled) {
        let dead_letters: &dyn DeadLetterPolicy = if keep { &Keep } else { &Discard };
        decided(verdict, attempt(number), &Policies { retry, dead_letters, observer: &Ignore })
    }

    fn dead(reason: Reason, attempts: u32, error: &str) -> Ending {
        Ending::Dead { reason, attempts, error: error.into(), history: History::default() }
    }

    #[test]
    fn a_failure_comes_back_until_the_policy_gives_up() {
        let policy = Fixed::new(AFTER).attempts(3);
        let (due, history) = (Due::In(AFTER), History::default());
        let again = Ending::Again { due, attempt: 3, error: "no".into(), history, wait: None };
        assert_eq!(check(&Verdict::Said(Outcome::retry("no")), 2, &policy, true), (again, Handled::Retried));
        let given_up = (dead(Reason::Exhausted, 3, "no"), Handled::Dead);
        assert_eq!(check(&Verdict::Said(Outcome::retry("no")), 3, &policy, true), given_up);
        let wish = Outcome::retry_after(Duration::ZERO, "no");
        assert_eq!(check(&Verdict::Said(wish), 3, &policy, true), given_up, "a wish is an attempt too");
    }

    #[test]
    fn a_snooze_uses_no_attempt_and_asks_nobody() {
        let policies = Policies { retry: &Never, dead_letters: &Keep, observer: &Ignore };
        let history = History::parse("5 1 first\n7 2 second");
        let attempt = CurrentAttempt { last_error: Some("second"), history: &history, ..attempt(3) };
        let says = |attempt| decided(&Verdict::Said(Outcome::snooze(AFTER)), attempt, &policies);
        let (due, error, history) = (Due::In(AFTER), "second".to_owned(), history.clone());
        assert_eq!(
            says(attempt),
            (Ending::Again { due, attempt: 3, error, history, wait: None }, Handled::Snoozed)
        );
    }

    #[test]
    fn a_time_is_the_servers_and_counts_against_a_budget_where_its_clock_is_known() {
        let retry = Within::new(AFTER, Fixed::new(Duration::ZERO));
        let policies = Policies { retry: &retry, dead_letters: &Keep, observer: &Ignore };
        let says = |now, elapsed, at: Duration| {
            let attempt = CurrentAttempt { now, elapsed, ..attempt(1) };
            let (ending, _) =
                decided(&Verdict::Said(Outcome::retry_at(UNIX_EPOCH + at, "no")), attempt, &policies);
            match ending {
                Ending::Again { due, .. } => Some(due),
                _ => None,
            }
        };
        let (at, second) = (Duration::from_nanos(60_000_000_001), Duration::from_secs(1));
        assert_eq!(
            says(Some(53_001), Duration::ZERO, at),
            Some(Due::At(Timestamp::from_millis(60_001))),
            "rounded up"
        );
        assert_eq!(says(Some(53_000), Duration::ZERO, at), None);
        assert_eq!(says(Some(54_001), second, at), Some(Due::At(Timestamp::from_millis(60_001))));
        assert_eq!(says(Some(54_000), second, at), None);
        assert_eq!(
            says(None, AFTER, at),
            Some(Due::At(Timestamp::from_millis(60_001))),
            "unknown: the policy's own delay"
        );
        assert_eq!(says(None, AFTER + second, at), None);
        assert_eq!(Due::from(UNIX_EPOCH - second), Due::At(Timestamp::from_millis(0)), "at once");
    }

    #[test]
    fn time_and_crashes_are_told() {
        let letter = dead(Reason::Orphan, 1, "the body of the task is gone");
        assert_eq!(check(&Verdict::Orphan, 2, &Never, true), (letter, Handled::Dead));
        let letter = dead(Reason::Exhausted, 1, "handler timed out after 7s");
        assert_eq!(check(&Verdict::TimedOut(AFTER), 1, &Never, true), (letter, Handled::Dead));
        let letter = dead(Reason::Crashed, 2, "3 processes ended while handling it");
        assert_eq!(check(&Verdict::Crashed(3), 2, &Never, true), (letter, Handled::Dead));
    }

    #[test]
    fn what_the_handler_never_saw_uses_no_attempt() {
        let verdict = Verdict::Undecodable("bad json".into());
        assert_eq!(
            check(&verdict, 1, &Never, false),
            (dead(Reason::Undecodable, 0, "bad json"), Handled::Dead)
        );
        let verdict = Verdict::Malformed(Malformed::NoPayload);
        let letter = dead(Reason::Malformed, 1, "no payload field");
        assert_eq!(check(&verdict, 2, &Never, true), (letter, Handled::Dead));
    }

    #[test]
    fn a_panic_is_a_failure_and_a_discard_is_an_ack() {
        let verdict = Verdict::Panicked("boom".into());
        let letter = dead(Reason::Exhausted, 1, "handler panicked: boom");
        assert_eq!(check(&verdict, 1, &Never, true), (letter, Handled::Dead));
        let verdict = Verdict::Said(Outcome::dead_letter("no"));
        assert_eq!(check(&verdict, 1, &Never, false), (Ending::Dropped("no".into()), Handled::Discarded));
    }

    use millstream_core::wire::Malformed;

    #[test]
    fn causes_are_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot bill")]
        struct Outer(#[source] std::io::Error);
        let outcome = Outcome::dead_letter(Outer(std::io::Error::other("disk full")));
        let letter = dead(Reason::Rejected, 1, "cannot bill: disk full");
        assert_eq!(check(&Verdict::Said(outcome), 1, &Never, true), (letter, Handled::Dead));
    }
}
