//! Merges many lanes, each ordered by id, into one list. Pages are fetched when they are needed, so the memory in use
//! is bounded by a page per lane and not by the number of items.

use std::collections::VecDeque;
use std::pin::Pin;

use futures_util::{StreamExt, stream};
use millstream_core::inspect::Page;
use millstream_core::{Error, ErrorKind, MessageId, Result};

use crate::reading::cursor::Cursor;

/// Fetches a page of a lane behind an id (`None` for its beginning), with at most the given number of items.
pub(crate) type Fetch<'a, T> = Box<dyn FnMut(usize, Option<MessageId>, usize) -> Fetching<'a, T> + Send + 'a>;
pub(crate) type Fetching<'a, T> = Pin<Box<dyn Future<Output = Result<Page<T>>> + Send + 'a>>;

/// Maximum number of items fetched from one lane at once.
const PORTION: usize = 500;
/// Number of lanes that are fetched from at the same time.
const AT_ONCE: usize = 8;

/// Approximate number of bytes that all lanes together read ahead, of items whose size is known. One item of each lane is read
/// in any case, since its id is needed.
const AHEAD_BYTES: u64 = 64 << 20;
/// Number of items fetched from a lane as long as no size is known.
const FIRST: usize = 2;

/// State of a lane.
struct Lane<T> {
    ready: VecDeque<T>,
    more: bool,
    /// Id of the last item returned from it.
    last: Option<MessageId>,
}

/// Merged list of many lanes.
pub(crate) struct Merge<'a, T> {
    lanes: Vec<Lane<T>>,
    newest_first: bool,
    portion: usize,
    id: fn(&T) -> MessageId,
    fetch: Fetch<'a, T>,
    /// Size of an item in bytes, where items can be large.
    size: Option<fn(&T) -> usize>,
    /// Number of items that were fetched, and their bytes.
    fetched: (u64, u64),
    /// Whether a lane that cannot be read is left out.
    partial: bool,
    /// Lanes that were left out, or of whose items a part is missing, with the errors.
    failed: Vec<(usize, Error)>,
}

impl<'a, T: Send> Merge<'a, T> {
    /// Creates a list over `lanes` lanes, of which about `limit` items will be read at once.
    pub(crate) fn new(
        lanes: usize,
        newest_first: bool,
        limit: usize,
        id: fn(&T) -> MessageId,
        fetch: Fetch<'a, T>,
    ) -> Self {
        let portion = (limit / lanes.max(1)).saturating_add(2).clamp(2, PORTION);
        let unread = || Lane { ready: VecDeque::new(), more: true, last: None };
        Self {
            lanes: (0..lanes).map(|_| unread()).collect(),
            newest_first,
            portion,
            id,
            fetch,
            size: None,
            fetched: (0, 0),
            partial: false,
            failed: Vec::new(),
        }
    }

    /// Reads fewer items ahead where they are large.
    pub(crate) fn sized(self, size: fn(&T) -> usize) -> Self {
        Self { size: Some(size), ..self }
    }

