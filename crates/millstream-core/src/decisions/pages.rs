//! Page sizer: chooses the number of entries to request, so that a page arrives soon and costs the server little at a
//! time, however large its entries are.
//!
//! The size of an entry is not known before it has arrived, so the count follows the mean of recent entries. Where that
//! is wrong, one page is too large, and the next one is not.

use std::time::Duration;

/// Bytes of a full page. The server executes a read without interruption, about a millisecond for each MiB, and everybody
/// else waits meanwhile. On a link of 10 MB/s, the slowest one that is reasonable for a message queue, a page takes 0.2 s:
/// long enough that the pause between two pages does not count, and far less than a lease.
pub const PAGE_BYTES: usize = 2 << 20;
/// Bytes that are read with one command where several are sent for one page. The server executes a command without
/// interruption: one MiB takes it about a millisecond.
pub const STEP_BYTES: usize = 1 << 20;
/// Entries of the first page, as long as their size is not known: 16 entries of 1 MiB each take 1.7 s at 10 MB/s.
const FIRST: usize = 16;
/// Number of past entries that the estimate remembers: enough to even out sizes that differ, and few enough that a page
/// or two adjust it after the sizes have changed.
const WINDOW: u64 = 64;
/// A page that takes longer than this to arrive is late: the link is slower than the page was sized for.
const LATE: Duration = Duration::from_secs(2);
/// A page that arrives faster than this leaves room for a larger one.
const GOOD: Duration = Duration::from_secs(1);

/// Sizes the pages of one reader.
#[derive(Clone, Copy, Debug)]
pub struct PageSizer {
    /// Bytes of a full page.
    budget: u64,
    /// Entries of the first page.
    first: usize,
    /// Entries that arrived last, and their bytes in total.
    entries: u64,
    bytes: u64,
    /// Largest number of entries of a page, whatever their size. Halved after answers that are lost or late, doubled
    /// after fast ones (up to [`GOOD`]).
    cap: usize,
    /// Number of entries of the last request.
    asked: usize,
}

impl Default for PageSizer {
    fn default() -> Self {
        Self::new(PAGE_BYTES, FIRST)
    }
}

impl PageSizer {
    /// Creates a sizer for pages of `budget` bytes, the first of which has at most `first` entries.
    #[must_use]
    pub fn new(budget: usize, first: usize) -> Self {
        Self { budget: budget as u64, first, entries: 0, bytes: 0, cap: usize::MAX, asked: 0 }
    }

