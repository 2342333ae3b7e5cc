//! What one request appends: the entries of a batch, or some of them.

use std::sync::Arc;

use millstream_core::log::Append;

/// Entries of a batch that go to one server. Those of a batch for several servers stay in it: a copy of each would cost
/// more than the rest of the way.
#[derive(Clone)]
pub(crate) struct Part {
    batch: Arc<Vec<Append>>,
    /// Positions of the entries in the batch; `None` for all.
    at: Option<Arc<[usize]>>,
}

impl Part {
    /// Returns the whole of a batch.
    pub(crate) fn whole(batch: Arc<Vec<Append>>) -> Self {
        Self { batch, at: None }
    }

    /// Returns the entries of a batch at these positions.
    pub(crate) fn of(batch: Arc<Vec<Append>>, at: Arc<[usize]>) -> Self {
        Self { batch, at: Some(at) }
    }

    /// Returns the entries of several parts as one.
    pub(crate) fn merged(parts: &[Self]) -> Self {
        Self::whole(Arc::new(parts.iter().flat_map(Self::iter).cloned().collect()))
    }

    pub(crate) fn len(&self) -> usize {
        self.at.as_ref().map_or(self.batch.len(), |at| at.len())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Append> {
        let place = |n| self.at.as_ref().map_or(n, |at| at[n]);
        (0..self.len()).map(move |n| &self.batch[place(n)])
    }
}
