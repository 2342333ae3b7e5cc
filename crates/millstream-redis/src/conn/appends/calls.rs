//! Entries that are recognised when they are sent again: those of a partition go together, in calls of bounded size.

use std::collections::HashMap;

use millstream_core::error::{Error, Result};
use millstream_core::log::Append;
use millstream_core::topic::TopicPartition;

use crate::error::unexpected;

/// How a part is divided into calls.
pub(crate) struct Calls<K> {
    pub(crate) calls: Vec<Call<K>>,
    /// Entries that cannot be appended so, with the reason.
    refused: Vec<(usize, Error)>,
}

/// Entries of one partition, by their positions in the part.
pub(crate) struct Call<K> {
    /// That of the first one.
    pub(crate) key: K,
    pub(crate) at: Vec<usize>,
    bytes: usize,
}

impl<K: Copy> Calls<K> {
    /// Divides the entries of a part into calls of at most `most` entries and about so many bytes. Those of a partition whose keys
    /// go together share one, and keep their order.
    pub(crate) fn divided<'a>(
        entries: impl Iterator<Item = &'a Append>,
        most: (usize, usize),
        key: impl Fn(&Append) -> Result<K>,
        together: impl Fn(K, K) -> bool,
    ) -> Self {
        let mut calls: Vec<Call<K>> = Vec::new();
        let mut refused = Vec::new();
        let mut last: HashMap<&TopicPartition, usize> = HashMap::new();
        for (at, append) in entries.enumerate() {
            let key = match key(append) {
                Ok(key) => key,
                Err(error) => {
                    refused.push((at, error));
                    continue;
                }
            };
            let (tp, bytes) = (&append.topic_partition, size(append));
            let fits = |call: &Call<K>| {
                together(call.key, key) && call.at.len() < most.0 && call.bytes + bytes <= most.1
            };
            match last.get(tp).copied().filter(|known| fits(&calls[*known])) {
                Some(known) => {
                    calls[known].at.push(at);
                    calls[known].bytes += bytes;
                }
                None => {
                    last.insert(tp, calls.len());
                    calls.push(Call { key, at: vec![at], bytes });
                }
            }
        }
        Self { calls, refused }
    }

    /// Returns the results before anything is answered.
    pub(crate) fn unanswered<D>(&self, entries: usize) -> Vec<Result<D>> {
        let mut results: Vec<_> = (0..entries).map(|_| Err(unexpected("no answer to an append"))).collect();
        for (at, error) in &self.refused {
            results[*at] = Err(error.clone());
        }
        results
    }
}

/// Returns the bytes of an entry.
pub(crate) fn size(append: &Append) -> usize {
    append.fields.iter().map(|(name, value)| name.len() + value.len()).sum()
}
