//! Selection of what failed.

use std::collections::{BTreeMap, BTreeSet};

use millstream_core::inspect::Range;
use millstream_core::{Fingerprint, Limits, MessageId, Partition, Reason, Timestamp};

use super::Facts;
use crate::Filter;

/// Conditions on what failed: an item must match all that are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShelfFilter {
    /// Partitions, or shards. Default: all.
    pub partitions: Option<Vec<Partition>>,
    /// [Ids](Facts::id). Default: all.
    pub ids: Option<Vec<MessageId>>,
    /// Single items, each by its partition and its id. Default: all.
    pub picked: Option<BTreeSet<(Partition, MessageId)>>,
    /// Ids of tasks. Default: all.
    pub tasks: Option<BTreeSet<String>>,
    /// Id of the message in its partition's log.
    pub origin: Option<MessageId>,
    /// Reason why it was given up.
    pub reason: Option<Reason>,
    /// Text that replaces the errors of what died as `undecodable` before anything is compared, and in what is returned: codecs
    /// quote what they cannot read. Default: errors are as they are stored.
    pub undecodable_error: Option<&'static str>,
    /// Text contained in the error of the last attempt.
    pub error: Option<String>,
    /// Fingerprint of the error of the last attempt, as [`errors`](crate::Shelf::errors) returns it.
    pub fingerprint: Option<Fingerprint>,
    /// Minimum number of attempts; of a retry, of the next one.
    pub min_attempts: Option<u32>,
    /// Maximum number of attempts.
    pub max_attempts: Option<u32>,
    /// Earliest time of death, or due time of a retry, by the server's clock.
    pub from: Option<Timestamp>,
    /// Time of death, or due time of a retry, is before this.
    pub before: Option<Timestamp>,
    /// Greatest id by partition; other partitions do not match. Limits an operation to what a [`Survey`](crate::Survey) has
    /// examined. Retries have no such limit.
    pub up_to: Option<BTreeMap<Partition, MessageId>>,
    /// Conditions on key, headers and payload; its [`id`](Filter::id) is that of the item. What cannot be decoded matches
    /// only if none of the three is set.
    pub message: Filter,
}

impl ShelfFilter {
    /// Returns a filter for one item.
    #[must_use]
    pub fn one(partition: Partition, id: MessageId) -> Self {
        Self { partitions: Some(vec![partition]), ids: Some(vec![id]), ..Self::default() }
    }

