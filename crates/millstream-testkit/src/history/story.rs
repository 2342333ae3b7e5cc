//! The state of a run: what the records of a history up to one of them imply together.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use millstream_core::{GroupName, TopicPartition};

use super::{Call, End, Event, Origin, Outcome, Place, Record, Start, Told};

mod processes;

pub(super) use processes::Processes;

/// A partition, for one group.
pub(super) type Share = (TopicPartition, GroupName);

/// The state after some records.
#[derive(Debug, Default)]
pub(super) struct Story {
    /// The stored messages, and the numbers of their records.
    pub(super) appended: BTreeMap<Place, Appended>,
    /// All places and payloads that were ever stored, with their keys: a server that lost a message may assign its id
    /// again.
    pub(super) ever: BTreeMap<(Place, String), Option<String>>,
    /// How often each payload was stored.
    pub(super) copies: BTreeMap<String, u32>,
    /// The key of each message that a sender began to send.
    pub(super) sending: BTreeMap<String, Option<String>>,
    /// The results of sends.
    pub(super) sent: BTreeMap<String, Outcome>,
    /// The handler runs of each message, in the order of their starts.
    pub(super) runs: BTreeMap<Origin, Vec<Run>>,
    /// The position of each run, by the number of its start record.
    at: BTreeMap<usize, (Origin, usize)>,
    /// The owner of each partition, according to the server.
    pub(super) grants: BTreeMap<Share, Grant>,
    /// The highest epoch that was ever granted.
    pub(super) highest: BTreeMap<Share, u64>,
    /// Settlements that certainly took effect.
    pub(super) settled: BTreeMap<Origin, Settled>,
    /// Messages for which a settlement may have taken effect.
    pub(super) perhaps: BTreeSet<Origin>,
    pub(super) deleted: BTreeSet<Place>,
    /// Replayed messages.
    replayed: BTreeSet<Origin>,
    /// The last time that each process continued after a stop.
    pub(super) resumed: BTreeMap<String, Duration>,
    /// The processes that died.
    pub(super) killed: BTreeSet<String>,
    /// The numbers of the last records that permit repetitions.
    rewound: BTreeMap<Share, usize>,
    forgot: Option<usize>,
    /// The times when the server lost data, each with the time after which everything was lost.
    pub(super) gaps: Vec<(Duration, Duration)>,
    /// At the end: the number of dead letters of each message.
    pub(super) dead: BTreeMap<Origin, u32>,
    /// Messages that become dead letters without a handler's decision. Known from the start.
    pub(super) unhandled: BTreeSet<Origin>,
    /// The holder of each entry of a shared partition.
    holders: BTreeMap<Origin, (String, Duration)>,
    /// Whether the server's clock was set back.
    is_behind: bool,
    pub(super) processes: Processes,
}

#[derive(Debug)]
pub(super) struct Appended {
    pub(super) at: Duration,
    pub(super) number: usize,
    pub(super) message: Option<String>,
    pub(super) key: Option<String>,
    /// Whether the server lost it.
    pub(super) lost: bool,
}

/// One run of a handler.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) at: Duration,
    pub(super) start: Start,
    pub(super) end: Option<(Duration, End)>,
    /// Whether another process had the partition by then.
    pub(super) stale: bool,
}

#[derive(Debug)]
pub(super) struct Grant {
    pub(super) epoch: u64,
    pub(super) ttl: Duration,
    pub(super) until: Duration,
    /// The time when it was last granted or renewed.
    pub(super) renewed: Duration,
    pub(super) released: bool,
    /// The process that requested it.
    pub(super) to: Option<String>,
}

/// The last settlement that the server received.
#[derive(Debug)]
pub(super) struct Settled {
    /// The next attempt; `None` if there must be none.
    pub(super) next: Option<u32>,
    /// The earliest time of that attempt.
    pub(super) due: Duration,
    pub(super) told: Told,
}

