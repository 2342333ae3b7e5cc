//! Random histories of runs that keep every promise.
//!
//! A small model of the product: partitions with a queue, an owner and one handler at a time; a delay queue; a lock; and
//! faults that repeat and lose what they may.

use std::collections::{BTreeMap, VecDeque};

use fastrand::Rng;

use crate::chaos::record::{End, Fate, Handling, Line, Message, Outcome, Phase, Place, Rest, Scope, What};

use super::builder::{History, RUNNER, STORE, once, queue, topic};

/// Ttl of leases and of the lock.
pub(super) const TTL_MS: u64 = 1_000;
/// Maximum number of attempts.
pub(super) const ATTEMPTS: u32 = 3;
const PARTITIONS: u32 = 3;
const PRODUCER: u32 = 10;
const LOCK: &str = "ledger";

/// A message that waits, or is handled.
#[derive(Clone, Debug)]
struct Item {
    message: Message,
    attempt: u32,
    crashes: u32,
}

/// A partition of a place, or a shard.
#[derive(Clone, Debug, Default)]
struct Partition {
    owner: u32,
    epoch: u64,
    waiting: VecDeque<Item>,
    running: Option<(u32, Item)>,
    /// The message that was handled last, with the time of its acknowledgement.
    done: Option<(u64, Item)>,
}

/// A run that is made up.
pub(super) struct Generator {
    rng: Rng,
    history: History,
    parts: BTreeMap<(Place, u32), Partition>,
    dead: BTreeMap<Place, Vec<(Option<u64>, String)>>,
    workers: Vec<u32>,
    number: u64,
    pid: u32,
    epoch: u64,
    fence: u64,
    holder: Option<u32>,
}

/// Returns the history of a run without a breach. Faults of scope `Data` are among its faults only if they are wanted.
pub(super) fn generate(seed: u64, with_data: bool) -> Vec<Line> {
    let places = [topic(), once(), queue()];
    let parts =
        places.iter().flat_map(|place| (0..PARTITIONS).map(|it| ((place.clone(), it), Partition::default())));
    let mut it = Generator {
        rng: Rng::with_seed(seed),
        history: History::new(),
        parts: parts.collect(),
        dead: BTreeMap::new(),
        workers: vec![20, 21],
        number: 0,
        pid: 100,
        epoch: 0,
        fence: 0,
        holder: None,
    };
    // The phase that the builder begins with is to come after the grants.
    it.history.lines.retain(|line| !matches!(line.what, What::Phase(_)));
    it.join();
    for (place, partition) in it.owned() {
        let owner = it.workers[it.rng.usize(..it.workers.len())];
        it.grant(&place, partition, owner);
    }
    it.phase(Phase::Calm);
    it.steps(300, true);
    it.history.wait(4 * TTL_MS);
    it.steps(200, true);
    it.phase(Phase::Faults);
    for _ in 0..6 {
        it.steps(60, true);
        it.fault(with_data);
    }
    it.phase(Phase::Healed);
    it.steps(400, true);
    it.phase(Phase::Draining);
    while it.parts.values().any(|part| part.running.is_some() || !part.waiting.is_empty()) {
        it.steps(1, false);
    }
    it.phase(Phase::Ended);
    for place in places {
        let rest = Rest { dead: it.dead.remove(&place).unwrap_or_default(), ..Rest::default() };
        it.history.push(RUNNER, What::Left { place, rest });
    }
    it.history.lines
}

impl Generator {
    fn phase(&mut self, phase: Phase) {
        self.history.push(RUNNER, What::Phase(phase));
    }

    /// The partitions with owners.
    fn owned(&self) -> Vec<(Place, u32)> {
        self.parts.keys().filter(|(place, _)| !place.group.is_empty()).cloned().collect()
    }

    fn join(&mut self) {
        self.pid += 1;
        self.workers.push(self.pid);
        self.history.runs(self.pid, &format!("worker-{}", self.pid), "worker");
    }

    fn grant(&mut self, place: &Place, partition: u32, owner: u32) {
        self.epoch += 1;
        let (place, epoch) = (place.clone(), self.epoch);
        let part = self.parts.get_mut(&(place.clone(), partition)).expect("a partition");
        (part.owner, part.epoch) = (owner, epoch);
        self.history.push(owner, What::Assigned { place, partition, epoch });
    }

