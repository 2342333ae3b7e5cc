//! Appends: what is written to a log, and by what it is recognised when it is written again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::capability::Capability;
use crate::error::{Error, ErrorKind, Result};
use crate::id::MessageId;
use crate::message::dedup::{DedupId, Numbering};
use crate::topic::{Partition, TopicPartition};
use crate::wire::{Field, Fields, UNIQUE};

/// Entry to be appended.
#[derive(Clone, Debug)]
pub struct Append {
    /// The partition to append to.
    pub topic_partition: TopicPartition,
    /// The entry, in the form that [`wire::encode`](crate::wire::encode) writes.
    pub fields: Fields,
    /// By what it is recognised when it is appended again.
    pub identity: Identity,
}

/// By what an append is recognised as a repetition of another one.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Identity {
    /// By nothing: each append stores an entry.
    #[default]
    None,
    /// By an id, for a time.
    ///
    /// An entry whose id was appended to its partition, or to one of the `earlier` ones, within the window by the server's clock is
    /// not stored: its result is the place of the first one. The entry and the record of its id are stored in one step. In an
    /// `earlier` partition an id can count for up to twice its window. The longest window used at a partition decides how long
    /// its ids are kept. See [`Capability::Dedup`].
    Dedup(Arc<DedupIdentity>),
    /// By an id, until every group has settled the entry.
    ///
    /// An entry whose id belongs to an entry of its partition, or of one of the `earlier` ones, that is not settled is not stored:
    /// its result is the place of that one. An entry is not settled while it is in the log and one of the groups there has not read
    /// it or has it pending, or while one of them has it parked for a retry or in its retry log; without any group, while it is in
    /// the log. A dead letter is settled; one that is replayed is not, until another entry has its id.
    ///
    /// This follows from the state at the time of the call, so nothing has to end an id: it ends also if a group is deleted or moved
    /// behind the entry, or the entry is deleted. An id that has ended may count again when a group is moved back, or a new one
    /// begins before the entry.
    ///
    /// An append that is repeated with the same [`send`](UniqueIdentity::send) returns its own entry, not as a duplicate, also when
    /// that is settled by then, for a minute at least. The entry, the record of its id and the check are one step in its partition.
    /// The entry has the [field](Append::stored_fields) of its id in front. See [`Capability::Unique`].
    Unique(Arc<UniqueIdentity>),
    /// By a number of its producer's, which gives it to no other entry.
    ///
    /// An entry whose number was appended by the same producer to the same partition within the window by the server's clock is not
    /// stored: its result is the id of the first time, and not a duplicate. An entry and the record of its number are stored in
    /// one step.
    ///
    /// A repetition is a batch as it was, or what is left of it without entries that have their result: for each partition all
    /// entries that failed, in their order. A backend may store the entries of a partition together and recognise them only so. One
    /// that knows no numbers takes [an id](Append::by_id) for each. See [`Capability::Dedup`].
    Number(Arc<Numbering>, u64),
}

/// Identity by a dedup id.
#[derive(Clone, Debug)]
pub struct DedupIdentity {
    /// The id.
    pub id: DedupId,
    /// Time for which the id counts: see [`WINDOWS`](crate::dedup::WINDOWS).
    pub window: Duration,
    /// Other partitions to which an entry with this id may have been appended, because the topic had fewer of them. They
    /// are looked at first.
    pub earlier: Vec<Partition>,
}

/// Identity by a unique id.
#[derive(Clone, Debug)]
pub struct UniqueIdentity {
    /// The id.
    pub id: DedupId,
    /// Random number of this append. A repetition of the same append has the same, so that its own entry is recognised even
    /// when that is settled by then.
    pub send: u64,
    /// Other partitions to which an entry with this id may have been appended, because the topic had fewer of them. They
    /// are looked at first.
    pub earlier: Vec<Partition>,
}

impl Append {
    /// Creates an append that nothing recognises.
    #[must_use]
    pub const fn new(topic_partition: TopicPartition, fields: Fields) -> Self {
        Self { topic_partition, fields, identity: Identity::None }
    }

    /// Returns the same with an identity.
    #[must_use]
    pub fn with(self, identity: impl Into<Identity>) -> Self {
        Self { identity: identity.into(), ..self }
    }

    /// Returns the fields of the entry as they are stored: those that were given, behind its [unique](Identity::Unique) id if it has one.
    #[must_use]
    pub fn stored_fields(&self) -> Fields {
        let Identity::Unique(unique) = &self.identity else { return self.fields.clone() };
        let id: Field = (Bytes::from_static(UNIQUE.as_bytes()), Bytes::copy_from_slice(unique.id.as_bytes()));
        std::iter::once(id).chain(self.fields.iter().cloned()).collect()
    }

