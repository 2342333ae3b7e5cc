//! The events of a run: what every process writes down before and after it does something.
//!
//! A process writes the beginning of an operation before it starts it, and its outcome afterwards. So a killed process
//! leaves operations of unknown outcome, and none that nobody knows of. All times are those of one monotonic clock
//! ([`crate::history::now_us`]).

use serde::{Deserialize, Serialize};

/// A line of the history of a run.
pub type Line = crate::history::Line<What>;

/// A place to which messages are sent, and at which they are handled.
///
/// A topic that two groups read is two places: each group has to handle each message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The name of the topic or of the delay queue.
    pub name: String,
    /// The group; empty for a delay queue.
    pub group: String,
}

/// A phase of a run. Each ends when the next begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// Processes start; nothing is measured.
    Starting,
    /// Everything works: the rate of this phase is the baseline.
    Calm,
    /// Faults begin and end.
    Faults,
    /// The last fault has ended. Messages are still sent.
    Healed,
    /// Nothing more is sent. What was sent is handled.
    Draining,
    /// Everything is handled, or the time for it is over.
    Ended,
}

/// What a fault may excuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// One process, by its id: it was killed, stopped, or cut off.
    Process(u32),
    /// One process, by its id, was asked to shut down. It ends in good order, so nothing is repeated.
    Leaving(u32),
    /// The links of all processes: requests are late, or lost with their connections, of some processes for longer than of
    /// others. What the server has confirmed stays.
    Links,
    /// A server, for all processes alike: requests fail, or their outcome is not known. What the server has confirmed stays.
    Server,
    /// The data: a fail-over, or a server that came back with an earlier state. What the server has confirmed without
    /// waiting for replicas may be undone.
    Data,
    /// A partition, by its number, where partitions are owned: its group was destroyed, or its lease deleted.
    Partition(u32),
    /// Nothing: whoever keeps the rules does not notice it.
    Nothing,
}

/// How a message is to be treated by its handlers. It is part of the message, and the same in each group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    /// It is handled by the first attempt.
    #[default]
    Ack,
    /// This many attempts fail, and the next one succeeds.
    Fail(u32),
    /// The first attempt fails in every other process, and is done in the others: two processes that handle it at the same
    /// time say different things of it.
    Flaky,
    /// It is rejected at the first attempt, and becomes a dead letter.
    Reject,
    /// All attempts fail, until it is given up and becomes a dead letter.
    Hopeless,
}

/// What a producer knows of a send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The server confirmed it, under this partition and id.
    Stored {
        /// The partition; not known for a delayed message.
        partition: u32,
        /// The id of the entry, as text; empty for a delayed message.
        id: String,
    },
    /// It is certainly not stored.
    Refused(String),
    /// It is not known.
    Unknown(String),
}

/// A message that is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Its number, unique in the run.
    pub number: u64,
    /// The topic or delay queue that it is sent to.
    pub to: String,
    /// The producer: the name of a process, not of one of its lives.
    pub producer: String,
    /// Its key. Messages of a key are sent by one producer, one after the other, by increasing numbers.
    pub key: Option<u64>,
    /// When it is due, in milliseconds since 1970 by the true clock; 0 if it is not delayed.
    pub due_ms: u64,
    /// How handlers treat it.
    pub fate: Fate,
    /// Whether the producer waited for all replicas, where there are some: no fail-over may undo it then.
    pub safe: bool,
}

/// A message in the hands of a handler.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Handling {
    /// The place.
    pub place: Place,
    /// The number of the message.
    pub number: u64,
    /// The partition or shard.
    pub partition: u32,
    /// The id under which it was stored first, which its retries keep.
    pub origin: String,
    /// The number of the attempt: 1, 2, …
    pub attempt: u32,
    /// Ends of processes that had it in hand, as the consumer counts them.
    pub crashes: u32,
    /// The epoch of the lease; 0 where no partition is owned.
    pub epoch: u64,
}

/// How a handler ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// It is done.
    Acked,
    /// It failed, and is to be retried.
    Failed,
    /// It is to become a dead letter.
    Rejected,
}

/// What is left at a place when the run has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rest {
    /// Entries that were handed out and not settled.
    pub pending: u64,
    /// Entries that were not handed out.
    pub unread: u64,
    /// Messages that wait for a retry, or to become due.
    pub waiting: u64,
    /// Dead letters: the number of the message, or `None` if its body is not one of ours, and the reason.
    pub dead: Vec<(Option<u64>, String)>,
    /// Partitions that nobody owns, where partitions are owned.
    pub ownerless: Vec<u32>,
}

