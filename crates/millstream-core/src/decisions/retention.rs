//! Whether it is remembered for long enough that a message was handled.

use std::time::Duration;

use crate::error::Problems;
use crate::policy::RetryPolicy;
use crate::topic::{Retention, TopicSpec};

/// Longest ttl and retention of a marker: 10 years.
pub const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// Replays of dead letters that are expected if nothing else is stated: within a day of the death.
pub const REPLAYS_WITHIN: Duration = Duration::from_secs(86_400);

/// Retention of a marker if nothing else is stated: 7 days.
pub const RETENTION: Duration = Duration::from_secs(7 * 86_400);

/// Time for which it is remembered that a message was handled, beside the times in which the message can come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// For how long it is remembered. Default: [`RETENTION`].
    pub retention: Duration,
    /// Longest time from the first failure of a message to its last attempt, as the user states it; `None` if the retry policy
    /// states it.
    pub retries_within: Option<Duration>,
    /// Longest time from the death of a letter to its replay. Default: [`REPLAYS_WITHIN`].
    pub replays_within: Duration,
}

impl Default for Remembered {
    fn default() -> Self {
        Self { retention: RETENTION, retries_within: None, replays_within: REPLAYS_WITHIN }
    }
}

impl Remembered {
    /// Checks the retention against the time in which a message of these topics can come again. `what` begins each problem.
    pub fn check<'a>(
        &self,
        what: &str,
        retry: Option<&dyn RetryPolicy>,
        topics: impl Iterator<Item = &'a TopicSpec>,
        problems: &mut Problems,
    ) {
        let retention = self.retention;
        problems.require((Duration::from_millis(1)..=LONGEST).contains(&retention), || {
            format!("{what}: retention is {retention:?}, 1ms to {LONGEST:?} are allowed")
        });
        let Some(retries) = self.retries_within.or_else(|| retry?.longest()) else {
            let unknown = match retry {
                Some(_) => {
                    "the retry policy states no longest time of its retries: limit it with Within, or state"
                }
                None => "it is not known for how long a message is retried: name the retry policy, or state",
            };
            problems.require(false, || {
                format!("{what}: retention is {retention:?}, and {unknown} retries_within")
            });
            return;
        };
        let replays = self.replays_within;
        let again = retries.saturating_add(replays);
        problems.require(retention >= again, || {
            format!(
                "{what}: retention is {retention:?}, and a message can come again for {again:?}: {retries:?} of \
                 retries and {replays:?} until a dead letter is replayed (replays_within)"
            )
        });
        for topic in topics {
            let (Retention::ConsumedAfter(kept) | Retention::Age(kept)) = topic.retention else { continue };
            problems.require(retention >= kept, || {
                format!(
                    "{what}: retention is {retention:?}, and topic {} keeps messages for {kept:?}: a group that is set \
                     back reads them again",
                    topic.name
                )
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Decision, Exponential, Failure, Fixed};

    const SECS: fn(u64) -> Duration = Duration::from_secs;

    fn problem(
        remembered: Remembered,
        retry: Option<&dyn RetryPolicy>,
        retention: Retention,
    ) -> Option<String> {
        let topic = TopicSpec::new("orders".parse().unwrap(), 1).unwrap().with_retention(retention);
        let mut problems = Problems::new("consumer");
        remembered.check("idempotent", retry, [&topic].into_iter(), &mut problems);
        problems.finish().err().map(|error| error.problems().join("; "))
    }

    #[test]
    fn a_retention_that_is_too_short_is_refused_with_both_times() {
        let retry: Option<&dyn RetryPolicy> = Some(&Fixed::new(SECS(60)).attempts(11));
        let keeps = |retention| Remembered {
            retention: SECS(retention),
            replays_within: SECS(400),
            ..Remembered::default()
        };
        assert_eq!(problem(keeps(1_000), retry, Retention::Consumed), None);
        let short = problem(keeps(999), retry, Retention::Consumed).expect("a problem");
        for time in ["999s", "1000s", "600s", "400s"] {
            assert!(short.contains(time), "{time}: {short}");
        }
        let seek = problem(keeps(1_000), retry, Retention::Age(SECS(1_001))).expect("a problem");
        assert!(seek.contains("1000s") && seek.contains("1001s") && seek.contains("orders"), "{seek}");
        assert_eq!(problem(Remembered::default(), Some(&Exponential::default()), Retention::Keep), None);
        assert!(problem(keeps(0), retry, Retention::Keep).is_some());
    }

    #[derive(Debug)]
    struct Unknown;

    impl RetryPolicy for Unknown {
        fn decide(&self, _: &Failure<'_>) -> Decision {
            Decision::GiveUp
        }
    }

    #[test]
    fn a_policy_that_states_nothing_needs_a_statement() {
        let default = Remembered::default();
        for retry in [None, Some(&Unknown as &dyn RetryPolicy)] {
            let unknown = problem(default, retry, Retention::Consumed).expect("a problem");
            assert!(unknown.contains("retries_within"), "{unknown}");
            let stated = Remembered { retries_within: Some(SECS(60)), ..default };
            assert_eq!(problem(stated, retry, Retention::Consumed), None);
        }
    }
}
