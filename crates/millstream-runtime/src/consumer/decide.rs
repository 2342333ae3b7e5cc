//! What to tell the log: a pure function of what the handler said and the policies.

use std::time::Duration;

use millstream_core::event::Handled;
use millstream_core::log::Note;
use millstream_core::policy::{Decision, Failure, FailureKind, Verdict as Judgement};
use millstream_core::{BoxError, DeadLetterPolicy, MessageId, Outcome, Reason, RetryPolicy, Settlement};

use super::handler::Verdict;

/// The two policies of a consumer.
pub(super) struct Policies<'a> {
    pub(super) retry: &'a dyn RetryPolicy,
    pub(super) dead_letters: &'a dyn DeadLetterPolicy,
}

/// Which attempt this was, of which message.
#[derive(Clone, Copy)]
pub(super) struct Attempt<'a> {
    pub(super) number: u32,
    pub(super) origin: MessageId,
    /// The source of jitter.
    pub(super) entropy: u64,
    /// If the message waits in its place for its next attempt: who notes that. Else it is parked.
    pub(super) in_place: Option<&'a str>,
}

/// A panic as an error, so that policies can look at it.
#[derive(Debug, thiserror::Error)]
#[error("handler panicked: {0}")]
struct Panicked(String);

/// A timeout as an error, so that policies can look at it.
#[derive(Debug, thiserror::Error)]
#[error("handler timed out after {0:?}")]
struct TimedOut(Duration);

/// What to tell the log, and what to tell observers.
pub(super) fn decide(
    verdict: &Verdict,
    attempt: Attempt<'_>,
    policies: &Policies<'_>,
) -> (Settlement, Handled) {
    // What was never handed to the handler has not used this attempt.
    let unseen = attempt.number.saturating_sub(1);
    match verdict {
        Verdict::Said(Outcome::Ack) => (Settlement::Ack, Handled::Acked),
        Verdict::Said(Outcome::Retry(error)) => failed(error, FailureKind::Error, None, attempt, policies),
        Verdict::Said(Outcome::RetryAfter(after, error)) => {
            failed(error, FailureKind::Error, Some(*after), attempt, policies)
        }
        Verdict::Said(Outcome::DeadLetter(error)) => {
            give_up(Reason::Rejected, attempt.number, text_of(error), attempt, policies)
        }
        Verdict::Panicked(message) => {
            let error: BoxError = Box::new(Panicked(message.clone()));
            failed(&error, FailureKind::Panic, None, attempt, policies)
        }
        Verdict::TimedOut(after) => {
            let error: BoxError = Box::new(TimedOut(*after));
            failed(&error, FailureKind::Timeout, None, attempt, policies)
        }
        Verdict::Undecodable(error) => {
            give_up(Reason::Undecodable, unseen, text_of(error), attempt, policies)
        }
        Verdict::Malformed(why) => give_up(Reason::Malformed, unseen, why.to_string(), attempt, policies),
        Verdict::Crashed(processes) => {
            let error = format!("{processes} processes ended while handling it");
            give_up(Reason::Crashed, attempt.number, error, attempt, policies)
        }
        Verdict::Said(other) => {
            // An outcome of a newer core than this runtime: the message is kept rather than guessed about.
            let error = format!("unknown outcome {other:?}");
            give_up(Reason::Rejected, attempt.number, error, attempt, policies)
        }
    }
}

fn failed(
    error: &BoxError,
    kind: FailureKind,
    wish: Option<Duration>,
    attempt: Attempt<'_>,
    policies: &Policies<'_>,
) -> (Settlement, Handled) {
    let failure = Failure::new(attempt.number, kind, &**error, attempt.entropy);
    match policies.retry.decide(&failure) {
        Decision::RetryAfter(after) => {
            let after = wish.unwrap_or(after);
            let next = attempt.number.saturating_add(1);
            let error = text_of(error);
            let again = match attempt.in_place {
                None => Settlement::Retry { after, attempt: next, origin: attempt.origin, error },
                // It was settled, in a sense: what was suspected of it is over.
                Some(by) => {
                    Settlement::Hold(Note { attempt: next, after, suspicions: 0, by: by.to_owned(), error })
                }
            };
            (again, Handled::Retried)
        }
        Decision::GiveUp => give_up(Reason::Exhausted, attempt.number, text_of(error), attempt, policies),
    }
}

fn give_up(
    reason: Reason,
    attempts: u32,
    error: String,
    attempt: Attempt<'_>,
    policies: &Policies<'_>,
) -> (Settlement, Handled) {
    match policies.dead_letters.judge(&reason, attempts, &error) {
        Judgement::Keep => {
            (Settlement::DeadLetter { reason, attempts, origin: attempt.origin, error }, Handled::Dead)
        }
        Judgement::Discard => (Settlement::Ack, Handled::Discarded),
    }
}

/// The error and its causes in one line.
fn text_of(error: &BoxError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        // Many errors print their source themselves.
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    millstream_core::wire::cut(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::policy::{Discard, Fixed, Keep, Never};

    const AFTER: Duration = Duration::from_secs(7);

    fn attempt(number: u32) -> Attempt<'static> {
        Attempt { number, origin: MessageId::new(1, 2), entropy: 0, in_place: None }
    }

    fn check(verdict: &Verdict, number: u32, retry: &dyn RetryPolicy, keep: bool) -> (Settlement, Handled) {
        let dead_letters: &dyn DeadLetterPolicy = if keep { &Keep } else { &Discard };
        decide(verdict, attempt(number), &Policies { retry, dead_letters })
    }

    fn dead(reason: Reason, attempts: u32, error: &str) -> Settlement {
        let origin = MessageId::new(1, 2);
        Settlement::DeadLetter { reason, attempts, origin, error: error.into() }
    }

    #[test]
    fn a_failure_comes_back_until_the_policy_gives_up() {
        let policy = Fixed::new(AFTER).attempts(3);
        let origin = MessageId::new(1, 2);
        let again = Settlement::Retry { after: AFTER, attempt: 3, origin, error: "no".into() };
        assert_eq!(check(&Verdict::Said(Outcome::retry("no")), 2, &policy, true), (again, Handled::Retried));
        let given_up = (dead(Reason::Exhausted, 3, "no"), Handled::Dead);
        assert_eq!(check(&Verdict::Said(Outcome::retry("no")), 3, &policy, true), given_up);
        let wish = Outcome::retry_after(Duration::ZERO, "no");
        assert_eq!(check(&Verdict::Said(wish), 3, &policy, true), given_up, "a wish is an attempt too");
    }

    #[test]
    fn what_waits_in_its_place_is_noted_and_given_up_like_the_rest() {
        let policies = Policies { retry: &Fixed::new(AFTER).attempts(3), dead_letters: &Keep };
        let check = |number| {
            let attempt = Attempt { in_place: Some("me"), ..attempt(number) };
            decide(&Verdict::Said(Outcome::retry("no")), attempt, &policies)
        };
        let note = Note { attempt: 3, after: AFTER, suspicions: 0, by: "me".into(), error: "no".into() };
        assert_eq!(check(2), (Settlement::Hold(note), Handled::Retried));
        assert_eq!(check(3), (dead(Reason::Exhausted, 3, "no"), Handled::Dead));
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
        let error: BoxError = Box::new(Outer(std::io::Error::other("disk full")));
        assert_eq!(text_of(&error), "cannot bill: disk full");
    }
}
