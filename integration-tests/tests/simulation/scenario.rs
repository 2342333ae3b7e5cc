//! The scenario: everything about a run that is decided before it starts, made from the seed.

use std::time::Duration;

use fastrand::Rng;
use millstream_core::Retention;
use millstream_runtime::{Concurrency, RetryOrder, Sharing};
use millstream_testkit::chaos::{Faults, Outage};
use millstream_testkit::history::{Lives, Order};

/// A kind of trouble. Each seed has some of them, so that each is seen alone and with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Calls take time.
    Latency,
    /// Calls find no connection.
    Refusals,
    /// Requests are lost.
    LostRequests,
    /// Answers are lost.
    LostReplies,
    /// Requests stall, some for longer than a ttl.
    Stalls,
    /// Processes die.
    Kills,
    /// Processes leave in good order.
    Leaves,
    /// Processes join.
    Joins,
    /// Processes stop for a while, some for longer than a ttl.
    Pauses,
    /// Processes are cut off for a while.
    Cuts,
    /// Groups are destroyed.
    DestroyedGroups,
    /// Entries are deleted.
    DeletedEntries,
    /// The server falls back to an earlier state.
    FailOvers,
    /// Others append what is not a message.
    Strangers,
    /// Handlers fail.
    Failures,
    /// Handlers kill their process.
    Poison,
    /// The topic gets more partitions.
    Growth,
    /// Dead letters are replayed.
    Replays,
    /// The server is away from all, again and again.
    Outages,
    /// Answers take time by their bytes.
    SlowLinks,
    /// The server's clock is set back, and it falls back to earlier states: it gives ids again.
    ReusedIds,
}

impl Trouble {
    const ALL: [Self; 21] = [
        Self::Latency,
        Self::Refusals,
        Self::LostRequests,
        Self::LostReplies,
        Self::Stalls,
        Self::Kills,
        Self::Leaves,
        Self::Joins,
        Self::Pauses,
        Self::Cuts,
        Self::DestroyedGroups,
        Self::DeletedEntries,
        Self::FailOvers,
        Self::Strangers,
        Self::Failures,
        Self::Poison,
        Self::Growth,
        Self::Replays,
        Self::Outages,
        Self::SlowLinks,
        Self::ReusedIds,
    ];
}

/// How messages come to those who handle them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// A handler gets each.
    Each,
    /// A handler gets up to so many at once, or what came in this time.
    Batches(usize, Duration),
    /// They are pulled.
    Pulls,
}

/// What is done to the system, at its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Kill(usize),
    Leave(usize),
    /// Somebody new; or somebody who died comes back under the same name.
    Join {
        again: bool,
        group: usize,
    },
    Pause(usize, Duration),
    Cut(usize, Duration),
    DestroyGroup(u32, usize),
    DeleteEntry(u32, usize),
    Snapshot,
    FailOver,
    Stranger(u32),
    Grow(u32),
    Replay(u32, usize),
    BeginOutage(Outage),
    /// The same server is there again; or the one that was started in its place, with all its data.
    EndOutage {
        restarted: bool,
    },
    SetClockBack(Duration),
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) troubles: Vec<Trouble>,
    pub(crate) partitions: u32,
    pub(crate) groups: usize,
    /// Instances in the beginning, with their groups.
    pub(crate) instances: Vec<usize>,
    pub(crate) senders: usize,
    pub(crate) messages: u64,
    pub(crate) keys: u64,
    /// How long the troubles last.
    pub(crate) length: Duration,
    pub(crate) actions: Vec<(Duration, Action)>,
    pub(crate) faults: Faults,
    pub(crate) concurrency: Concurrency,
    pub(crate) retry_order: RetryOrder,
    pub(crate) sharing: Sharing,
    pub(crate) style: Style,
    pub(crate) max_handlers: Option<usize>,
    pub(crate) prefetch: usize,
    pub(crate) lease_ttl: Duration,
    /// Whether instances have names that last.
    pub(crate) static_members: bool,
    pub(crate) rejoin_timeout: Duration,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) attempts: u32,
    pub(crate) crash_limit: u32,
    pub(crate) retry_delay: Duration,
    /// The part of messages that fail.
    pub(crate) failing: f64,
    /// The part of messages that kill.
    pub(crate) poison: f64,
    /// The longest that a handler takes.
    pub(crate) slow: Duration,
    /// The largest payload, in bytes.
    pub(crate) largest: u32,
    /// The number of layers around a handler that gets each message.
    pub(crate) layers: usize,
    /// How many messages that are sent together are one entry at most; none are, if there is no such number.
    pub(crate) packed: Option<u32>,
}

