//! How many series topics have for their partitions, where there are too many for the limit: the busiest ones have theirs.

/// How much of a topic there is to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Messages that were appended since the previous round, and those that its groups have to handle.
    pub(crate) work: u64,
    /// Number of series that a metric of partitions has for it, at the most.
    pub(crate) series: usize,
    /// Whether it was shown in the previous round.
    pub(crate) was_shown: bool,
}

/// A topic takes the place of another one only if it has this many times the work: series that come and go are of no use.
const STAYS: u64 = 2;

/// Returns for each topic how many series a metric of its partitions has: those with the most work first, until there is no
/// room. The last one has as many as there is room for.
pub(crate) fn choose(topics: &[Share], limit: usize) -> Vec<usize> {
    let weight = |share: &Share| if share.was_shown { share.work.saturating_mul(STAYS) } else { share.work };
    let mut order: Vec<usize> = (0..topics.len()).collect();
    // Of topics with as much work, one that was shown stays, and otherwise the first one is shown.
    order.sort_by_key(|at| {
        let share = &topics[*at];
        (std::cmp::Reverse(weight(share)), !share.was_shown, *at)
    });
    let (mut series, mut room) = (vec![0; topics.len()], limit);
    for at in order {
        series[at] = topics[at].series.min(room);
        room -= series[at];
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(work: u64, series: usize, was_shown: bool) -> Share {
        Share { work, series, was_shown }
    }

    #[test]
    fn all_are_shown_while_there_is_room() {
        assert_eq!(choose(&[share(0, 4, false), share(9, 6, false)], 10), [4, 6]);
        assert_eq!(choose(&[], 10), [0; 0]);
    }

    #[test]
    fn the_busiest_are_shown_and_the_last_one_in_part() {
        let topics = [share(1, 4, false), share(7, 4, false), share(0, 4, false), share(3, 4, false)];
        assert_eq!(choose(&topics, 8), [0, 4, 0, 4]);
        assert_eq!(choose(&topics, 9), [1, 4, 0, 4]);
        assert_eq!(choose(&topics, 3), [0, 3, 0, 0]);
        assert_eq!(choose(&topics, 0), [0; 4]);
    }

    #[test]
    fn one_that_is_shown_stays_until_another_has_twice_the_work() {
        for (other, stays) in [(10, true), (19, true), (20, true), (21, false)] {
            let topics = [share(other, 4, false), share(10, 4, true)];
            let expected = if stays { [0, 4] } else { [4, 0] };
            assert_eq!(choose(&topics, 4), expected, "{other}");
        }
        assert_eq!(choose(&[share(0, 4, false), share(0, 4, true)], 4), [0, 4], "without any work");
    }
}
