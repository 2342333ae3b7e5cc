//! Iteration over what failed in all partitions, used by all operations on many of them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use millstream_core::inspect::{MAX_PAGE_BYTES, Page, Range};
use millstream_core::{Limits, MessageId, Partition, Result};

use super::store::End;
use super::{Failed, Shelf, ShelfFilter, ShelfQuery};
use crate::reading::cursor::Cursor;
use crate::reading::merge::{Fetch, Merge};

/// Maximum number of items examined in one step.
const LOOKS: usize = 1_000;
/// Approximate number of items fetched first, over all partitions.
const AHEAD: usize = 500;

/// Iterates over what failed in all partitions: by id, oldest or newest first, retries by due time.
pub struct ShelfWalk {
    merge: Merge<'static, Failed>,
    filter: ShelfFilter,
    /// Items that the call which found them has not returned yet: it may have been dropped.
    found: Vec<Failed>,
    left: u64,
    looked_at: u64,
    last: Option<Cursor>,
    /// Last id examined of each partition.
    ends: BTreeMap<Partition, MessageId>,
    done: bool,
}

impl ShelfWalk {
    pub(super) fn new(shelf: &Shelf, query: &ShelfQuery, lanes: Vec<Partition>, ends: Vec<End>) -> Self {
        let (shelf, filter) = (shelf.clone(), Arc::new(query.filter.clone()));
        let &ShelfQuery { newest_first, after, limit, .. } = query;
        let whole = match shelf.of.is_by_id() {
            true => filter.range(newest_first),
            false => Range::ALL,
        };
        let left: Vec<_> = (0..lanes.len())
            .map(|lane| match ends.get(lane) {
                Some(End::Count(count)) => Arc::new(AtomicU64::new(*count)),
                _ => Arc::new(AtomicU64::new(u64::MAX)),
            })
            .collect();
        let (of_fetch, count) = (filter.clone(), lanes.len());
        let fetch: Fetch<'static, Failed> = Box::new(move |lane, behind, portion| {
            let mut range = whole;
            match after {
                Some(cursor) if newest_first => range.before = range.before.min(cursor.before(lane)),
                Some(cursor) => range.after = range.after.max(cursor.after(lane)),
                None => {}
            }
            if let Some(End::Id(end)) = ends.get(lane) {
                range.before = range.before.min(end.next());
            }
            let (shelf, filter, partition) = (shelf.clone(), of_fetch.clone(), lanes[lane].0);
            let left = left[lane].clone();
            Box::pin(async move {
                let rest = left.load(Ordering::Relaxed);
                let portion = portion.min(usize::try_from(rest).unwrap_or(usize::MAX));
                if portion == 0 || behind.map_or(range, |(_, id)| range.behind(id)).is_empty() {
                    return Ok(Page::empty());
                }
                let mut page = shelf.of.list(&shelf.admin, partition, behind, range, portion).await?;
                let read = page.items.len();
                left.store(rest - (read as u64).min(rest), Ordering::Relaxed);
                page.more &= rest > read as u64;
                if !newest_first {
                    page.items.retain(|it| !filter.is_behind(&it.facts()));
                    page.more &= page.items.len() == read;
                }
                Ok(page)
            })
        });
        let key = |it: &Failed| (it.facts().at, it.facts().id);
        let merge = Merge::new(count, newest_first, limit, key, fetch);
        let merge = merge.sized(|it| it.size() + it.facts().error.len()).starting_with(AHEAD);
        Self {
            merge,
            filter: query.filter.clone(),
            found: Vec::new(),
            left: limit as u64,
            looked_at: 0,
            last: after,
            ends: BTreeMap::new(),
            done: limit == 0,
        }
    }

    /// Returns up to `most` matching items. It examines at most 1,000 items and about 4 MiB, so the result may be
    /// empty while there are more.
    ///
    /// # Errors
    /// Transient ones: the next call continues where this one ended, also if its future is dropped.
    pub async fn run_once(&mut self, most: usize) -> Result<Vec<Failed>> {
        let mut bytes: usize = self.found.iter().map(Failed::size).sum();
        for _ in 0..LOOKS {
            if self.done || self.found.len() >= most || bytes >= MAX_PAGE_BYTES {
                break;
            }
            let (lane, mut next) = match self.merge.next().await {
                Ok(Some(next)) => next,
                Ok(None) => {
                    self.done = true;
                    break;
                }
                // The items found so far are returned. If the error persists, the next call returns it.
                Err(_) if !self.found.is_empty() => break,
                Err(error) => return Err(error),
            };
            self.looked_at += 1;
            bytes += next.size();
            if let Some(text) = self.filter.undecodable_error {
                next.conceal(text);
            }
            let facts = next.facts();
            self.last = Some(Cursor::new(facts.id, lane));
            self.ends.insert(facts.partition, facts.id);
            if self.filter.fits(&facts, &Limits::NONE) {
                self.found.push(next);
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

    /// Returns the number of items examined so far.
    #[must_use]
    pub fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Returns the last id examined of each partition.
    #[must_use]
    pub fn ends(&self) -> &BTreeMap<Partition, MessageId> {
        &self.ends
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

impl fmt::Debug for ShelfWalk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShelfWalk")
            .field("filter", &self.filter)
            .field("looked_at", &self.looked_at)
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}