impl Scenario {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let rng = &mut rng;
        let troubles = troubles(rng);
        let has = |trouble| troubles.contains(&trouble);
        let partitions = rng.u32(1..=8);
        let groups = if rng.u8(0..4) == 0 { 2 } else { 1 };
        let mut instances: Vec<usize> = (0..groups).collect();
        instances.extend((0..rng.usize(0..=4 - groups)).map(|_| rng.usize(0..groups)));
        let lease_ttl = Duration::from_millis(rng.u64(1_000..10_000));
        let length = Duration::from_secs(rng.u64(5..40));
        let (mut concurrency, mut retry_order) = order(rng);
        let sharing = if rng.u8(0..5) == 0 { Sharing::Shared } else { Sharing::Exclusive };
        if sharing == Sharing::Shared {
            let at_once = rng.usize(1..=8);
            (concurrency, retry_order) = (Concurrency::Unordered(at_once), RetryOrder::Skip);
        }
        let attempts = rng.u32(1..=4);
        let failing = if has(Trouble::Failures) { rng.f64() * 0.6 } else { 0.0 };
        let actions = actions(rng, &troubles, partitions, groups, lease_ttl, length);
        let faults = faults(rng, &troubles, lease_ttl);
        // Not fixed: in shared mode a candidate may wait for ever for the reader to find its entry again, with the permit
        // for its handler. See docs/reliability.md.
        let arrives = |bandwidth| Duration::from_secs(1).mul_f64(f64::from(LARGEST) / bandwidth as f64);
        let late =
            sharing == Sharing::Shared && faults.bandwidth.is_some_and(|it| arrives(it) > lease_ttl / 2);
        let spared = late && std::env::var_os("MILLSTREAM_SLOW_POISON").is_none();
        let poison = if has(Trouble::Poison) && !spared { 0.01 } else { 0.0 };
        Self {
            seed,
            partitions,
            groups,
            instances,
            senders: rng.usize(1..=3),
            messages: rng.u64(10..=90),
            keys: rng.u64(1..=10),
            length,
            actions,
            faults,
            concurrency,
            retry_order,
            sharing,
            style: style(rng, retry_order),
            max_handlers: (rng.u8(0..4) == 0).then(|| rng.usize(1..=4)),
            prefetch: rng.usize(1..=32),
            lease_ttl,
            static_members: rng.bool() && sharing == Sharing::Exclusive,
            rejoin_timeout: lease_ttl.mul_f64(1.0 + rng.f64() * 2.0),
            shutdown_timeout: Duration::from_secs(rng.u64(5..30)),
            attempts,
            crash_limit: rng.u32(2..=4),
            retry_delay: Duration::from_millis(rng.u64(0..6_000)),
            failing,
            poison,
            slow: Duration::from_secs(rng.u64(1..20)),
            largest: if has(Trouble::SlowLinks) { LARGEST } else { 0 },
            layers: if rng.bool() { rng.usize(1..=3) } else { 0 },
            packed: (rng.u8(0..3) == 0).then(|| rng.u32(2..=12)),
            troubles,
        }
    }

    /// Whether nothing goes wrong but handlers.
    pub(crate) fn is_calm(&self) -> bool {
        let harmless = |trouble: &Trouble| {
            use Trouble::{Failures, Growth, Joins, Latency, Leaves, Outages, SlowLinks, Strangers};
            matches!(trouble, Latency | Joins | Leaves | Strangers | Failures | Growth | Outages | SlowLinks)
        };
        // Who leaves gives handlers up that take too long, and cannot settle while the server is away.
        let has = |trouble| self.troubles.contains(&trouble);
        let patient = self.slow < self.shutdown_timeout * 3 / 4 && !has(Trouble::Outages);
        let dies = self.actions.iter().any(|(_, action)| matches!(action, Action::Kill(_)));
        (patient || !has(Trouble::Leaves)) && !dies && self.troubles.iter().all(harmless)
    }

    /// How it is known that processes live.
    pub(crate) fn lives(&self) -> Lives {
        use Trouble::{LostReplies, LostRequests, Refusals, Stalls};
        let lossy = |trouble: &Trouble| matches!(trouble, Refusals | LostRequests | LostReplies | Stalls);
        Lives {
            lease_ttl: self.lease_ttl,
            member_ttl: if self.static_members { self.rejoin_timeout } else { self.lease_ttl },
            lossy: self.troubles.iter().any(lossy),
        }
    }

    /// The most processes that may die over one message: the first ends are not known to be its own. Here several messages
    /// kill at the same time, and one that is found explains ends of the others: they may need as many again.
    pub(crate) fn most_crashes(&self) -> usize {
        2 * (self.crash_limit as usize + 1).max(4)
    }

    /// The fewest processes that must have died in the handler of a message which is given up for that.
    ///
    /// Where several messages kill at the same time, one that was tried alone may be taken for another that ended its
    /// process: then nothing can be asked for.
    pub(crate) fn fewest_crashes(&self) -> usize {
        if self.troubles.contains(&Trouble::Poison) { 0 } else { (self.crash_limit as usize - 1).max(1) }
    }

    /// Consumed entries go, unless a group may be destroyed among others: while it is not there nothing is kept for it.
    pub(crate) fn retention(&self) -> Retention {
        let unprotected = self.groups > 1 && self.troubles.contains(&Trouble::DestroyedGroups);
        if unprotected { Retention::Keep } else { Retention::Consumed }
    }

    /// Whether handlers get batches.
    pub(crate) fn batches(&self) -> bool {
        matches!(self.style, Style::Batches(..))
    }

    /// How many messages of one partition may be with handlers at the same time.
    pub(crate) fn at_once(&self) -> usize {
        let handlers = match self.concurrency {
            Concurrency::PerKey(at_once) | Concurrency::Unordered(at_once) => at_once,
            _ => 1,
        };
        handlers * if let Style::Batches(size, _) = self.style { size } else { 1 }
    }

    /// What is left of the faults when all has healed: a slow link stays as slow as it is.
    pub(crate) fn healed(&self) -> Faults {
        match self.faults.bandwidth {
            Some(bandwidth) => Faults::none().bandwidth(bandwidth).timeout(self.faults.timeout),
            None => Faults::none(),
        }
    }

    /// What the configuration promises of order.
    pub(crate) fn order(&self) -> Order {
        match (self.concurrency, self.retry_order) {
            (Concurrency::Serial, RetryOrder::BlockPartition) => Order::PartitionBlocks,
            (_, RetryOrder::BlockKey) => Order::KeyBlocks,
            (Concurrency::Serial, _) => Order::Partition,
            (Concurrency::PerKey(_), _) => Order::Key,
            _ => Order::Free,
        }
    }
}

