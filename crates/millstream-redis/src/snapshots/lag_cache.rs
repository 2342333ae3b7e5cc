//! Lag cache: keeps what was counted of logs, so that the next call continues from there, as long as nothing can have
//! changed it.

use std::sync::{Mutex, PoisonError};

use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::sorted::SortedMap;

use crate::snapshots::look::{GroupLook, Look};

/// Maximum number of cached pairs of log and group.
const MOST: usize = 10_000;
/// Maximum number of marks of a tally: with 2,000 entries between two, about eight million entries.
const MARKS: usize = 4_096;

/// Cached counts, by log and group.
#[derive(Default)]
pub(crate) struct LagCache(Mutex<Known>);

#[derive(Default)]
struct Known {
    all: SortedMap<(String, String), (u64, Remembered)>,
    uses: u64,
}

/// Cached counts of a group on a partition, and the server that they come from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remembered {
    pub(crate) server: String,
    /// Proof that the server's own figure was right.
    pub(crate) proof: Option<Proof>,
    /// Tally of the entries that the group has passed.
    pub(crate) passed: Option<Tally>,
    /// Tally of the entries that the group has not read.
    pub(crate) unread: Option<Tally>,
}

impl Remembered {
    fn is_empty(&self) -> bool {
        self.proof.is_none() && self.passed.is_none() && self.unread.is_none()
    }
}

impl LagCache {
    /// Returns the cached counts of a group; empty if the server is another one now.
    pub(crate) fn of(&self, log: &Key, group: &str, look: &Look) -> Remembered {
        let Some(server) = &look.server else { return Remembered::default() };
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.all.get(&(log.as_str().to_owned(), group.to_owned()));
        let same = found.filter(|(_, remembered)| remembered.server == *server);
        let anew = || Remembered { server: server.clone(), ..Remembered::default() };
        same.map_or_else(anew, |(_, remembered)| remembered.clone())
    }

    /// Replaces the cached counts of a group. Removes the least recently stored ones if there are too many.
    pub(crate) fn keep(&self, log: &Key, group: &str, remembered: Remembered) {
        let key = (log.as_str().to_owned(), group.to_owned());
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.server.is_empty() || remembered.is_empty() {
            known.all.remove(&key);
            return;
        }
        known.uses += 1;
        let uses = known.uses;
        known.all.insert(key, (uses, remembered));
        if known.all.len() > MOST {
            let mut uses: Vec<u64> = known.all.values().map(|(used, _)| *used).collect();
            // Remove a tenth at once, so that this happens rarely.
            let (_, oldest, _) = uses.select_nth_unstable(MOST / 10);
            let oldest = *oldest;
            known.all.retain(|_, (used, _)| *used > oldest);
        }
    }
}

/// Proof that the server's figure of the lag was right. It stays right as long as no entry that the group has not read
/// is deleted or trimmed, since the server counts appended and read entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Proof {
    position: MessageId,
    /// First entry that was not read; the next possible id, if there was none.
    unread: MessageId,
    appended: u64,
    removed: u64,
}

impl Proof {
    /// Makes a proof from a snapshot whose lag was `exact`. Returns `None` if the server's figure differed, or could
    /// become wrong unnoticed.
    pub(crate) fn of(look: &Look, group: &GroupLook, exact: u64) -> Option<Self> {
        let removed = look.removed?;
        let right = group.lag == Some(exact) && look.deleted? <= group.position;
        right.then_some(Self {
            position: group.position,
            unread: group.first_unread.unwrap_or(group.position.next()),
            appended: look.length.0 + removed,
            removed,
        })
    }

    /// Returns whether the server's figure is still right in this snapshot.
    pub(crate) fn holds(&self, look: &Look, group: &GroupLook) -> bool {
        let (Some(removed), Some(deleted)) = (look.removed, look.deleted) else { return false };
        // The log is the same one, and the group has only moved forward.
        let on = removed >= self.removed
            && look.length.0 + removed >= self.appended
            && group.position >= self.position;
        // Trimming removes entries from the beginning. If the first unread entry was not trimmed, everything unread
        // still exists or was read.
        let untrimmed = look.first.is_some_and(|first| first <= self.unread);
        on && untrimmed && deleted <= self.position
    }
}

