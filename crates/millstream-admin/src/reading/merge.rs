//! Merges many lanes, each ordered by id, into one list. Pages are fetched when they are needed, so the memory in use
//! is bounded by what is read ahead and not by the number of items.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::pin::Pin;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use millstream_core::inspect::Page;
use millstream_core::{Error, ErrorKind, MessageId, Result, Timestamp};

use crate::reading::cursor::Cursor;

/// Order of items: by a time, then by id.
pub(crate) type Key = (Timestamp, MessageId);

/// Returns the key of what is ordered by its id.
pub(crate) fn by_id(id: MessageId) -> Key {
    (id.timestamp(), id)
}

/// Fetches a page of a lane behind a key (`None` for its beginning), with at most the given number of items.
pub(crate) type Fetch<'a, T> = Box<dyn FnMut(usize, Option<Key>, usize) -> Fetching<'a, T> + Send + 'a>;
pub(crate) type Fetching<'a, T> = Pin<Box<dyn Future<Output = Result<Page<T>>> + Send + 'a>>;

/// Maximum number of items fetched from one lane at once.
const PORTION: usize = 500;
/// Number of lanes that are fetched from at the same time.
pub(crate) const AT_ONCE: usize = 8;

/// Approximate number of bytes that all lanes together read ahead, of items whose size is known. One item of each lane is read
/// in any case, since its id is needed.
const AHEAD_BYTES: u64 = 64 << 20;
/// Approximate number of items that all lanes together read ahead, unless more will be read at once.
const AHEAD: usize = 20_000;
/// Number of items fetched from a lane as long as no size is known.
const FIRST: usize = 2;
/// A lane with at most this part of its portion left (a third) is fetched from together with one that is empty. With a half there
/// are fewer rounds, but twice as much is fetched that nobody reads where a page ends after a few items.
const NEARLY_EMPTY: usize = 3;

/// State of a lane.
struct Lane<T> {
    ready: VecDeque<T>,
    more: bool,
    /// Key of the last item fetched from it.
    end: Option<Key>,
    /// Number of items to have ready. It doubles with each fetch, so a list that is read far takes few requests, and one that is
    /// not reads little that nobody uses.
    portion: usize,
}

/// Merged list of many lanes.
pub(crate) struct Merge<'a, T> {
    lanes: Vec<Lane<T>>,
    newest_first: bool,
    /// Number of items that will be read, as far as it is known; 0 once they were read.
    left: usize,
    /// Maximum of the lanes' portions.
    most: usize,
    key: fn(&T) -> Key,
    fetch: Fetch<'a, T>,
    /// Size of an item in bytes, where items can be large.
    size: Option<fn(&T) -> usize>,
    /// Number of items that were fetched, and their bytes.
    fetched: (u64, u64),
    /// Number of pages that were asked for.
    requests: u64,
    /// Whether a lane that cannot be read is left out.
    partial: bool,
    /// Lanes that were left out, or of whose items a part is missing, with the errors.
    failed: Vec<(usize, Error)>,
}

impl<'a, T: Send> Merge<'a, T> {
    /// Creates a list over `lanes` lanes, of which about `limit` items will be read.
    pub(crate) fn new(
        lanes: usize,
        newest_first: bool,
        limit: usize,
        key: fn(&T) -> Key,
        fetch: Fetch<'a, T>,
    ) -> Self {
        let portion = (limit / lanes.max(1)).saturating_add(2).clamp(2, PORTION);
        let unread = || Lane { ready: VecDeque::new(), more: true, end: None, portion };
        Self {
            lanes: (0..lanes).map(|_| unread()).collect(),
            newest_first,
            left: limit,
            most: (AHEAD / lanes.max(1)).clamp(portion, PORTION),
            key,
            fetch,
            size: None,
            fetched: (0, 0),
            requests: 0,
            partial: false,
            failed: Vec::new(),
        }
    }

    /// Reads fewer items ahead where they are large.
    pub(crate) fn sized(self, size: fn(&T) -> usize) -> Self {
        Self { size: Some(size), ..self }
    }

    /// Starts with portions for so many items, while the number that will be read is not known.
    pub(crate) fn starting_with(mut self, items: usize) -> Self {
        let lanes = self.lanes.len().max(1);
        let portion = (items / lanes).saturating_add(2).clamp(2, PORTION);
        self.lanes.iter_mut().for_each(|lane| lane.portion = lane.portion.min(portion));
        self.most = (AHEAD / lanes).clamp(portion, PORTION);
        self
    }

    /// Returns the number of items that a lane should have ready.
    fn portion(&self, lane: &Lane<T>) -> usize {
        let wanted = if self.left == 0 { lane.portion } else { lane.portion.min(self.left) };
        match (self.size, self.fetched) {
            (None, _) => wanted,
            (Some(_), (0, _)) => FIRST,
            (Some(_), (items, bytes)) => {
                let of_lane = AHEAD_BYTES / self.lanes.len().max(1) as u64;
                let fit = of_lane.saturating_mul(items).checked_div(bytes).unwrap_or(u64::MAX);
                wanted.min(usize::try_from(fit).unwrap_or(usize::MAX)).max(1)
            }
        }
    }