    /// Returns the number of items to fetch from a lane.
    fn portion(&self) -> usize {
        match (self.size, self.fetched) {
            (None, _) => self.portion,
            (Some(_), (0, _)) => FIRST,
            (Some(_), (items, bytes)) => {
                let of_lane = AHEAD_BYTES / self.lanes.len().max(1) as u64;
                let fit = of_lane.saturating_mul(items).checked_div(bytes).unwrap_or(u64::MAX);
                self.portion.min(usize::try_from(fit).unwrap_or(usize::MAX)).max(1)
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

    /// Returns the next item, and the index of its lane. The call can be repeated after an error: nothing is skipped.
    pub(crate) async fn next(&mut self) -> Result<Option<(usize, T)>> {
        self.fill().await?;
        let id = self.id;
        let heads = self.lanes.iter().enumerate().filter_map(|(at, it)| Some((id(it.ready.front()?), at)));
        // Items of the same id are ordered by lane in both directions.
        let next = if self.newest_first {
            heads.min_by_key(|(id, at)| (std::cmp::Reverse(*id), *at))
        } else {
            heads.min()
        };
        let Some((id, at)) = next else { return Ok(None) };
        self.lanes[at].last = Some(id);
        Ok(self.lanes[at].ready.pop_front().map(|item| (at, item)))
    }

    /// Fetches a page for each lane that needs one. After an error the pages of the other lanes are kept.
    async fn fill(&mut self) -> Result<()> {
        let needs = |(at, lane): (usize, &Lane<T>)| (lane.ready.is_empty() && lane.more).then_some(at);
        let empty: Vec<usize> = self.lanes.iter().enumerate().filter_map(needs).collect();
        if empty.is_empty() {
            return Ok(());
        }
        let mut first = Ok(());
        // Some lanes after the others: what arrives says how large items are.
        for some in empty.chunks(AT_ONCE) {
            let portion = self.portion();
            let fetches: Vec<_> =
                some.iter().map(|at| (self.fetch)(*at, self.lanes[*at].last, portion)).collect();
            let pages: Vec<_> = stream::iter(fetches).buffered(AT_ONCE).collect().await;
            for (at, page) in some.iter().copied().zip(pages) {
                match page {
                    Ok(page) => {
                        if let Some(size) = self.size {
                            let bytes: usize = page.items.iter().map(size).sum();
                            self.fetched.0 += page.items.len() as u64;
                            self.fetched.1 += bytes as u64;
                        }
                        if let Some(reason) = page.unreadable.filter(|_| !self.is_told(at)) {
                            self.failed.push((at, Error::new(ErrorKind::WrongType, reason)));
                        }
                        let lane = &mut self.lanes[at];
                        (lane.ready, lane.more) = (page.items.into(), page.more);
                    }
                    Err(error) if self.partial && !error.is_transient() => {
                        self.lanes[at].more = false;
                        self.failed.push((at, error));
                    }
                    Err(error) => first = first.and(Err(error)),
                }
            }
        }
        first
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
    id: fn(&T) -> MessageId,
    fetch: Fetch<'_, T>,
) -> Result<Merged<T>> {
    let mut all = Merge::new(lanes, newest_first, limit, id, fetch).partial();
    let (mut items, mut last) = (Vec::new(), None);
    while items.len() < limit {
        let Some((lane, item)) = all.next().await? else { break };
        last = Some(Cursor { id: id(&item), lane });
        items.push((lane, item));
    }
    let next = last.filter(|_| all.more());
    Ok(Merged { items, next, failed: all.failed })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads pages of the items in `lanes`, as a backend returns them.
    async fn all(lanes: &[Vec<u64>], newest_first: bool, limit: usize) -> (Vec<(usize, u64)>, usize) {
        let (mut seen, mut cursor, mut pages) = (Vec::new(), None::<Cursor>, 0);
        loop {
            let from = cursor;
            let fetch: Fetch<'_, u64> = Box::new(move |lane, behind, portion| {
                let behind = behind.map(|id| id.ms);
                let (after, before) = match from {
                    Some(cursor) if newest_first => (0, cursor.before(lane)),
                    Some(cursor) => (cursor.after(lane).ms, MessageId::MAX),
                    None => (0, MessageId::MAX),
                };
                let inside = |ms: &u64| *ms > after && MessageId::new(*ms, 0) < before;
                let mut rest: Vec<u64> = lanes[lane].iter().copied().filter(inside).collect();
                if newest_first {
                    rest.reverse();
                }
                rest.retain(|ms| behind.is_none_or(|it| if newest_first { *ms < it } else { *ms > it }));
                let more = rest.len() > portion;
                rest.truncate(portion);
                Box::pin(async move { Ok(Page::new(rest, more)) })
            });
            let id = |ms: &u64| MessageId::new(*ms, 0);
            let merged = merge(lanes.len(), newest_first, limit, id, fetch).await.expect("merged");
            let (page, next) = (merged.items, merged.next);
            assert!(page.len() <= limit && merged.failed.is_empty());
            seen.extend(page);
            pages += 1;
            match next {
                Some(next) => cursor = Some(next),
                None => return (seen, pages),
            }
        }
    }

    #[test]
    fn large_items_are_not_read_ahead_in_all_lanes() {
        const LANES: usize = 1_000;
        for (size, most) in [(1 << 20, 1), (8 << 10, 8), (100, 500)] {
            let asked = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
            let seen = asked.clone();
            let fetch: Fetch<'_, (u64, usize)> = Box::new(move |_, behind, portion| {
                seen.lock().expect("lock").push(portion);
                let from = behind.map_or(1, |id| id.ms + 1);
                let items = (from..from + portion as u64).map(|ms| (ms, size)).collect();
                Box::pin(async move { Ok(Page::new(items, true)) })
            });
            let id = |(ms, _): &(u64, usize)| MessageId::new(*ms, 0);
            let mut all = Merge::new(LANES, false, usize::MAX, id, fetch).sized(|(_, size)| *size);
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            for nth in 0..3 * LANES {
                let (lane, (ms, _)) = runtime.block_on(all.next()).expect("read").expect("one");
                assert_eq!((lane, ms as usize), (nth % LANES, nth / LANES + 1), "in order");
            }
            let asked = asked.lock().expect("lock");
            assert_eq!(asked[..AT_ONCE], [FIRST; AT_ONCE], "sizes are not known");
            assert!(asked[AT_ONCE..].iter().all(|portion| *portion == most), "{size}: {asked:?}");
        }
    }

    proptest! {
        #[test]
        fn pages_are_the_whole_in_order(
            mut lanes in proptest::collection::vec(proptest::collection::btree_set(1u64..60, 0..30), 1..6),
            newest_first: bool,
            limit in 1usize..20,
        ) {
            let lanes: Vec<Vec<u64>> = lanes.drain(..).map(|lane| lane.into_iter().collect()).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let (seen, _) = runtime.block_on(all(&lanes, newest_first, limit));
            let mut expected: Vec<(u64, usize)> = lanes
                .iter()
                .enumerate()
                .flat_map(|(lane, ids)| ids.iter().map(move |id| (*id, lane)))
                .collect();
            expected.sort_by_key(|(id, lane)| (if newest_first { u64::MAX - id } else { *id }, *lane));
            let seen: Vec<(u64, usize)> = seen.into_iter().map(|(lane, id)| (id, lane)).collect();
            prop_assert_eq!(seen, expected);
        }
    }
}
