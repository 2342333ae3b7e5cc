//! What one request appends: the entries of a batch, or some of them.

use std::sync::Arc;

use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::keys::Keys;
use millstream_core::log::{Append, Appended};

use crate::conn::appends::dedup;
use crate::conn::appends::numbered::{self, Numbers};
use crate::conn::appends::packed::{Division, Packings};
use crate::conn::appends::script::Script;
use crate::conn::replies::resp::Replies;
use crate::conn::request::Request;

/// Entries of a batch.
#[derive(Clone)]
pub(crate) struct PartEntries {
    pub(crate) batch: Arc<Vec<Append>>,
    pub(crate) form: PartForm,
}

/// What it takes to append the entries of a batch.
#[derive(Clone)]
pub(crate) enum PartForm {
    /// Entries that may be packed, where their topics are.
    Plain(Arc<Packings>),
    /// Entries with numbers, and whose they are.
    Numbered(Arc<Numbers>),
    /// Entries with dedup ids.
    Dedup(Arc<Script>),
}

impl PartEntries {
    pub(crate) fn len(&self) -> usize {
        self.batch.len()
    }

    pub(crate) fn at(&self, at: usize) -> &Append {
        &self.batch[at]
    }
}

/// Entries of a batch that go to one server. Those of a batch for several servers stay in it: a copy of each would cost
/// more than the rest of the way.
#[derive(Clone)]
pub(crate) struct Part {
    entries: PartEntries,
    /// Positions of the entries in the batch; `None` for all.
    at: Option<Arc<[usize]>>,
    /// What entries that are not plain are divided into.
    calls: Option<Calls>,
}

/// The transactions of entries with numbers, the script calls of those with dedup ids, or those of packs.
#[derive(Clone)]
enum Calls {
    Numbered(Arc<numbered::NumberedCalls>),
    Dedup(Arc<dedup::DedupCalls>),
    Packed(Arc<Division>),
}

impl Part {
    /// Returns the whole of a batch.
    pub(crate) fn whole(entries: PartEntries) -> Self {
        Self { entries, at: None, calls: None }.divided()
    }

    /// Returns the entries of a batch at these positions.
    pub(crate) fn of(entries: PartEntries, at: Arc<[usize]>) -> Self {
        Self { entries, at: Some(at), calls: None }.divided()
    }

    /// Returns the entries of several parts as one. They are plain: others are sent by themselves.
    pub(crate) fn merged(parts: &[Self], packings: &Arc<Packings>) -> Self {
        let entries = parts.iter().flat_map(Self::iter).cloned().collect();
        let form = PartForm::Plain(packings.clone());
        Self::whole(PartEntries { batch: Arc::new(entries), form })
    }

    fn divided(self) -> Self {
        let calls = match &self.entries.form {
            PartForm::Plain(packings) => {
                packings.divide(self.iter()).map(|packs| Calls::Packed(Arc::new(packs)))
            }
            PartForm::Numbered(_) => {
                Some(Calls::Numbered(Arc::new(numbered::NumberedCalls::of_numbers(self.iter()))))
            }
            PartForm::Dedup(_) => Some(Calls::Dedup(Arc::new(dedup::DedupCalls::of_ids(self.iter())))),
        };
        Self { calls, ..self }
    }

    pub(crate) fn len(&self) -> usize {
        self.at.as_ref().map_or(self.entries.len(), |at| at.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Append> {
        (0..self.len()).map(move |n| self.get(n))
    }

    pub(crate) fn get(&self, n: usize) -> &Append {
        self.entries.at(self.place(n))
    }

    /// Returns the position in the batch of an entry of this part.
    pub(crate) fn place(&self, n: usize) -> usize {
        self.at.as_ref().map_or(n, |at| at[n])
    }

    /// Adds the commands of the transactions or calls that the entries are divided into. False if they are plain.
    pub(crate) fn add_calls(&self, request: &mut Request, keys: &Keys, asking: bool) -> bool {
        match (&self.entries.form, &self.calls) {
            (PartForm::Numbered(numbers), Some(Calls::Numbered(calls))) => {
                calls.add(request, keys, self, numbers, asking);
            }
            (PartForm::Dedup(script), Some(Calls::Dedup(calls))) => {
                calls.add(request, keys, self, script, asking);
            }
            (PartForm::Plain(packings), Some(Calls::Packed(packs))) => {
                packs.add(request, keys, packings, |n| self.get(n), asking);
            }
            _ => return false,
        }
        true
    }

    /// Reads the answers to these commands: a result for each entry.
    pub(crate) fn results(&self, replies: &mut Replies<'_>, asking: bool) -> Vec<Result<Appended>> {
        let single = |replies: &mut Replies<'_>| {
            if asking {
                // Its failure shows in the reply behind it.
                let _ = replies.next();
            }
            replies.next().and_then(|mut reply| reply.id())
        };
        let ids = match (&self.entries.form, &self.calls) {
            (PartForm::Numbered(numbers), Some(Calls::Numbered(calls))) => {
                calls.results(self.len(), numbers, replies, asking)
            }
            (_, Some(Calls::Dedup(calls))) => return calls.results(self, replies, asking),
            (_, Some(Calls::Packed(packs))) => packs.results(self.len(), || single(replies)),
            _ => return self.iter().map(|append| single(replies).map(|id| stored(append, id))).collect(),
        };
        ids.into_iter().zip(self.iter()).map(|(id, append)| id.map(|id| stored(append, id))).collect()
    }
}

/// Returns the result of an entry that is stored under this id.
pub(crate) fn stored(append: &Append, id: MessageId) -> Appended {
    Appended::new(append.topic_partition.partition, id)
}
