//! Decides the settlement: a function of the handler's outcome and the policies. Its only side effect is that panics of
//! user code are reported.

use std::time::Duration;

use millstream_core::event::{Event, Handled};
use millstream_core::log::Note;
pub(in crate::consumer) use millstream_core::panics::Policies;
use millstream_core::panics::UserCode;
use millstream_core::policy::{Decision, Failure, FailureKind, GivenUp, Verdict as Judgement};
use millstream_core::{
    BoxError, Due, Envelope, History, MessageId, Outcome, Reason, Settlement, TopicPartition, wire,
};

use crate::consumer::handler::Verdict;

/// Attempt number and history of one message.
#[derive(Clone, Copy)]
pub(in crate::consumer) struct Attempt<'a> {
    pub(in crate::consumer) number: u32,
    pub(in crate::consumer) origin: MessageId,
    /// Error of the attempt before.
    pub(in crate::consumer) last_error: Option<&'a str>,
    /// Errors of all attempts before.
    pub(in crate::consumer) history: &'a History,
    /// Time since the first attempt failed.
    pub(in crate::consumer) elapsed: Duration,
    /// The server's time in milliseconds since 1970, if it is known.
    pub(in crate::consumer) now: Option<u64>,
    /// Source of jitter.
    pub(in crate::consumer) entropy: u64,
    /// Name of the noter, if the message waits in place for its next attempt; `None` if it is parked.
    pub(in crate::consumer) in_place: Option<&'a str>,
    pub(in crate::consumer) topic_partition: &'a TopicPartition,
    /// The message, if a policy needs it and the entry is one.
    pub(in crate::consumer) message: Option<&'a Envelope>,
}

impl Attempt<'_> {
    /// Returns the number of attempts of a message that never reached the handler, and so has not used this one.
    fn unused(&self) -> u32 {
        self.number.saturating_sub(1)
    }
}

/// A panic as an error, so that policies can inspect it.
#[derive(Debug, thiserror::Error)]
#[error("handler panicked: {0}")]
struct Panicked(String);

/// A timeout as an error, so that policies can inspect it.
#[derive(Debug, thiserror::Error)]
#[error("handler timed out after {0:?}")]
struct TimedOut(Duration);

/// What becomes of a message.
#[derive(Debug, PartialEq)]
pub(in crate::consumer) struct Decided {
    pub(in crate::consumer) settlement: Settlement,
    pub(in crate::consumer) handled: Handled,
    /// Error of a message that is dropped; that of others is in the settlement.
    dropped: Option<String>,
}

impl Decided {
    fn new(settlement: Settlement, handled: Handled) -> Self {
        Self { settlement, handled, dropped: None }
    }

    /// Returns the error of this attempt, or that of an earlier one if this one did not fail.
    pub(in crate::consumer) fn error(&self) -> Option<&str> {
        match &self.settlement {
            Settlement::Retry { error, .. } | Settlement::DeadLetter { error, .. } => Some(error),
            Settlement::Hold(note) => Some(&note.error),
            Settlement::Ack => self.dropped.as_deref(),
        }
    }
}