    /// Returns the same append, or, instead of its number, with the dedup id that stands for it: for a backend that knows no
    /// numbers. The result is what [`Identity::told`] says.
    ///
    /// # Errors
    /// Those of [`Numbering::id`].
    pub fn by_id(&self) -> Result<Self> {
        let Identity::Number(numbering, number) = &self.identity else { return Ok(self.clone()) };
        let (id, window, earlier) = (numbering.id(*number)?, numbering.window, Vec::new());
        Ok(self.clone().with(DedupIdentity { id, window, earlier }))
    }

    /// Checks that the identities of a batch are of one kind, and numbers of one producer, and returns the first one; `None` for an
    /// empty batch.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    pub fn kind_of(batch: &[Self]) -> Result<Option<&Identity>> {
        let first = batch.first().map(|append| &append.identity);
        match batch.iter().all(|append| first.is_some_and(|first| append.identity.is_like(first))) {
            true => Ok(first),
            false => {
                Err(Error::new(ErrorKind::Unsupported, "a batch of appends with identities of several kinds"))
            }
        }
    }

    /// Checks that it has no identity, for a backend that knows none.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    pub fn check_plain(&self) -> Result<()> {
        self.identity.capability().map_or(Ok(()), |capability| Err(capability.missing()))
    }
}

impl Identity {
    /// Returns the capability of backends that recognise it; `None` if there is nothing to recognise.
    #[must_use]
    pub const fn capability(&self) -> Option<Capability> {
        match self {
            Self::None => None,
            Self::Dedup(_) | Self::Number(..) => Some(Capability::Dedup),
            Self::Unique(_) => Some(Capability::Unique),
        }
    }

    /// Returns the result of an append of this identity by [the id](Append::by_id) that stands for it: a number is its producer's own,
    /// and no duplicate.
    #[must_use]
    pub const fn told(&self, appended: Appended) -> Appended {
        match self {
            Self::Number(..) => Appended::new(appended.partition, appended.id),
            _ => appended,
        }
    }

    /// Whether an append may be sent again when its answer is lost: a second entry is not stored.
    #[must_use]
    pub const fn is_repeatable(&self) -> bool {
        self.capability().is_some()
    }

    /// Whether both are of one kind, and of one producer if they are numbers.
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Number(mine, _), Self::Number(its, _)) => Arc::ptr_eq(mine, its) || mine == its,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }

    /// Whether other partitions, or groups, are looked at before the entry is stored: such entries are appended with
    /// [`Log::append`](crate::Log::append), and not with an [`Appender`](crate::Appender).
    #[must_use]
    pub fn looks_first(&self) -> bool {
        match self {
            Self::None | Self::Number(..) => false,
            Self::Dedup(dedup) => !dedup.earlier.is_empty(),
            Self::Unique(_) => true,
        }
    }
}

impl From<DedupIdentity> for Identity {
    fn from(identity: DedupIdentity) -> Self {
        Self::Dedup(Arc::new(identity))
    }
}

impl From<UniqueIdentity> for Identity {
    fn from(identity: UniqueIdentity) -> Self {
        Self::Unique(Arc::new(identity))
    }
}

/// Place of an entry that was appended now or, by its [identity](Identity), before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Appended {
    /// The partition.
    pub partition: Partition,
    /// Id of the entry, of the first append.
    pub id: MessageId,
    /// Whether another append has stored it before, and nothing was stored now.
    pub is_duplicate: bool,
}

impl Appended {
    /// Creates the result of an append that has stored its entry.
    #[must_use]
    pub const fn new(partition: Partition, id: MessageId) -> Self {
        Self { partition, id, is_duplicate: false }
    }

    /// Creates the result of an append that has stored nothing, since another one had.
    #[must_use]
    pub const fn before(partition: Partition, id: MessageId) -> Self {
        Self { partition, id, is_duplicate: true }
    }
}

/// Returns the unique id of an entry, by its body: see [`body_of`](crate::wire::body_of).
#[must_use]
pub fn unique_id_of(body: &[Field]) -> Option<&[u8]> {
    body.first().filter(|(name, _)| name == UNIQUE).map(|(_, id)| &id[..])
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn an_entry_begins_with_its_id() {
        let field = |name: &'static str| (Bytes::from_static(name.as_bytes()), Bytes::from_static(b"x"));
        let topic_partition = TopicPartition::new("t".parse().expect("a name"), 0);
        let append = Append::new(topic_partition, vec![field("payload"), field("key")]);
        let id = DedupId::new(&b"a\xff"[..]).expect("an id");
        let fields = append.with(UniqueIdentity { id, send: 1, earlier: Vec::new() }).stored_fields();
        assert_eq!(unique_id_of(&fields), Some(&b"a\xff"[..]));
        assert_eq!(fields[1..], [field("payload"), field("key")]);
        assert_eq!(unique_id_of(&fields[1..]), None);
        assert_eq!(unique_id_of(&[field("payload"), field(UNIQUE)]), None, "it stands first");
    }
}
