//! Groups of errors with the same fingerprint, counted in bounded memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::fingerprint::{Fingerprint, pattern};
use crate::timestamp::Timestamp;

/// Default of the maximum number of groups: with their patterns they take less than 1 MiB.
pub const MAX_GROUPS: usize = 1_000;

/// Errors with the same fingerprint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorGroup<E> {
    /// Fingerprint of the errors.
    pub fingerprint: Fingerprint,
    /// Text of the errors without its variable parts; see [`pattern`].
    pub pattern: String,
    /// Number of errors.
    pub count: u64,
    /// Time of the earliest error.
    pub first: Timestamp,
    /// Time of the latest error.
    pub last: Timestamp,
    /// The latest error.
    pub example: E,
    /// Their times.
    pub times: ErrorTimes,
}

/// Numbers of errors over time, in bounded memory: the longer the time, the coarser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorTimes {
    /// Width of a bucket, in milliseconds.
    width: u64,
    /// Number of errors by the number of the bucket.
    counts: BTreeMap<u64, u64>,
}

/// Width of a bucket at first, and maximum number of buckets.
const WIDTH: u64 = 1_000;
const BUCKETS: usize = 128;

impl ErrorTimes {
    fn new() -> Self {
        Self { width: WIDTH, counts: BTreeMap::new() }
    }

    fn add(&mut self, at: Timestamp, number: u64) {
        *self.counts.entry(at.as_millis() / self.width).or_default() += number;
        while self.counts.len() > BUCKETS {
            self.width *= 2;
            for (at, number) in std::mem::take(&mut self.counts) {
                *self.counts.entry(at / 2).or_default() += number;
            }
        }
    }

    fn merge(&mut self, other: &Self) {
        for (at, number) in &other.counts {
            self.add(Timestamp::from_millis(at * other.width), *number);
        }
    }

    /// Returns the numbers in `parts` equal parts of the time from `from` to `to`; what is outside counts to the first or the last.
    #[must_use]
    pub fn spread(&self, from: Timestamp, to: Timestamp, parts: usize) -> Vec<u64> {
        let mut numbers = vec![0; parts];
        let span = to.as_millis().saturating_sub(from.as_millis()).max(1);
        for (at, number) in &self.counts {
            // The middle of the bucket.
            let ms = (at * self.width + self.width / 2).saturating_sub(from.as_millis()).min(span);
            let part = (u128::from(ms) * parts as u128 / u128::from(span)) as usize;
            if let Some(sum) = numbers.get_mut(part.min(parts.saturating_sub(1))) {
                *sum += number;
            }
        }
        numbers
    }
}

/// Counts errors by their fingerprints.
///
/// It has a maximum number of groups. Once there are as many, errors of other fingerprints are counted as
/// [`others`](Self::others) only: all counts are exact, whatever the number of different errors.
///
/// ```
/// use millstream_core::{ErrorGroups, Timestamp};
///
/// let mut groups = ErrorGroups::new(100);
/// for (at, error) in ["timed out after 3 s", "refused", "timed out after 5 s"].iter().enumerate() {
///     groups.add(error, Timestamp::from_millis(at as u64), *error);
/// }
/// let largest = &groups.into_groups()[0];
/// assert_eq!((largest.pattern.as_str(), largest.count), ("timed out after <n> s", 2));
/// ```
#[derive(Clone, Debug)]
pub struct ErrorGroups<E> {
    most: usize,
    groups: BTreeMap<Fingerprint, ErrorGroup<E>>,
    others: u64,
}

