//! Selection of dead letters.

use std::collections::BTreeMap;

use millstream_core::inspect::Range;
use millstream_core::{DeadLetter, Fingerprint, Limits, MessageId, Partition, Reason, Timestamp};

use crate::Filter;

/// Conditions on dead letters: a letter must match all that are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Partitions. Default: all.
    pub partitions: Option<Vec<Partition>>,
    /// Ids of dead letters. Default: all.
    pub ids: Option<Vec<MessageId>>,
    /// Id of the message in its partition's log.
    pub origin: Option<MessageId>,
    /// Reason why the message was given up.
    pub reason: Option<Reason>,
    /// Text that replaces the errors of letters with the reason `undecodable` before anything is compared, and in what is
    /// returned: codecs quote what they cannot read. Default: errors are as they are stored.
    pub undecodable_error: Option<&'static str>,
    /// Text contained in the error of the last attempt.
    pub error: Option<String>,
    /// Fingerprint of the error of the last attempt, as [`errors`](crate::DeadLetterQueue::errors) returns it.
    pub fingerprint: Option<Fingerprint>,
    /// Minimum number of attempts.
    pub min_attempts: Option<u32>,
    /// Maximum number of attempts.
    pub max_attempts: Option<u32>,
    /// Earliest time of death, by the server's clock.
    pub died_from: Option<Timestamp>,
    /// Time of death is before this, by the server's clock.
    pub died_before: Option<Timestamp>,
    /// Greatest id by partition; other partitions do not match. Limits an operation to the letters that a
    /// [`Survey`](crate::Survey) has examined.
    pub up_to: Option<BTreeMap<Partition, MessageId>>,
    /// Conditions on key, headers and payload; its [`id`](Filter::id) is the id of the dead letter. A letter that
    /// cannot be decoded matches only if none of the three is set.
    pub message: Filter,
}

impl DeadLetterFilter {
    /// Returns whether all letters match.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self { undecodable_error: self.undecodable_error, ..Self::default() }
    }

    /// Replaces the error of a letter that could not be decoded.
    pub(super) fn conceal(&self, letter: &mut DeadLetter) {
        if let Some(text) = self.undecodable_error.filter(|_| letter.reason == Reason::Undecodable) {
            text.clone_into(&mut letter.error);
        }
    }

    /// Returns whether a letter matches.
    #[must_use]
    pub fn fits(&self, letter: &DeadLetter, limits: &Limits) -> bool {
        let partition = letter.topic_partition.partition;
        let attempts = self.min_attempts.unwrap_or(0)..=self.max_attempts.unwrap_or(u32::MAX);
        self.partitions.as_ref().is_none_or(|some| some.contains(&partition))
            && self
                .up_to
                .as_ref()
                .is_none_or(|ends| ends.get(&partition).is_some_and(|end| letter.id <= *end))
            && self.ids.as_ref().is_none_or(|some| some.contains(&letter.id))
            && self.message.id.is_none_or(|id| id == letter.id)
            && self.origin.is_none_or(|id| id == letter.origin)
            && self.reason.as_ref().is_none_or(|reason| *reason == letter.reason)
            && self.error.as_ref().is_none_or(|text| letter.error.contains(text))
            && attempts.contains(&letter.attempts)
            && self.died_from.is_none_or(|time| letter.id.timestamp() >= time)
            && self.died_before.is_none_or(|time| letter.id.timestamp() < time)
            && self.fingerprint.is_none_or(|print| print == Fingerprint::of(&letter.error))
            && self.fits_message(letter, limits)
    }

    fn fits_message(&self, letter: &DeadLetter, limits: &Limits) -> bool {
        let Filter { id: _, key, header, payload } = &self.message;
        if key.is_none() && header.is_none() && payload.is_none() {
            return true;
        }
        letter.envelope(limits).is_ok_and(|envelope| self.message.fits_envelope(&envelope))
    }

    /// Returns a range of ids that contains all matching letters, to avoid reading the others.
    pub(super) fn range(&self, newest_first: bool) -> Range {
        let mut range = Range { newest_first, ..Range::ALL };
        if let Some(time) = self.died_from {
            range.after = range.after.max(MessageId::new(time.as_millis(), 0).previous());
        }
        if let Some(time) = self.died_before {
            range.before = range.before.min(MessageId::new(time.as_millis(), 0));
        }
        let ids = self.ids.iter().flatten().chain(&self.message.id);
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
    use millstream_core::{Envelope, History, TopicPartition, wire};

    use super::*;

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

    fn filters() -> Vec<(DeadLetterFilter, DeadLetterFilter)> {
        let base = DeadLetterFilter::default;
        let message = |message| DeadLetterFilter { message, ..DeadLetterFilter::default() };
        let header = |value: &'static str| Some(("trace".to_owned(), Some(Bytes::from(value))));
        let at = |ms| Some(Timestamp::from_millis(ms));
        let ids = |seq| Some(vec![MessageId::new(1, 1), MessageId::new(500, seq)]);
        vec![
            (
                DeadLetterFilter { partitions: Some(vec![Partition(2)]), ..base() },
                DeadLetterFilter { partitions: Some(vec![Partition(3)]), ..base() },
            ),
            (DeadLetterFilter { ids: ids(3), ..base() }, DeadLetterFilter { ids: ids(4), ..base() }),
            (
                DeadLetterFilter { origin: Some(MessageId::new(70, 1)), ..base() },
                DeadLetterFilter { origin: Some(MessageId::new(70, 2)), ..base() },
            ),
            (
                DeadLetterFilter { reason: Some(Reason::Exhausted), ..base() },
                DeadLetterFilter { reason: Some(Reason::Rejected), ..base() },
            ),
            (
                DeadLetterFilter { error: Some("out after".into()), ..base() },
                DeadLetterFilter { error: Some("no gate".into()), ..base() },
            ),
            (
                DeadLetterFilter { fingerprint: Some(Fingerprint::of("timed out after 300ms")), ..base() },
                DeadLetterFilter { fingerprint: Some(Fingerprint::of("timed out")), ..base() },
            ),
            (
                DeadLetterFilter { min_attempts: Some(4), max_attempts: Some(4), ..base() },
                DeadLetterFilter { min_attempts: Some(5), ..base() },
            ),
            (
                DeadLetterFilter { died_from: at(500), died_before: at(501), ..base() },
                DeadLetterFilter { died_before: at(500), ..base() },
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
        assert!(DeadLetterFilter::default().fits(&letter(), &limits));
        for (fits, does_not) in filters() {
            assert!(fits.fits(&letter(), &limits), "{fits:?}");
            assert!(!does_not.fits(&letter(), &limits), "{does_not:?}");
        }
        let unreadable = DeadLetter { body: Vec::new(), ..letter() };
        assert!(DeadLetterFilter::default().fits(&unreadable, &limits));
        let (by_key, _) = &filters()[8];
        assert!(!by_key.fits(&unreadable, &limits), "what cannot be read has no key");
    }

    #[test]
    fn the_range_has_all_that_fits() {
        for (fits, _) in filters() {
            for newest_first in [false, true] {
                let Range { after, before, .. } = fits.range(newest_first);
                assert!(after < letter().id && letter().id < before, "{fits:?}");
            }
        }
        let none = DeadLetterFilter { ids: Some(Vec::new()), ..DeadLetterFilter::default() };
        assert!(none.range(false).is_empty(), "none of no ids");
    }
}
