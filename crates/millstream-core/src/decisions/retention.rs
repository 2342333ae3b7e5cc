//! Whether it is remembered for long enough that a message was handled.

use std::time::Duration;

use crate::error::Problems;
use crate::policy::RetryPolicy;
use crate::topic::dead_letter_retention::DeadLetterRetention;
use crate::topic::{Retention, TopicSpec};

/// Longest ttl and retention of a marker: 10 years.
pub const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// Time after the death within which dead letters are expected to be replayed if nothing is stated, and nothing limits it: a
/// day.
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
    /// Longest time from the death of a letter to its replay, as the user states it. `None`: the time for which the topics keep
    /// dead letters, and [`REPLAYS_WITHIN`] for a topic that keeps them without a limit of time.
    pub replays_within: Option<Duration>,
}

impl Default for Remembered {
    fn default() -> Self {
        Self { retention: RETENTION, retries_within: None, replays_within: None }
    }
}

/// Longest time from the death of a letter to its replay, with its source.
struct Replays<'a> {
    time: Duration,
    /// The topic whose retention of dead letters it is; `None` if it was stated or assumed.
    topic: Option<&'a TopicSpec>,
}

/// Returns the longest time after its death at which a letter can be replayed: the age up to which it is kept, and the time by
/// which it is dropped late. `None` if there is no limit.
///
/// Letters that are claimed, and those of a group without running consumers, can be replayed later.
#[must_use]
pub fn longest_replay(retention: DeadLetterRetention) -> Option<Duration> {
    retention.max_age().map(|age| age.saturating_add(retention.period()))
}

impl Remembered {
    /// Whether the time within which letters of this topic are replayed is merely assumed: it is not stated, and the topic keeps
    /// dead letters for any time.
    #[must_use]
    pub fn assumes_replays(&self, topic: &TopicSpec) -> bool {
        self.replays_within.is_none() && topic.dead_letter_retention.max_age().is_none()
    }

    fn replays<'a>(&self, topics: impl Iterator<Item = &'a TopicSpec>) -> Replays<'a> {
        if let Some(time) = self.replays_within {
            return Replays { time, topic: None };
        }
        let of_topics = topics.map(|topic| match longest_replay(topic.dead_letter_retention) {
            Some(time) => Replays { time, topic: Some(topic) },
            None => Replays { time: REPLAYS_WITHIN, topic: None },
        });
        let longest = of_topics.max_by_key(|replays| replays.time);
        longest.unwrap_or(Replays { time: REPLAYS_WITHIN, topic: None })
    }

    /// Checks the retention against the time in which a message of these topics can come again. `what` begins each problem.
    pub fn check<'a>(
        &self,
        what: &str,
        retry: Option<&dyn RetryPolicy>,
        topics: impl Iterator<Item = &'a TopicSpec> + Clone,
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
        let replays = self.replays(topics.clone());
        let again = retries.saturating_add(replays.time);
        problems.require(retention >= again, || {
            let (time, until) = (replays.time, replays.topic.map_or_else(
                || "replayed (replays_within)".to_owned(),
                |topic| format!("dropped (topic {} keeps {})", topic.name, topic.dead_letter_retention),
            ));
            format!(
                "{what}: retention is {retention:?}, and a message can come again for {again:?}: {retries:?} of \
                 retries and {time:?} until a dead letter is {until}"
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
            replays_within: Some(SECS(400)),
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

    fn replayed(stated: Option<Duration>, retention: u64, kept: &[DeadLetterRetention]) -> Option<String> {
        let retry: Option<&dyn RetryPolicy> = Some(&Fixed::new(SECS(60)).attempts(11));
        let topic = |(nth, kept): (usize, &DeadLetterRetention)| {
            let name = format!("topic-{nth}").parse().unwrap();
            TopicSpec::new(name, 1).unwrap().with_dead_letter_retention(*kept)
        };
        let topics: Vec<_> = kept.iter().enumerate().map(topic).collect();
        let remembered =
            Remembered { retention: SECS(retention), retries_within: None, replays_within: stated };
        let mut problems = Problems::new("consumer");
        remembered.check("idempotent", retry, topics.iter(), &mut problems);
        problems.finish().err().map(|error| error.problems().join("; "))
    }

    #[test]
    fn a_retention_covers_the_age_of_dead_letters() {
        let (keep, age) = (DeadLetterRetention::KEEP, DeadLetterRetention::age);
        // 600 s of retries, the age, and a minute until a letter that is too old is dropped.
        assert_eq!(replayed(None, 600 + 7_200 + 60, &[age(SECS(7_200))]), None);
        let short = replayed(None, 600 + 7_200 + 59, &[age(SECS(7_200))]).expect("a problem");
        for part in ["7859s", "7860s", "600s", "7260s", "topic-0", "age:7200000"] {
            assert!(short.contains(part), "{part}: {short}");
        }
        // The longest of several topics decides; a number of letters is no limit of time.
        let several = [age(SECS(100)), age(SECS(172_800)), keep];
        assert!(replayed(None, 600 + 86_400, &several).expect("a problem").contains("topic-1"));
        let by_number = DeadLetterRetention::length(10);
        assert_eq!(replayed(None, 600 + 86_400, &[age(SECS(100)), by_number]), None);
        let assumed = replayed(None, 600 + 86_399, &[by_number]).expect("a problem");
        assert!(assumed.contains("replays_within"), "{assumed}");
        // What is stated counts, whatever the topic keeps.
        assert_eq!(replayed(Some(Duration::ZERO), 600, &[age(SECS(172_800)), keep]), None);
        assert!(replayed(Some(SECS(1)), 600, &[age(SECS(100))]).is_some());
    }

    #[test]
    fn a_time_of_replays_is_assumed_where_nothing_limits_it() {
        let topic = TopicSpec::new("orders".parse().unwrap(), 1).unwrap();
        let by_number = topic.clone().with_dead_letter_retention(DeadLetterRetention::length(10));
        let by_age = topic.clone().with_dead_letter_retention(DeadLetterRetention::age(SECS(1)));
        let (default, stated) =
            (Remembered::default(), Remembered { replays_within: Some(SECS(1)), ..Remembered::default() });
        for (topic, assumes) in [(&topic, true), (&by_number, true), (&by_age, false)] {
            assert_eq!(default.assumes_replays(topic), assumes, "{topic:?}");
            assert!(!stated.assumes_replays(topic), "{topic:?}");
        }
        assert_eq!(longest_replay(DeadLetterRetention::age(Duration::MAX)), Some(Duration::MAX));
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