    /// Whether the size of entries is not known yet.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.entries == 0
    }

    /// Sets a first estimate of the size of entries, from elsewhere. It counts as one entry, and only before the first
    /// page.
    pub fn guess(&mut self, entries: u64, bytes: u64) {
        if let (0, Some(mean)) = (self.entries, bytes.checked_div(entries)) {
            (self.entries, self.bytes) = (1, mean);
        }
    }

    /// Returns the number of entries to request: at least one, at most `max`.
    pub fn count(&mut self, max: usize) -> usize {
        self.count_within(max, usize::MAX)
    }

    /// The same for a page of at most this number of bytes, if that is less.
    pub fn count_within(&mut self, max: usize, bytes: usize) -> usize {
        let budget = self.budget.min(bytes as u64);
        let fits = match budget.saturating_mul(self.entries).checked_div(self.bytes) {
            Some(fits) => usize::try_from(fits).unwrap_or(usize::MAX),
            None => self.first,
        };
        self.asked = max.min(fits).min(self.cap).max(1);
        self.asked
    }

    /// Records a page: the number of its entries, the bytes of the answer, and the time that it took to arrive.
    pub fn came(&mut self, entries: usize, bytes: usize, took: Duration) {
        if entries == 0 {
            return;
        }
        // Old entries lose weight: the sums are scaled down to the size of the window.
        if self.entries > WINDOW {
            self.bytes = self.bytes.saturating_mul(WINDOW) / self.entries;
            self.entries = WINDOW;
        }
        self.entries += entries as u64;
        // An entry has at least an id, so the mean must never be 0.
        self.bytes = self.bytes.saturating_add(bytes.max(entries) as u64);
        if took > LATE {
            self.cap = (self.cap.min(entries) / 2).max(1);
        } else if took <= GOOD {
            self.cap = self.cap.saturating_mul(2);
        }
    }

    /// Records that the answer to the last request was lost.
    pub fn lost(&mut self) {
        self.cap = (self.cap.min(self.asked) / 2).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: usize = 1 << 20;
    const FAST: Duration = Duration::from_millis(10);

    fn came(sizer: &mut PageSizer, entries: usize, each: usize) {
        sizer.came(entries, entries * each, FAST);
    }

    #[test]
    fn a_page_may_have_to_be_smaller() {
        let mut sizer = PageSizer::default();
        assert_eq!(sizer.count_within(8, MIB), 8, "the size is not known yet");
        came(&mut sizer, 100, MIB / 4);
        assert_eq!((sizer.count_within(500, MIB), sizer.count(500)), (4, 8));
        assert_eq!((sizer.count_within(500, 1), sizer.count_within(500, 100 * MIB)), (1, 8));
    }

    #[test]
    fn small_entries_are_asked_for_all_at_once() {
        let mut sizer = PageSizer::default();
        assert_eq!((sizer.count(512), sizer.count(3)), (FIRST, 3), "nothing is known");
        sizer.guess(1_000, 200_000);
        assert_eq!(sizer.count(512), 512, "told from elsewhere");
        came(&mut sizer, 512, 200);
        assert_eq!(sizer.count(4_096), 4_096);
    }

    #[test]
    fn a_page_of_large_entries_is_full_with_few_and_one_is_always_asked_for() {
        let mut sizer = PageSizer::default();
        came(&mut sizer, 16, MIB);
        assert_eq!(sizer.count(512), 2);
        came(&mut sizer, 2, 64 * MIB);
        assert_eq!(sizer.count(512), 1);
    }

    #[test]
    fn one_page_too_large_is_all_that_growing_entries_cost() {
        let mut sizer = PageSizer::default();
        (0..100).for_each(|_| came(&mut sizer, 512, 100));
        assert_eq!(sizer.count(512), 512, "the overshoot");
        came(&mut sizer, 512, MIB);
        assert!(sizer.count(512) <= 12, "{}", sizer.count(512));
        // And back: some pages with more entries each.
        let mut pages = 0;
        while sizer.count(512) < 512 {
            let count = sizer.count(512);
            came(&mut sizer, count, 100);
            pages += 1;
        }
        assert!(pages <= 40, "{pages} pages until all is read at once again");
    }

    #[test]
    fn what_is_large_now_and_then_does_not_make_pages_small() {
        let mut sizer = PageSizer::default();
        for _ in 0..50 {
            sizer.came(512, 511 * 100 + MIB, FAST);
        }
        assert_eq!(sizer.count(512), 512);
    }

    #[test]
    fn a_guess_counts_for_little_and_never_against_what_came() {
        let mut sizer = PageSizer::default();
        sizer.guess(0, 1_000);
        assert!(sizer.is_new(), "an empty log says nothing");
        sizer.guess(10, 10 * PAGE_BYTES as u64);
        assert_eq!(sizer.count(512), 1);
        came(&mut sizer, 1, 100);
        sizer.guess(1, u64::MAX);
        assert_eq!(sizer.count(512), 1);
        (0..12).for_each(|_| {
            let count = sizer.count(512);
            came(&mut sizer, count, 100);
        });
        assert_eq!(sizer.count(512), 512);
    }

    #[test]
    fn lost_answers_halve_the_page_down_to_one_and_good_ones_let_it_grow() {
        let mut sizer = PageSizer::default();
        came(&mut sizer, 512, 100);
        let mut counts = Vec::new();
        for _ in 0..11 {
            counts.push(sizer.count(512));
            sizer.lost();
        }
        assert_eq!(counts, [512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1]);
        let mut grown = Vec::new();
        for _ in 0..10 {
            let count = sizer.count(512);
            came(&mut sizer, count, 100);
            grown.push(count);
        }
        assert_eq!(grown, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
    }

    #[test]
    fn late_answers_halve_the_page_and_those_in_between_leave_it() {
        let mut sizer = PageSizer::default();
        came(&mut sizer, 512, 100);
        sizer.came(512, 51_200, LATE * 5);
        assert_eq!(sizer.count(512), 256);
        sizer.came(256, 25_600, (GOOD + LATE) / 2);
        assert_eq!(sizer.count(512), 256);
        sizer.came(0, 40, LATE * 5);
        assert_eq!(sizer.count(512), 256, "nothing came: that was a wait");
        sizer.came(256, 25_600, FAST);
        assert_eq!(sizer.count(512), 512);
    }

    proptest! {
        #[test]
        fn a_count_is_never_0_nor_above_max(
            steps in proptest::collection::vec((0usize..2_000, 0usize..200_000_000, 0u64..9, any::<bool>()), 0..50),
            max in 1usize..100_000,
        ) {
            let mut sizer = PageSizer::default();
            for (entries, bytes, seconds, lost) in steps {
                let count = sizer.count(max);
                prop_assert!((1..=max).contains(&count));
                if lost { sizer.lost() } else { sizer.came(entries, bytes, Duration::from_secs(seconds)) }
            }
        }

        #[test]
        fn entries_of_one_size_fill_a_page_and_not_two(each in 1usize..50_000_000) {
            let mut sizer = PageSizer::default();
            let first = sizer.count(100_000);
            came(&mut sizer, first, each);
            let count = sizer.count(100_000);
            prop_assert!(count == 1 || count * each <= PAGE_BYTES);
            prop_assert!(count == 100_000 || (count + 1) * each > PAGE_BYTES);
        }
    }
}