/// The largest payload on slow links, in bytes.
const LARGEST: u32 = 1 << 20;

/// A few kinds at random; one run in eight has one kind alone, and one in sixteen has none.
fn troubles(rng: &mut Rng) -> Vec<Trouble> {
    let count = match rng.u8(0..16) {
        0 => 0,
        1..3 => 1,
        _ => rng.usize(2..=8),
    };
    let mut all = Trouble::ALL.to_vec();
    rng.shuffle(&mut all);
    all.truncate(count);
    // Senders that know of partitions which the server forgot send to where nobody reads: nothing is promised of that.
    if all.contains(&Trouble::FailOvers) || all.contains(&Trouble::ReusedIds) {
        all.retain(|trouble| *trouble != Trouble::Growth);
    }
    all
}

fn style(rng: &mut Rng, retry_order: RetryOrder) -> Style {
    let (size, wait) = (rng.usize(1..=8), Duration::from_millis(rng.u64(0..200)));
    match rng.u8(0..6) {
        // What comes after a message of the batch cannot wait for it.
        0 if retry_order != RetryOrder::BlockPartition => Style::Batches(size, wait),
        1 => Style::Pulls,
        _ => Style::Each,
    }
}

fn order(rng: &mut Rng) -> (Concurrency, RetryOrder) {
    let at_once = rng.usize(1..=8);
    match rng.u8(0..6) {
        0 => (Concurrency::Serial, RetryOrder::Skip),
        1 => (Concurrency::Serial, RetryOrder::BlockKey),
        2 => (Concurrency::Serial, RetryOrder::BlockPartition),
        3 => (Concurrency::PerKey(at_once), RetryOrder::Skip),
        4 => (Concurrency::PerKey(at_once), RetryOrder::BlockKey),
        _ => (Concurrency::Unordered(at_once), RetryOrder::Skip),
    }
}

/// Rates that leave most calls alone: where nothing succeeds, nothing is tested.
fn faults(rng: &mut Rng, troubles: &[Trouble], lease_ttl: Duration) -> Faults {
    let rate = |rng: &mut Rng, trouble| {
        let rate = rng.f64() * rng.f64() * 0.3;
        if troubles.contains(&trouble) { rate } else { 0.0 }
    };
    let latency = Duration::from_millis(rng.u64(0..150));
    let latency = if troubles.contains(&Trouble::Latency) { latency } else { Duration::from_millis(1) };
    let mut timeout = Duration::from_millis(rng.u64(500..3_000));
    let (slow, part) = (rng.u8(0..3) > 0, 0.3 + rng.f64() * 0.4);
    let mut none = Faults::none();
    if troubles.contains(&Trouble::SlowLinks) {
        timeout += Duration::from_secs(1);
        // Slow as it may be, it brings the largest message in time; but not many of them.
        let bandwidth = if slow { f64::from(LARGEST) / (timeout.as_secs_f64() * part) } else { 10e6 };
        none = none.bandwidth(bandwidth as u64);
    }
    none.latency(Duration::ZERO, latency)
        .timeout(timeout)
        .refused(rate(rng, Trouble::Refusals))
        .lost_requests(rate(rng, Trouble::LostRequests))
        .lost_replies(rate(rng, Trouble::LostReplies))
        .stalls(rate(rng, Trouble::Stalls) / 2.0, Duration::ZERO, lease_ttl * 2)
}

