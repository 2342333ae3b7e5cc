//! Retention of dead letters: the age and the number up to which a group keeps them.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Problems, Result};

/// Shortest time between two looks at the dead letters of a partition.
const AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// Longest time between two looks at the dead letters of a partition.
const AT_LEAST_EVERY: Duration = Duration::from_secs(60);
/// Longest time of a retention, in milliseconds: the range in which Lua counts exactly. It is 285,000 years.
const MAX_MS: u64 = 1 << 53;
/// Maximum number of characters of a stored text in an error.
const MAX_SHOWN: usize = 64;

/// Rule by which a group's dead letters are dropped: by age, by number, by both, or not at all, which is the default except in
/// [packed](Self::PACKED) topics.
///
/// The age of a letter counts from its death, by the server's clock; that of a letter that was
/// [put back](crate::DeadLetters::put) from its import. The number is that of one partition, and is exact: a letter is dropped
/// when the partition has that many newer ones of the group. A letter that a client has claimed is not dropped, but counts;
/// one that was [left](crate::dead_letters::DeadLetterAction::Leave) for later is dropped like any other.
///
/// For the dead tasks of a delay queue it is the same, with the shard in place of the partition. They have no claims.
///
/// ```
/// use std::time::Duration;
/// use millstream_core::{DeadLetterRetention, Topic};
///
/// const MONTH: Duration = Duration::from_secs(30 * 86_400);
/// const ORDERS: Topic<u64> =
///     Topic::new("orders").dead_letter_retention(DeadLetterRetention::age(MONTH).and_length(100_000));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeadLetterRetention {
    max_age: Option<Duration>,
    max_length: Option<u64>,
}

/// Reason for which a dead letter is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overdue {
    /// It is older than the retention allows.
    Age,
    /// There are as many newer ones as the retention allows.
    Length,
}

impl DeadLetterRetention {
    /// Keeps all dead letters, until they are replayed or purged. The default of topics that are not packed, and of delay queues.
    pub const KEEP: Self = Self { max_age: None, max_length: None };

    /// Keeps the newest 100,000 dead letters of a partition. The default of packed topics: an entry of a few bytes can hold a thousand
    /// messages, and each that dies takes a few hundred bytes, so 100,000 take some 30 MB.
    pub const PACKED: Self = Self::length(100_000);

    /// Returns the default of a topic that is packed, or is not.
    #[must_use]
    pub const fn by_default(packed: bool) -> Self {
        if packed { Self::PACKED } else { Self::KEEP }
    }

    /// Keeps dead letters up to this age.
    #[must_use]
    pub const fn age(max: Duration) -> Self {
        Self { max_age: Some(max), max_length: None }
    }

    /// Keeps this many of the newest dead letters of a partition.
    #[must_use]
    pub const fn length(max: u64) -> Self {
        Self { max_age: None, max_length: Some(max) }
    }

    /// Returns the same rule that keeps dead letters up to this age only.
    #[must_use]
    pub const fn and_age(self, max: Duration) -> Self {
        Self { max_age: Some(max), ..self }
    }

    /// Returns the same rule that keeps this many of the newest dead letters of a partition only.
    #[must_use]
    pub const fn and_length(self, max: u64) -> Self {
        Self { max_length: Some(max), ..self }
    }

    /// Returns the age up to which they are kept; `None` for any.
    #[must_use]
    pub const fn max_age(self) -> Option<Duration> {
        self.max_age
    }

    /// Returns how many are kept in a partition; `None` for any number.
    #[must_use]
    pub const fn max_length(self) -> Option<u64> {
        self.max_length
    }

    /// Whether all are kept.
    #[must_use]
    pub const fn is_keep(self) -> bool {
        self.max_age.is_none() && self.max_length.is_none()
    }

    /// Returns why a letter of this age is dropped that has this many newer ones in its partition; `None` if it stays. A letter
    /// that is both too old and one too many is dropped for its age.
    #[must_use]
    pub fn overdue(self, age: Duration, newer: u64) -> Option<Overdue> {
        if self.max_age.is_some_and(|max| age > max) {
            Some(Overdue::Age)
        } else if self.max_length.is_some_and(|max| newer >= max) {
            Some(Overdue::Length)
        } else {
            None
        }
    }

    /// Returns the time between two looks at the dead letters of a partition, which is how late they are dropped: a tenth of
    /// the age, 1 s to 60 s; 60 s without an age.
    #[must_use]
    pub fn period(self) -> Duration {
        self.max_age.map_or(AT_LEAST_EVERY, |age| (age / 10).clamp(AT_MOST_EVERY, AT_LEAST_EVERY))
    }

