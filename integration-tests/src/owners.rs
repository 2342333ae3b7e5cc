//! The ownership of partitions over time, as recorded by the members.

use std::collections::BTreeMap;

use crate::history::{Line, What};

/// One ownership of a partition.
#[derive(Clone, Copy, Debug)]
pub struct Term {
    /// The process of the owner.
    pub pid: u32,
    /// The time when it began.
    pub from_us: u64,
    /// The time when it ended, and how.
    pub end: Option<(u64, How)>,
}

/// How an ownership ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The partition was released.
    Revoked,
    /// The lease expired, or another process took the partition.
    Lost,
    /// The process was killed.
    Killed,
}

/// All ownerships, by partition and epoch.
#[derive(Clone, Debug, Default)]
pub struct Terms(pub BTreeMap<(u32, u64), Term>);

impl Terms {
    /// Returns all ownerships in a history.
    #[must_use]
    pub fn of(lines: &[Line]) -> Self {
        let mut terms = Self::default();
        for line in lines {
            terms.apply(line);
        }
        terms
    }

    /// Applies the next line.
    pub fn apply(&mut self, line: &Line) {
        let mut end = |partition, epoch, how| {
            if let Some(term) = self.0.get_mut(&(partition, epoch)) {
                term.end.get_or_insert((line.at_us, how));
            }
        };
        match line.what {
            What::Assigned(partition, epoch) => {
                let term = Term { pid: line.pid, from_us: line.at_us, end: None };
                let before = self.0.insert((partition, epoch), term);
                assert!(before.is_none(), "partition {partition} was granted twice with epoch {epoch}");
            }
            What::Revoked(partition, epoch) => end(partition, epoch, How::Revoked),
            What::Lost(partition, epoch) => end(partition, epoch, How::Lost),
            What::Killed => {
                let open = self.0.values_mut().filter(|term| term.pid == line.pid);
                open.for_each(|term| _ = term.end.get_or_insert((line.at_us, How::Killed)));
            }
            _ => {}
        }
    }

    /// Returns the current owner of each partition. If two processes believe to own one, returns the later.
    #[must_use]
    pub fn owners(&self) -> BTreeMap<u32, u32> {
        let open = self.0.iter().filter(|(_, term)| term.end.is_none());
        open.map(|((partition, _), term)| (*partition, term.pid)).collect()
    }

    /// Returns the partitions that a process owns now.
    #[must_use]
    pub fn of_process(&self, pid: u32) -> Vec<u32> {
        self.owners().into_iter().filter(|(_, owner)| *owner == pid).map(|(partition, _)| partition).collect()
    }

    /// Whether these processes own all `partitions`, and their numbers of partitions differ by at most one.
    #[must_use]
    pub fn are_balanced(&self, partitions: u32, pids: &[u32]) -> bool {
        let owners = self.owners();
        let mut sizes: BTreeMap<u32, usize> = pids.iter().map(|pid| (*pid, 0)).collect();
        for pid in owners.values() {
            let Some(size) = sizes.get_mut(pid) else { return false };
            *size += 1;
        }
        let (least, most) = (sizes.values().min(), sizes.values().max());
        owners.len() == partitions as usize && least.zip(most).is_some_and(|(least, most)| most - least <= 1)
    }

    /// Returns the number of ownerships that began since then.
    #[must_use]
    pub fn begun_since(&self, at_us: u64) -> usize {
        self.0.values().filter(|term| term.from_us >= at_us).count()
    }

    /// Returns how long partitions were without an owner before each ownership that began since then, except the
    /// first.
    #[must_use]
    pub fn gaps_since(&self, at_us: u64) -> Vec<u64> {
        let mut gaps = Vec::new();
        for ((partition, epoch), term) in &self.0 {
            let before = self.0.range((*partition, 0)..(*partition, *epoch)).next_back();
            if let Some((_, before)) = before
                && term.from_us >= at_us
            {
                // A new owner may have recorded its grant before the old one recorded the release. An end that was
                // not recorded is no gap either: a separate check covers that every end is recorded.
                let ended = before.end.map_or(term.from_us, |(at, _)| at);
                gaps.push(term.from_us.saturating_sub(ended));
            }
        }
        gaps
    }
}

/// Returns the minimum number of partitions that must change owners when the number of live owners changes and the
/// numbers of partitions per owner may differ by at most one: the partitions missing from owners with too few.
#[must_use]
pub fn fewest_moves(partitions: u32, before: &BTreeMap<u32, u32>, pids: &[u32]) -> usize {
    let mut sizes: Vec<usize> =
        pids.iter().map(|pid| before.values().filter(|owner| *owner == pid).count()).collect();
    // The largest owners keep the larger shares.
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let (each, larger) = (partitions as usize / pids.len(), partitions as usize % pids.len());
    let share = |at: usize| each + usize::from(at < larger);
    sizes.iter().enumerate().map(|(at, size)| share(at).saturating_sub(*size)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_moves_are_what_is_missing() {
        let all: BTreeMap<u32, u32> = (0..32).map(|partition| (partition, 1)).collect();
        assert_eq!(fewest_moves(32, &all, &[1, 2, 3, 4, 5]), 25);
        assert_eq!(fewest_moves(32, &all, &[1]), 0);
        assert_eq!(fewest_moves(32, &all, &[2]), 32);
        let five: BTreeMap<u32, u32> = (0..32).map(|partition| (partition, partition % 5)).collect();
        assert_eq!(fewest_moves(32, &five, &[1, 2]), 32 - 7 - 6);
    }

    #[test]
    fn a_partition_is_without_an_owner_between_two_terms() {
        let line = |at_us, pid, what| Line { at_us, pid, what };
        let lines = [
            line(10, 1, What::Assigned(0, 5)),
            line(20, 1, What::Revoked(0, 5)),
            line(27, 2, What::Assigned(0, 6)),
            line(40, 2, What::Killed),
            line(90, 1, What::Assigned(0, 7)),
        ];
        let terms = Terms::of(&lines);
        assert_eq!(terms.gaps_since(0), [7, 50]);
        assert_eq!((terms.begun_since(27), terms.begun_since(28)), (2, 1));
        assert!(
            terms.are_balanced(1, &[1, 2]) && !terms.are_balanced(1, &[2]) && !terms.are_balanced(2, &[1])
        );
    }
}
