//! What was counted of logs before, so that the next call goes on from there: for as long as nothing can have changed it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use millstream_core::id::MessageId;
use millstream_core::keys::Key;

use super::snapshot::{GroupLook, Look};

/// Of how many groups on partitions something is remembered.
const MOST: usize = 10_000;
/// The most marks of a tally: with 2,000 entries between two, about eight million.
const MARKS: usize = 4_096;

/// What is remembered, by log and group.
#[derive(Default)]
pub(crate) struct Memory(Mutex<Known>);

#[derive(Default)]
struct Known {
    all: BTreeMap<(String, String), (u64, Remembered)>,
    uses: u64,
}

/// What is remembered of a group on a partition, by the server that said so.
#[derive(Clone, Debug, Default)]
pub(super) struct Remembered {
    pub(super) server: String,
    /// That what the server took for the lag was right.
    pub(super) proof: Option<Proof>,
    /// The entries that the group has passed, as far as they were counted.
    pub(super) passed: Option<Tally>,
    /// The entries that it has not read, as far as they were counted.
    pub(super) unread: Option<Tally>,
}

impl Remembered {
    fn is_empty(&self) -> bool {
        self.proof.is_none() && self.passed.is_none() && self.unread.is_none()
    }
}

impl Memory {
    /// What is remembered of a group, if this is still the same server.
    pub(super) fn of(&self, log: &Key, group: &str, look: &Look) -> Remembered {
        let Some(server) = &look.server else { return Remembered::default() };
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.all.get(&(log.as_str().to_owned(), group.to_owned()));
        let same = found.filter(|(_, remembered)| remembered.server == *server);
        let anew = || Remembered { server: server.clone(), ..Remembered::default() };
        same.map_or_else(anew, |(_, remembered)| remembered.clone())
    }

    /// Remembers this, and nothing else of that group. What was not asked for longest is forgotten where there is too much.
    pub(super) fn keep(&self, log: &Key, group: &str, remembered: Remembered) {
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
            // A tenth at once, so that this is seldom.
            let (_, oldest, _) = uses.select_nth_unstable(MOST / 10);
            let oldest = *oldest;
            known.all.retain(|_, (used, _)| *used > oldest);
        }
    }
}

/// What the server took for the lag was right. It goes on being right as long as no entry is deleted or trimmed that the
/// group has not read: the server counts what is appended and what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Proof {
    position: MessageId,
    /// The first entry that was not read; what comes next, if there was none.
    unread: MessageId,
    appended: u64,
    removed: u64,
}

impl Proof {
    /// After a look at which the lag was `exact`; `None` if the server said something else, or it could go wrong unseen.
    pub(super) fn of(look: &Look, group: &GroupLook, exact: u64) -> Option<Self> {
        let removed = look.removed?;
        let right = group.lag == Some(exact) && look.deleted? <= group.position;
        right.then_some(Self {
            position: group.position,
            unread: group.first_unread.unwrap_or(group.position.next()),
            appended: look.length + removed,
            removed,
        })
    }

    /// Whether what the server takes for the lag now is still right.
    pub(super) fn holds(&self, look: &Look, group: &GroupLook) -> bool {
        let (Some(removed), Some(deleted)) = (look.removed, look.deleted) else { return false };
        // The same log, and the group has gone on.
        let on = removed >= self.removed
            && look.length + removed >= self.appended
            && group.position >= self.position;
        // Trimming takes from the beginning: what was not read then, and all that came later, is there or was read.
        let untrimmed = look.first.is_some_and(|first| first <= self.unread);
        on && untrimmed && deleted <= self.position
    }
}

/// Entries of a range that were counted, from its start to the last mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tally {
    /// Above this id.
    start: MessageId,
    /// Up to which id, and how many since the mark before.
    marks: Vec<(MessageId, u64)>,
    /// About how many entries stand between two marks.
    spacing: u64,
    appended: u64,
    removed: Option<u64>,
}

impl Tally {
    /// Nothing above `start` was counted yet.
    pub(super) fn new(look: &Look, start: MessageId, spacing: u64) -> Self {
        let appended = look.length + look.removed.unwrap_or(0);
        Self { start, marks: Vec::new(), spacing, appended, removed: look.removed }
    }

    /// How many were counted.
    pub(super) fn total(&self) -> u64 {
        self.marks.iter().map(|(_, entries)| entries).sum()
    }

    /// Where to go on.
    pub(super) fn up_to(&self) -> MessageId {
        self.marks.last().map_or(self.start, |(up_to, _)| *up_to)
    }

    /// What of it holds for the range above `start` up to `end` as the log is now. `None` if nothing is sure. What stands
    /// before its first mark may have to be counted anew: see [`recount`](Self::recount).
    pub(super) fn fit(mut self, look: &Look, start: MessageId, end: MessageId) -> Option<(Self, bool)> {
        let appended = look.length + look.removed?;
        let whole = look.removed == self.removed;
        // What leaves at the beginning is below `start`; what is deleted by itself may be anywhere below the largest.
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

    /// The range before the first mark, both ends as ids: above the one, up to the other.
    pub(super) fn first(&self) -> Option<(MessageId, MessageId)> {
        Some((self.start, self.marks.first()?.0))
    }

    /// So many stand before the first mark.
    pub(super) fn recount(&mut self, entries: u64) {
        if let Some(first) = self.marks.first_mut() {
            first.1 = entries;
        }
    }

    /// So many more were counted, up to this id.
    pub(super) fn add(&mut self, up_to: MessageId, entries: u64) {
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

    fn id(ms: u64) -> MessageId {
        MessageId::new(ms, 0)
    }

    /// A log of the entries from `first` to 100,000, one of each millisecond; above `deleted` none was deleted by itself.
    fn look(first: u64, deleted: u64) -> Look {
        Look {
            length: 100_001 - first,
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
        // The group has read up to the middle between two marks, and all that was trimmed.
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
        assert!(!fits(&Look { length: 99_999, ..look(1, 0) }, 30_000), "another log");
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
        let (memory, group) = (Memory::default(), "g");
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
