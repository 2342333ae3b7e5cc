//! What one request appends: the entries of a batch, or some of them.

use std::sync::Arc;

use millstream_core::log::{Append, NumberedAppend};

use crate::conn::appends::numbered::{Calls, Numbers};

/// Entries of a batch.
#[derive(Clone)]
pub(crate) enum Entries {
    Plain(Arc<Vec<Append>>),
    /// Entries with numbers, and whose they are.
    Numbered(Arc<Vec<NumberedAppend>>, Arc<Numbers>),
}

impl Entries {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Plain(entries) => entries.len(),
            Self::Numbered(entries, _) => entries.len(),
        }
    }

    pub(crate) fn at(&self, at: usize) -> &Append {
        match self {
            Self::Plain(entries) => &entries[at],
            Self::Numbered(entries, _) => &entries[at].append,
        }
    }
}

/// Entries of a batch that go to one server. Those of a batch for several servers stay in it: a copy of each would cost
/// more than the rest of the way.
#[derive(Clone)]
pub(crate) struct Part {
    entries: Entries,
    /// Positions of the entries in the batch; `None` for all.
    at: Option<Arc<[usize]>>,
    /// The transactions that entries with numbers are divided into.
    calls: Option<Arc<Calls>>,
}

impl Part {
    /// Returns the whole of a batch.
    pub(crate) fn whole(entries: Entries) -> Self {
        Self { entries, at: None, calls: None }.divided()
    }

    /// Returns the entries of a batch at these positions.
    pub(crate) fn of(entries: Entries, at: Arc<[usize]>) -> Self {
        Self { entries, at: Some(at), calls: None }.divided()
    }

    /// Returns the entries of several parts as one. They are plain: others are sent by themselves.
    pub(crate) fn merged(parts: &[Self]) -> Self {
        let entries = parts.iter().flat_map(Self::iter).cloned().collect();
        Self::whole(Entries::Plain(Arc::new(entries)))
    }

    fn divided(self) -> Self {
        let calls = match &self.entries {
            Entries::Plain(_) => None,
            Entries::Numbered(entries, _) => {
                let number = |n| entries[self.place(n)].number;
                Some(Arc::new(Calls::new(self.iter().enumerate().map(|(n, append)| (append, number(n))))))
            }
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

    fn place(&self, n: usize) -> usize {
        self.at.as_ref().map_or(n, |at| at[n])
    }

    /// Returns the transactions of entries with numbers, and whose numbers they are.
    pub(crate) fn numbered(&self) -> Option<(&Calls, &Numbers)> {
        match (&self.entries, &self.calls) {
            (Entries::Numbered(_, numbers), Some(calls)) => Some((calls, numbers)),
            _ => None,
        }
    }
}