impl<E> ErrorGroups<E> {
    /// Creates an empty set of at most `most` groups.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, groups: BTreeMap::new(), others: 0 }
    }

    /// Adds an error that occurred at this time. `example` identifies it.
    pub fn add(&mut self, error: &str, at: Timestamp, example: E) {
        let pattern = pattern(error);
        let fingerprint = Fingerprint::of_pattern(&pattern);
        let is_full = self.groups.len() >= self.most;
        match self.groups.get_mut(&fingerprint) {
            Some(group) => {
                group.count += 1;
                group.times.add(at, 1);
                group.first = group.first.min(at);
                if at >= group.last {
                    (group.last, group.example) = (at, example);
                }
            }
            None if is_full => self.others += 1,
            None => {
                let mut times = ErrorTimes::new();
                times.add(at, 1);
                let group =
                    ErrorGroup { fingerprint, pattern, count: 1, first: at, last: at, example, times };
                self.groups.insert(fingerprint, group);
            }
        }
    }

    /// Adds the errors of another set. `example` converts its examples.
    pub fn merge<O>(&mut self, other: ErrorGroups<O>, example: impl Fn(O) -> E) {
        self.others += other.others;
        for (fingerprint, new) in other.groups {
            let is_full = self.groups.len() >= self.most;
            match self.groups.get_mut(&fingerprint) {
                Some(group) => {
                    group.count += new.count;
                    group.times.merge(&new.times);
                    group.first = group.first.min(new.first);
                    if new.last >= group.last {
                        (group.last, group.example) = (new.last, example(new.example));
                    }
                }
                None if is_full => self.others += new.count,
                None => {
                    let ErrorGroup { fingerprint, pattern, count, first, last, example: of, times } = new;
                    let example = example(of);
                    let group = ErrorGroup { fingerprint, pattern, count, first, last, example, times };
                    self.groups.insert(fingerprint, group);
                }
            }
        }
    }

    /// Returns the number of errors in no group, because the maximum number of groups was reached.
    #[must_use]
    pub fn others(&self) -> u64 {
        self.others
    }

    /// Returns the number of all errors.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.groups.values().map(|group| group.count).sum::<u64>() + self.others
    }

    /// Returns the groups: the largest first, of two equal ones the one with the latest error.
    #[must_use]
    pub fn into_groups(self) -> Vec<ErrorGroup<E>> {
        let mut groups: Vec<_> = self.groups.into_values().collect();
        groups.sort_by_key(|group| Reverse((group.count, group.last)));
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    #[test]
    fn times_are_spread_however_long_they_are() {
        let mut groups = ErrorGroups::new(1);
        let hour = 3_600_000;
        (0..1_000).for_each(|minute| groups.add("refused", at(hour + minute * 60_000), ()));
        let times = groups.into_groups().remove(0).times;
        assert!(times.counts.len() <= BUCKETS);
        let quarters = times.spread(at(hour), at(hour + 1_000 * 60_000), 4);
        assert_eq!(quarters.iter().sum::<u64>(), 1_000);
        assert!(quarters.iter().all(|number| (240..=260).contains(number)), "{quarters:?}");
        assert_eq!(times.spread(at(0), at(1), 2), [0, 1_000], "all are later");
    }

    #[test]
    fn sets_are_merged_by_fingerprint() {
        let set = |most, errors: &[(u64, &str)]| {
            let mut groups = ErrorGroups::new(most);
            errors.iter().for_each(|(ms, error)| groups.add(error, at(*ms), *ms));
            groups
        };
        let mut all = set(2, &[(5, "no order 7"), (9, "refused")]);
        all.merge(set(9, &[(2, "no order 1"), (3, "no order 2"), (4, "away"), (12, "refused")]), |ms| {
            ms * 10
        });
        assert_eq!((all.count(), all.others()), (6, 1), "the third error is one too many");
        let groups = all.into_groups();
        let told: Vec<_> =
            groups.iter().map(|it| (it.pattern.as_str(), it.count, it.first, it.last, it.example)).collect();
        assert_eq!(told, [("no order <n>", 3, at(2), at(5), 5), ("refused", 2, at(9), at(12), 120)]);
    }

    #[test]
    fn errors_of_one_fingerprint_are_one_group() {
        let mut groups = ErrorGroups::new(10);
        // Not in the order of their times, as letters of several partitions come.
        for (ms, error) in [(5, "no order 7"), (9, "refused"), (2, "no order 1"), (7, "no order 12")] {
            groups.add(error, at(ms), ms);
        }
        assert_eq!((groups.count(), groups.others()), (4, 0));
        let groups = groups.into_groups();
        let told: Vec<_> =
            groups.iter().map(|it| (it.pattern.as_str(), it.count, it.first, it.last)).collect();
        assert_eq!(told, [("no order <n>", 3, at(2), at(7)), ("refused", 1, at(9), at(9))]);
        assert_eq!((groups[0].example, groups[1].example), (7, 9), "the latest one");
        assert_eq!(groups[0].fingerprint, Fingerprint::of("no order 4711"));
    }

    #[test]
    fn memory_is_bounded_and_no_error_is_lost() {
        let mut groups = ErrorGroups::new(3);
        for error in ["a", "b", "c", "d", "a", "e", "d", "c"] {
            groups.add(error, at(1), ());
        }
        assert_eq!((groups.count(), groups.others()), (8, 3));
        let groups = groups.into_groups();
        assert_eq!((groups.len(), groups.iter().map(|it| it.count).sum::<u64>()), (3, 5));
        let mut none = ErrorGroups::new(0);
        none.add("a", at(1), ());
        assert_eq!((none.count(), none.others(), none.into_groups().len()), (1, 1, 0));
    }
}