/// Returns the settlement for the log and the result for observers. Calls `attempt` only if the message is not done.
pub(in crate::consumer) fn decide<'a>(
    verdict: &Verdict,
    attempt: impl FnOnce() -> Attempt<'a>,
    policies: &Policies<'_>,
) -> Decided {
    match verdict {
        Verdict::Said(Outcome::Ack) => Decided::new(Settlement::Ack, Handled::Acked),
        Verdict::Duplicate => Decided::new(Settlement::Ack, Handled::Duplicate),
        Verdict::Checked => Decided::new(Settlement::Ack, Handled::Checked),
        Verdict::Said(Outcome::Retry(error)) => failed(error, FailureKind::Error, None, attempt(), policies),
        Verdict::Said(Outcome::RetryAfter(after, error)) => {
            failed(error, FailureKind::Error, Some(Due::In(*after)), attempt(), policies)
        }
        Verdict::Said(Outcome::RetryAt(time, error)) => {
            failed(error, FailureKind::Error, Some(Due::from(*time)), attempt(), policies)
        }
        Verdict::Said(Outcome::Snooze(delay)) => {
            let attempt = attempt();
            let error = attempt.last_error.unwrap_or_default().to_owned();
            Decided::new(again(attempt.number, Due::In(*delay), error, attempt), Handled::Snoozed)
        }
        Verdict::Said(Outcome::DeadLetter(error)) => {
            let attempt = attempt();
            give_up(Reason::Rejected, attempt.number, policies.text_of(error), attempt, policies)
        }
        Verdict::Panicked(message) => {
            policies.observer.observe(&Event::Panicked { code: UserCode::Handler, text: message });
            let error: BoxError = Box::new(Panicked(message.clone()));
            failed(&error, FailureKind::Panic, None, attempt(), policies)
        }
        Verdict::TimedOut(after) => {
            let error: BoxError = Box::new(TimedOut(*after));
            failed(&error, FailureKind::Timeout, None, attempt(), policies)
        }
        Verdict::Undecodable(error) => {
            let attempt = attempt();
            give_up(Reason::Undecodable, attempt.unused(), policies.text_of(error), attempt, policies)
        }
        Verdict::Malformed(why) => {
            let attempt = attempt();
            give_up(Reason::Malformed, attempt.unused(), why.to_string(), attempt, policies)
        }
        Verdict::Crashed(processes) => {
            let error = format!("{processes} processes ended while handling it");
            let attempt = attempt();
            give_up(Reason::Crashed, attempt.number, error, attempt, policies)
        }
        Verdict::Said(other) => {
            // An outcome of a newer core than this runtime: keeping the message is safer than guessing.
            let (error, attempt) = (format!("unknown outcome {other:?}"), attempt());
            give_up(Reason::Rejected, attempt.number, error, attempt, policies)
        }
    }
}