impl Story {
    /// Returns the state before the first record of a history.
    pub(super) fn of(history: &[Record]) -> Self {
        let unhandled = history.iter().filter_map(|record| match &record.event {
            Event::Dead { origin, reason, .. } if !by_handler(reason) => Some(origin.clone()),
            _ => None,
        });
        Self { unhandled: unhandled.collect(), ..Self::default() }
    }

    /// Applies the next record.
    pub(super) fn read(&mut self, number: usize, record: &Record) {
        let at = record.at;
        self.processes.read(at, &record.event, &self.grants);
        match &record.event {
            Event::Sending { message, key, .. } => {
                self.sending.insert(message.clone(), key.clone());
            }
            Event::Sent { message, outcome } => {
                self.sent.insert(message.clone(), outcome.clone());
            }
            Event::Appended { place, message, key } => {
                if let Some(message) = message {
                    *self.copies.entry(message.clone()).or_default() += 1;
                    self.ever.insert((place.clone(), message.clone()), key.clone());
                }
                let (message, key) = (message.clone(), key.clone());
                let appended = Appended { at, number, message, key, lost: false };
                self.appended.insert(place.clone(), appended);
            }
            Event::Granted { topic_partition, group, epoch, ttl, to, .. } => {
                let share = (topic_partition.clone(), group.clone());
                let highest = self.highest.entry(share.clone()).or_default();
                *highest = (*highest).max(*epoch);
                let (epoch, ttl, until) = (*epoch, *ttl, at + *ttl);
                let (renewed, to) = (at, to.clone());
                self.grants.insert(share, Grant { epoch, ttl, until, renewed, released: false, to });
            }
            Event::Accepted { topic_partition, group, epoch, call } => {
                let share = (topic_partition.clone(), group.clone());
                if let Some(grant) = self.grants.get_mut(&share).filter(|grant| grant.epoch == *epoch) {
                    match call {
                        Call::Renew => (grant.until, grant.renewed) = (at + grant.ttl, at),
                        Call::Release => grant.released = true,
                        _ => {}
                    }
                }
            }
            Event::Settled { origin, certain: false, .. } => {
                self.perhaps.insert(origin.clone());
            }
            Event::Settled { origin, told, .. } if *told != Told::Noted => {
                let (next, due) = match told {
                    Told::Again(attempt, after) => (Some(*attempt), at + *after),
                    _ => (None, at),
                };
                // A request that arrived twice counts from the first time.
                let before = self.settled.get(origin).filter(|before| before.next == next && next.is_some());
                let due = before.map_or(due, |before| before.due.min(due));
                self.settled.insert(origin.clone(), Settled { next, due, told: told.clone() });
            }
            Event::Started(start) => {
                let stale = self.is_stale(start);
                let runs = self.runs.entry(start.origin.clone()).or_default();
                self.at.insert(number, (start.origin.clone(), runs.len()));
                runs.push(Run { at, start: start.clone(), end: None, stale });
            }
            Event::Ended { start, end } => {
                if let Some((origin, index)) = self.at.get(start)
                    && let Some(run) = self.runs.get_mut(origin).and_then(|runs| runs.get_mut(*index))
                {
                    run.end = Some((at, *end));
                }
            }
            Event::Dead { origin, .. } => *self.dead.entry(origin.clone()).or_default() += 1,
            Event::Deleted(place) => {
                self.deleted.insert(place.clone());
            }
            Event::Replayed(origin) => {
                self.replayed.insert(origin.clone());
            }
            Event::Rewound { topic_partition, group } => {
                self.rewound.insert((topic_partition.clone(), group.clone()), number);
                self.holders.retain(|origin, _| {
                    origin.place.topic_partition != *topic_partition || origin.group != *group
                });
            }
            Event::Forgot(since) => {
                self.forgot = Some(number);
                self.gaps.push((*since, at));
                self.grants.clear();
                self.holders.clear();
                for appended in self.appended.values_mut() {
                    appended.lost |= appended.at >= *since;
                }
                if self.is_behind {
                    // Epochs grow by the clock after the newest grants were lost.
                    self.highest.clear();
                }
            }
            Event::ClockSetBack(_) => {
                self.is_behind = true;
                if self.forgot.is_some() {
                    self.highest.clear();
                }
            }
            Event::Handed { origin, to, .. } => {
                self.holders.insert(origin.clone(), (to.clone(), at));
            }
            Event::Resumed(instance) => {
                self.resumed.insert(instance.clone(), at);
            }
            Event::Killed(instance) => {
                self.killed.insert(instance.clone());
            }
            _ => {}
        }
    }

