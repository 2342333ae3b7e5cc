//! What goes wrong in a run. The seed decides which kinds of faults there are, when each begins, on what, and for how long.
//!
//! Two threads cause faults at the same time, each one after the other: [`Processes`] is the processes, and [`servers`] has
//! faults of servers and links. A fault is recorded before it has an effect, and ended before the next one begins.

mod processes;
pub mod servers;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

pub use processes::{Managed, Processes};

use super::deployment::Topology;
use super::record::{Scope, What};
use crate::history::Sink;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A process is killed, and comes back under its name.
    Kill,
    /// A process is stopped, for up to two ttls.
    Stop,
    /// A process is asked to shut down, and comes back.
    Leave,
    /// What a process sends is held back, for up to two ttls, and then arrives: late requests, of a former owner.
    Isolate,
    /// The clock of a process is set, by up to an hour.
    ShiftClock,

    /// All links are late.
    Delay,
    /// All links are slow.
    Slow,
    /// The network drops packets to the servers. Needs a network of its own.
    DropPackets,
    /// A link is cut, and refuses connections.
    Cut,
    /// A link is silent in both directions.
    HalfOpen,
    /// What is sent on a link takes effect, and its replies are lost with the connections.
    LostReplies,
    /// Connections are closed by the server.
    KillClients,
    /// The server lets its clients wait.
    PauseClients,
    /// The server forgets all scripts.
    FlushScripts,
    /// The process of a server is stopped.
    StopServer,
    /// The process of a server is killed, and comes back with what its file has.
    RestartServer,
    /// The server has no memory for more.
    OutOfMemory,
    /// The disk of the server is full.
    DiskFull,
    /// The leases of some partitions are deleted.
    DeleteLeases,
    /// The group of owners is destroyed on a partition.
    DestroyGroup,
    /// A replica is promoted in good order.
    FailOver,
    /// A primary is killed, and a replica takes over.
    KillPrimary,
    /// The replicas stop, then the primary is killed: one of them takes over without the last writes.
    LoseTail,
    /// Slots move to another node.
    MoveSlots,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 24] = [
        Self::Kill,
        Self::Stop,
        Self::Leave,
        Self::Isolate,
        Self::ShiftClock,
        Self::Delay,
        Self::Slow,
        Self::DropPackets,
        Self::Cut,
        Self::HalfOpen,
        Self::LostReplies,
        Self::KillClients,
        Self::PauseClients,
        Self::FlushScripts,
        Self::StopServer,
        Self::RestartServer,
        Self::OutOfMemory,
        Self::DiskFull,
        Self::DeleteLeases,
        Self::DestroyGroup,
        Self::FailOver,
        Self::KillPrimary,
        Self::LoseTail,
        Self::MoveSlots,
    ];

    /// Returns whether it is a fault of processes, not of servers and links.
    #[must_use]
    pub fn is_of_processes(self) -> bool {
        matches!(self, Self::Kill | Self::Stop | Self::Leave | Self::Isolate | Self::ShiftClock)
    }

    /// Returns whether it can occur on servers that are set up so.
    #[must_use]
    pub fn occurs_on(self, topology: Topology) -> bool {
        match self {
            Self::FailOver | Self::KillPrimary | Self::LoseTail => topology.has_replicas(),
            Self::MoveSlots => topology.is_cluster(),
            // With replicas, one of them takes over: that is `KillPrimary`.
            // And where there are several servers, processes share the links to them.
            Self::RestartServer | Self::DiskFull | Self::Isolate => !topology.has_replicas(),
            _ => true,
        }
    }

    /// Chooses the kinds of a run: each of those that can occur with a chance of one half, at least two of processes and
    /// three of servers and links, and at most four of either, so that even a short run causes each.
    #[must_use]
    pub fn choose(topology: Topology, random: &mut fastrand::Rng) -> Vec<Self> {
        let mut chosen = Vec::new();
        for (of_processes, fewest) in [(true, 2), (false, 3)] {
            let mut kinds: Vec<Self> = Self::ALL
                .into_iter()
                .filter(|kind| kind.is_of_processes() == of_processes && kind.occurs_on(topology))
                .collect();
            random.shuffle(&mut kinds);
            let count = (0..kinds.len()).filter(|_| random.bool()).count().clamp(fewest, MOST);
            chosen.extend(kinds.into_iter().take(count));
        }
        chosen
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `KillPrimary` is `kill-primary`.
        for (at, letter) in format!("{self:?}").chars().enumerate() {
            if letter.is_ascii_uppercase() && at > 0 {
                f.write_str("-")?;
            }
            write!(f, "{}", letter.to_ascii_lowercase())?;
        }
        Ok(())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = || Self::ALL.map(|one| one.to_string()).join(", ");
        let named = Self::ALL.into_iter().find(|one| one.to_string() == text);
        named.ok_or_else(|| format!("not one of {}: {text}", all()))
    }
}

/// Most kinds of faults of processes, and of servers and links, that are chosen for a run.
const MOST: usize = 4;

/// Kinds of faults in turn, each round in another order.
#[derive(Debug)]
pub struct Turns<'a> {
    kinds: &'a [Kind],
    left: Vec<Kind>,
}

impl<'a> Turns<'a> {
    /// Returns the turns of these kinds.
    #[must_use]
    pub fn new(kinds: &'a [Kind]) -> Self {
        Self { kinds, left: Vec::new() }
    }

    /// Returns the next kind; `None` if there are none.
    pub fn next(&mut self, random: &mut fastrand::Rng) -> Option<Kind> {
        if self.left.is_empty() {
            self.left = self.kinds.to_vec();
            random.shuffle(&mut self.left);
        }
        self.left.pop()
    }
}

/// Records faults and gives them their numbers.
#[derive(Debug)]
pub struct Log<'a> {
    sink: &'a Sink,
    /// Even for one thread and odd for the other.
    next: u32,
}

impl<'a> Log<'a> {
    /// Creates a log, of which there are two: of processes and of servers.
    #[must_use]
    pub fn new(sink: &'a Sink, of_processes: bool) -> Self {
        Self { sink, next: u32::from(of_processes) }
    }

    /// Records that a fault begins. Returns its number, for [`ended`](Self::ended).
    pub fn begins(&mut self, kind: Kind, on: &str, scope: Scope) -> u32 {
        let fault = self.next;
        self.next += 2;
        self.sink.write(What::Fault { fault, kind: format!("{kind} {on}"), scope });
        fault
    }

    /// Records that a fault, which has ended at this time, turned out to have another scope.
    pub fn kept(&self, fault: u32, scope: Scope, ended_us: u64) {
        self.sink.write(What::Kept { fault, scope, ended_us });
    }

    /// Records that a fault has ended.
    pub fn ended(&self, fault: u32) {
        self.sink.write(What::FaultEnded(fault));
    }
}

/// Sleeps for a time, or until the end if that comes first.
pub fn sleep_until(end: Instant, at_most: Duration) {
    let left = end.saturating_duration_since(Instant::now());
    std::thread::sleep(at_most.min(left));
}
