//! Receipts: references to entries that were handed out.

use crate::id::MessageId;

/// Stream of a partition from which an entry was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The partition's log: new messages, for every group.
    Log,
    /// The group's own retry log.
    Retry,
}

/// Place of a message in a [pack](crate::packing).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InPack {
    /// Number of messages in the pack.
    pub count: u32,
    /// Number of messages behind this one in the pack.
    pub behind: u32,
}

impl InPack {
    /// Returns the position of the message in its pack, from 0.
    #[must_use]
    pub const fn position(self) -> u32 {
        self.count.saturating_sub(1).saturating_sub(self.behind)
    }
}

/// Reference to a message that was handed out, with which it is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Receipt {
    /// The stream that the message was read from.
    pub source: Source,
    /// Its id there.
    pub id: MessageId,
    /// Its place in its entry, if that is a pack.
    pub pack: Option<InPack>,
}

impl Receipt {
    /// Creates the receipt of a message that has an entry of its own.
    #[must_use]
    pub const fn new(source: Source, id: MessageId) -> Self {
        Self { source, id, pack: None }
    }

    /// Creates the receipts of the messages of a pack in the log, in their order. `None` if the pack's id leaves no room for theirs: the
    /// id of a pack is that of its last message, and the others have the sequence numbers before it.
    #[must_use]
    pub fn of_pack(entry: MessageId, count: u32) -> Option<impl Iterator<Item = Self>> {
        let first = entry.seq.checked_sub(u64::from(count.checked_sub(1)?))?;
        Some((0..count).map(move |position| Self {
            source: Source::Log,
            id: MessageId::new(entry.ms, first + u64::from(position)),
            pack: Some(InPack { count, behind: count - 1 - position }),
        }))
    }

    /// Returns the id of the entry that holds the message.
    #[must_use]
    pub fn entry(&self) -> MessageId {
        let behind = self.pack.map_or(0, |pack| u64::from(pack.behind));
        MessageId::new(self.id.ms, self.id.seq.saturating_add(behind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_messages_of_a_pack_have_the_ids_up_to_its_own() {
        let entry = MessageId::new(7, 12);
        let all: Vec<_> = Receipt::of_pack(entry, 3).expect("room").collect();
        assert_eq!(all.iter().map(|one| one.id.seq).collect::<Vec<_>>(), [10, 11, 12]);
        assert_eq!(
            all.iter().filter_map(|one| one.pack).map(InPack::position).collect::<Vec<_>>(),
            [0, 1, 2]
        );
        assert!(all.iter().all(|one| one.entry() == entry));
        assert_eq!(Receipt::of_pack(MessageId::new(7, 2), 3).expect("just").count(), 3);
        assert!(Receipt::of_pack(MessageId::new(7, 1), 3).is_none(), "the first id would be below 0");
        assert!(Receipt::of_pack(entry, 0).is_none());
        assert_eq!(Receipt::new(Source::Retry, entry).entry(), entry);
    }
}