    /// Returns the holder of an entry of a shared partition, and since when it holds it.
    pub(super) fn holder(&self, origin: &Origin) -> Option<&(String, Duration)> {
        self.holders.get(origin)
    }

    /// Whether the lease of this start is not the last one granted, or the entry has another holder.
    pub(super) fn is_stale(&self, start: &Start) -> bool {
        if start.is_shared() {
            return self.holder(&start.origin).is_some_and(|(holder, _)| *holder != start.instance);
        }
        let grant = self.grants.get(&share(&start.origin));
        grant.is_some_and(|grant| grant.epoch != start.epoch || grant.released)
    }

    /// Whether the message existed when the group was moved or the server lost data, or was replayed. It may then
    /// come again, and in another order.
    pub(super) fn is_upset(&self, origin: &Origin) -> bool {
        if self.replayed.contains(origin) {
            return true;
        }
        let Some(appended) = self.appended.get(&origin.place) else { return self.forgot.is_some() };
        let rewound = self.rewound.get(&share(origin)).copied();
        rewound.max(self.forgot).is_some_and(|number| appended.number < number)
    }

    /// Whether the server lost data, and the group was destroyed or moved too. Its owner then continues above the
    /// settled entries that it knows of, and cannot know which of them the server lost.
    pub(super) fn is_lawless(&self, origin: &Origin) -> bool {
        self.forgot.is_some() && self.rewound.contains_key(&share(origin))
    }

    /// Whether the server lost what was stored at this time.
    pub(super) fn is_forgotten(&self, at: Duration) -> bool {
        self.gaps.iter().any(|(since, until)| at >= *since && at <= *until)
    }

    pub(super) fn runs(&self, origin: &Origin) -> &[Run] {
        self.runs.get(origin).map_or(&[], Vec::as_slice)
    }

    /// Returns the stored messages of one partition below a place, without lost ones, newest first.
    pub(super) fn below<'a>(&'a self, place: &'a Place) -> impl Iterator<Item = (&'a Place, &'a Appended)> {
        let earlier = self.appended.range(..place).rev();
        let here = earlier.take_while(|(other, _)| other.topic_partition == place.topic_partition);
        here.filter(|(_, stored)| !stored.lost)
    }

    /// Returns the stored messages of one partition above a place, without lost ones.
    pub(super) fn above<'a>(&'a self, place: &'a Place) -> impl Iterator<Item = (&'a Place, &'a Appended)> {
        let later = self.appended.range(place..).skip(1);
        let here = later.take_while(|(other, _)| other.topic_partition == place.topic_partition);
        here.filter(|(_, stored)| !stored.lost)
    }
}

impl Start {
    /// Whether the start belongs to a shared partition. Messages then have no leases and no epochs.
    pub(super) fn is_shared(&self) -> bool {
        self.epoch == 0
    }
}

/// Whether the reason of a dead letter is a handler's decision.
pub(super) fn by_handler(reason: &str) -> bool {
    ["exhausted", "rejected"].contains(&reason)
}

pub(super) fn share(origin: &Origin) -> Share {
    (origin.place.topic_partition.clone(), origin.group.clone())
}
