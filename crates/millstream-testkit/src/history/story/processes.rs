//! The state of processes: which are alive, which had faults alone, and when the server was unreachable for all.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_core::GroupName;

use super::super::Event;
use super::{Grant, Share};

/// A span of time, without an end if it still lasts.
type Span = (Duration, Option<Duration>);

/// All processes, and the outages that affected all of them.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    known: BTreeMap<String, Process>,
    pub(crate) outages: Vec<Span>,
    /// The last assignment of each group.
    assigned: BTreeMap<GroupName, Vec<(String, Vec<u32>)>>,
    /// Leases of processes that died during an outage, until they are granted to another process.
    pub(crate) orphans: BTreeMap<Share, Orphan>,
    /// Times of events in a group that explain a later takeover of a partition.
    upset: BTreeMap<GroupName, Vec<Duration>>,
    /// Times when processes started.
    began: BTreeMap<GroupName, Vec<Duration>>,
}

/// One process.
#[derive(Debug)]
struct Process {
    group: GroupName,
    began: Duration,
    /// Whether it has died, or is leaving.
    is_ending: bool,
    /// The spans in which it was stopped or cut off alone.
    apart: Vec<Span>,
    /// The number of faults that keep it apart at present.
    depth: u32,
    /// Whether the server received its heartbeat, and no assignment has left it out since.
    is_member: bool,
}

/// The lease of a process that died during an outage.
#[derive(Clone, Debug)]
pub(crate) struct Orphan {
    pub(crate) process: String,
    pub(crate) died: Duration,
}

impl Processes {
    pub(super) fn read(&mut self, at: Duration, event: &Event, grants: &BTreeMap<Share, Grant>) {
        match event {
            Event::Began { instance, group } => {
                let process = Process {
                    group: group.clone(),
                    began: at,
                    is_ending: false,
                    apart: Vec::new(),
                    depth: 0,
                    is_member: false,
                };
                self.known.insert(instance.clone(), process);
                self.began.entry(group.clone()).or_default().push(at);
            }
            Event::Leaving(instance) => self.ends(instance, at),
            Event::Killed(instance) => {
                if self.is_away() {
                    let theirs = |(_, grant): &(&Share, &Grant)| {
                        !grant.released && grant.to.as_deref() == Some(instance)
                    };
                    for (share, _) in grants.iter().filter(theirs) {
                        let orphan = Orphan { process: instance.clone(), died: at };
                        self.orphans.insert(share.clone(), orphan);
                    }
                }
                self.ends(instance, at);
            }
            Event::Apart(instance) => {
                self.upsets(instance, at);
                if let Some(process) = self.known.get_mut(instance) {
                    process.depth += 1;
                    if process.depth == 1 {
                        process.apart.push((at, None));
                    }
                }
            }
            Event::Together(instance) | Event::Resumed(instance) => {
                self.upsets(instance, at);
                if let Some(process) = self.known.get_mut(instance) {
                    process.depth = process.depth.saturating_sub(1);
                    if let (0, Some((_, end @ None))) = (process.depth, process.apart.last_mut()) {
                        *end = Some(at);
                    }
                }
            }
            Event::OutageBegan => self.outages.push((at, None)),
            Event::OutageEnded => {
                if let Some((_, end @ None)) = self.outages.last_mut() {
                    *end = Some(at);
                }
            }
            Event::Forgot(_) => {
                self.assigned.clear();
                self.orphans.clear();
                self.known.values_mut().for_each(|process| process.is_member = false);
            }
            Event::Joined { instance, .. } => {
                if let Some(process) = self.known.get_mut(instance) {
                    process.is_member = true;
                }
            }
            Event::Published { group, shares } => {
                for (name, process) in &mut self.known {
                    process.is_member &=
                        process.group != *group || shares.iter().any(|(other, _)| other == name);
                }
                self.assigned.insert(group.clone(), shares.clone());
            }
            Event::Granted { topic_partition, group, .. } => {
                self.orphans.remove(&(topic_partition.clone(), group.clone()));
            }
            _ => {}
        }
    }

