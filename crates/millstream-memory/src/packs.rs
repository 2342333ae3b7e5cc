//! Which messages of a log were stored together. In Redis they are one entry: they are handed out together, and one consumer has all
//! of them. Here each is an entry of its own, and nothing is compressed.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use millstream_core::log::{InPack, Receipt, Source};
use millstream_core::{MessageId, Packing};

/// The packs of a log: the id of the last message of each, in their order, and the number of messages.
///
/// A deque for the reason of that of a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Packs(VecDeque<(MessageId, u32)>);

impl Packs {
    /// Adds a pack of these messages, unless their ids do not follow each other: ids of lost entries are used again.
    pub(crate) fn add(&mut self, ids: &[MessageId]) {
        let (Some(first), Some(last)) = (ids.first(), ids.last()) else { return };
        let ids = ids.len() as u64;
        if ids > 1 && first.ms == last.ms && last.seq - first.seq == ids - 1 {
            let pack = (*last, u32::try_from(ids).unwrap_or(u32::MAX));
            match self.0.binary_search_by_key(last, |(last, _)| *last) {
                Ok(at) => self.0[at] = pack,
                Err(at) => self.0.insert(at, pack),
            }
        }
    }

    /// Forgets the packs below an id.
    pub(crate) fn drop_below(&mut self, id: MessageId) {
        self.0.drain(..self.first_at(id));
    }

    /// Returns the place of the first pack whose last message has this id, or a later one.
    fn first_at(&self, id: MessageId) -> usize {
        self.0.partition_point(|(last, _)| *last < id)
    }

    /// Returns the ids of the messages that are in one pack with this one, or its own.
    pub(crate) fn around(&self, id: MessageId) -> RangeInclusive<MessageId> {
        let pack = self.0.get(self.first_at(id));
        let ids =
            pack.map(|(last, count)| (MessageId::new(last.ms, last.seq + 1 - u64::from(*count)), *last));
        match ids {
            Some((first, last)) if first <= id => first..=last,
            _ => id..=id,
        }
    }

    /// Returns the receipt of a message.
    pub(crate) fn receipt(&self, source: Source, id: MessageId) -> Receipt {
        let (mut receipt, around) = (Receipt::new(source, id), self.around(id));
        let (first, last) = around.into_inner();
        if first < last {
            let distance =
                |from: MessageId, to: MessageId| u32::try_from(to.seq - from.seq).unwrap_or(u32::MAX);
            receipt.pack = Some(InPack { count: distance(first, last) + 1, behind: distance(id, last) });
        }
        receipt
    }
}

/// Returns the lengths of the portions in which so many messages are stored, each a pack if it has the packing's least number.
pub(crate) fn portions(packing: Option<Packing>, messages: usize) -> impl Iterator<Item = (usize, bool)> {
    let (least, most) = packing.map_or((usize::MAX, usize::MAX), |it| (it.least(), it.messages().max(1)));
    (0..messages.div_ceil(most)).map(move |portion| {
        let length = most.min(messages - portion * most);
        (length, length >= least)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_place_in_its_pack() {
        let id = |seq| MessageId::new(7, seq);
        let mut packs = Packs::default();
        packs.add(&[id(1), id(2), id(3)]);
        packs.add(&[id(5)]);
        packs.add(&[id(6), id(8)]);
        assert_eq!(packs.around(id(2)), id(1)..=id(3));
        let place = packs.receipt(Source::Log, id(1)).pack.expect("in a pack");
        assert_eq!((place.count, place.position(), place.behind), (3, 0, 2));
        assert_eq!(packs.receipt(Source::Log, id(3)).entry(), id(3));
        for single in [0, 4, 5, 6, 8] {
            assert_eq!(packs.receipt(Source::Log, id(single)).pack, None, "{single}");
        }
        packs.drop_below(id(4));
        assert_eq!(packs.around(id(2)), id(2)..=id(2));
    }

    #[test]
    fn what_travels_together_is_divided_as_the_topic_says() {
        let packing = Packing::new().min_messages(3).max_messages(5);
        assert_eq!(portions(Some(packing), 12).collect::<Vec<_>>(), [(5, true), (5, true), (2, false)]);
        assert_eq!(portions(Some(packing), 3).collect::<Vec<_>>(), [(3, true)]);
        assert_eq!(portions(None, 700).collect::<Vec<_>>(), [(700, false)]);
        assert_eq!(portions(None, 0).count(), 0);
    }
}