fn failed(
    error: &BoxError,
    kind: FailureKind,
    wish: Option<Due>,
    attempt: Attempt<'_>,
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

/// Returns the settlement that brings the message back as attempt `next`, with the error of the one before.
fn again(next: u32, due: Due, error: String, attempt: Attempt<'_>) -> Settlement {
    let history = attempt.history.clone();
    match attempt.in_place {
        None => Settlement::Retry { due, attempt: next, origin: attempt.origin, error, history },
        // The handler returned, so the message did not end the process: suspicions start again at 0.
        Some(by) => {
            let by = by.to_owned();
            Settlement::Hold(Note { attempt: next, due, suspicions: 0, by, error, history })
        }
    }
}

fn give_up(
    reason: Reason,
    attempts: u32,
    error: String,
    attempt: Attempt<'_>,
    policies: &Policies<'_>,
) -> Decided {
    let mut error = error;
    error.truncate(wire::cut(&error).len());
    let TopicPartition { topic, partition } = attempt.topic_partition;
    let given_up = GivenUp::new(&reason, attempts, &error).of(topic.as_str(), partition.0);
    let history = match policies.judge(&given_up.with_message(attempt.message)) {
        Judgement::Discard => {
            return Decided {
                settlement: Settlement::Ack,
                handled: Handled::Discarded,
                dropped: Some(error),
            };
        }
        Judgement::KeepWith(notes) => attempt.history.clone().with_notes(notes),
        _ => attempt.history.clone(),
    };
    let letter = Settlement::DeadLetter { reason, attempts, origin: attempt.origin, error, history };
    Decided::new(letter, Handled::Dead)
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

    fn attempt(number: u32) -> Attempt<'static> {
        static NONE: LazyLock<History> = LazyLock::new(History::default);
        let (origin, elapsed) = (MessageId::new(1, 2), Duration::ZERO);
        static PLACE: LazyLock<TopicPartition> =
            LazyLock::new(|| TopicPartition::new("flights".parse().expect("a name"), 2));
        let (last_error, now, in_place, message) = (None, None, None, None);
        let (history, topic_partition) = (&*NONE, &*PLACE);
        Attempt {
            number,
            origin,
            last_error,
            history,
            elapsed,
            now,
            entropy: 0,
            in_place,
            topic_partition,
            message,
        }
    }

    fn decided(verdict: &Verdict, attempt: Attempt<'_>, policies: &Policies<'_>) -> (Settlement, Handled) {
        let decided = decide(verdict, || attempt, policies);
        (decided.settlement, decided.handled)
    }

    fn check(verdict: &Verdict, number: u32, retry: &dyn RetryPolicy, keep: bool) -> (Settlement, Handled) {
        let dead_letters: &dyn DeadLetterPolicy = if keep { &Keep } else { &Discard };
        decided(verdict, attempt(number), &Policies { retry, dead_letters, observer: &Ignore })
    }

    fn dead(reason: Reason, attempts: u32, error: &str) -> Settlement {
        let origin = MessageId::new(1, 2);
        Settlement::DeadLetter { reason, attempts, origin, error: error.into(), history: History::default() }
    }

    #[test]
    fn a_failure_comes_back_until_the_policy_gives_up() {
        let policy = Fixed::new(AFTER).attempts(3);
        let origin = MessageId::new(1, 2);
        let (due, history) = (Due::In(AFTER), History::default());
        let again = Settlement::Retry { due, attempt: 3, origin, error: "no".into(), history };
        assert_eq!(check(&Verdict::Said(Outcome::retry("no")), 2, &policy, true), (again, Handled::Retried));
        let given_up = (dead(Reason::Exhausted, 3, "no"), Handled::Dead);
        assert_eq!(check(&Verdict::Said(Outcome::retry("no")), 3, &policy, true), given_up);
        let wish = Outcome::retry_after(Duration::ZERO, "no");
        assert_eq!(check(&Verdict::Said(wish), 3, &policy, true), given_up, "a wish is an attempt too");
    }

    #[test]
    fn what_waits_in_its_place_is_noted_and_given_up_like_the_rest() {
        let policies =
            Policies { retry: &Fixed::new(AFTER).attempts(3), dead_letters: &Keep, observer: &Ignore };
        let check = |number| {
            let attempt = Attempt { in_place: Some("me"), ..attempt(number) };
            decided(&Verdict::Said(Outcome::retry("no")), attempt, &policies)
        };
        let (due, by, error) = (Due::In(AFTER), "me".into(), "no".into());
        let note = Note { attempt: 3, due, suspicions: 0, by, error, history: History::default() };
        assert_eq!(check(2), (Settlement::Hold(note), Handled::Retried));
        assert_eq!(check(3), (dead(Reason::Exhausted, 3, "no"), Handled::Dead));
    }

    #[test]
    fn a_snooze_uses_no_attempt_and_asks_nobody() {
        let policies = Policies { retry: &Never, dead_letters: &Keep, observer: &Ignore };
        let history = History::parse("5 1 first\n7 2 second");
        let attempt = Attempt { last_error: Some("second"), history: &history, ..attempt(3) };
        let says = |attempt| decided(&Verdict::Said(Outcome::snooze(AFTER)), attempt, &policies);
        let (due, origin, error) = (Due::In(AFTER), MessageId::new(1, 2), "second".to_owned());
        let (history, by) = (history.clone(), "me".to_owned());
        let again =
            Settlement::Retry { due, attempt: 3, origin, error: error.clone(), history: history.clone() };
        assert_eq!(says(attempt), (again, Handled::Snoozed));
        let held = Note { attempt: 3, due, suspicions: 0, by, error, history };
        let in_place = Some("me");
        assert_eq!(says(Attempt { in_place, ..attempt }), (Settlement::Hold(held), Handled::Snoozed));
    }

    #[test]
    fn a_time_is_the_servers_and_counts_against_a_budget_where_its_clock_is_known() {
        let retry = Within::new(AFTER, Fixed::new(Duration::ZERO));
        let policies = Policies { retry: &retry, dead_letters: &Keep, observer: &Ignore };
        let says = |now, elapsed, at: Duration| {
            let attempt = Attempt { now, elapsed, ..attempt(1) };
            let (settlement, _) =
                decided(&Verdict::Said(Outcome::retry_at(UNIX_EPOCH + at, "no")), attempt, &policies);
            match settlement {
                Settlement::Retry { due, .. } => Some(due),
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
        assert_eq!(check(&verdict, 1, &Never, false), (Settlement::Ack, Handled::Discarded));
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
