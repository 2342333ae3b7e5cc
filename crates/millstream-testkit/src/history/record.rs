//! Records: the events of a run with their times.

use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::{GroupName, MessageId, TopicPartition};
use tokio::time::Instant;

/// The position of a message in a log: its permanent identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Place {
    /// The partition.
    pub topic_partition: TopicPartition,
    /// The id in its log.
    pub id: MessageId,
    /// How many other messages had this id before. A server that lost them, and whose clock went back, assigns their
    /// ids again. Recorders leave this at 0; [`check`](super::check) computes it.
    pub reuse: u32,
}

impl Place {
    /// Creates the place with this id.
    #[must_use]
    pub fn new(topic_partition: TopicPartition, id: MessageId) -> Self {
        Self { topic_partition, id, reuse: 0 }
    }
}

/// A place, for one group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Origin {
    /// The group.
    pub group: GroupName,
    /// The place.
    pub place: Place,
}

/// The result of a send, as known to its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The message is stored at this place.
    Ok(Place),
    /// The message is certainly not stored.
    Fail,
    /// It is unknown whether the message is stored.
    Info,
}

/// The start of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The process that runs the handler.
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
    /// The handler acked the message.
    Acked,
    /// The handler failed, and the message comes back after this time.
    Failed(Duration),
    /// The handler snoozed the message by this time: it comes back as the same attempt.
    Snoozed(Duration),
    /// The handler failed for the last time, or rejected the message: it becomes a dead letter.
    Dead,
}

/// The settlement of a message that the server received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// The message is done.
    Ack,
    /// The message is a dead letter.
    Dead,
    /// The message comes back, as this attempt and after this time at the earliest.
    Again(u32, Duration),
    /// The message stays pending, with a note.
    Noted,
}

/// The way in which a consumer that shares partitions got an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handing {
    /// It read the entry.
    Read,
    /// It took the entry over from a consumer that is not alive.
    Claimed,
    /// It took over an entry that another consumer gave back.
    GivenBack,
}

/// An operation that needs a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Reading.
    Fetch,
    /// Settling.
    Settle,
    /// Moving the group's position.
    Seek,
    /// Dropping consumed entries.
    Trim,
    /// Moving due messages to the log.
    Promote,
    /// Renewing the lease.
    Renew,
    /// Releasing the lease.
    Release,
}

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A producer begins to send a message.
    Sending {
        /// The sender. One sender sends one message after the other.
        sender: String,
        /// The payload.
        message: String,
        /// The key.
        key: Option<String>,
    },
    /// The producer knows the result of a send.
    Sent {
        /// The payload.
        message: String,
        /// The result.
        outcome: Outcome,
    },
    /// The server has stored an entry.
    Appended {
        /// The place of the entry.
        place: Place,
        /// The payload; `None` if the entry is not a message.
        message: Option<String>,
        /// The key.
        key: Option<String>,
    },
    /// The server has granted a lease.
    Granted {
        /// The partition of the lease.
        topic_partition: TopicPartition,
        /// The group that it was granted to.
        group: GroupName,
        /// The epoch of the grant.
        epoch: u64,
        /// Whether the grant was made before: the same request arrived twice.
        again: bool,
        /// The ttl of the lease.
        ttl: Duration,
        /// The process that requested it, if it has a [name](crate::chaos::Client::name).
        to: Option<String>,
    },
    /// The server has delivered an entry to a consumer that shares partitions.
    Handed {
        /// The message of the entry.
        origin: Origin,
        /// The process that received it.
        to: String,
        /// The way in which it got the entry.
        how: Handing,
    },
    /// The server has accepted a heartbeat of a process for the first time, or for the first time since an assignment
    /// left the process out.
    Joined {
        /// The process.
        instance: String,
        /// Its group.
        group: GroupName,
    },
    /// The server has accepted an assignment.
    Published {
        /// The group of the assignment.
        group: GroupName,
        /// The processes in it, with the numbers of their partitions.
        shares: Vec<(String, Vec<u32>)>,
    },
    /// The server has performed an operation that needs a lease.
    Accepted {
        /// The partition.
        topic_partition: TopicPartition,
        /// The group.
        group: GroupName,
        /// The epoch of the lease that was passed.
        epoch: u64,
        /// The operation.
        call: Call,
    },
    /// The server received a settlement.
    Settled {
        /// The message.
        origin: Origin,
        /// The settlement.
        told: Told,
        /// Whether it certainly took effect; otherwise only some settlements of its batch did.
        certain: bool,
    },
    /// A handler starts. Identified by the number of the record.
    Started(Start),
    /// A handler ends.
    Ended {
        /// The number of the record of its start.
        start: usize,
        /// The result of the handler.
        end: End,
    },
    /// At the end of the run: a dead letter.
    Dead {
        /// The message.
        origin: Origin,
        /// Its payload; `None` if the entry is not a message.
        message: Option<String>,
        /// The reason.
        reason: String,
        /// The number of attempts that were made.
        attempts: u32,
    },
    /// At the end of the run: the remaining work of a group in a partition.
    Left {
        /// The partition.
        topic_partition: TopicPartition,
        /// The group.
        group: GroupName,
        /// Entries that are unread, pending or parked.
        entries: u64,
    },
    /// An operator deleted an entry.
    Deleted(Place),
    /// An operator moved or destroyed a group: entries delivered before may be delivered again.
    Rewound {
        /// The partition.
        topic_partition: TopicPartition,
        /// The group.
        group: GroupName,
    },
    /// An operator replayed a dead letter: the message starts over.
    Replayed(Origin),
    /// The server lost everything after this time.
    Forgot(Duration),
    /// A process starts in a group.
    Began {
        /// The process.
        instance: String,
        /// The group.
        group: GroupName,
    },
    /// A process was requested to shut down, or its consumer has ended by itself.
    Leaving(String),
    /// A process is stopped, or is the only one that is cut off.
    Apart(String),
    /// The process is no longer cut off.
    Together(String),
    /// A process that was stopped continues.
    Resumed(String),
    /// A process died.
    Killed(String),
    /// The server becomes unreachable for all processes.
    OutageBegan,
    /// The server is reachable again.
    OutageEnded,
    /// The server's clock was set back by this much.
    ClockSetBack(Duration),
    /// Any other fault that was injected.
    Fault(String),
    /// A message reported by a process.
    Said {
        /// The process.
        instance: String,
        /// The message.
        what: String,
    },
}

/// An event and its time since the start of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The time since the start of the history.
    pub at: Duration,
    /// The event.
    pub event: Event,
}

/// The events so far. Clones write the same history.
#[derive(Clone)]
pub struct History {
    begin: Instant,
    records: Arc<Mutex<Vec<Record>>>,
}

impl History {
    /// Creates an empty history that starts now, by tokio's clock.
    #[must_use]
    pub fn new() -> Self {
        Self { begin: Instant::now(), records: Arc::default() }
    }

    /// Records an event. Returns its number.
    pub fn record(&self, event: Event) -> usize {
        let mut records = self.lock();
        records.push(Record { at: self.now(), event });
        records.len() - 1
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Returns all records.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.lock().clone()
    }

    /// Returns a hash that differs if any event, or its time, differs.
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

/// Formats one line of a trace.
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
