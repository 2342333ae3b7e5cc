//! What can happen to a call, and how often.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;

use super::between;

/// A kind of calls that can have faults of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Appending, settling, seeking, trimming; opening a reader; extending and claiming.
    Log,
    /// Fetching.
    Reader,
    /// Scheduling, promoting, cancelling.
    Schedule,
    /// Acquiring, renewing, releasing.
    Leases,
    /// Listing, claiming, settling, purging and putting back dead letters.
    DeadLetters,
    /// Topics, groups, numbers.
    Catalog,
    /// Heartbeats, assignments; opening a watch.
    Members,
    /// Waiting for changes of a group.
    Watch,
    /// What recurs.
    Recurring,
    /// Delay queues.
    Tasks,
    /// Looking at what is there.
    Inspect,
    /// Checking and repairing.
    Audit,
}

impl Role {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::Log,
        Self::Reader,
        Self::Schedule,
        Self::Leases,
        Self::DeadLetters,
        Self::Catalog,
        Self::Members,
        Self::Watch,
        Self::Recurring,
        Self::Tasks,
        Self::Inspect,
        Self::Audit,
    ];
}

/// How a server is away from all clients at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outage {
    /// Its process has ended: calls under way are answered [`Unconfirmed`](millstream_core::ErrorKind::Unconfirmed),
    /// new ones [`Unavailable`](millstream_core::ErrorKind::Unavailable).
    Refused,
    /// It stands still: calls wait until it goes on, or until their caller gives up. Half of the requests whose callers
    /// have given up are done when it goes on.
    Hung,
}

/// What happens to calls. Rates are from 0 (never) to 1 (always); of several faults a call has at most one.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Faults {
    /// How long a request and its answer are under way, together: at least and at most.
    pub latency: (Duration, Duration),
    /// After which time a caller gives up. Default: 2 s. Waiting for messages or changes does not count.
    pub timeout: Duration,
    /// How many calls find no connection: [`Unavailable`](millstream_core::ErrorKind::Unavailable), and nothing is
    /// done.
    pub refused: f64,
    /// How many requests are lost: [`Unconfirmed`](millstream_core::ErrorKind::Unconfirmed), and nothing is done.
    pub lost_requests: f64,
    /// How many answers are lost: [`Unconfirmed`](millstream_core::ErrorKind::Unconfirmed), and all is done.
    pub lost_replies: f64,
    /// How many requests stall. One that stalls for longer than the timeout is answered
    /// [`Unconfirmed`](millstream_core::ErrorKind::Unconfirmed), and is done all the same, later.
    pub stalls: f64,
    /// For how long: at least and at most.
    pub stall: (Duration, Duration),
    /// How many bytes of an answer arrive in a second. An answer that needs longer than the timeout never arrives:
    /// [`Unconfirmed`](millstream_core::ErrorKind::Unconfirmed). Only answers with bodies count. Default: any number.
    pub bandwidth: Option<u64>,
}

impl Faults {
    /// Nothing goes wrong, and nothing takes time.
    #[must_use]
    pub fn none() -> Self {
        Self {
            latency: (Duration::ZERO, Duration::ZERO),
            timeout: Duration::from_secs(2),
            refused: 0.0,
            lost_requests: 0.0,
            lost_replies: 0.0,
            stalls: 0.0,
            stall: (Duration::ZERO, Duration::ZERO),
            bandwidth: None,
        }
    }

    /// The same faults, and calls that take this long.
    #[must_use]
    pub fn latency(self, least: Duration, most: Duration) -> Self {
        Self { latency: (least, most), ..self }
    }

    /// The same faults, with callers that give up after this time.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The same faults, and calls that find no connection.
    #[must_use]
    pub fn refused(self, rate: f64) -> Self {
        Self { refused: rate, ..self }
    }

    /// The same faults, and requests that are lost.
    #[must_use]
    pub fn lost_requests(self, rate: f64) -> Self {
        Self { lost_requests: rate, ..self }
    }

