//! Order, memory and requests of a merged list.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;

/// Reads pages of the items in `lanes`, as a backend returns them.
async fn all(lanes: &[Vec<u64>], newest_first: bool, limit: usize) -> (Vec<(usize, u64)>, usize) {
    let (mut seen, mut cursor, mut pages) = (Vec::new(), None::<Cursor>, 0);
    loop {
        let from = cursor;
        let fetch: Fetch<'_, u64> = Box::new(move |lane, behind, portion| {
            let behind = behind.map(|(_, id)| id.ms);
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
        let id = |ms: &u64| by_id(MessageId::new(*ms, 0));
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
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        let fetch: Fetch<'_, (u64, usize)> = Box::new(move |_, behind, portion| {
            seen.lock().expect("lock").push(portion);
            let from = behind.map_or(1, |(_, id)| id.ms + 1);
            let items = (from..from + portion as u64).map(|ms| (ms, size)).collect();
            Box::pin(async move { Ok(Page::new(items, true)) })
        });
        let id = |(ms, _): &(u64, usize)| by_id(MessageId::new(*ms, 0));
        let mut all = Merge::new(LANES, false, usize::MAX, id, fetch).sized(|(_, size)| *size);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        for nth in 0..3 * LANES {
            let (lane, (ms, _)) = runtime.block_on(all.next()).expect("read").expect("one");
            assert_eq!((lane, ms as usize), (nth % LANES, nth / LANES + 1), "in order");
        }
        let asked = asked.lock().expect("lock");
        assert_eq!(asked[..AT_ONCE], [FIRST; AT_ONCE], "sizes are not known");
        assert_eq!(asked[AT_ONCE..LANES], [most; LANES - AT_ONCE], "{size}");
        assert!(asked[LANES..].iter().all(|portion| *portion <= most), "{size}: {asked:?}");
    }
}

/// Lanes of items with these times, and what reading them costs.
struct Costs {
    /// Number of items that were fetched.
    fetched: Arc<Mutex<usize>>,
    /// Number of items that were returned.
    returned: usize,
    /// Number of pages that were asked for.
    requests: u64,
    /// Number of times that the reader had to wait for pages.
    rounds: usize,
}

/// Reads up to `take` items, newest first, of a list of which about `limit` are wanted.
fn costs(lanes: &[Vec<u64>], limit: usize, take: usize) -> Costs {
    let fetched = Arc::new(Mutex::new(0));
    let counted = fetched.clone();
    let lanes: Vec<Vec<u64>> = lanes.iter().map(|lane| lane.iter().rev().copied().collect()).collect();
    let count = lanes.len();
    let fetch: Fetch<'_, u64> = Box::new(move |lane, behind, portion| {
        let rest = lanes[lane].iter().copied().filter(|ms| behind.is_none_or(|it| *ms < it.1.ms));
        let mut rest: Vec<u64> = rest.take(portion + 1).collect();
        let more = rest.len() > portion;
        rest.truncate(portion);
        *counted.lock().expect("lock") += rest.len();
        Box::pin(async move { Ok(Page::new(rest, more)) })
    });
    let mut merge = Merge::new(count, true, limit, |ms: &u64| by_id(MessageId::new(*ms, 0)), fetch);
    merge = merge.sized(|_| 100).starting_with(500);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut costs = Costs { fetched, returned: 0, requests: 0, rounds: 0 };
    let mut last = u64::MAX;
    while costs.returned < take {
        let Some((_, ms)) = runtime.block_on(merge.next()).expect("read") else { break };
        assert!(ms <= last, "in order");
        last = ms;
        costs.returned += 1;
        costs.rounds += usize::from(merge.requests() > costs.requests);
        costs.requests = merge.requests();
    }
    costs
}

/// Spreads items over lanes, in an order that is random and always the same.
fn spread(lanes: usize, items: u64) -> Vec<Vec<u64>> {
    let (mut spread, mut random) = (vec![Vec::new(); lanes], fastrand::Rng::with_seed(7));
    (1..=items).for_each(|ms| spread[random.usize(..lanes)].push(ms));
    spread
}

#[test]
fn lanes_that_end_together_are_fetched_together() {
    for (items, rounds, requests) in [(2_000, 8, 200), (20_000, 12, 400)] {
        let costs = costs(&spread(64, items), usize::MAX, usize::MAX);
        assert_eq!(costs.returned as u64, items);
        assert!(costs.rounds <= rounds, "{items}: {} rounds", costs.rounds);
        assert!(costs.requests <= requests, "{items}: {} requests", costs.requests);
    }
}

#[test]
fn a_lane_that_has_everything_takes_few_requests() {
    let mut lanes = vec![Vec::new(); 63];
    lanes.push((1..=5_000).collect());
    let costs = costs(&lanes, usize::MAX, 5_000);
    assert_eq!(costs.returned, 5_000);
    assert!(costs.requests <= 63 + 24, "{} requests", costs.requests);
}

#[test]
fn little_is_read_that_nobody_uses() {
    for (limit, most) in [(10, 150), (50, 300), (200, 700), (1_000, 3_000)] {
        let costs = costs(&spread(64, 100_000), limit, limit);
        let fetched = *costs.fetched.lock().expect("lock");
        assert!(fetched <= most, "{limit}: {fetched} fetched");
    }
}

#[test]
fn an_early_fetch_that_fails_is_no_error() {
    let fails = Arc::new(AtomicBool::new(false));
    let switch = fails.clone();
    // The first lane is read twice as fast as the second one.
    let fetch: Fetch<'_, u64> = Box::new(move |lane, behind, portion| {
        let fails = lane == 1 && behind.is_some() && switch.load(Ordering::Relaxed);
        let (from, step) = (behind.map_or(0, |(_, id)| id.ms), [2, 3][lane]);
        let items = (1..=portion as u64).map(|nth| from + nth * step).collect();
        Box::pin(async move {
            if fails { Err(Error::new(ErrorKind::Unavailable, "away")) } else { Ok(Page::new(items, true)) }
        })
    });
    let mut merge = Merge::new(2, false, 16, |ms: &u64| by_id(MessageId::new(*ms, 0)), fetch);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    fails.store(true, Ordering::Relaxed);
    let mut seen = Vec::new();
    let error = loop {
        match runtime.block_on(merge.next()) {
            Ok(next) => seen.push(next.expect("it has no end").1),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(seen.last(), Some(&30), "all ten of the second lane");
    fails.store(false, Ordering::Relaxed);
    seen.extend((0..10).map(|_| runtime.block_on(merge.next()).expect("read").expect("one").1));
    let mut expected: Vec<u64> = (1..=100).flat_map(|nth| [nth * 2, nth * 3]).collect();
    expected.sort_unstable();
    expected.truncate(seen.len());
    assert_eq!(seen, expected, "nothing is skipped");
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
