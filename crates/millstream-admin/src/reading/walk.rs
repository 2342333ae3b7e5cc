//! Iteration over the messages of all partitions. What was read ahead is kept between two calls.

use std::fmt;

use millstream_core::inspect::{MAX_PAGE_BYTES, Range, Stored, Stream};
use millstream_core::log::Source;
use millstream_core::{Backend, Error, Result, TopicPartition};

use crate::reading::cursor::Cursor;
use crate::reading::merge::{Fetch, Merge, by_id};
use crate::reading::messages::{Browse, Message};

/// Returns the size of an entry, in bytes.
fn size(stored: &Stored) -> usize {
    stored.fields.iter().map(|(name, value)| name.len() + value.len()).sum()
}

/// Iterates over the messages of a topic, in the order of their ids over all partitions. It only reads.
pub struct MessageWalk {
    merge: Merge<'static, Stored>,
    lanes: Vec<TopicPartition>,
    source: Source,
    /// Messages that the call which found them has not returned yet: it may have been dropped.
    found: Vec<Message>,
    last: Option<Cursor>,
    done: bool,
}

impl MessageWalk {
    /// Creates a walk over these partitions, of which about `browse.limit` messages will be read in all.
    pub(crate) fn new(backend: &Backend, lanes: Vec<TopicPartition>, browse: &Browse) -> Self {
        let (range, cursor, stream) = (browse.range, browse.after, browse.stream.clone());
        let source = if stream == Stream::Log { Source::Log } else { Source::Retry };
        let (backend, of) = (backend.clone(), lanes.clone());
        let fetch: Fetch<'static, Stored> = Box::new(move |lane, behind, portion| {
            let from = match (behind, cursor) {
                (Some((_, id)), _) => range.behind(id),
                (None, Some(cursor)) if range.newest_first => {
                    Range { before: range.before.min(cursor.before(lane)), ..range }
                }
                (None, Some(cursor)) => Range { after: range.after.max(cursor.after(lane)), ..range },
                (None, None) => range,
            };
            let (backend, tp, stream) = (backend.clone(), of[lane].clone(), stream.clone());
            Box::pin(async move { backend.inspect()?.entries(&tp, &stream, from, portion).await })
        });
        let key = |stored: &Stored| by_id(stored.id);
        let merge = Merge::new(lanes.len(), range.newest_first, browse.limit, key, fetch).sized(size);
        let merge = if browse.partial { merge.partial() } else { merge };
        Self { merge, lanes, source, found: Vec::new(), last: browse.after, done: false }
    }

    /// Returns up to `most` messages, of about 4 MiB; none at the end.
    ///
    /// # Errors
    /// Transient ones: nothing is skipped if the call is repeated, also if its future is dropped.
    pub async fn run_once(&mut self, most: usize) -> Result<Vec<Message>> {
        let mut bytes: usize = self.found.iter().map(|message| size(&message.stored)).sum();
        while self.found.len() < most && bytes < MAX_PAGE_BYTES && !self.done {
            match self.merge.next().await {
                Ok(Some((lane, stored))) => {
                    self.last = Some(Cursor::new(stored.id, lane));
                    bytes += size(&stored);
                    self.found.push(Message::new(self.lanes[lane].clone(), stored, self.source, lane));
                }
                Ok(None) => self.done = true,
                // Those found so far are returned. If the error persists, the next call returns it.
                Err(_) if !self.found.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(std::mem::take(&mut self.found))
    }

    /// Returns the partitions that were left out so far since they cannot be read, with the errors; none unless the walk is
    /// [partial](Browse::partial).
    pub fn failed(&self) -> impl Iterator<Item = (&TopicPartition, &Error)> {
        self.merge.failed().iter().map(|(lane, error)| (&self.lanes[*lane], error))
    }

    /// Returns the cursor at which another walk would continue; `None` at the end.
    #[must_use]
    pub fn next(&self) -> Option<Cursor> {
        self.last.filter(|_| !self.done && self.merge.more())
    }
}

impl fmt::Debug for MessageWalk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageWalk")
            .field("lanes", &self.lanes)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}
