//! The faults of calls, and their rates.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;

use super::between;

/// A kind of calls that can have its own faults.
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
    /// Topics, groups, statistics.
    Catalog,
    /// Heartbeats, assignments; opening a watch.
    Members,
    /// Waiting for changes of a group.
    Watch,
    /// Recurring messages.
    Recurring,
    /// Delay queues.
    Tasks,
    /// Beginning, extending, completing and abandoning operations.
    Idempotency,
    /// Locks.
    Locks,
    /// Permits of limits.
    Permits,
    /// Marks of cancelled messages.
    Cancels,
    /// Batches of messages.
    Batches,
    /// Steps of handlers, and signals.
    Steps,
    /// Inspecting stored data.
    Inspect,
    /// Checking and repairing.
    Audit,
}

impl Role {
    /// All roles.
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
        Self::Idempotency,
        Self::Locks,
        Self::Permits,
        Self::Cancels,
        Self::Batches,
        Self::Steps,
        Self::Inspect,
        Self::Audit,
    ];
}

/// A kind of outage, which affects all clients at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outage {
    /// The server's process has ended: calls in progress return
    /// [`Unconfirmed`](millstream_core::ErrorKind::Unconfirmed), new ones
    /// [`Unavailable`](millstream_core::ErrorKind::Unavailable).
    Refused,
    /// The server is stopped: calls wait until it continues, or until their caller gives up. Half of the requests
    /// whose callers have given up are executed when it continues.
    Hung,
}

/// The faults of calls. Rates are from 0 (never) to 1 (always); a call has at most one of several faults.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Faults {
    /// The total time of a request and its reply on the network: minimum and maximum.
    pub latency: (Duration, Duration),
    /// The time after which a caller gives up. Default: 2 s. Waiting for messages or changes does not count.
    pub timeout: Duration,
    /// The rate of calls without a connection: [`Unavailable`](millstream_core::ErrorKind::Unavailable), not
    /// executed.
    pub refused: f64,
    /// The rate of lost requests: [`Unconfirmed`](millstream_core::ErrorKind::Unconfirmed), not executed.
    pub lost_requests: f64,
    /// The rate of lost replies: [`Unconfirmed`](millstream_core::ErrorKind::Unconfirmed), executed.
    pub lost_replies: f64,
    /// The rate of requests that stall. A request that stalls for longer than the timeout returns
    /// [`Unconfirmed`](millstream_core::ErrorKind::Unconfirmed), and is still executed later.
    pub stalls: f64,
    /// The duration of a stall: minimum and maximum.
    pub stall: (Duration, Duration),
    /// The number of bytes of a reply that arrive per second. A reply that takes longer than the timeout never
    /// arrives: [`Unconfirmed`](millstream_core::ErrorKind::Unconfirmed). Only replies with bodies count. Default:
    /// unlimited.
    pub bandwidth: Option<u64>,
}

impl Faults {
    /// Returns no faults, and no latency.
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

    /// Returns the same faults, with calls that take this long.
    #[must_use]
    pub fn latency(self, least: Duration, most: Duration) -> Self {
        Self { latency: (least, most), ..self }
    }

    /// Returns the same faults, with callers that give up after this time.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Returns the same faults, with this rate of calls without a connection.
    #[must_use]
    pub fn refused(self, rate: f64) -> Self {
        Self { refused: rate, ..self }
    }

    /// Returns the same faults, with this rate of lost requests.
    #[must_use]
    pub fn lost_requests(self, rate: f64) -> Self {
        Self { lost_requests: rate, ..self }
    }

    /// Returns the same faults, with this rate of lost replies.
    #[must_use]
    pub fn lost_replies(self, rate: f64) -> Self {
        Self { lost_replies: rate, ..self }
    }

    /// Returns the same faults, with this rate of requests that stall for this long.
    #[must_use]
    pub fn stalls(self, rate: f64, least: Duration, most: Duration) -> Self {
        Self { stalls: rate, stall: (least, most), ..self }
    }

    /// Returns the same faults, with a link that carries this many bytes of replies per second.
    #[must_use]
    pub fn bandwidth(self, bytes_per_second: u64) -> Self {
        Self { bandwidth: Some(bytes_per_second.max(1)), ..self }
    }

    /// Decides the faults of one call. It always draws the same number of random values, so that one rate does not
    /// affect another.
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

/// The faults of one call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) there: Duration,
    pub(super) back: Duration,
    pub(super) timeout: Duration,
    pub(super) fate: Fate,
    /// Whether a loss is known immediately, as the connection is reset, or only after the timeout.
    pub(super) reset: bool,
    /// The number of connection resets when the call began.
    pub(super) resets: u64,
    /// The number of bytes of the reply that arrive per second.
    pub(super) bandwidth: Option<u64>,
}

impl Plan {
    /// Returns the time that a reply of this many bytes takes.
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

/// The numbers of calls of a client and of their faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// All calls.
    pub calls: u64,
    /// Calls that found no connection because of the rate; calls of a client that is cut off are not counted.
    pub refused: u64,
    /// Calls whose request was lost.
    pub lost_requests: u64,
    /// Calls whose reply was lost.
    pub lost_replies: u64,
    /// Calls that stalled.
    pub stalls: u64,
    /// Calls whose reply was too large to arrive in time.
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
