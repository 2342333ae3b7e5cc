//! What a reader of many partitions has read.

use millstream_core::error::{Error, ErrorKind};
use millstream_core::id::MessageId;
use millstream_core::log::{Entry, Fetched, Note, Receipt, Source};
use millstream_core::topic::Partition;

use crate::conn::replies::reply::RawEntry;
use crate::error::unexpected;

/// Entries read, by partition.
#[derive(Default)]
pub(super) struct Read(pub(super) Vec<(Partition, Fetched)>);

impl Read {
    /// Returns what was read of a partition.
    pub(super) fn of(&mut self, partition: Partition) -> &mut Fetched {
        let at = self.0.iter().position(|(known, _)| *known == partition).unwrap_or_else(|| {
            self.0.push((partition, Fetched::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    /// Adds new entries of a partition.
    pub(super) fn add_new(&mut self, partition: Partition, some: Fetched) {
        let fetched = self.of(partition);
        fetched.pending = false;
        fetched.entries.extend(some.entries);
        fetched.ghosts.extend(some.ghosts);
        fetched.unreadable = fetched.unreadable.take().or(some.unreadable);
    }
}

/// Combines entries with their delivery counts and notes. All lists are sorted by id.
pub(super) fn page(
    source: Source,
    entries: Vec<RawEntry>,
    counts: Vec<(MessageId, u32)>,
    notes: Vec<Option<Note>>,
) -> Fetched {
    let (mut counts, mut notes) = (counts.into_iter().peekable(), notes.into_iter());
    let mut fetched = Fetched::of_pending();
    for (id, fields) in entries {
        let note = notes.next().flatten();
        while counts.next_if(|(other, _)| *other < id).is_some() {}
        let deliveries = counts.next_if(|(other, _)| *other == id).map_or(1, |(_, times)| times);
        let receipt = Receipt::new(source, id);
        match fields {
            Some(fields) => fetched.entries.push(Entry::new(receipt, deliveries, fields).with_note(note)),
            None => fetched.ghosts.push(receipt),
        }
    }
    fetched
}

/// Error of an answer with entries of a stream that was not asked for.
pub(super) fn unasked(key: &[u8]) -> Error {
    unexpected(format_args!("entries of {}", String::from_utf8_lossy(key)))
}

/// Error of a reader without a connection.
pub(super) fn not_connected() -> Error {
    Error::new(ErrorKind::Unavailable, "the reader has no connection")
}