    fn steps(&mut self, steps: usize, sending: bool) {
        for _ in 0..steps {
            match self.rng.u32(..20) {
                0..5 if sending => self.send(),
                5 => self.lock(),
                _ => {
                    let parts: Vec<_> = self.parts.keys().cloned().collect();
                    let (place, partition) = &parts[self.rng.usize(..parts.len())];
                    self.work(place, *partition);
                }
            }
            self.history.wait(self.rng.u64(..5));
        }
    }

    fn send(&mut self) {
        self.number += 1;
        let place = [topic(), once(), queue()][self.rng.usize(..3)].clone();
        let fate = match self.rng.u32(..12) {
            0 => Fate::Reject,
            1 => Fate::Hopeless,
            2..4 => Fate::Fail(self.rng.u32(1..ATTEMPTS)),
            4 => Fate::Flaky,
            _ => Fate::Ack,
        };
        let is_task = place.group.is_empty();
        let key = self.rng.u64(..6);
        let message = Message {
            number: self.number,
            to: place.name.clone(),
            producer: "producer-1".to_owned(),
            key: (!is_task).then_some(key),
            due_ms: if is_task { self.history.wall_ms() + self.rng.u64(5..50) } else { 0 },
            fate,
            safe: self.rng.bool(),
        };
        let partition = u32::try_from(key).expect("small") % PARTITIONS;
        self.history.push(PRODUCER, What::Sending(message.clone()));
        let (outcome, is_there) = match self.rng.u32(..20) {
            0 => (Outcome::Refused("full".to_owned()), false),
            1 => (Outcome::Unknown("cut".to_owned()), self.rng.bool()),
            _ => {
                let id = if is_task { String::new() } else { format!("{}-0", self.number) };
                (Outcome::Stored { partition, id }, true)
            }
        };
        self.history.push(PRODUCER, What::Sent { number: self.number, outcome });
        if is_there {
            let part = self.parts.get_mut(&(place, partition)).expect("a partition");
            part.waiting.push_back(Item { message, attempt: 1, crashes: 0 });
        }
    }

    fn handling(&self, place: &Place, partition: u32, epoch: u64, item: &Item) -> Handling {
        let Item { message, attempt, crashes } = item;
        let (number, place) = (message.number, place.clone());
        Handling {
            place,
            number,
            partition,
            origin: format!("{number}-0"),
            attempt: *attempt,
            crashes: *crashes,
            epoch,
        }
    }

    /// Begins with the next message of a partition, or ends the one that runs.
    fn work(&mut self, place: &Place, partition: u32) {
        let at = (place.clone(), partition);
        let mut part = self.parts.remove(&at).expect("a partition");
        if let Some((pid, item)) = part.running.take() {
            let handling = self.handling(place, partition, part.epoch, &item);
            self.end(pid, &handling, item, &mut part);
        } else if let Some(item) = part.waiting.front() {
            let is_task = place.group.is_empty();
            let pid = if is_task { self.workers[self.rng.usize(..self.workers.len())] } else { part.owner };
            let early_ms = item.message.due_ms.cast_signed() - self.history.wall_ms().cast_signed();
            if !is_task || early_ms <= 0 {
                let item = part.waiting.pop_front().expect("one waits");
                let handling = self.handling(place, partition, part.epoch, &item);
                let early_ms = if is_task { early_ms } else { 0 };
                self.history.push(pid, What::Begun { handling, intact: true, early_ms });
                (part.running, part.done) = (Some((pid, item)), None);
            }
        }
        self.parts.insert(at, part);
    }

    fn end(&mut self, pid: u32, handling: &Handling, item: Item, part: &mut Partition) {
        let end = match item.message.fate {
            Fate::Fail(attempts) if item.attempt <= attempts => End::Failed,
            Fate::Flaky if item.attempt == 1 && pid.is_multiple_of(2) => End::Failed,
            Fate::Hopeless => End::Failed,
            Fate::Ack | Fate::Fail(_) | Fate::Flaky => End::Acked,
            Fate::Reject => End::Rejected,
        };
        if end == End::Acked {
            self.history.effect(handling, true);
        }
        self.history.end(pid, handling, end);
        let dead = match end {
            End::Acked => {
                part.done = Some((self.history.wall_ms(), item));
                return;
            }
            End::Failed if item.attempt < ATTEMPTS => {
                let next = Item { attempt: item.attempt + 1, crashes: 0, ..item };
                return part.waiting.push_back(next);
            }
            End::Failed => "exhausted",
            End::Rejected => "rejected",
        };
        let letters = self.dead.entry(handling.place.clone()).or_default();
        letters.push((Some(handling.number), dead.to_owned()));
    }