    /// Parses the form that [`Display`](fmt::Display) writes.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a rule that this version does not know; [`ErrorKind::Protocol`] for an invalid one.
    pub fn parse(text: &str) -> Result<Self> {
        if text == "keep" {
            return Ok(Self::KEEP);
        }
        let shown = shown(text);
        let invalid = || Error::new(ErrorKind::Protocol, format!("the retention {shown:?} is invalid"));
        let mut parsed = Self::KEEP;
        for rule in text.split(',') {
            let (word, figure) = rule.split_once(':').unwrap_or((rule, ""));
            if !matches!(word, "age" | "length" | "keep") {
                let message = format!("unknown retention of dead letters {shown:?}");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            let figure = figure.parse().ok().filter(|figure| *figure > 0).ok_or_else(invalid)?;
            let known = match word {
                "age" => parsed.max_age.replace(Duration::from_millis(figure)).is_some(),
                "length" => parsed.max_length.replace(figure).is_some(),
                _ => true,
            };
            if known {
                return Err(invalid());
            }
        }
        Ok(parsed)
    }

    pub(crate) fn check(self, problems: &mut Problems) {
        let nothing = self.max_age.is_some_and(|age| age.is_zero()) || self.max_length == Some(0);
        problems.require(!nothing, || format!("the retention {self} of dead letters would keep none at all"));
    }
}

/// Writes the rule as a topic's meta hash stores it; times in milliseconds, rounded up.
impl fmt::Display for DeadLetterRetention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let age = self.max_age.map(|age| format!("age:{}", whole_ms(age)));
        let length = self.max_length.map(|length| format!("length:{length}"));
        match (age, length) {
            (Some(age), Some(length)) => write!(f, "{age},{length}"),
            (Some(one), None) | (None, Some(one)) => f.write_str(&one),
            (None, None) => f.write_str("keep"),
        }
    }
}

impl Overdue {
    /// All variants.
    pub const ALL: [Self; 2] = [Self::Age, Self::Length];

    /// Returns the word for it in metrics and traces.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Length => "length",
        }
    }
}

/// Returns the beginning of a stored text, for an error: the text may be large, since others can write it.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}

/// Returns whole milliseconds, rounded up, at most 2^53.
pub(crate) fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(MAX_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECS: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn a_letter_is_overdue_by_age_or_by_the_number_of_newer_ones() {
        let both = DeadLetterRetention::age(SECS(10)).and_length(3);
        for (age, newer, expected) in [
            (10_000, 2, None),
            (10_001, 0, Some(Overdue::Age)),
            (0, 3, Some(Overdue::Length)),
            (10_001, 3, Some(Overdue::Age)),
        ] {
            assert_eq!(both.overdue(Duration::from_millis(age), newer), expected, "{age} ms, {newer} newer");
        }
        assert_eq!(DeadLetterRetention::age(SECS(10)).overdue(SECS(10), u64::MAX), None);
        assert_eq!(DeadLetterRetention::length(3).overdue(Duration::MAX, 2), None);
        assert_eq!(DeadLetterRetention::KEEP.overdue(Duration::MAX, u64::MAX), None);
        assert_eq!(DeadLetterRetention::length(5).and_age(SECS(1)).max_age(), Some(SECS(1)));
    }

    #[test]
    fn a_retention_reads_back() {
        let golden = [
            (DeadLetterRetention::KEEP, "keep"),
            (DeadLetterRetention::age(SECS(86_400)), "age:86400000"),
            (DeadLetterRetention::length(1_000), "length:1000"),
            (DeadLetterRetention::age(SECS(1)).and_length(7), "age:1000,length:7"),
        ];
        for (retention, text) in golden {
            assert_eq!(retention.to_string(), text);
            assert_eq!(DeadLetterRetention::parse(text).expect("known"), retention);
        }
        assert_eq!(DeadLetterRetention::parse("length:7,age:1000").expect("any order"), golden[3].0);
        assert_eq!(DeadLetterRetention::age(Duration::from_nanos(1)).to_string(), "age:1", "rounded up");
        let forever = DeadLetterRetention::age(Duration::MAX).to_string();
        DeadLetterRetention::parse(&forever).expect("what was written can be read");
        for (text, kind) in [
            ("", ErrorKind::Unsupported),
            ("bytes:7", ErrorKind::Unsupported),
            ("age:1,bytes:7", ErrorKind::Unsupported),
            ("age", ErrorKind::Protocol),
            ("age:0", ErrorKind::Protocol),
            ("age:-1", ErrorKind::Protocol),
            ("length:many", ErrorKind::Protocol),
            ("keep:1", ErrorKind::Protocol),
            ("keep,age:1", ErrorKind::Protocol),
            ("age:1,age:2", ErrorKind::Protocol),
        ] {
            assert_eq!(DeadLetterRetention::parse(text).expect_err(text).kind(), kind, "{text}");
        }
    }

    #[test]
    fn an_error_shows_the_beginning_of_a_text() {
        for text in ["x".repeat(10_000), format!("age:{}", "9".repeat(10_000))] {
            let error = DeadLetterRetention::parse(&text).expect_err("no retention").to_string();
            assert!(error.len() < 200 && error.contains(&text[..64]), "{} bytes", error.len());
        }
    }

    #[test]
    fn a_retention_that_keeps_nothing_is_refused() {
        let problems = |retention: DeadLetterRetention| {
            let mut problems = Problems::new("topic");
            retention.check(&mut problems);
            problems.finish().is_err()
        };
        assert!(problems(DeadLetterRetention::age(Duration::ZERO)));
        assert!(problems(DeadLetterRetention::age(SECS(1)).and_length(0)));
        assert!(!problems(DeadLetterRetention::KEEP));
        assert!(!problems(DeadLetterRetention::age(Duration::from_nanos(1)).and_length(1)));
    }

    #[test]
    fn what_grows_old_is_looked_at_in_time_and_not_too_often() {
        for (retention, expected) in [
            (DeadLetterRetention::length(7), SECS(60)),
            (DeadLetterRetention::age(Duration::from_millis(1)), SECS(1)),
            (DeadLetterRetention::age(SECS(100)), SECS(10)),
            (DeadLetterRetention::age(SECS(86_400)).and_length(7), SECS(60)),
        ] {
            assert_eq!(retention.period(), expected, "{retention}");
        }
    }
}