/// Count of the entries of a range, from its start to the last mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Id above which the range begins.
    start: MessageId,
    /// Last id of each mark, and the number of entries since the mark before.
    marks: Vec<(MessageId, u64)>,
    /// Approximate number of entries between two marks.
    spacing: u64,
    appended: u64,
    removed: Option<u64>,
}

impl Tally {
    /// Returns an empty tally of the range above `start`.
    pub(crate) fn new(look: &Look, start: MessageId, spacing: u64) -> Self {
        let appended = look.length.0 + look.removed.unwrap_or(0);
        Self { start, marks: Vec::new(), spacing, appended, removed: look.removed }
    }

    /// Returns the number of counted entries.
    pub(crate) fn total(&self) -> u64 {
        self.marks.iter().map(|(_, entries)| entries).sum()
    }

    /// Returns the id from which the count continues.
    pub(crate) fn up_to(&self) -> MessageId {
        self.marks.last().map_or(self.start, |(up_to, _)| *up_to)
    }

    /// Returns the part of the tally that is valid for the range above `start` up to `end` of the log as it is now,
    /// and whether the entries before its first mark have to be counted again: see [`recount`](Self::recount). `None`
    /// if nothing is certain.
    pub(crate) fn fit(mut self, look: &Look, start: MessageId, end: MessageId) -> Option<(Self, bool)> {
        let appended = look.length.0 + look.removed?;
        let whole = look.removed == self.removed;
        // Trimmed entries are below `start`; entries deleted one by one may be anywhere below the largest such id.
        let intact = whole || look.deleted.is_some_and(|deleted| deleted <= start);
        if !intact || start < self.start || appended < self.appended || self.marks.len() > MARKS {
            return None;
        }
        let below = self.marks.partition_point(|(up_to, _)| *up_to <= start);
        let before = if below == 0 { self.start } else { self.marks[below - 1].0 };
        self.marks.drain(..below);
        self.marks.truncate(self.marks.partition_point(|(up_to, _)| *up_to <= end));
        (self.start, self.appended, self.removed) = (start, appended, look.removed);
        let anew = before != start && !self.marks.is_empty();
        Some((self, anew))
    }

    /// Returns the range before the first mark: above the first id, up to the second.
    pub(crate) fn first(&self) -> Option<(MessageId, MessageId)> {
        Some((self.start, self.marks.first()?.0))
    }

    /// Replaces the number of entries before the first mark.
    pub(crate) fn recount(&mut self, entries: u64) {
        if let Some(first) = self.marks.first_mut() {
            first.1 = entries;
        }
    }

    /// Adds entries that were counted up to this id.
    pub(crate) fn add(&mut self, up_to: MessageId, entries: u64) {
        match self.marks.last_mut() {
            Some(last) if last.1 + entries <= self.spacing => *last = (up_to, last.1 + entries),
            _ => self.marks.push((up_to, entries)),
        }
    }
}

#[cfg(test)]
mod tests {
    use millstream_core::keys::Keys;
    use millstream_core::topic::TopicPartition;

    use super::*;
    use crate::conn::replies::reply::Entries;

    fn id(ms: u64) -> MessageId {
        MessageId::new(ms, 0)
    }

    /// Builds a log of the entries from `first` to 100,000, one per millisecond; none above `deleted` was deleted by
    /// itself.
    fn look(first: u64, deleted: u64) -> Look {
        Look {
            length: Entries(100_001 - first),
            first: Some(id(first)),
            last: Some(id(100_000)),
            removed: Some(first - 1),
            deleted: Some(id(deleted)),
            ..Look::default()
        }
    }

    fn counted(look: &Look, start: u64, end: u64) -> Tally {
        let mut tally = Tally::new(look, id(start), 2_000);
        let mut at = start;
        while at < end {
            let page = 200.min(end - at);
            at += page;
            tally.add(id(at), page);
        }
        tally
    }