    /// Leaves out lanes whose error is not transient, and [records](Self::failed) it.
    pub(crate) fn partial(self) -> Self {
        Self { partial: true, ..self }
    }

    /// Returns the lanes that were left out, with the errors.
    pub(crate) fn failed(&self) -> &[(usize, Error)] {
        &self.failed
    }

    /// Returns the number of pages that were asked for so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests
    }

    /// Returns the next item, and the index of its lane. The call can be repeated after an error: nothing is skipped.
    pub(crate) async fn next(&mut self) -> Result<Option<(usize, T)>> {
        self.fill().await?;
        let key = self.key;
        let heads = self.lanes.iter().enumerate().filter_map(|(at, it)| Some((key(it.ready.front()?), at)));
        // Items of the same key are ordered by lane in both directions.
        let next = if self.newest_first {
            heads.min_by_key(|(key, at)| (std::cmp::Reverse(*key), *at))
        } else {
            heads.min()
        };
        let Some((_, at)) = next else { return Ok(None) };
        self.left = self.left.saturating_sub(1);
        Ok(self.lanes[at].ready.pop_front().map(|item| (at, item)))
    }

    /// Returns the lanes to fetch from: none as long as each lane that may have items has one.
    fn due(&self) -> Vec<usize> {
        let lanes = || self.lanes.iter().enumerate().filter(|(_, lane)| lane.more);
        if !lanes().any(|(_, lane)| lane.ready.is_empty()) {
            return Vec::new();
        }
        let ends = |(at, lane): (usize, &Lane<T>)| {
            (lane.ready.len() <= self.portion(lane) / NEARLY_EMPTY).then_some(at)
        };
        lanes().filter_map(ends).collect()
    }

    /// Fetches a page for each lane that is empty, and with them for those that soon will be. After an error the pages of the
    /// other lanes are kept.
    async fn fill(&mut self) -> Result<()> {
        let mut due = self.due().into_iter();
        let (mut asked, mut first) = (FuturesOrdered::new(), Ok(()));
        loop {
            // Not all at the same time: what arrives says how large items are.
            while asked.len() < AT_ONCE
                && let Some(at) = due.next()
            {
                let lane = &self.lanes[at];
                let (behind, portion) = (lane.end, self.portion(lane));
                // The portion may have become smaller than what is ready.
                let Some(count) = portion.checked_sub(lane.ready.len()).filter(|count| *count > 0) else {
                    continue;
                };
                self.requests += 1;
                let page = (self.fetch)(at, behind, count);
                asked.push_back(async move { (at, page.await) });
            }
            let Some((at, page)) = asked.next().await else { return first };
            match page {
                Ok(page) => self.arrived(at, page),
                Err(error) if self.partial && !error.is_transient() => {
                    self.lanes[at].more = false;
                    self.failed.push((at, error));
                }
                // A lane that has items left is asked again once it is empty.
                Err(_) if !self.lanes[at].ready.is_empty() => {}
                Err(error) => first = first.and(Err(error)),
            }
        }
    }

    /// Adds a page to a lane.
    fn arrived(&mut self, at: usize, page: Page<T>) {
        if let Some(size) = self.size {
            let bytes: usize = page.items.iter().map(size).sum();
            self.fetched.0 += page.items.len() as u64;
            self.fetched.1 += bytes as u64;
        }
        if let Some(reason) = page.unreadable.filter(|_| !self.is_told(at)) {
            self.failed.push((at, Error::new(ErrorKind::WrongType, reason)));
        }
        let (lane, key) = (&mut self.lanes[at], self.key);
        lane.more = page.more;
        lane.end = page.items.last().map(key).or(lane.end);
        lane.portion = (lane.portion * 2).min(self.most);
        lane.ready.extend(page.items);
    }

    /// Whether an error of this lane is recorded.
    fn is_told(&self, lane: usize) -> bool {
        self.failed.iter().any(|(at, _)| *at == lane)
    }

    /// Returns whether there may be a next item.
    pub(crate) fn more(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.ready.is_empty() || lane.more)
    }
}

/// Items of several lanes.
pub(crate) struct Merged<T> {
    /// The items, with the index of their lane.
    pub(crate) items: Vec<(usize, T)>,
    /// Cursor for the next page.
    pub(crate) next: Option<Cursor>,
    /// Lanes that cannot be read, or of whose items a part is missing, with the errors.
    pub(crate) failed: Vec<(usize, Error)>,
}

/// Returns up to `limit` items ordered by id and then by lane. Lanes that cannot be read are left out.
pub(crate) async fn merge<T: Send>(
    lanes: usize,
    newest_first: bool,
    limit: usize,
    key: fn(&T) -> Key,
    fetch: Fetch<'_, T>,
) -> Result<Merged<T>> {
    let mut all = Merge::new(lanes, newest_first, limit, key, fetch).partial();
    let (mut items, mut last) = (Vec::new(), None);
    while items.len() < limit {
        let Some((lane, item)) = all.next().await? else { break };
        last = Some(Cursor::new(key(&item).1, lane));
        items.push((lane, item));
    }
    let next = last.filter(|_| all.more());
    Ok(Merged { items, next, failed: all.failed })
}
