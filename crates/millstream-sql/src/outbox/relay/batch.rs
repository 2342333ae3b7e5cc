//! Messages of a page on their way to the log: their division into requests, and what the results mean. Pure functions.

use std::collections::HashMap;
use std::ops::Range;

use millstream_core::error::ErrorKind;
use millstream_core::log::Append;
use millstream_core::{Headers, TopicPartition};

use crate::outbox::row::RowName;

/// Most messages and bytes of one partition in a request. As much is stored in one step, so that no message of a partition is
/// stored behind one that was refused.
const STEP: (usize, usize) = (200, 512 << 10);

/// Most bytes of a request: it must be answered within a backend's timeout.
const REQUEST: usize = 4 << 20;

/// Row with its message.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) row: RowName,
    pub(super) append: Append,
    /// Headers of the row, with the context in which it was written.
    pub(super) headers: Headers,
}

impl Planned {
    pub(super) fn topic_partition(&self) -> &TopicPartition {
        &self.append.topic_partition
    }

    fn bytes(&self) -> usize {
        self.append.fields.iter().map(|(name, value)| name.len() + value.len()).sum()
    }
}

/// Divides messages into requests, in their order.
pub(super) fn requests(messages: &[Planned]) -> Vec<Range<usize>> {
    let mut requests = Vec::new();
    let (mut start, mut total) = (0, 0);
    let mut steps: HashMap<&TopicPartition, (usize, usize)> = HashMap::new();
    for (at, message) in messages.iter().enumerate() {
        let (bytes, place) = (message.bytes(), message.topic_partition());
        let (count, size) = steps.get(place).copied().unwrap_or_default();
        let is_full = count >= STEP.0 || (count > 0 && size + bytes > STEP.1) || total + bytes > REQUEST;
        if is_full && at > start {
            requests.push(start..at);
            (start, total) = (at, 0);
            steps.clear();
        }
        let step = steps.entry(place).or_default();
        (step.0, step.1) = (step.0 + 1, step.1 + bytes);
        total += bytes;
    }
    if start < messages.len() {
        requests.push(start..messages.len());
    }
    requests
}

/// What an error of one row means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No repetition of this row would help, while others may be sent: it is given up, and recorded.
    Dead,
    /// It waits, and with it what is behind it in its partition.
    Wait,
    /// The servers are away: everything waits.
    Away,
}

/// Returns what an error means. What somebody has to repair for all rows at once, such as rights, waits: nothing is lost, and the
/// order is kept.
pub(super) fn verdict(kind: ErrorKind) -> Verdict {
    match kind {
        ErrorKind::InvalidName
        | ErrorKind::TooLarge
        | ErrorKind::Encode
        | ErrorKind::Decode
        | ErrorKind::NotFound
        | ErrorKind::Deleted
        | ErrorKind::WrongType => Verdict::Dead,
        ErrorKind::Unavailable | ErrorKind::Unconfirmed => Verdict::Away,
        _ => Verdict::Wait,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use millstream_core::log::{DedupId, DedupIdentity};

    use super::*;

    fn planned(id: i64, partition: u32, bytes: usize) -> Planned {
        let topic_partition = TopicPartition::new("t".parse().expect("a name"), partition);
        let fields = vec![(Bytes::new(), vec![0; bytes].into())];
        let dedup = DedupId::new(vec![1]).expect("an id");
        let append = Append::new(topic_partition, fields).with(DedupIdentity {
            id: dedup,
            window: Duration::from_secs(60),
            earlier: Vec::new(),
        });
        Planned { row: RowName { id, message_id: vec![1] }, append, headers: Headers::new() }
    }

    #[test]
    fn a_request_has_one_step_for_each_partition() {
        let messages: Vec<_> = (0..450).map(|id| planned(id, u32::from(id % 9 == 0), 10)).collect();
        assert_eq!(requests(&messages), [0..226, 226..450]);
        assert!(requests(&[]).is_empty());
        // A message larger than all limits has a request of its own.
        let large = [planned(1, 0, 10), planned(2, 0, 8 << 20), planned(3, 0, 10)];
        assert_eq!(requests(&large), [0..1, 1..2, 2..3]);
        let wide: Vec<_> =
            (0..20).map(|id| planned(id, u32::try_from(id).expect("small"), 400 << 10)).collect();
        assert_eq!(requests(&wide), [0..10, 10..20]);
    }

    #[test]
    fn only_what_concerns_a_row_gives_it_up() {
        for kind in [ErrorKind::NotFound, ErrorKind::TooLarge, ErrorKind::InvalidName, ErrorKind::WrongType] {
            assert_eq!(verdict(kind), Verdict::Dead, "{kind}");
        }
        for kind in [ErrorKind::Denied, ErrorKind::Backpressure, ErrorKind::Unsupported, ErrorKind::Protocol]
        {
            assert_eq!(verdict(kind), Verdict::Wait, "{kind}");
        }
        assert_eq!(verdict(ErrorKind::Unconfirmed), Verdict::Away);
    }
}
