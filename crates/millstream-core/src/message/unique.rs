//! Unique ids: an entry with an id is not stored while another one with that id has still to be settled.

use crate::wire::{Field, UNIQUE};

/// Returns the unique id of an entry, by its body: see [`body_of`](crate::wire::body_of).
#[must_use]
pub fn id_of(body: &[Field]) -> Option<&[u8]> {
    body.first().filter(|(name, _)| name == UNIQUE).map(|(_, id)| &id[..])
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::log::{Append, DedupId, UniqueIdentity};
    use crate::topic::TopicPartition;

    #[test]
    fn an_entry_begins_with_its_id() {
        let field = |name: &'static str| (Bytes::from_static(name.as_bytes()), Bytes::from_static(b"x"));
        let topic_partition = TopicPartition::new("t".parse().expect("a name"), 0);
        let append = Append::new(topic_partition, vec![field("payload"), field("key")]);
        let id = DedupId::new(&b"a\xff"[..]).expect("an id");
        let fields = append.with(UniqueIdentity { id, send: 1, earlier: Vec::new() }).stored_fields();
        assert_eq!(id_of(&fields), Some(&b"a\xff"[..]));
        assert_eq!(fields[1..], [field("payload"), field("key")]);
        assert_eq!(id_of(&fields[1..]), None);
        assert_eq!(id_of(&[field("payload"), field(UNIQUE)]), None, "it stands first");
    }
}
