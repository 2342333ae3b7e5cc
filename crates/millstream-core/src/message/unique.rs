//! Unique ids: an entry with an id is not stored while another one with that id has still to be settled.

use bytes::Bytes;

use crate::log::{Append, DedupId};
use crate::topic::Partition;
use crate::wire::{Field, Fields, UNIQUE};

/// Entry to be appended unless one with its id is stored that a group has not settled.
#[derive(Clone, Debug)]
pub struct UniqueAppend {
    /// The entry, without its id.
    pub append: Append,
    /// Its id.
    pub id: DedupId,
    /// Random number of this append. A repetition of the same append has the same, so that its own entry is recognised even
    /// when that is settled by then.
    pub send: u64,
    /// Other partitions to which an entry with this id may have been appended, because the topic had fewer of them. They
    /// are looked at first.
    pub earlier: Vec<Partition>,
}

impl UniqueAppend {
    /// Returns the fields of the entry as they are stored: its id, then those of the entry.
    #[must_use]
    pub fn fields(&self) -> Fields {
        let id: Field = (Bytes::from_static(UNIQUE.as_bytes()), Bytes::copy_from_slice(self.id.as_bytes()));
        std::iter::once(id).chain(self.append.fields.iter().cloned()).collect()
    }
}

/// Returns the unique id of an entry, by its body: see [`body_of`](crate::wire::body_of).
#[must_use]
pub fn id_of(body: &[Field]) -> Option<&[u8]> {
    body.first().filter(|(name, _)| name == UNIQUE).map(|(_, id)| &id[..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic::TopicPartition;

    #[test]
    fn an_entry_begins_with_its_id() {
        let field = |name: &'static str| (Bytes::from_static(name.as_bytes()), Bytes::from_static(b"x"));
        let append = Append {
            topic_partition: TopicPartition::new("t".parse().expect("a name"), 0),
            fields: vec![field("payload"), field("key")],
        };
        let id = DedupId::new(&b"a\xff"[..]).expect("an id");
        let fields = UniqueAppend { append, id, send: 1, earlier: Vec::new() }.fields();
        assert_eq!(id_of(&fields), Some(&b"a\xff"[..]));
        assert_eq!(fields[1..], [field("payload"), field("key")]);
        assert_eq!(id_of(&fields[1..]), None);
        assert_eq!(id_of(&[field("payload"), field(UNIQUE)]), None, "it stands first");
    }
}