    /// Returns whether everything matches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self { undecodable_error: self.undecodable_error, ..Self::default() }
    }

    /// Returns the [names](Facts::name) that select.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let ids = self.ids.iter().flatten().map(ToString::to_string);
        ids.chain(self.tasks.iter().flatten().cloned()).collect()
    }

    /// Returns whether an item matches.
    #[must_use]
    pub fn fits(&self, it: &Facts<'_>, limits: &Limits) -> bool {
        let attempts = self.min_attempts.unwrap_or(0)..=self.max_attempts.unwrap_or(u32::MAX);
        let is_named = |tasks: &BTreeSet<String>| it.task.is_some_and(|task| tasks.contains(task));
        self.has(it.partition)
            && !self.is_behind(it)
            && self.ids.as_ref().is_none_or(|some| some.contains(&it.id))
            && self.picked.as_ref().is_none_or(|some| some.contains(&(it.partition, it.id)))
            && self.tasks.as_ref().is_none_or(is_named)
            && self.message.id.is_none_or(|id| id == it.id)
            && self.origin.is_none_or(|id| id == it.origin)
            && self.reason.as_ref().is_none_or(|reason| Some(reason) == it.reason)
            && self.error.as_ref().is_none_or(|text| it.error.contains(text))
            && attempts.contains(&it.attempts)
            && self.from.is_none_or(|time| it.at >= time)
            && self.fingerprint.is_none_or(|print| print == Fingerprint::of(it.error))
            && self.fits_message(it, limits)
    }

    /// Returns whether items of a partition can match.
    pub(super) fn has(&self, partition: Partition) -> bool {
        self.partitions.as_ref().is_none_or(|some| some.contains(&partition))
            && self.picked.as_ref().is_none_or(|some| some.iter().any(|(of, _)| *of == partition))
    }

    /// Returns whether an item, and so every later one of its partition, does not match.
    pub(super) fn is_behind(&self, it: &Facts<'_>) -> bool {
        let end = |ends: &BTreeMap<_, _>| ends.get(&it.partition).is_none_or(|end| it.id > *end);
        self.before.is_some_and(|time| it.at >= time) || self.up_to.as_ref().is_some_and(end)
    }

    fn fits_message(&self, it: &Facts<'_>, limits: &Limits) -> bool {
        let Filter { id: _, key, header, payload } = &self.message;
        if key.is_none() && header.is_none() && payload.is_none() {
            return true;
        }
        it.envelope(limits).is_ok_and(|envelope| self.message.fits_envelope(&envelope))
    }

    /// Returns a range of ids that contains all that matches, where items are in the order of ids,, to avoid reading the others.
    pub(super) fn range(&self, newest_first: bool) -> Range {
        let mut range = Range { newest_first, ..Range::ALL };
        if let Some(time) = self.from {
            range.after = range.after.max(MessageId::new(time.as_millis(), 0).previous());
        }
        if let Some(time) = self.before {
            range.before = range.before.min(MessageId::new(time.as_millis(), 0));
        }
        let picked = self.picked.iter().flatten().map(|(_, id)| id);
        let ids = self.ids.iter().flatten().chain(&self.message.id).chain(picked);
        if let Some(first) = ids.clone().min() {
            range.after = range.after.max(first.previous());
        }
        if let Some(last) = ids.max() {
            range.before = range.before.min(last.next());
        }
        if self.ids.as_ref().is_some_and(Vec::is_empty) {
            range.before = MessageId::ZERO;
        }
        range
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use millstream_core::{DeadLetter, Envelope, History, TopicPartition, wire};

    use super::*;
    use crate::Failed;

    fn letter() -> DeadLetter {
        DeadLetter {
            id: MessageId::new(500, 3),
            reason: Reason::Exhausted,
            attempts: 4,
            error: "timed out after 3s".into(),
            origin: MessageId::new(70, 1),
            topic_partition: TopicPartition::new("orders".parse().expect("a name"), 2),
            group: "billing".parse().expect("a name"),
            history: History::default(),
            body: wire::encode(&Envelope::new("hello").with_key("k").with_header("trace", "t")),
        }
    }

    fn filters() -> Vec<(ShelfFilter, ShelfFilter)> {
        let base = ShelfFilter::default;
        let message = |message| ShelfFilter { message, ..ShelfFilter::default() };
        let header = |value: &'static str| Some(("trace".to_owned(), Some(Bytes::from(value))));
        let at = |ms| Some(Timestamp::from_millis(ms));
        let ids = |seq| Some(vec![MessageId::new(1, 1), MessageId::new(500, seq)]);
        vec![
            (
                ShelfFilter { partitions: Some(vec![Partition(2)]), ..base() },
                ShelfFilter { partitions: Some(vec![Partition(3)]), ..base() },
            ),
            (ShelfFilter { ids: ids(3), ..base() }, ShelfFilter { ids: ids(4), ..base() }),
            (
                ShelfFilter { origin: Some(MessageId::new(70, 1)), ..base() },
                ShelfFilter { origin: Some(MessageId::new(70, 2)), ..base() },
            ),
            (
                ShelfFilter { reason: Some(Reason::Exhausted), ..base() },
                ShelfFilter { reason: Some(Reason::Rejected), ..base() },
            ),
            (
                ShelfFilter { error: Some("out after".into()), ..base() },
                ShelfFilter { error: Some("no gate".into()), ..base() },
            ),
            (
                ShelfFilter { fingerprint: Some(Fingerprint::of("timed out after 300ms")), ..base() },
                ShelfFilter { fingerprint: Some(Fingerprint::of("timed out")), ..base() },
            ),
            (
                ShelfFilter { min_attempts: Some(4), max_attempts: Some(4), ..base() },
                ShelfFilter { min_attempts: Some(5), ..base() },
            ),
            (
                ShelfFilter { from: at(500), before: at(501), ..base() },
                ShelfFilter { before: at(500), ..base() },
            ),
            (
                message(Filter { key: Some("k".into()), header: header("t"), ..Filter::default() }),
                message(Filter { key: Some("k".into()), header: header("u"), ..Filter::default() }),
            ),
            (
                message(Filter { payload: Some("ell".into()), ..Filter::default() }),
                message(Filter { payload: Some("jell".into()), ..Filter::default() }),
            ),
        ]
    }

    #[test]
    fn everything_that_is_given_must_fit() {
        let limits = Limits::default();
        assert!(ShelfFilter::default().fits(&Failed::Letter(letter()).facts(), &limits));
        for (fits, does_not) in filters() {
            assert!(fits.fits(&Failed::Letter(letter()).facts(), &limits), "{fits:?}");
            assert!(!does_not.fits(&Failed::Letter(letter()).facts(), &limits), "{does_not:?}");
        }
        let unreadable = Failed::Letter(DeadLetter { body: Vec::new(), ..letter() });
        assert!(ShelfFilter::default().fits(&unreadable.facts(), &limits));
        let (by_key, _) = &filters()[8];
        assert!(!by_key.fits(&unreadable.facts(), &limits), "what cannot be read has no key");
    }

    #[test]
    fn the_range_has_all_that_fits() {
        for (fits, _) in filters() {
            for newest_first in [false, true] {
                let Range { after, before, .. } = fits.range(newest_first);
                assert!(after < letter().id && letter().id < before, "{fits:?}");
            }
        }
        let none = ShelfFilter { ids: Some(Vec::new()), ..ShelfFilter::default() };
        assert!(none.range(false).is_empty(), "none of no ids");
    }
}