    #[test]
    fn a_tally_follows_the_group_and_the_trimmer() {
        let tally = counted(&look(1, 0), 10_000, 70_000);
        assert_eq!((tally.total(), tally.up_to(), tally.marks.len()), (60_000, id(70_000), 30));
        // The group has read up to the middle between two marks, and all trimmed entries.
        for first in [1, 20_000, 33_334] {
            let now = look(first, 0);
            let (mut fitted, anew) = tally.clone().fit(&now, id(33_333), id(100_000)).expect("it holds");
            assert!(anew && fitted.first() == Some((id(33_333), id(34_000))));
            fitted.recount(667);
            assert_eq!((fitted.total(), fitted.up_to()), (36_667, id(70_000)));
            let again = fitted.clone().fit(&now, id(34_000), id(100_000)).expect("it holds");
            assert_eq!((again.0.total(), again.1), (36_000, false), "at a mark nothing is counted anew");
        }
        let (past, anew) = tally.clone().fit(&look(1, 0), id(80_000), id(100_000)).expect("it holds");
        assert_eq!((past.total(), past.up_to(), anew), (0, id(80_000), false), "the group has passed it");
        let (back, _) = tally.fit(&look(1, 0), id(10_000), id(65_000)).expect("it holds");
        assert_eq!((back.total(), back.up_to()), (54_000, id(64_000)), "the end has gone back");
    }

    #[test]
    fn a_tally_ends_with_what_it_cannot_know() {
        let tally = counted(&look(1, 0), 10_000, 70_000);
        let fits = |look: &Look, start| tally.clone().fit(look, id(start), id(100_000)).is_some();
        assert!(!fits(&look(1, 0), 9_999), "the group went back");
        assert!(fits(&look(2, 30_000), 30_000), "deleted below");
        assert!(!fits(&look(2, 30_001), 30_000), "deleted above");
        let whole = Look { removed: tally.removed, ..look(1, 30_001) };
        assert!(fits(&whole, 30_000), "deleted before it was counted");
        assert!(!fits(&Look { length: Entries(99_999), ..look(1, 0) }, 30_000), "another log");
        assert!(!fits(&Look { removed: None, ..look(1, 0) }, 30_000), "a server that keeps no count");
    }

    #[test]
    fn a_proof_holds_until_something_unread_may_have_gone() {
        let group = |position, lag| GroupLook {
            position: id(position),
            first_unread: Some(id(position + 1)),
            lag: Some(lag),
            ..GroupLook::default()
        };
        assert_eq!(Proof::of(&look(1, 0), &group(40_000, 60_001), 60_000), None, "it was wrong");
        assert_eq!(Proof::of(&look(1, 40_001), &group(40_000, 60_000), 60_000), None, "deleted above");
        let proof = Proof::of(&look(100, 7), &group(40_000, 60_000), 60_000).expect("a proof");
        let holds = |look: &Look, position| proof.holds(look, &group(position, 1));
        assert!(holds(&look(100, 7), 40_000) && holds(&look(100, 40_000), 90_000));
        assert!(holds(&look(40_001, 7), 90_000), "trimmed up to where it stood");
        assert!(!holds(&look(40_002, 7), 90_000), "trimmed: read or not, nobody knows");
        assert!(!holds(&look(100, 40_001), 90_000), "deleted");
        assert!(!holds(&look(100, 7), 39_999), "sought");
        assert!(!holds(&look(99, 7), 40_000), "another log");
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_servers() {
        let (memory, group) = (LagCache::default(), "g");
        let at = |server: &str| Look { server: Some(server.into()), ..look(1, 0) };
        let log = |nth: u32| {
            let topic = "t".parse().expect("name");
            Keys::new().log(&TopicPartition::new(topic, nth))
        };
        let remembered = Remembered {
            server: "a".into(),
            unread: Some(counted(&at("a"), 0, 400)),
            ..Remembered::default()
        };
        let most = u32::try_from(MOST).expect("a number");
        for nth in 0..=most {
            memory.keep(&log(nth), group, remembered.clone());
        }
        assert!(memory.0.lock().expect("lock").all.len() <= MOST);
        assert!(memory.of(&log(0), group, &at("a")).is_empty(), "the oldest is forgotten");
        assert!(!memory.of(&log(most), group, &at("a")).is_empty());
        assert!(memory.of(&log(most), group, &at("b")).is_empty(), "another server");
        assert!(memory.of(&log(most), group, &look(1, 0)).is_empty(), "nobody knows which");
        memory.keep(&log(most), group, memory.of(&log(most), group, &at("b")));
        assert!(memory.of(&log(most), group, &at("a")).is_empty(), "it was forgotten");
    }
}
