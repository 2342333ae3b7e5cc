//! Bounds and configuration that the checks compare a history with.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::chaos::record::Place;

/// Order in which a group with owned partitions handles the messages of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOrder {
    /// None.
    Free,
    /// First handlings are in the order of the sends. A message that failed does not block later ones.
    Skip,
    /// As `Skip`, and a message that failed blocks later ones of its key until it is done or dead.
    Block,
}

/// Configuration of one place.
#[derive(Clone, Debug)]
pub struct PlaceLimits {
    /// Maximum number of attempts of a message. Default: 5. A message of fate `Fail(n)` with `n` of at least this is hopeless.
    pub attempts: u32,
    /// Minimum number of processes that died in the handler of a message before it is a dead letter with the reason
    /// `crashed`. Default: 2, one below the default `crash_limit`.
    pub fewest_crashes: usize,
    /// Order per key, where partitions are owned. Default: `Skip`.
    pub order: KeyOrder,
    /// Maximum number of handlers at once for one partition in one process. Default: any number.
    pub per_partition: usize,
    /// Maximum number of handlers at once for this place in one process. Default: any number.
    pub per_process: usize,
    /// Minimum time between the failure of an attempt and the next attempt. Default: zero.
    pub back_off: Duration,
    /// Whether a fault of scope `Partition` may lose messages: while a group is destroyed, trims by other groups of its
    /// topic do not keep what only it had not read. Such messages count as lost by the server. Default: no.
    pub group_faults_lose: bool,
    /// Whether each handler writes its effect to the store before it acknowledges. Default: yes.
    pub has_effects: bool,
}

impl Default for PlaceLimits {
    fn default() -> Self {
        Self {
            attempts: 5,
            fewest_crashes: 2,
            order: KeyOrder::Skip,
            per_partition: usize::MAX,
            per_process: usize::MAX,
            back_off: Duration::ZERO,
            group_faults_lose: false,
            has_effects: true,
        }
    }
}

/// Bounds of growth between the first and the last [`Usage`](crate::chaos::record::What::Usage) of a long run.
#[derive(Clone, Debug)]
pub struct Endurance {
    /// Growth of the servers' memory, as a share of the first value. Default: 0.1.
    pub server_share: f64,
    /// Growth of the servers' memory in bytes, beyond that share. Default: 1 MiB.
    pub server_bytes: u64,
    /// Further connections. Default: 4.
    pub connections: u64,
    /// Further keys. Default: 16.
    pub keys: u64,
    /// Further threads of a process. Default: 2.
    pub threads: u64,
    /// Further tasks of a process: handlers at work among them. Default: 64.
    pub tasks: u64,
    /// Growth of the resident memory of a process, as a share of the first value. Default: 0.2.
    pub resident_share: f64,
    /// Growth of the resident memory of a process in bytes, beyond that share. Default: 8 MiB.
    pub resident_bytes: u64,
}

impl Default for Endurance {
    fn default() -> Self {
        Self {
            server_share: 0.1,
            server_bytes: 1 << 20,
            connections: 4,
            keys: 16,
            threads: 2,
            tasks: 64,
            resident_share: 0.2,
            resident_bytes: 8 << 20,
        }
    }
}

/// Bounds and configuration of a run.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Ttl of leases, entry leases and claims. Default: 3 s.
    pub ttl: Duration,
    /// Time after the end of a handler until its settlement is certain, if no fault is near. Default: 3 ttls.
    pub settle: Duration,
    /// Time after the end of a fault in which its effects are still excused. Default: 3 ttls.
    pub aftermath: Duration,
    /// Time before a fault of scope `Data` from which confirmed writes may be undone: the lag of replicas or of the
    /// file. Default: 5 s.
    pub tail: Duration,
    /// Time before a fault of scope `Partition` from which settled messages may be handled again: the group starts again
    /// with the oldest unsettled entry, and entries behind it may have been settled. Default: 30 s.
    pub group_tail: Duration,
    /// Whether a partition that is given back in good order excuses repetitions. Default: no.
    pub orderly_moves_repeat: bool,
    /// Whether epochs and fences may decrease behind a fault of scope `Data`: they do if the clocks of servers differ.
    /// Default: yes.
    pub epochs_may_regress: bool,
    /// Number of partitions that may be lost without a fault. Default: 0.
    pub unexplained_losses: usize,
    /// Time that may pass between two events of a process, or of two processes, that belong together, and that are
    /// recorded in any order: a partition is lost and no handler begins; a lock is released and granted to the next.
    /// Default: 250 ms.
    pub notice: Duration,
    /// Maximum time by which a message is early. Default: zero; for runs in which the clock of a server is set.
    pub early: Duration,
    /// Maximum time after it is due until a message is first handled, without a fault near. Default: 1 s.
    pub lateness: Duration,
    /// Time after the end of the last fault until what is sent is handled as fast again, and after a fault in which
    /// messages may be late. Default: 10 s.
    pub recovery: Duration,
    /// Share of what is confirmed after that which each place handles meanwhile. Default: a half.
    pub pace: f64,
    /// Minimum number of messages that are confirmed meanwhile for that to be compared. Default: 50.
    pub pace_least: usize,
    /// Maximum duration of a handler. Default: 10 s.
    pub handler: Duration,
    /// Roles of processes that may record nothing for a whole phase. Default: none.
    pub quiet_roles: Vec<String>,
    /// Configuration of places that `places` does not name.
    pub place: PlaceLimits,
    /// Configuration of single places.
    pub places: BTreeMap<Place, PlaceLimits>,
    /// Bounds of growth. Default: none, as a short run shows none.
    pub endurance: Option<Endurance>,
}

impl Limits {
    /// Returns the default limits for leases with this ttl.
    #[must_use]
    pub fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            settle: 3 * ttl,
            aftermath: 3 * ttl,
            tail: Duration::from_secs(5),
            group_tail: Duration::from_secs(30),
            orderly_moves_repeat: false,
            epochs_may_regress: true,
            unexplained_losses: 0,
            notice: Duration::from_millis(250),
            early: Duration::ZERO,
            lateness: Duration::from_secs(1),
            recovery: Duration::from_secs(10),
            pace: 0.5,
            pace_least: 50,
            handler: Duration::from_secs(10),
            quiet_roles: Vec::new(),
            place: PlaceLimits::default(),
            places: BTreeMap::new(),
            endurance: None,
        }
    }

    /// Returns the shortest time for which a client that lives must be away to lose a lease or claim: it renews after a third of
    /// a ttl, others get it a ttl after the last renewal, and lines may be late.
    pub(crate) fn shortest_loss_us(&self) -> u64 {
        us(self.ttl * 3 / 5)
    }

    /// Returns the configuration of a place.
    #[must_use]
    pub fn of(&self, place: &Place) -> &PlaceLimits {
        self.places.get(place).unwrap_or(&self.place)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new(Duration::from_secs(3))
    }
}

/// Returns a duration in the unit of the history.
pub(crate) fn us(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