    /// Somebody takes the lock, and writes; or the holder writes and lets it go.
    fn lock(&mut self) {
        let lock = LOCK.to_owned();
        match self.holder.take() {
            Some(writer) => {
                let fence = self.fence;
                self.history.push(STORE, What::Write { lock: lock.clone(), fence, writer, accepted: true });
                self.history.push(writer, What::Releasing { lock: lock.clone(), fence });
                self.history.push(writer, What::Unlocked { lock, fence, released: true });
            }
            None => {
                self.fence += 1;
                let holder = self.workers[self.rng.usize(..self.workers.len())];
                self.history.push(holder, What::Locked { lock, fence: self.fence, ttl_ms: TTL_MS });
                self.holder = Some(holder);
            }
        }
    }

    fn fault(&mut self, with_data: bool) {
        let target = self.workers[self.rng.usize(..self.workers.len())];
        match self.rng.u32(..if with_data { 4 } else { 3 }) {
            0 => {
                self.history.kill(target);
                self.workers.retain(|pid| *pid != target);
                self.join();
                self.history.wait(TTL_MS);
                self.take_over(target);
            }
            1 => {
                self.history.fault(Scope::Process(target)).wait(TTL_MS + 50);
                self.workers.retain(|pid| *pid != target);
                let (stale, lost) = self.take_over(target);
                self.history.fault_ends();
                self.workers.push(target);
                // What it had in hand comes too late.
                for handling in stale {
                    self.history.effect(&handling, false);
                }
                for (place, partition, epoch) in lost {
                    self.history.push(target, What::Unassigned { place, partition, epoch, lost: true });
                }
            }
            2 => {
                self.history.fault(Scope::Server).wait(self.rng.u64(10..3_000)).fault_ends();
            }
            _ => {
                let (before, rng) = (self.number, &mut self.rng);
                for part in self.parts.values_mut() {
                    let recent = |item: &Item| {
                        item.message.safe || item.attempt > 1 || before - item.message.number > 10
                    };
                    part.waiting.retain(|item| recent(item) || rng.bool());
                }
                self.history.fault(Scope::Data).wait(self.rng.u64(10..300)).fault_ends();
                self.again(2_000);
            }
        }
    }

    /// Messages that were acknowledged up to so many milliseconds ago come again.
    fn again(&mut self, within_ms: u64) {
        let now = self.history.wall_ms();
        for part in self.parts.values_mut() {
            if let Some((at, item)) = part.done.take()
                && now - at < within_ms
                && self.rng.bool()
            {
                // At a place with transactions the effect is there already, so that its handler is not called.
                if item.message.to != once().name {
                    part.waiting.push_front(item);
                }
            }
        }
    }

    /// The partitions and the messages of a process go to others; so does the lock. Returns the handlers that an owner
    /// was running, and the partitions.
    fn take_over(&mut self, target: u32) -> (Vec<Handling>, Vec<(Place, u32, u64)>) {
        let (mut running, mut lost) = (Vec::new(), Vec::new());
        let at: Vec<_> = self.parts.keys().cloned().collect();
        for (place, partition) in at {
            let part = self.parts.get_mut(&(place.clone(), partition)).expect("a partition");
            let (is_task, is_theirs, epoch) = (place.group.is_empty(), part.owner == target, part.epoch);
            let in_hand = part.running.take_if(|(pid, _)| *pid == target);
            if let Some((_, item)) = &in_hand {
                part.waiting.push_front(Item { crashes: item.crashes + 1, ..item.clone() });
            }
            if is_task || !is_theirs {
                continue;
            }
            let item = in_hand.map(|(_, item)| item);
            let handling = item.map(|item| self.handling(&place, partition, epoch, &item));
            let others: Vec<u32> = self.workers.iter().copied().filter(|pid| *pid != target).collect();
            let owner = others[self.rng.usize(..others.len())];
            self.grant(&place, partition, owner);
            lost.push((place.clone(), partition, epoch));
            if let Some(handling) = handling {
                // The new owner has an effect first, so that the store refuses that of the old one.
                self.work(&place, partition);
                self.work(&place, partition);
                let newer = self.history.lines.iter().any(|line| {
                    matches!(&line.what, What::Effect { handling: it, accepted: true }
                        if (&it.place, it.partition) == (&place, partition) && it.epoch > epoch)
                });
                running.extend(newer.then_some(handling));
            }
        }
        if self.holder == Some(target) {
            self.holder = None;
        }
        (running, lost)
    }
}