fn actions(
    rng: &mut Rng,
    troubles: &[Trouble],
    partitions: u32,
    groups: usize,
    lease_ttl: Duration,
    length: Duration,
) -> Vec<(Duration, Action)> {
    let mut actions = Vec::new();
    if troubles.contains(&Trouble::Outages) {
        outages(rng, &mut actions, groups, lease_ttl);
    }
    if troubles.contains(&Trouble::ReusedIds) {
        reused_ids(rng, &mut actions, lease_ttl, length);
    }
    for trouble in troubles {
        for _ in 0..rng.usize(1..=4) {
            let at = length.mul_f64(rng.f64());
            let (one, partition, group) = (rng.usize(0..16), rng.u32(0..partitions), rng.usize(0..groups));
            let some_time = lease_ttl.mul_f64(rng.f64() * 2.5);
            let action = match trouble {
                Trouble::Kills => {
                    // Somebody restarts it soon, most times.
                    if rng.u8(0..4) > 0 {
                        let later = at + some_time.mul_f64(rng.f64());
                        actions.push((later, Action::Join { again: rng.bool(), group }));
                    }
                    Action::Kill(one)
                }
                Trouble::Leaves => Action::Leave(one),
                Trouble::Joins => Action::Join { again: false, group },
                Trouble::Pauses => Action::Pause(one, some_time),
                Trouble::Cuts => Action::Cut(one, some_time),
                Trouble::DestroyedGroups => Action::DestroyGroup(partition, group),
                Trouble::DeletedEntries => Action::DeleteEntry(partition, one),
                Trouble::FailOvers => {
                    actions.push((at.saturating_sub(lease_ttl.mul_f64(rng.f64())), Action::Snapshot));
                    Action::FailOver
                }
                Trouble::Strangers => Action::Stranger(partition),
                Trouble::Growth => Action::Grow(partitions + rng.u32(1..=3)),
                Trouble::Replays => Action::Replay(partition, group),
                Trouble::Poison => Action::Join { again: true, group },
                _ => continue,
            };
            actions.push((at, action));
        }
    }
    actions.sort_by_key(|(at, _)| *at);
    actions
}

/// One outage after the other, for 0.3 to 2.5 ttls each. Some are shorter than a ttl apart; in some somebody dies.
fn outages(rng: &mut Rng, actions: &mut Vec<(Duration, Action)>, groups: usize, lease_ttl: Duration) {
    let (deadly, joined) = (rng.u8(0..3) == 0, rng.bool());
    let mut at = Duration::ZERO;
    for _ in 0..rng.usize(1..=6) {
        at += lease_ttl.mul_f64(rng.f64() * 3.0);
        let lasts = lease_ttl.mul_f64(0.3 + rng.f64() * 2.2);
        let outage = if rng.bool() { Outage::Refused } else { Outage::Hung };
        actions.push((at, Action::BeginOutage(outage)));
        let (one, group, dies, joins) = (rng.usize(0..16), rng.usize(0..groups), rng.bool(), rng.bool());
        if deadly && dies {
            actions.push((at + lasts.mul_f64(rng.f64()), Action::Kill(one)));
        }
        at += lasts;
        // One that hangs was not restarted.
        let restarted = outage == Outage::Refused && rng.bool();
        actions.push((at, Action::EndOutage { restarted }));
        if joined && joins {
            let later = at + Duration::from_millis(rng.u64(0..500));
            actions.push((later, Action::Join { again: rng.bool(), group }));
        }
    }
}

/// A clock that is behind, and then fail-overs: what comes after each gets ids that were given before it.
fn reused_ids(rng: &mut Rng, actions: &mut Vec<(Duration, Action)>, lease_ttl: Duration, length: Duration) {
    let mut at = length.mul_f64(rng.f64() * 0.4);
    actions.push((at, Action::SetClockBack(length.mul_f64(0.5 + rng.f64()))));
    for _ in 0..rng.usize(1..=3) {
        at += length.mul_f64(rng.f64() * 0.2);
        actions.push((at, Action::Snapshot));
        at += lease_ttl.mul_f64(rng.f64());
        actions.push((at, Action::FailOver));
    }
}