    fn ends(&mut self, instance: &str, at: Duration) {
        self.upsets(instance, at);
        if let Some(process) = self.known.get_mut(instance) {
            process.is_ending = true;
        }
    }

    fn upsets(&mut self, instance: &str, at: Duration) {
        if let Some(process) = self.known.get(instance) {
            self.upset.entry(process.group.clone()).or_default().push(at);
        }
    }

    fn is_away(&self) -> bool {
        matches!(self.outages.last(), Some((_, None)))
    }

    /// Returns the end of the last outage that lasted at least this long; `None` if there was none.
    pub(crate) fn back_since(&self, least: Duration) -> Option<Duration> {
        let long = |(begin, end): &Span| end.filter(|end| *end - *begin >= least);
        self.outages.iter().rev().find_map(long)
    }

    /// Returns the outage at this time.
    pub(crate) fn outage_at(&self, at: Duration) -> Option<Span> {
        self.outages.iter().copied().find(|(begin, end)| *begin <= at && end.is_none_or(|end| at <= end))
    }

    /// Whether the process had no fault of its own since then, and is not ending.
    pub(crate) fn is_well(&self, instance: &str, since: Duration) -> bool {
        self.known.get(instance).is_some_and(|process| {
            let over = |(_, end): &Span| end.is_some_and(|end| end < since);
            !process.is_ending && process.apart.iter().all(over)
        })
    }

    /// Whether the ttl of a process may have passed before the outage that ended then, since it was stopped or cut off
    /// alone, and may not have sent a heartbeat again by the beginning of the outage.
    pub(crate) fn may_expire_before(&self, instance: &str, back: Duration, ttl: Duration) -> bool {
        let Some((began, _)) = self.outages.iter().find(|(_, end)| *end == Some(back)) else { return false };
        // The last heartbeat before the fault is up to a third of a ttl older, the first one after it as much later.
        let third = ttl / 3;
        self.known.get(instance).is_some_and(|process| {
            let expires =
                |(from, to): &Span| *from + 2 * third <= *began && to.is_none_or(|to| to + third > *began);
            process.apart.iter().any(expires)
        })
    }

    /// Whether a process of this name is known.
    pub(crate) fn knows(&self, instance: &str) -> bool {
        self.known.contains_key(instance)
    }

    /// Returns the members of a group.
    pub(crate) fn members<'a>(&'a self, group: &'a GroupName) -> impl Iterator<Item = &'a String> {
        let is_in = move |process: &Process| process.is_member && process.group == *group;
        self.known.iter().filter(move |(_, process)| is_in(process)).map(|(name, _)| name)
    }

    /// Whether the last assignment gives a partition to this process.
    pub(crate) fn is_assigned(&self, (topic_partition, group): &Share, instance: &str) -> bool {
        let shares = self.assigned.get(group).into_iter().flatten();
        let number = &topic_partition.partition.0;
        shares.into_iter().any(|(name, list)| name == instance && list.contains(number))
    }

    /// Returns the time by which a partition must be taken over whose owner died during an outage, given the ttl of
    /// members. `None` if another event explains a delay.
    pub(crate) fn replaced_by(
        &self,
        (_, group): &Share,
        orphan: &Orphan,
        bound: Duration,
    ) -> Option<Duration> {
        let (_, end) = self.outage_at(orphan.died)?;
        let end = end?;
        let living = |process: &&Process| process.group == *group && !process.is_ending;
        let first = self.known.values().filter(living).map(|process| process.began).min()?;
        let mut due = first.max(end) + bound;
        // A process that joins judges no other at first, and may be the one that is to own the partition.
        for began in self.began.get(group).into_iter().flatten() {
            if *began >= end && *began < due {
                due = *began + bound;
            }
        }
        let upset = self.upset.get(group).into_iter().flatten().any(|at| *at > orphan.died && *at <= due);
        let again = self.outages.iter().any(|(begin, _)| *begin > end && *begin <= due);
        (!upset && !again).then_some(due)
    }
}
