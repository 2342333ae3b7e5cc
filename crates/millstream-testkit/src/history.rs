//! Histories: what happened in a run, and whether it was allowed to.
//!
//! A [`History`] is written by three hands: producers and handlers note what they do and see, a recorder
//! [around](History::around) the backend notes what the server did, in its order, and whoever makes faults notes them.
//! [`check`] then reads it from start to end. What is wrong it tells as [`Breach`]es.
//!
//! Messages are told apart by their payload, without white space around it: give each one of its own.

mod checks;
mod naming;
mod recorder;
mod shared;
mod story;

use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::{Backend, GroupName, MessageId, TopicPartition};
use tokio::time::Instant;

pub use checks::{Breach, Lives, Order, Rules, check};

/// Where a message stands in a log: what names it for ever.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Place {
    /// The partition.
    pub topic_partition: TopicPartition,
    /// The id in its log.
    pub id: MessageId,
    /// How many other messages had this id before: a server that forgot them, and whose clock went back, gives their
    /// ids again. Recorders leave this at 0, [`check`] finds it out.
    pub reuse: u32,
}

impl Place {
    /// The place with this id.
    #[must_use]
    pub fn new(topic_partition: TopicPartition, id: MessageId) -> Self {
        Self { topic_partition, id, reuse: 0 }
    }
}

/// A place in the eyes of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The group.
    pub group: GroupName,
    /// The place.
    pub place: Place,
}

/// How a send ended, as its sender knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is stored there.
    Ok(Place),
    /// It is certainly not stored.
    Fail,
    /// Nobody knows.
    Info,
}

/// The start of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Which process it runs in.
    pub instance: String,
    /// The message.
    pub origin: Origin,
    /// Its payload.
    pub message: String,
    /// Its key.
    pub key: Option<String>,
    /// The number of the attempt.
    pub attempt: u32,
    /// The epoch of the lease under which it was read.
    pub epoch: u64,
}

/// The end of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It said that the message is done.
    Acked,
    /// It failed, and the message comes back after this time.
    Failed(Duration),
    /// It put the message off by this time: it comes back as the same attempt.
    Snoozed(Duration),
    /// It failed for the last time, or said that there is no use: a dead letter.
    Dead,
}

/// What the server was told of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is done.
    Ack,
    /// It is a dead letter.
    Dead,
    /// It comes back, as this attempt and not before this time from now.
    Again(u32, Duration),
    /// It is merely noted as pending.
    Noted,
}

/// How a consumer that shares partitions comes to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handing {
    /// It read it.
    Read,
    /// It took it over from a consumer that is not alive.
    Claimed,
    /// It took over what another one gave back.
    GivenBack,
}

/// What is done under a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Reading.
    Fetch,
    /// Settling.
    Settle,
    /// Moving the group.
    Seek,
    /// Dropping what is consumed.
    Trim,
    /// Moving what is due.
    Promote,
    /// Renewing the lease.
    Renew,
    /// Giving it back.
    Release,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A producer begins to send a message.
    Sending {
        /// Who. One sender sends one message after the other.
        sender: String,
        /// The payload.
        message: String,
        /// The key.
        key: Option<String>,
    },
    /// It knows what became of it.
    Sent {
        /// The payload.
        message: String,
        /// What became of it.
        outcome: Outcome,
    },
    /// The server has stored an entry.
    Appended {
        /// Where.
        place: Place,
        /// The payload; `None` if the entry is not a message.
        message: Option<String>,
        /// The key.
        key: Option<String>,
    },
    /// The server has granted a lease.
    Granted {
        /// On which partition.
        topic_partition: TopicPartition,
        /// To which group.
        group: GroupName,
        /// The epoch of the grant.
        epoch: u64,
        /// Whether it is a grant that was made before: the same request came twice.
        again: bool,
        /// How long it lives.
        ttl: Duration,
        /// The process that asked, if it has a [name](crate::chaos::Client::name).
        to: Option<String>,
    },
    /// The server has handed an entry to a consumer that shares partitions.
    Handed {
        /// Which.
        origin: Origin,
        /// The process.
        to: String,
        /// How.
        how: Handing,
    },
    /// The server has taken a heartbeat of a process for the first time, or for the first time since the assignment
    /// left it out.
    Heard {
        /// Which process.
        instance: String,
        /// In which group.
        group: GroupName,
    },
    /// The server has taken an assignment.
    Published {
        /// Of which group.
        group: GroupName,
        /// The processes that are in it, with the numbers of their partitions.
        shares: Vec<(String, Vec<u32>)>,
    },
    /// The server has done something that needs a lease.
    Accepted {
        /// In which partition.
        topic_partition: TopicPartition,
        /// For which group.
        group: GroupName,
        /// The epoch of the lease that was shown.
        epoch: u64,
        /// What.
        call: Call,
    },
    /// The server was told of a message.
    Settled {
        /// Which.
        origin: Origin,
        /// What.
        told: Told,
        /// Whether it took effect for certain; else some of the batch did.
        certain: bool,
    },
    /// A handler starts. The record's number names it.
    Started(Start),
    /// A handler ends.
    Ended {
        /// The number of the record of its start.
        start: usize,
        /// How.
        end: End,
    },
    /// In the end: a dead letter.
    Dead {
        /// Of which message.
        origin: Origin,
        /// Its payload; `None` if it is not a message.
        message: Option<String>,
        /// Why.
        reason: String,
        /// How many attempts were made.
        attempts: u32,
    },
    /// In the end: how a partition stands with a group.
    Left {
        /// The partition.
        topic_partition: TopicPartition,
        /// The group.
        group: GroupName,
        /// Entries that are unread, pending or parked.
        entries: u64,
    },
    /// Somebody deleted an entry.
    Deleted(Place),
    /// Somebody moved or destroyed a group: what it was handed before may come again.
    Rewound {
        /// In which partition.
        topic_partition: TopicPartition,
        /// The group.
        group: GroupName,
    },
    /// Somebody replayed a dead letter: the message begins anew.
    Replayed(Origin),
    /// The server forgot everything after that time.
    Forgot(Duration),
    /// A process starts in a group.
    Began {
        /// Which.
        instance: String,
        /// The group.
        group: GroupName,
    },
    /// A process is to leave in good order, or its consumer has ended by itself.
    Leaving(String),
    /// A process is stopped, or cut off alone.
    Apart(String),
    /// It is not cut off any more.
    Together(String),
    /// A process was stopped, and goes on now.
    Resumed(String),
    /// A process died.
    Killed(String),
    /// The server is away from all.
    OutageBegan,
    /// It is there again.
    OutageEnded,
    /// The server's clock was set back by so much.
    ClockSetBack(Duration),
    /// Anything else that was done to the system.
    Fault(String),
    /// Something that a process told of itself.
    Said {
        /// Which.
        instance: String,
        /// What.
        what: String,
    },
}

