//! Iteration over dead letters of all partitions, used by all operations on many of them.

use std::fmt;

use millstream_core::inspect::{MAX_PAGE_BYTES, Page, Range};
use millstream_core::{Backend, DeadLetter, GroupName, Limits, MessageId, Result, TopicPartition};

use crate::dead_letters::DeadLetterFilter;
use crate::reading::cursor::Cursor;
use crate::reading::merge::{Fetch, Merge};

/// Maximum number of letters examined in one step.
const LOOKS: usize = 1_000;
/// Approximate number of letters fetched first, over all partitions.
const AHEAD: usize = 500;

/// Iterates over the dead letters of all partitions, oldest or newest first.
pub struct DeadLetterWalk {
    merge: Merge<'static, DeadLetter>,
    filter: DeadLetterFilter,
    limits: Limits,
    /// Letters that the call which found them has not returned yet: it may have been dropped.
    found: Vec<DeadLetter>,
    left: u64,
    looked_at: u64,
    last: Option<Cursor>,
    done: bool,
}

/// Start and end of a walk.
pub(super) struct Route {
    pub(super) newest_first: bool,
    /// Start behind this cursor.
    pub(super) after: Option<Cursor>,
    /// Last id of each partition, in the order of the partitions that the filter selects.
    pub(super) ends: Option<Vec<MessageId>>,
    /// Maximum number of matching letters.
    pub(super) limit: u64,
}

impl DeadLetterWalk {
    pub(super) fn new(
        backend: &Backend,
        lanes: Vec<TopicPartition>,
        group: &GroupName,
        filter: &DeadLetterFilter,
        route: Route,
    ) -> Self {
        let (backend, group) = (backend.clone(), group.clone());
        let Route { newest_first, after, ends, limit } = route;
        let whole = filter.range(newest_first);
        let count = lanes.len();
        let fetch: Fetch<'static, DeadLetter> = Box::new(move |lane, behind, portion| {
            let range = match (behind, after) {
                (Some(id), _) => whole.behind(id),
                (None, Some(cursor)) if newest_first => {
                    Range { before: whole.before.min(cursor.before(lane)), ..whole }
                }
                (None, Some(cursor)) => Range { after: whole.after.max(cursor.after(lane)), ..whole },
                (None, None) => whole,
            };
            let end = ends.as_ref().and_then(|ends| ends.get(lane)).map_or(MessageId::MAX, |end| end.next());
            let range = Range { before: range.before.min(end), ..range };
            let (backend, tp, group) = (backend.clone(), lanes[lane].clone(), group.clone());
            Box::pin(async move {
                if range.is_empty() {
                    Ok(Page::empty())
                } else {
                    backend.dead_letters()?.list(&tp, &group, range, portion).await
                }
            })
        });
        let most = usize::try_from(limit).unwrap_or(usize::MAX);
        let merge = Merge::new(count, newest_first, most, |letter: &DeadLetter| letter.id, fetch);
        let merge = merge.sized(|letter| size(letter) + letter.error.len()).starting_with(AHEAD);
        let (filter, limits) = (filter.clone(), Limits::NONE);
        Self {
            merge,
            filter,
            limits,
            found: Vec::new(),
            left: limit,
            looked_at: 0,
            last: after,
            done: limit == 0,
        }
    }

    /// Returns up to `most` matching letters. It examines at most 1,000 letters and about 4 MiB, so the result may be
    /// empty while there are more.
    ///
    /// # Errors
    /// Transient ones: the next call continues where this one ended, also if its future is dropped.
    pub async fn run_once(&mut self, most: usize) -> Result<Vec<DeadLetter>> {
        let mut bytes: usize = self.found.iter().map(size).sum();
        for _ in 0..LOOKS {
            if self.done || self.found.len() >= most || bytes >= MAX_PAGE_BYTES {
                break;
            }
            let (lane, mut letter) = match self.merge.next().await {
                Ok(Some(next)) => next,
                Ok(None) => {
                    self.done = true;
                    break;
                }
                // The letters found so far are returned. If the error persists, the next call returns it.
                Err(_) if !self.found.is_empty() => break,
                Err(error) => return Err(error),
            };
            self.looked_at += 1;
            self.last = Some(Cursor { id: letter.id, lane });
            bytes += size(&letter);
            self.filter.conceal(&mut letter);
            if self.filter.fits(&letter, &self.limits) {
                self.found.push(letter);
                self.left -= 1;
                self.done = self.left == 0;
            }
        }
        self.done |= !self.merge.more();
        Ok(std::mem::take(&mut self.found))
    }

    /// Returns whether the walk has reached its end.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done && self.found.is_empty()
    }

    /// Returns the number of letters examined so far.
    #[must_use]
    pub fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Returns the number of pages of partitions that the walk has asked the backend for so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.merge.requests()
    }

    /// Returns the cursor at which another walk would continue; `None` at the end.
    #[must_use]
    pub fn cursor(&self) -> Option<Cursor> {
        self.last.filter(|_| self.merge.more())
    }
}

/// Returns the size of the body, in bytes.
pub(super) fn size(letter: &DeadLetter) -> usize {
    letter.body.iter().map(|(name, value)| name.len() + value.len()).sum()
}

impl fmt::Debug for DeadLetterWalk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetterWalk")
            .field("filter", &self.filter)
            .field("looked_at", &self.looked_at)
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}
