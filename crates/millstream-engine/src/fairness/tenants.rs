//! Virtual time of tenants: what each was served, divided by its weight. The one with the least is next.
//!
//! The scheme is start-time fair queueing. A tenant is charged an estimate when a message begins, more while its handler runs for longer, and
//! the difference when it ends. So no number of handlers that begin at once, or run for an hour, is free.
//!
//! A tenant that comes, or comes back, begins at the virtual time of the others. So unused time is not saved up, and a short absence cancels
//! no debt. That time goes on with what is served: else tenants that are new all the time would pass those that wait.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

/// Estimate of the time of the first handler.
const FIRST_ESTIMATE: u64 = 1_000_000;
/// What one unit of a stated cost is charged: even of the largest weight something is left.
const OF_COST: u64 = 1_000_000;
/// The part of an average that one more handler replaces.
const AVERAGE_OF: u64 = 8;
/// The part of its time so far that a handler which runs on is charged ahead, and the least of it.
const AHEAD: u32 = 8;
const LEAST_AHEAD: Duration = Duration::from_millis(1);
/// Most handlers that run for longer than expected whose time is counted exactly when a tenant comes.
const COUNTED: usize = 64;

/// Id of a tenant, valid while a message of it waits or runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(usize);

impl TenantId {
    /// Returns it as an index: indexes are small, and used again.
    #[must_use]
    pub fn index(self) -> usize {
        self.0
    }
}

/// What is known of one tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantView {
    /// The tenant.
    pub tenant: Bytes,
    /// Its weight.
    pub weight: u32,
    /// Messages that were read and wait.
    pub waiting: usize,
    /// Messages in handlers.
    pub running: usize,
}

/// The tenants of which messages wait or run, and their virtual times. Without a clock.
#[derive(Debug, Default)]
pub struct Tenants {
    slots: Vec<Tenant>,
    free: Vec<usize>,
    ids: HashMap<Bytes, usize>,
    /// How many there are of which something waits or runs, and their weights together.
    present: usize,
    weights: u128,
    /// Those that have no message any more, and whose virtual time is still ahead.
    away: BTreeSet<(u128, usize)>,
    /// Those that are ready; of equal ones first the one of which least runs, then the one that has been ready for longest.
    ready: BTreeSet<(u128, usize, u64, usize)>,
    stamps: u64,
    running: HashMap<u64, Running>,
    /// Those of them that run for longer than expected.
    long: BTreeSet<u64>,
    /// When those that run are charged more.
    renewals: BinaryHeap<Reverse<(Instant, u64)>>,
    /// The virtual time at which tenants begin: the least of those that were served, or could be.
    now: u128,
    /// Average charge of a message; 0 if none has ended.
    average: u64,
}

#[derive(Debug, Default)]
struct Tenant {
    key: Bytes,
    weight: u64,
    virtual_time: u128,
    waiting: usize,
    running: usize,
    /// Since when it is ready, by count.
    ready: Option<u64>,
    average: u64,
}

impl Tenant {
    fn is_present(&self) -> bool {
        self.waiting > 0 || self.running > 0
    }

    fn ready_place(&self) -> Option<(usize, u64)> {
        Some((self.running, self.ready?))
    }
}

#[derive(Debug)]
struct Running {
    tenant: usize,
    since: Instant,
    charged: u64,
    /// When it is charged more. Another time in `renewals` is of an earlier begin.
    due: Option<Instant>,
    /// Whether a cost is charged, and not time.
    is_cost: bool,
}

impl Tenants {
    /// Adds a message that waits. `weight` is asked if the tenant is not known.
    pub fn enter(&mut self, key: &Bytes, now: Instant, weight: impl FnOnce() -> u32) -> TenantId {
        let known = self.ids.get(key).copied();
        if known.is_none_or(|at| !self.slots[at].is_present()) {
            self.charge_running(now);
            self.count_exactly(now);
            if let Some((least, greatest)) = self.bounds() {
                self.now = self.now.clamp(least, greatest);
            }
        }
        let at = known.unwrap_or_else(|| self.add(key, weight()));
        self.change(at, |tenant| tenant.waiting += 1);
        TenantId(at)
    }

