//! Plans which of many streams a reader reads next, and how many entries of each.

use millstream_core::sorted::SortedSet;

/// Request of one XREADGROUP.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StreamsRead {
    pub(crate) streams: Vec<usize>,
    /// Maximum number of entries from each stream.
    pub(crate) count: usize,
}

/// Selects the streams to read next and how many entries of each: COUNT is per stream, and the plan bounds the sum.
///
/// A stream that returned as many entries as requested has more, and such streams get most of the room. Of the others
/// a part is read in turn. Once all were read and returned nothing, the reader can wait on all of them at once.
#[derive(Debug)]
pub(crate) struct Plan {
    streams: usize,
    /// Streams that have more.
    full: SortedSet<usize>,
    /// Index of the stream at which the next window begins.
    next: usize,
    /// Number of streams read in a row that returned nothing.
    empty: usize,
    /// With room for one entry only, alternates between the window and a full stream.
    turn: bool,
}

impl Plan {
    pub(crate) fn new(streams: usize) -> Self {
        Self { streams, full: SortedSet::new(), next: 0, empty: 0, turn: false }
    }

    /// Returns whether nothing is left to read, as far as the last answers show.
    pub(crate) fn is_idle(&self) -> bool {
        self.full.is_empty() && self.empty >= self.streams
    }

    /// Forgets what streams returned. Whose turn it is stays: else the first ones would keep the others from being read.
    pub(crate) fn forget(&mut self) {
        self.full.clear();
        self.empty = 0;
    }

    /// Returns which of so many streams is first this time.
    pub(crate) fn turn(&mut self, streams: usize) -> usize {
        self.next = (self.next + 1) % self.streams.max(1);
        self.next % streams.max(1)
    }

    pub(crate) fn look(&mut self, max: usize) -> Vec<StreamsRead> {
        if self.full.is_empty() {
            let streams = self.window(self.streams.min(max));
            let count = max / streams.len().max(1);
            return vec![StreamsRead { streams, count: count.max(1) }];
        }
        if max == 1 {
            self.turn = !self.turn;
        }
        let room = if max == 1 { usize::from(self.turn) } else { (max / 4).max(1) };
        let mut looked = self.window(room.min(self.streams));
        looked.retain(|at| !self.full.contains(at));
        let rest = max - looked.len();
        let mut full: Vec<usize> = self.full.iter().copied().collect();
        let turns = self.next % full.len();
        full.rotate_left(turns);
        full.truncate(rest);
        let mut asks = Vec::with_capacity(2);
        if !full.is_empty() {
            asks.push(StreamsRead { count: rest / full.len(), streams: full });
        }
        if !looked.is_empty() {
            asks.push(StreamsRead { streams: looked, count: 1 });
        }
        asks
    }

    fn window(&mut self, count: usize) -> Vec<usize> {
        let window = (0..count).map(|at| (self.next + at) % self.streams).collect();
        self.next = (self.next + count) % self.streams.max(1);
        window
    }

    /// Records how many entries each stream of a request returned.
    pub(crate) fn told(&mut self, ask: &StreamsRead, got: &[usize]) {
        for (at, got) in ask.streams.iter().zip(got) {
            if *got >= ask.count {
                self.full.insert(*at);
            } else {
                self.full.remove(at);
            }
        }
        let empty = got.iter().all(|got| *got == 0);
        self.empty = if empty { self.empty.saturating_add(got.len()) } else { 0 };
        if got.len() == self.streams && self.full.is_empty() {
            // All streams were read and none returned as many entries as requested, so none has more.
            self.empty = self.streams;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Simulates reads of streams that hold `left` entries each, and returns the number of reads.
    fn drain(mut left: Vec<usize>, max: usize) -> usize {
        let mut plan = Plan::new(left.len());
        let mut reads = 0;
        while !plan.is_idle() {
            reads += 1;
            assert!(reads < 10_000, "{left:?} is never read");
            let asks = plan.look(max);
            let most: usize = asks.iter().map(|ask| ask.streams.len() * ask.count).sum();
            assert!((1..=max).contains(&most), "{asks:?} for {max}");
            for ask in asks {
                let got: Vec<usize> = ask.streams.iter().map(|at| left[*at].min(ask.count)).collect();
                ask.streams.iter().zip(&got).for_each(|(at, got)| left[*at] -= got);
                plan.told(&ask, &got);
            }
        }
        assert!(left.iter().all(|left| *left == 0), "{left:?} is left behind");
        reads
    }

    #[test]
    fn everything_is_read_and_never_more_than_asked_for() {
        for max in [1, 2, 3, 7, 64, 1_000] {
            drain(vec![0, 0], max);
            drain(vec![5, 0, 1], max);
            drain(vec![300, 1, 0, 40, 2, 0, 0, 9], max);
            drain((0..100).collect(), max);
        }
        assert!(drain(vec![10_000, 0], 100) <= 140, "one busy stream gets most of the room");
        assert!(drain(vec![1; 100], 100) <= 3);
    }

    /// Each of its entries is a pack, and others come while it is handled.
    #[test]
    fn where_one_entry_is_read_at_a_time_all_have_their_turn() {
        let mut plan = Plan::new(5);
        let mut seen = BTreeSet::new();
        for _ in 0..5 {
            for ask in plan.look(1) {
                seen.extend(ask.streams.iter().copied());
                let got = vec![ask.count; ask.streams.len()];
                plan.told(&ask, &got);
            }
            plan.forget();
        }
        assert_eq!(seen.len(), 5);
    }

    #[test]
    fn a_busy_stream_does_not_keep_others_from_being_looked_at() {
        for max in [1, 2, 10] {
            let mut plan = Plan::new(20);
            plan.full.insert(0);
            let mut seen = BTreeSet::new();
            for _ in 0..60 {
                for ask in plan.look(max) {
                    let got: Vec<usize> =
                        ask.streams.iter().map(|at| if *at == 0 { ask.count } else { 0 }).collect();
                    seen.extend(ask.streams.iter().copied());
                    plan.told(&ask, &got);
                }
            }
            assert_eq!(seen.len(), 20, "with room for {max}");
        }
    }
}