/// An event and its time since the history's begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// When.
    pub at: Duration,
    /// What.
    pub event: Event,
}

/// What happened so far. Clones write the same history.
#[derive(Clone)]
pub struct History {
    begin: Instant,
    records: Arc<Mutex<Vec<Record>>>,
}

impl History {
    /// An empty history that begins now, by tokio's clock.
    #[must_use]
    pub fn new() -> Self {
        Self { begin: Instant::now(), records: Arc::default() }
    }

    /// Notes an event. Gives back its number.
    pub fn record(&self, event: Event) -> usize {
        let mut records = self.lock();
        records.push(Record { at: self.now(), event });
        records.len() - 1
    }

    /// The time since the begin.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    /// The backend, with a recorder around it that notes what it does, in its order. Put it below whatever makes
    /// faults.
    #[must_use]
    pub fn around(&self, backend: impl Into<Backend>) -> Backend {
        recorder::around(self.clone(), backend.into())
    }

    /// Everything that was noted.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.lock().clone()
    }

    /// A number that differs if anything happened in another way or at another time.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for record in self.lock().iter() {
            hasher.write(record.to_string().as_bytes());
        }
        hasher.finish()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").field("records", &self.lock().len()).finish_non_exhaustive()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.topic_partition, self.id)?;
        (0..self.reuse).try_for_each(|_| f.write_str("'"))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.place, self.group)
    }
}

/// One line of a trace.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>10.3} ", self.at.as_secs_f64() * 1_000.0)?;
        match &self.event {
            Event::Started(start) => {
                let Start { instance, origin, message, key, attempt, epoch } = start;
                write!(
                    f,
                    "{instance} starts {message} ({origin}, key {key:?}), attempt {attempt}, epoch {epoch}"
                )
            }
            Event::Settled { origin, told, certain } => {
                write!(f, "server settles {origin}: {told:?}{}", if *certain { "" } else { " (perhaps)" })
            }
            Event::Accepted { topic_partition, group, epoch, call } => {
                write!(f, "server accepts {call:?} on {topic_partition} of {group}, epoch {epoch}")
            }
            Event::Granted { topic_partition, group, epoch, again, to, .. } => {
                let again = if *again { " again" } else { "" };
                let to = to.as_deref().unwrap_or("somebody");
                write!(f, "server grants {topic_partition} of {group}{again} to {to}, epoch {epoch}")
            }
            Event::Handed { origin, to, how } => write!(f, "server hands {origin} to {to}: {how:?}"),
            Event::Appended { place, message, key } => {
                write!(f, "server appends {message:?} at {place}, key {key:?}")
            }
            Event::Fault(what) => write!(f, "** {what}"),
            Event::Said { instance, what } => write!(f, "{instance} says: {what}"),
            other => write!(f, "{other:?}"),
        }
    }
}