    /// The same faults, and answers that are lost.
    #[must_use]
    pub fn lost_replies(self, rate: f64) -> Self {
        Self { lost_replies: rate, ..self }
    }

    /// The same faults, and requests that stall for this long.
    #[must_use]
    pub fn stalls(self, rate: f64, least: Duration, most: Duration) -> Self {
        Self { stalls: rate, stall: (least, most), ..self }
    }

    /// The same faults, and a link on which answers take a second for so many bytes.
    #[must_use]
    pub fn bandwidth(self, bytes_per_second: u64) -> Self {
        Self { bandwidth: Some(bytes_per_second.max(1)), ..self }
    }

    /// Decides about one call. It draws as often whatever comes of it, so that one rate does not disturb another.
    pub(super) fn plan(&self, rng: &mut Rng) -> Plan {
        let latency = between(rng, self.latency);
        let there = latency.mul_f64(rng.f64());
        let (dice, stall, reset) = (rng.f64(), between(rng, self.stall), rng.bool());
        let fates = [
            (self.refused, Fate::Refused),
            (self.lost_requests, Fate::RequestLost),
            (self.lost_replies, Fate::ReplyLost),
            (self.stalls, Fate::Stalled(stall)),
        ];
        let mut sum = 0.0;
        let fate = fates.into_iter().find(|(rate, _)| {
            sum += rate;
            dice < sum
        });
        let fate = fate.map_or(Fate::Fine, |(_, fate)| fate);
        let (back, timeout, bandwidth) = (latency - there, self.timeout, self.bandwidth);
        Plan { there, back, timeout, fate, reset, resets: 0, bandwidth }
    }
}

/// What happens to one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) there: Duration,
    pub(super) back: Duration,
    pub(super) timeout: Duration,
    pub(super) fate: Fate,
    /// Whether something lost is known at once, since the connection is reset, or only after the timeout.
    pub(super) reset: bool,
    /// How often the connection had been reset when the call began.
    pub(super) resets: u64,
    /// How many bytes of the answer arrive in a second.
    pub(super) bandwidth: Option<u64>,
}

impl Plan {
    /// How long an answer of so many bytes needs.
    pub(super) fn transfer(&self, bytes: u64) -> Duration {
        let micros = |bandwidth: u64| bytes.saturating_mul(1_000_000) / bandwidth;
        self.bandwidth.map_or(Duration::ZERO, |bandwidth| Duration::from_micros(micros(bandwidth)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Fine,
    Refused,
    RequestLost,
    ReplyLost,
    Stalled(Duration),
}

/// What went wrong with the calls of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// All calls.
    pub calls: u64,
    /// Those that found no connection by the dice; those of a client that is cut off are not counted.
    pub refused: u64,
    /// Those whose request was lost.
    pub lost_requests: u64,
    /// Those whose answer was lost.
    pub lost_replies: u64,
    /// Those that stalled.
    pub stalls: u64,
    /// Those whose answer was too large to arrive in time.
    pub too_large: u64,
}

impl Tally {
    pub(super) fn count(&mut self, fate: Fate) {
        self.calls += 1;
        match fate {
            Fate::Fine => {}
            Fate::Refused => self.refused += 1,
            Fate::RequestLost => self.lost_requests += 1,
            Fate::ReplyLost => self.lost_replies += 1,
            Fate::Stalled(_) => self.stalls += 1,
        }
    }
}

/// The faults of every role.
#[derive(Debug, Default)]
pub(super) struct Rates(BTreeMap<Role, Faults>);

impl Rates {
    pub(super) fn set(&mut self, role: Role, faults: Faults) {
        self.0.insert(role, faults);
    }

    pub(super) fn of(&self, role: Role) -> Faults {
        self.0.get(&role).cloned().unwrap_or_else(Faults::none)
    }
}