    /// Returns the least and the greatest virtual time of the tenants that are served, or could be. What waits for something else does not
    /// count.
    fn bounds(&self) -> Option<(u128, u128)> {
        if let (Some(first), Some(last)) = (self.ready.first(), self.ready.last()) {
            let away = self.away.last().map_or(0, |last| last.0);
            return Some((first.0, last.0.max(away)));
        }
        let of_running = self.running.values().map(|it| self.slots[it.tenant].virtual_time);
        of_running.fold(None, |bounds, time| {
            let (least, greatest) = bounds.unwrap_or((time, time));
            Some((time.min(least), time.max(greatest)))
        })
    }

    fn add(&mut self, key: &Bytes, weight: u32) -> usize {
        // A copy: the message's own would keep all of it.
        let key = Bytes::copy_from_slice(key);
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Tenant::default());
            self.slots.len() - 1
        });
        let (weight, virtual_time) = (u64::from(weight.max(1)), self.now);
        self.slots[at] = Tenant { key: key.clone(), weight, virtual_time, ..Tenant::default() };
        self.ids.insert(key, at);
        at
    }

    /// Removes a message that waited, and does so no more.
    pub fn leave(&mut self, TenantId(at): TenantId) {
        self.change(at, |tenant| tenant.waiting -= 1);
    }

    /// Records that a message of this tenant may start.
    pub fn ready(&mut self, TenantId(at): TenantId) {
        if self.slots[at].ready.is_none() {
            self.stamps += 1;
            let stamp = self.stamps;
            // What it did not use meanwhile is not saved up, but for what a message of another one may have been too early.
            let grace = 2 * u128::from(self.average.max(self.slots[at].average));
            let least = self.now.saturating_sub(grace);
            self.change(at, |tenant| {
                tenant.ready = Some(stamp);
                if tenant.running == 0 {
                    tenant.virtual_time = tenant.virtual_time.max(least);
                }
            });
        }
    }

    /// Records that no message of this tenant may start.
    pub fn unready(&mut self, TenantId(at): TenantId) {
        if self.slots[at].ready.is_some() {
            self.change(at, |tenant| tenant.ready = None);
        }
    }

    /// Whether a message of any tenant may start.
    #[must_use]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Records that no message of any tenant may start.
    pub fn clear_ready(&mut self) {
        while let Some((.., at)) = self.ready.pop_first() {
            self.slots[at].ready = None;
        }
    }

    /// Returns the tenant that is served next. It is not ready any more, until the caller says so again.
    pub fn next(&mut self, now: Instant) -> Option<TenantId> {
        self.charge_running(now);
        let (virtual_time, .., at) = self.ready.pop_first()?;
        self.slots[at].ready = None;
        self.now = self.now.max(virtual_time);
        while let Some((virtual_time, at)) = self.away.first().copied()
            && virtual_time <= self.now
        {
            self.away.pop_first();
            self.forget(at);
        }
        Some(TenantId(at))
    }

    /// Records that a message which waited, the caller's `number`, is handed out: its tenant is charged its cost, or an estimate of its time.
    pub fn begin(&mut self, TenantId(at): TenantId, number: u64, cost: Option<u64>, now: Instant) {
        let averages = [self.slots[at].average, self.average, FIRST_ESTIMATE];
        let charged = match cost {
            Some(cost) => cost.saturating_mul(OF_COST),
            None => averages.into_iter().find(|it| *it > 0).unwrap_or(1),
        };
        let running = Running { tenant: at, since: now, charged, due: None, is_cost: cost.is_some() };
        self.running.insert(number, running);
        if cost.is_none() {
            self.renew(now, Duration::from_nanos(charged).max(LEAST_AHEAD), number);
        }
        self.change(at, |tenant| (tenant.waiting, tenant.running) = (tenant.waiting - 1, tenant.running + 1));
        self.charge(at, i128::from(charged));
    }

    /// Records that a message that was handed out waits again, after this time in its handler; `None` if it did not run, which costs nothing.
    pub fn undo(&mut self, number: u64, elapsed: Option<Duration>) {
        let Some((at, cost)) = self.stop(number, elapsed) else { return };
        self.charge(at, cost);
        self.change(at, |tenant| (tenant.waiting, tenant.running) = (tenant.waiting + 1, tenant.running - 1));
    }

    /// Records that a message has ended, after this time in its handler; `None` if it did not run, which costs nothing.
    pub fn end(&mut self, number: u64, elapsed: Option<Duration>) {
        let Some((at, cost)) = self.stop(number, elapsed) else { return };
        self.charge(at, cost);
        self.change(at, |tenant| tenant.running -= 1);
    }

    /// Removes a message from those that run. Returns its tenant, and what that is charged beside what it was.
    fn stop(&mut self, number: u64, elapsed: Option<Duration>) -> Option<(usize, i128)> {
        let Running { tenant, charged, is_cost, .. } = self.running.remove(&number)?;
        self.long.remove(&number);
        let Some(elapsed) = elapsed else { return Some((tenant, -i128::from(charged))) };
        let total = if is_cost { charged } else { nanoseconds(elapsed) };
        for average in [&mut self.average, &mut self.slots[tenant].average] {
            *average = moved(*average, total);
        }
        Some((tenant, i128::from(total) - i128::from(charged)))
    }

    /// Returns how many messages of a tenant wait.
    #[must_use]
    pub fn waiting(&self, TenantId(at): TenantId) -> usize {
        self.slots[at].waiting
    }

    /// Returns what is known of each tenant of which something waits or runs.
    pub fn views(&self) -> impl Iterator<Item = TenantView> {
        self.slots.iter().filter(|tenant| tenant.is_present()).map(|tenant| TenantView {
            tenant: tenant.key.clone(),
            weight: u32::try_from(tenant.weight).unwrap_or(u32::MAX),
            waiting: tenant.waiting,
            running: tenant.running,
        })
    }

    /// Charges those that run for longer than they were charged for some more, in growing steps, so that each is charged seldom.
    fn charge_running(&mut self, now: Instant) {
        while let Some(Reverse((due, number))) = self.renewals.peek().copied()
            && due <= now
        {
            self.renewals.pop();
            // Others have ended, or have begun again.
            let Some(running) = self.running.get_mut(&number).filter(|it| it.due == Some(due)) else {
                continue;
            };
            let elapsed = now - running.since;
            let ahead = elapsed + (elapsed / AHEAD).max(LEAST_AHEAD);
            let charged = nanoseconds(ahead);
            let more = i128::from(charged) - i128::from(running.charged);
            running.charged = charged;
            let (tenant, since) = (running.tenant, running.since);
            self.long.insert(number);
            self.renew(since, ahead, number);
            self.charge(tenant, more);
        }
        if self.renewals.len() > 64 + 2 * self.running.len() {
            // Most are of messages that ended early.
            let running = &self.running;
            self.renewals.retain(|Reverse((_, number))| running.contains_key(number));
        }
    }

    /// Charges those that run for long what they took so far: a tenant that comes begins where the others are.
    fn count_exactly(&mut self, now: Instant) {
        if self.long.len() > COUNTED {
            return;
        }
        for number in &std::mem::take(&mut self.long) {
            let Some(running) = self.running.get_mut(number) else { continue };
            let elapsed = nanoseconds(now - running.since);
            let more = i128::from(elapsed) - i128::from(running.charged);
            running.charged = elapsed;
            let tenant = running.tenant;
            self.charge(tenant, more);
            // Its renewal is still to come, and charges the next part.
        }
    }

    fn renew(&mut self, from: Instant, after: Duration, number: u64) {
        // One that is charged for centuries is not charged again.
        if let (Some(due), Some(running)) = (from.checked_add(after), self.running.get_mut(&number)) {
            running.due = Some(due);
            self.renewals.push(Reverse((due, number)));
        }
    }

    /// Charges a tenant. What is served moves the time at which others begin, by the part of all weights.
    fn charge(&mut self, at: usize, amount: i128) {
        let weights = i128::try_from(self.weights.max(1)).unwrap_or(i128::MAX);
        self.now = self.now.saturating_add_signed(amount / weights);
        self.change(at, |tenant| {
            let part = amount / i128::from(tenant.weight);
            tenant.virtual_time = tenant.virtual_time.saturating_add_signed(part);
        });
    }

    /// Changes a tenant, and with it its places.
    fn change(&mut self, at: usize, change: impl FnOnce(&mut Tenant)) {
        let tenant = &mut self.slots[at];
        let (was_present, before) = (tenant.is_present(), tenant.virtual_time);
        let was_ready = tenant.ready_place();
        change(tenant);
        let is_present = tenant.is_present();
        let after = tenant.virtual_time;
        let is_ready = tenant.ready_place();
        if (was_ready, before) != (is_ready, after) {
            if let Some((running, stamp)) = was_ready {
                self.ready.remove(&(before, running, stamp, at));
            }
            if let Some((running, stamp)) = is_ready {
                self.ready.insert((after, running, stamp, at));
            }
        }
        if was_present == is_present {
            return;
        }
        let weight = u128::from(self.slots[at].weight);
        if is_present {
            self.present += 1;
            self.weights += weight;
            self.away.remove(&(before, at));
            return;
        }
        self.present -= 1;
        self.weights -= weight;
        if self.present == 0 {
            // Nobody waits for what others had.
            self.now = self.now.max(after).max(self.away.last().map_or(0, |last| last.0));
            while let Some((_, at)) = self.away.pop_first() {
                self.forget(at);
            }
            self.forget(at);
        } else if after > self.now {
            self.away.insert((after, at));
        } else {
            self.forget(at);
        }
    }

    fn forget(&mut self, at: usize) {
        self.ids.remove(&std::mem::take(&mut self.slots[at].key));
        self.free.push(at);
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns an average with one more value.
fn moved(average: u64, last: u64) -> u64 {
    if average == 0 { last.max(1) } else { (average - average / AVERAGE_OF + last / AVERAGE_OF).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Handlers of one partition, on a clock of its own.
    struct Handlers {
        tenants: Tenants,
        now: Instant,
        begun: u64,
        at_once: usize,
        /// When each ends: its number, its tenant, and how long it took.
        ends: BTreeSet<(Instant, u64, &'static str, Duration)>,
        /// Of each tenant: how long its handlers take, and how many of its messages wait.
        flows: HashMap<&'static str, (Duration, usize)>,
        /// Time of handlers that have ended.
        served: HashMap<&'static str, Duration>,
    }

    const MS: Duration = Duration::from_millis(1);

    impl Handlers {
        fn new(at_once: usize) -> Self {
            let (tenants, now, ends) = (Tenants::default(), Instant::now(), BTreeSet::new());
            Self { tenants, now, begun: 0, at_once, ends, flows: HashMap::new(), served: HashMap::new() }
        }

        fn comes(&mut self, name: &'static str, weight: u32, takes: Duration, messages: usize) {
            let id = (0..messages)
                .map(|_| self.tenants.enter(&Bytes::from_static(name.as_bytes()), self.now, || weight))
                .last()
                .expect("messages");
            self.flows.entry(name).or_insert((takes, 0)).1 += messages;
            self.tenants.ready(id);
            self.start();
        }

        fn start(&mut self) {
            while self.ends.len() < self.at_once {
                let Some(id) = self.tenants.next(self.now) else { return };
                let key = self.tenants.slots[id.0].key.clone();
                let (name, (takes, left)) =
                    self.flows.iter_mut().find(|(name, _)| name.as_bytes() == key).expect("a flow");
                *left -= 1;
                self.begun += 1;
                self.tenants.begin(id, self.begun, None, self.now);
                if *left > 0 {
                    self.tenants.ready(id);
                }
                self.ends.insert((self.now + *takes, self.begun, name, *takes));
            }
        }

        /// Runs until a handler ends, and returns its tenant.
        fn step(&mut self) -> &'static str {
            let (now, number, name, takes) = self.ends.pop_first().expect("a handler");
            self.now = now;
            self.tenants.end(number, Some(takes));
            *self.served.entry(name).or_default() += takes;
            self.start();
            name
        }

        fn run(&mut self, time: Duration) {
            let until = self.now + time;
            while self.ends.first().is_some_and(|(at, ..)| *at < until) {
                self.step();
            }
            self.now = until;
        }

        fn share(&self, one: &str, other: &str) -> f64 {
            self.served[one].as_secs_f64() / self.served[other].as_secs_f64()
        }
    }

    #[test]
    fn time_is_shared_by_weight_however_long_handlers_take() {
        for at_once in [1, 4, 16] {
            for takes in [1, 5, 50] {
                let mut handlers = Handlers::new(at_once);
                handlers.comes("a", 3, takes * MS, 1_000_000);
                handlers.comes("b", 1, 5 * MS, 1_000_000);
                handlers.run(60_000 * MS);
                let share = handlers.share("a", "b");
                assert!((2.85..=3.15).contains(&share), "{share} with {at_once} handlers of {takes} ms");
            }
        }
    }

    #[test]
    fn a_message_of_another_tenant_is_next_from_the_first_one_on() {
        let mut handlers = Handlers::new(4);
        handlers.comes("flood", 1, 5 * MS, 100_000);
        for _ in 0..100 {
            handlers.run(50 * MS);
            handlers.comes("b", 1, 5 * MS, 1);
            // The next handler that is free takes it.
            handlers.step();
            assert!(handlers.ends.iter().any(|(_, _, name, _)| *name == "b"));
        }
    }

    #[test]
    fn what_ran_before_others_came_is_no_debt() {
        let mut handlers = Handlers::new(1);
        handlers.comes("a", 1, 3_600_000 * MS, 1);
        handlers.run(3_500_000 * MS);
        handlers.flows.insert("a", (5 * MS, 0));
        handlers.comes("a", 1, 5 * MS, 100_000);
        handlers.comes("b", 1, 5 * MS, 100_000);
        handlers.step();
        handlers.served.clear();
        // What it ran before the other one came is no debt; the 100 seconds since then are.
        handlers.run(90_000 * MS);
        assert!(!handlers.served.contains_key("a"));
        handlers.run(60_000 * MS);
        let share = handlers.share("b", "a");
        assert!((4.5..=5.5).contains(&share), "{share}");
    }

    #[test]
    fn handlers_that_run_for_an_hour_do_not_take_all() {
        let mut handlers = Handlers::new(10);
        handlers.comes("quick", 1, 5 * MS, 1_000_000);
        handlers.run(1_000 * MS);
        handlers.comes("slow", 1, 3_600_000 * MS, 1_000);
        handlers.run(60_000 * MS);
        let slow = handlers.ends.iter().filter(|(_, _, name, _)| *name == "slow").count();
        assert!((3..=7).contains(&slow), "{slow} of ten");
    }

    #[test]
    fn who_waits_in_vain_saves_nothing_up() {
        let (mut tenants, now) = (Tenants::default(), Instant::now());
        let (a, b) = (Bytes::from_static(b"a"), Bytes::from_static(b"b"));
        let (a, b) = (tenants.enter(&a, now, || 1), tenants.enter(&b, now, || 1));
        let (a, _) = (tenants.enter(&Bytes::from_static(b"a"), now, || 1), a);
        // What b has may not start, for its limit.
        for number in 0..1_000 {
            tenants.enter(&Bytes::from_static(b"a"), now, || 1);
            tenants.ready(a);
            assert_eq!(tenants.next(now), Some(a));
            tenants.begin(a, number, None, now);
            tenants.end(number, Some(MS));
        }
        tenants.ready(a);
        tenants.ready(b);
        let mut before_a = 0;
        loop {
            let next = tenants.next(now).expect("one is ready");
            if next == a {
                break;
            }
            tenants.enter(&Bytes::from_static(b"b"), now, || 1);
            before_a += 1;
            tenants.begin(b, 2_000 + before_a, None, now);
            tenants.ready(b);
        }
        assert!((1..=4).contains(&before_a), "{before_a} and not the thousand that it missed");
    }

    #[test]
    fn what_did_not_run_costs_nothing() {
        let (mut tenants, now) = (Tenants::default(), Instant::now());
        let ids = ["a", "b"].map(|key| {
            let key = Bytes::from_static(key.as_bytes());
            tenants.enter(&key, now, || 1);
            tenants.enter(&key, now, || 1)
        });
        ids.into_iter().for_each(|id| tenants.ready(id));
        // What may not start after all is asked for in turns, so that nobody waits until another one has asked for all.
        let order: Vec<_> = (0..4)
            .map(|number| {
                let id = tenants.next(now).expect("one is ready");
                tenants.begin(id, number, None, now);
                tenants.undo(number, None);
                tenants.ready(id);
                id
            })
            .collect();
        assert_eq!(order, [ids[0], ids[1], ids[0], ids[1]]);
    }

    #[test]
    fn those_who_come_all_the_time_do_not_pass_those_who_wait() {
        let (mut tenants, now) = (Tenants::default(), Instant::now());
        let enter = |tenants: &mut Tenants, key: String| {
            let id = tenants.enter(&Bytes::from(key), now, || 1);
            tenants.ready(id);
            id
        };
        for n in 0..50 {
            enter(&mut tenants, format!("first-{n}"));
        }
        let waits = enter(&mut tenants, "waits".to_owned());
        enter(&mut tenants, "waits".to_owned());
        let mut begun = Vec::new();
        for number in 0..2_000 {
            enter(&mut tenants, format!("more-{number}"));
            let id = tenants.next(now).expect("one is ready");
            tenants.begin(id, number, None, now);
            tenants.end(number, Some(MS));
            if id == waits && begun.len() < 2 {
                begun.push(number);
                if begun.len() < 2 {
                    tenants.ready(waits);
                }
            }
        }
        assert!(begun.len() == 2 && begun[1] < 500, "{begun:?}");
        assert!(tenants.away.len() < 200, "{} are remembered", tenants.away.len());
    }

    #[test]
    fn stated_costs_are_shared_by_weight_too() {
        let (mut tenants, now) = (Tenants::default(), Instant::now());
        let ids = [("a", 1_000), ("b", 1)].map(|(key, weight)| {
            let key = Bytes::from_static(key.as_bytes());
            (0..10_000).map(|_| tenants.enter(&key, now, || weight)).last().expect("some")
        });
        ids.into_iter().for_each(|id| tenants.ready(id));
        let mut of_b = 0;
        for number in 0..5_005 {
            let id = tenants.next(now).expect("one is ready");
            of_b += usize::from(id == ids[1]);
            tenants.begin(id, number, Some(1), now);
            tenants.end(number, Some(MS));
            tenants.ready(id);
        }
        assert!((4..=6).contains(&of_b), "{of_b} of one in a thousand");
    }

    #[test]
    fn a_stated_cost_counts_instead_of_time() {
        let (mut tenants, now) = (Tenants::default(), Instant::now());
        let ids = ["a", "b"].map(|key| {
            let key = Bytes::from_static(key.as_bytes());
            (0..1_000).map(|_| tenants.enter(&key, now, || 1)).last().expect("some")
        });
        ids.into_iter().for_each(|id| tenants.ready(id));
        let mut begun = [0, 0];
        for number in 0..600 {
            let id = tenants.next(now).expect("one is ready");
            let of = ids.iter().position(|it| *it == id).expect("one of them");
            begun[of] += 1;
            tenants.begin(id, number, Some([5, 1][of]), now);
            tenants.end(number, Some(Duration::from_secs(3_600)));
            tenants.ready(id);
        }
        assert_eq!(begun, [100, 500]);
    }

    #[test]
    fn nothing_is_kept_of_those_that_are_gone() {
        let (mut tenants, mut now) = (Tenants::default(), Instant::now());
        let mut number = 0;
        for round in 0..1_000 {
            let ids: Vec<_> = (0..10)
                .map(|n| {
                    let id = tenants.enter(&Bytes::from(format!("{round}-{n}")), now, || 1 + n);
                    tenants.ready(id);
                    id
                })
                .collect();
            for _ in &ids {
                let id = tenants.next(now).expect("one is ready");
                number += 1;
                tenants.begin(id, number, None, now);
                now += MS;
                tenants.end(number, Some(Duration::from_micros(fastrand::u64(1..5_000))));
            }
            assert!(!tenants.has_ready() && tenants.views().next().is_none());
        }
        let Tenants { slots, ids, away, ready, running, renewals, .. } = &tenants;
        assert!(slots.len() <= 20, "{} places", slots.len());
        assert!(ids.is_empty() && tenants.present == 0 && away.is_empty() && ready.is_empty());
        assert!(running.is_empty() && renewals.len() <= 65, "{} to renew", renewals.len());
    }
}
