//! The story so far: what a history's records say together, up to one of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use millstream_core::{GroupName, TopicPartition};

use super::{Call, End, Event, Origin, Outcome, Place, Record, Start, Told};

mod processes;

pub(super) use processes::Processes;

/// A partition in the eyes of a group.
pub(super) type Share = (TopicPartition, GroupName);

/// What is known after some records.
#[derive(Debug, Default)]
pub(super) struct Story {
    /// What is stored where, and the number of the record that says so.
    pub(super) appended: BTreeMap<Place, Appended>,
    /// What was ever stored where, with its key: a server that forgot may give an id again.
    pub(super) ever: BTreeMap<(Place, String), Option<String>>,
    /// How often each payload was stored.
    pub(super) copies: BTreeMap<String, u32>,
    /// Who sent what: the key of each message that somebody began to send.
    pub(super) sending: BTreeMap<String, Option<String>>,
    /// What became of sends.
    pub(super) sent: BTreeMap<String, Outcome>,
    /// The handlers' runs of each message, in the order of their starts.
    pub(super) runs: BTreeMap<Origin, Vec<Run>>,
    /// By the number of their start: where a run is.
    at: BTreeMap<usize, (Origin, usize)>,
    /// Who has each partition, by the server.
    pub(super) grants: BTreeMap<Share, Grant>,
    /// The highest epoch that was ever granted.
    pub(super) highest: BTreeMap<Share, u64>,
    /// What the server was told for certain.
    pub(super) settled: BTreeMap<Origin, Settled>,
    /// What it may have been told.
    pub(super) perhaps: BTreeSet<Origin>,
    pub(super) deleted: BTreeSet<Place>,
    /// What was replayed.
    replayed: BTreeSet<Origin>,
    /// The last time that each process went on after a stop.
    pub(super) resumed: BTreeMap<String, Duration>,
    /// The processes that died.
    pub(super) killed: BTreeSet<String>,
    /// The numbers of the last records that make repetitions lawful.
    rewound: BTreeMap<Share, usize>,
    forgot: Option<usize>,
    /// When the server forgot, and everything after which time.
    pub(super) gaps: Vec<(Duration, Duration)>,
    /// In the end: dead letters, how many of each.
    pub(super) dead: BTreeMap<Origin, u32>,
    /// What becomes a dead letter without a handler's say. This is known from the start.
    pub(super) unhandled: BTreeSet<Origin>,
    /// Who has which entry where partitions are shared.
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
    /// Whether the server forgot it.
    pub(super) lost: bool,
}

/// One run of a handler.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) at: Duration,
    pub(super) start: Start,
    pub(super) end: Option<(Duration, End)>,
    /// Whether somebody else had the partition by then.
    pub(super) stale: bool,
}

#[derive(Debug)]
pub(super) struct Grant {
    pub(super) epoch: u64,
    pub(super) ttl: Duration,
    pub(super) until: Duration,
    /// When it was granted or renewed last.
    pub(super) renewed: Duration,
    pub(super) released: bool,
    /// Who asked.
    pub(super) to: Option<String>,
}

/// What the server was told last.
#[derive(Debug)]
pub(super) struct Settled {
    /// The attempt that may come next; `None` if none may.
    pub(super) next: Option<u32>,
    /// Not before this time.
    pub(super) due: Duration,
    pub(super) told: Told,
}

impl Story {
    /// Before the first record of a history.
    pub(super) fn of(history: &[Record]) -> Self {
        let unhandled = history.iter().filter_map(|record| match &record.event {
            Event::Dead { origin, reason, .. } if !by_handler(reason) => Some(origin.clone()),
            _ => None,
        });
        Self { unhandled: unhandled.collect(), ..Self::default() }
    }

    /// Reads on.
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
                    // An epoch grows by the clock where the newest grants are forgotten.
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

    /// Who has an entry of a shared partition, and since when.
    pub(super) fn holder(&self, origin: &Origin) -> Option<&(String, Duration)> {
        self.holders.get(origin)
    }

    /// Whether the lease of this start is not the last that was granted, or the entry is somebody else's.
    pub(super) fn is_stale(&self, start: &Start) -> bool {
        if start.is_shared() {
            return self.holder(&start.origin).is_some_and(|(holder, _)| *holder != start.instance);
        }
        let grant = self.grants.get(&share(&start.origin));
        grant.is_some_and(|grant| grant.epoch != start.epoch || grant.released)
    }

    /// Whether the message was there when the group was moved or the server forgot, or was replayed: then it may come again, and in
    /// another order.
    pub(super) fn is_upset(&self, origin: &Origin) -> bool {
        if self.replayed.contains(origin) {
            return true;
        }
        let Some(appended) = self.appended.get(&origin.place) else { return self.forgot.is_some() };
        let rewound = self.rewound.get(&share(origin)).copied();
        rewound.max(self.forgot).is_some_and(|number| appended.number < number)
    }

    /// Whether the server forgot, and somebody destroyed or moved the group too: its owner then goes on above what it
    /// knows to be settled, and cannot know what of that the server forgot.
    pub(super) fn is_lawless(&self, origin: &Origin) -> bool {
        self.forgot.is_some() && self.rewound.contains_key(&share(origin))
    }

    /// Whether the server forgot what was stored at this time.
    pub(super) fn is_forgotten(&self, at: Duration) -> bool {
        self.gaps.iter().any(|(since, until)| at >= *since && at <= *until)
    }

    pub(super) fn runs(&self, origin: &Origin) -> &[Run] {
        self.runs.get(origin).map_or(&[], Vec::as_slice)
    }

    /// Everything of one partition that is stored below a place and was not forgotten, the newest first.
    pub(super) fn below<'a>(&'a self, place: &'a Place) -> impl Iterator<Item = (&'a Place, &'a Appended)> {
        let earlier = self.appended.range(..place).rev();
        let here = earlier.take_while(|(other, _)| other.topic_partition == place.topic_partition);
        here.filter(|(_, stored)| !stored.lost)
    }

    /// Everything of one partition that is stored above a place and was not forgotten.
    pub(super) fn above<'a>(&'a self, place: &'a Place) -> impl Iterator<Item = (&'a Place, &'a Appended)> {
        let later = self.appended.range(place..).skip(1);
        let here = later.take_while(|(other, _)| other.topic_partition == place.topic_partition);
        here.filter(|(_, stored)| !stored.lost)
    }
}

impl Start {
    /// Whether it is one of a partition that is shared: there are no leases of messages then, and no epochs.
    pub(super) fn is_shared(&self) -> bool {
        self.epoch == 0
    }
}

/// Whether a handler's say is the reason of a dead letter.
pub(super) fn by_handler(reason: &str) -> bool {
    ["exhausted", "rejected"].contains(&reason)
}

pub(super) fn share(origin: &Origin) -> Share {
    (origin.place.topic_partition.clone(), origin.group.clone())
}
