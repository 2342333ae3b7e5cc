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
                group.first = group.first.min(at);
                if at >= group.last {
                    (group.last, group.example) = (at, example);
                }
            }
            None if is_full => self.others += 1,
            None => {
                let group = ErrorGroup { fingerprint, pattern, count: 1, first: at, last: at, example };
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
                    group.first = group.first.min(new.first);
                    if new.last >= group.last {
                        (group.last, group.example) = (new.last, example(new.example));
                    }
                }
                None if is_full => self.others += new.count,
                None => {
                    let ErrorGroup { fingerprint, pattern, count, first, last, example: of } = new;
                    let group = ErrorGroup { fingerprint, pattern, count, first, last, example: example(of) };
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