/// The kinds of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// A phase begins.
    Phase(Phase),
    /// A fault begins. It is known to the checks before it has an effect.
    Fault {
        /// The number of the fault in this run.
        fault: u32,
        /// The kind, for people.
        kind: String,
        /// What it may excuse.
        scope: Scope,
    },
    /// A fault has another scope than was to be feared: no replica was promoted.
    Kept {
        /// The number of the fault.
        fault: u32,
        /// Its scope.
        scope: Scope,
        /// When it ended: that no fail-over follows is known later.
        ended_us: u64,
    },
    /// A fault has ended.
    FaultEnded(u32),
    /// A process of this name runs, with the id of the line.
    Runs {
        /// The name, which stays when a process is replaced.
        name: String,
        /// Its role.
        role: String,
    },
    /// The process with the id of the line has ended: killed, or in good order.
    Gone {
        /// Whether it ended in good order.
        orderly: bool,
    },

    /// A producer begins to send.
    Sending(Message),
    /// A producer knows the outcome.
    Sent {
        /// The number of the message.
        number: u64,
        /// The outcome.
        outcome: Outcome,
    },

    /// A handler begins.
    Begun {
        /// The message in its hands.
        handling: Handling,
        /// Whether its body is the one that its producer sent.
        intact: bool,
        /// By how many milliseconds it comes too early by the true clock; 0 or less if it is due.
        early_ms: i64,
    },
    /// A handler is about to return.
    Ended {
        /// The message in its hands.
        handling: Handling,
        /// How.
        end: End,
    },
    /// A consumer owns a partition from now on.
    Assigned {
        /// The place.
        place: Place,
        /// The partition.
        partition: u32,
        /// The epoch of its lease.
        epoch: u64,
    },
    /// A consumer gives a partition back, or has lost it.
    Unassigned {
        /// The place.
        place: Place,
        /// The partition.
        partition: u32,
        /// The epoch of its lease.
        epoch: u64,
        /// Whether it was lost.
        lost: bool,
    },
    /// A loop met an error.
    Failing(String),
    /// A process did not do what it must: it ended by itself, did not shut down when it was asked to, caught a panic, or was
    /// fenced by another one with its member id.
    Disobeyed(String),

    /// The store of effects got a write of a handler. It refuses one whose epoch is lower than one that it has seen
    /// for the partition.
    Effect {
        /// The message.
        handling: Handling,
        /// Whether the store took it.
        accepted: bool,
    },
    /// The store got a write under a lock. It refuses one whose fence is lower than one that it has seen.
    Write {
        /// The name of the lock.
        lock: String,
        /// The fence that the writer showed.
        fence: u64,
        /// The process of the writer.
        writer: u32,
        /// Whether the store took it.
        accepted: bool,
    },

    /// A process was granted a lock.
    Locked {
        /// Its name.
        lock: String,
        /// The fence of the grant.
        fence: u64,
        /// Its ttl in milliseconds.
        ttl_ms: u64,
    },
    /// A process is about to release the lock.
    Releasing {
        /// Its name.
        lock: String,
        /// The fence of the grant.
        fence: u64,
    },
    /// A process no longer holds the lock.
    Unlocked {
        /// Its name.
        lock: String,
        /// The fence of the grant.
        fence: u64,
        /// Whether it was released; otherwise it was lost, as its holder was told.
        released: bool,
    },

    /// An audit during the run: what `verify` said of the server's own data.
    Audit {
        /// The faults that it found, as text. None is allowed.
        findings: Vec<String>,
    },
    /// What is left at the end.
    Left {
        /// The place.
        place: Place,
        /// What is left.
        rest: Rest,
    },
    /// The tasks that a process has at work, of its handlers and of ours; every few seconds.
    Tasks(u64),
    /// What servers and processes use: at the end of the calm phase, before nothing more is sent, and when all is handled.
    Usage {
        /// Memory that the servers use for data, in bytes.
        server_bytes: u64,
        /// Connections to the servers.
        connections: u64,
        /// Keys on the servers.
        keys: u64,
        /// Resident memory of each process, by name, in bytes.
        resident: Vec<(String, u64)>,
        /// Threads of each process, by name.
        threads: Vec<(String, u64)>,
    },
}
