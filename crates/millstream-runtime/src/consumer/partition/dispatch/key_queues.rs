//! Queues that keep order: decide which messages of a partition may be handled now. Without tasks.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use millstream_engine::fairness::TenantId;
use millstream_engine::priorities::Rank;

use crate::consumer::partition::dispatch::ready::Ready;
use crate::consumer::partition::in_flight::Load;
use crate::consumer::{Concurrency, RetryOrder};

/// Whose an item is, and its lane. Without fairness all are the same one's, without priorities all are in the same lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::consumer) struct Owner {
    pub(in crate::consumer) tenant: TenantId,
    /// Its cost, if costs are counted.
    pub(in crate::consumer) cost: Option<u64>,
    pub(in crate::consumer) rank: Rank,
}

/// Which messages share a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::consumer) enum Grouping {
    /// One queue for the whole partition.
    Partition,
    /// One queue per key; a message without a key has a queue of its own.
    Key,
    /// One queue per message.
    Entry,
}

impl Grouping {
    /// Returns the grouping for a configuration, and the number of messages that run at once.
    pub(in crate::consumer) fn of(concurrency: Concurrency, retry_order: RetryOrder) -> (Self, usize) {
        match (concurrency, retry_order) {
            // Keys have queues so that one can wait, but messages run one at a time, in the order of the partition.
            (Concurrency::Serial, RetryOrder::BlockKey) => (Self::Key, 1),
            (Concurrency::Serial, _) => (Self::Partition, 1),
            (Concurrency::PerKey(at_once), _) => (Self::Key, at_once),
            (Concurrency::Unordered(at_once), _) => (Self::Entry, at_once),
        }
    }
}

/// Id of a queue, valid as long as something waits or runs in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::consumer) struct KeyQueue(usize);

impl KeyQueue {
    /// Returns it as an index.
    pub(in crate::consumer) fn index(self) -> usize {
        self.0
    }
}

/// The position of an item that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::consumer) struct Ticket {
    queue: usize,
    /// Its number in the order of arrival.
    number: u64,
    bytes: usize,
    owner: Owner,
    /// What its lane was charged.
    charged: u64,
    /// Whether it takes a place of `at_once`. One that [`next_in_batch`](KeyQueues::next_in_batch) took shares that of the item before it.
    counted: bool,
}

impl Ticket {
    /// Returns whose the item is.
    pub(in crate::consumer) fn tenant(&self) -> TenantId {
        self.owner.tenant
    }

    /// Returns the number of the item in the order of arrival, and its lane.
    pub(in crate::consumer) fn place(&self) -> (u64, Rank) {
        (self.number, self.owner.rank)
    }

    /// Returns it for an item that has so many bytes now.
    pub(in crate::consumer) fn of_bytes(self, bytes: usize) -> Self {
        Self { bytes, ..self }
    }
}

/// Items in queues.
///
/// One item of a queue runs at a time, in the order of arrival. Among all items that may start, the one that arrived
/// first is next; with [fairness or priorities](Ready::Fair) the first one of the tenant and the lane whose turn it is. So nothing starves, and with
/// `at_once` 1 and without these the order of the partition is kept unless a queue is blocked.
#[derive(Debug)]
pub(in crate::consumer) struct KeyQueues<T> {
    grouping: Grouping,
    at_once: usize,
    running: usize,
    queues: Vec<Queue<T>>,
    /// Unused queues.
    free: Vec<usize>,
    keys: HashMap<Bytes, usize>,
    /// Queues in which an item can start.
    ready: Ready,
    arrivals: u64,
    /// Items that do not run.
    waiting: Load,
    /// Items in blocked queues.
    blocked: Load,
}

#[derive(Debug)]
struct Queue<T> {
    key: Option<Bytes>,
    items: VecDeque<Item<T>>,
    /// Bytes of these items.
    bytes: usize,
    running: usize,
    blocked: bool,
}

#[derive(Debug)]
struct Item<T> {
    number: u64,
    bytes: usize,
    owner: Owner,
    value: T,
}

impl<T> Queue<T> {
    fn new(key: Option<Bytes>) -> Self {
        Self { key, items: VecDeque::new(), bytes: 0, running: 0, blocked: false }
    }

    fn load(&self) -> Load {
        Load { items: self.items.len(), bytes: self.bytes }
    }
}

impl<T> KeyQueues<T> {
    /// Creates empty queues. At most `at_once` units run at the same time.
    pub(in crate::consumer) fn new(grouping: Grouping, at_once: usize, ready: Ready) -> Self {
        let queues = if grouping == Grouping::Partition { vec![Queue::new(None)] } else { Vec::new() };
        Self {
            grouping,
            at_once,
            running: 0,
            queues,
            free: Vec::new(),
            keys: HashMap::new(),
            ready,
            arrivals: 0,
            waiting: Load::default(),
            blocked: Load::default(),
        }
    }

    /// Returns what is in blocked queues.
    pub(in crate::consumer) fn blocked(&self) -> Load {
        self.blocked
    }

    /// Returns what does not run, blocked or not.
    pub(in crate::consumer) fn waiting(&self) -> Load {
        self.waiting
    }

    /// Returns what knows whose turn it is.
    pub(in crate::consumer) fn ready(&mut self) -> &mut Ready {
        &mut self.ready
    }

    /// Returns how many more units may run at the same time.
    pub(in crate::consumer) fn room(&self) -> usize {
        self.at_once.saturating_sub(self.running)
    }

    /// Whether an item can start, as far as the queues are concerned.
    pub(in crate::consumer) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether the whole partition is one queue.
    pub(in crate::consumer) fn is_one(&self) -> bool {
        self.grouping == Grouping::Partition
    }

    /// Whether the key of an item matters.
    pub(in crate::consumer) fn is_by_key(&self) -> bool {
        self.grouping == Grouping::Key
    }

    /// Appends an item of so many bytes to the queue of its key. Its owner has [entered](Ready::enter).
    pub(in crate::consumer) fn push(&mut self, key: Option<&Bytes>, owner: Owner, bytes: usize, value: T) {
        let at = self.queue_of(key);
        let number = self.arrivals;
        self.arrivals += 1;
        let queue = &mut self.queues[at];
        queue.items.push_back(Item { number, bytes, owner, value });
        queue.bytes += bytes;
        self.waiting.add(1, bytes);
        if queue.blocked {
            self.blocked.add(1, bytes);
        } else if queue.running == 0 && queue.items.len() == 1 {
            self.ready.push(number, at, owner);
        }
    }

    fn queue_of(&mut self, key: Option<&Bytes>) -> usize {
        let key = match (self.grouping, key) {
            (Grouping::Partition, _) => return 0,
            (Grouping::Entry, _) => None,
            (Grouping::Key, key) => key,
        };
        if let Some(at) = key.and_then(|key| self.keys.get(key)) {
            return *at;
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.queues.push(Queue::new(None));
            self.queues.len() - 1
        });
        if let Some(key) = key {
            self.queues[at].key = Some(key.clone());
            self.keys.insert(key.clone(), at);
        }
        at
    }

    /// Hands out the next item that may start.
    pub(in crate::consumer) fn next(&mut self) -> Option<(Ticket, T)> {
        if self.running >= self.at_once {
            return None;
        }
        // `ready` contains a queue only while it is not blocked and none of its items runs.
        let at = self.ready.pop()?;
        let (ticket, value) = self.take(at, true)?;
        self.running += 1;
        Some((ticket, value))
    }

    /// Hands out one more item for the batch (or row) that [`next`](Self::next) began. If the whole
    /// partition is one queue, that is the following item; else the first item of another queue, so that two items of a
    /// key are never in one batch.
    pub(in crate::consumer) fn next_in_batch(&mut self) -> Option<(Ticket, T)> {
        let at = match self.grouping {
            Grouping::Partition => 0,
            Grouping::Key | Grouping::Entry => self.ready.pop()?,
        };
        self.take(at, false)
    }

    fn take(&mut self, at: usize, counted: bool) -> Option<(Ticket, T)> {
        let queue = &mut self.queues[at];
        let Item { number, bytes, owner, value } = queue.items.pop_front()?;
        queue.running += 1;
        queue.bytes -= bytes;
        self.waiting.remove(1, bytes);
        let charged = self.ready.begin(number, owner);
        Some((Ticket { queue: at, number, bytes, owner, charged, counted }, value))
    }

    /// Finishes the item with this ticket, which was in its handler for this time, if it ran.
    pub(in crate::consumer) fn done(&mut self, ticket: Ticket, elapsed: Option<Duration>) {
        self.ready.end(ticket.number, elapsed);
        self.leave(ticket);
        self.open(ticket.queue);
    }

    /// Puts the item with this ticket back to its position, after this time in its handler, if it ran. It comes up again.
    pub(in crate::consumer) fn put_back(&mut self, ticket: Ticket, value: T, elapsed: Option<Duration>) {
        self.ready.undo(ticket.number, ticket.owner, ticket.charged, elapsed);
        self.leave(ticket);
        let queue = &mut self.queues[ticket.queue];
        let Ticket { number, bytes, owner, .. } = ticket;
        // Several parts of a batch may be put back, in any order: the number restores their order.
        let place = queue.items.partition_point(|item| item.number < number);
        queue.items.insert(place, Item { number, bytes, owner, value });
        queue.bytes += bytes;
        self.waiting.add(1, bytes);
        self.open(ticket.queue);
    }

    /// Puts the item with this ticket back to its position and blocks its queue until [`unblock`](Self::unblock) is
    /// called. `None` if more of its queue runs: then the queue is not blocked, and the item comes up again after that.
    pub(in crate::consumer) fn block(&mut self, ticket: Ticket, value: T) -> Option<KeyQueue> {
        if self.queues[ticket.queue].running > 1 {
            self.put_back(ticket, value, None);
            return None;
        }
        self.ready.undo(ticket.number, ticket.owner, ticket.charged, None);
        self.leave(ticket);
        let queue = &mut self.queues[ticket.queue];
        let Ticket { number, bytes, owner, .. } = ticket;
        queue.items.push_front(Item { number, bytes, owner, value });
        queue.bytes += bytes;
        queue.blocked = true;
        let Load { items, bytes: all } = queue.load();
        self.waiting.add(1, bytes);
        self.blocked.add(items, all);
        Some(KeyQueue(ticket.queue))
    }

    /// Returns all items that do not run.
    pub(in crate::consumer) fn items(&self) -> impl Iterator<Item = &T> {
        self.queues.iter().flat_map(|queue| &queue.items).map(|item| &item.value)
    }

    /// Unblocks a queue.
    pub(in crate::consumer) fn unblock(&mut self, KeyQueue(at): KeyQueue) {
        let queue = &mut self.queues[at];
        if std::mem::take(&mut queue.blocked) {
            let Load { items, bytes } = queue.load();
            self.blocked.remove(items, bytes);
            self.open(at);
        }
    }

    /// Removes the items that do not run, and returns them in the order of arrival.
    pub(in crate::consumer) fn drain(&mut self) -> Vec<T> {
        let mut items: Vec<_> = self.queues.iter_mut().flat_map(|queue| queue.items.drain(..)).collect();
        items.sort_unstable_by_key(|item| item.number);
        self.queues.iter_mut().for_each(|queue| queue.bytes = 0);
        self.ready.clear(items.iter().map(|item| item.owner));
        (self.blocked, self.waiting) = (Load::default(), Load::default());
        items.into_iter().map(|item| item.value).collect()
    }

    fn leave(&mut self, ticket: Ticket) {
        self.queues[ticket.queue].running -= 1;
        if ticket.counted {
            self.running -= 1;
        }
    }

    /// Makes the queue ready if none of its items runs any more, or frees it if it is empty.
    fn open(&mut self, at: usize) {
        let queue = &mut self.queues[at];
        if queue.running > 0 {
            return;
        }
        if let Some(front) = queue.items.front() {
            self.ready.push(front.number, at, front.owner);
        } else if self.grouping != Grouping::Partition {
            if let Some(key) = queue.key.take() {
                self.keys.remove(&key);
            }
            self.free.push(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn key(n: u8) -> Option<Bytes> {
        // Every fifth has no key.
        (!n.is_multiple_of(5)).then(|| Bytes::from(vec![n % 5]))
    }

    /// The queue of an item by definition, independent of the implementation.
    fn queue(grouping: Grouping, key: Option<&Bytes>, item: usize) -> String {
        match (grouping, key) {
            (Grouping::Partition, _) => "all".into(),
            (Grouping::Key, Some(key)) => format!("key {key:?}"),
            _ => format!("entry {item}"),
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push { key: u8 },
        Next,
        NextInBatch,
        Done(usize),
        PutBack(usize),
        Block(usize),
        Unblock(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => any::<u8>().prop_map(|key| Step::Push { key }),
            4 => Just(Step::Next),
            1 => Just(Step::NextInBatch),
            3 => any::<usize>().prop_map(Step::Done),
            1 => any::<usize>().prop_map(Step::PutBack),
            1 => any::<usize>().prop_map(Step::Block),
            2 => any::<usize>().prop_map(Step::Unblock),
        ]
    }

    /// Queues beside a model of them that is too simple to be wrong.
    struct Model {
        grouping: Grouping,
        at_once: usize,
        queues: KeyQueues<usize>,
        keys: Vec<Option<Bytes>>,
        running: Vec<(Ticket, usize)>,
        waiting: BTreeSet<usize>,
        blocked: BTreeMap<String, KeyQueue>,
        done: BTreeSet<usize>,
    }

    impl Model {
        fn new(grouping: Grouping, at_once: usize) -> Self {
            let (keys, running) = (Vec::new(), Vec::new());
            let queues = KeyQueues::new(grouping, at_once, Ready::default());
            let (waiting, blocked, done) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
            Self { grouping, at_once, queues, keys, running, waiting, blocked, done }
        }

        fn queue(&self, item: usize) -> String {
            queue(self.grouping, self.keys[item].as_ref(), item)
        }

        /// The first item that may start by the rules.
        fn expected(&self) -> Option<usize> {
            let units = self.running.iter().filter(|(ticket, _)| ticket.counted).count();
            if units >= self.at_once {
                return None;
            }
            let busy: BTreeSet<_> = self.running.iter().map(|(_, item)| self.queue(*item)).collect();
            let free = |item: &&usize| {
                let queue = self.queue(**item);
                !busy.contains(&queue) && !self.blocked.contains_key(&queue)
            };
            self.waiting.iter().find(free).copied()
        }

        fn next(&mut self) -> bool {
            let expected = self.expected();
            let next = self.queues.next();
            assert_eq!(next.map(|(_, item)| item), expected);
            let Some((ticket, item)) = next else { return false };
            assert!(self.waiting.remove(&item));
            self.running.push((ticket, item));
            true
        }

        fn next_in_batch(&mut self) {
            // Runs along with the item that was handed out last, if that is the only one.
            if self.running.len() != 1 {
                return;
            }
            if let Some((ticket, item)) = self.queues.next_in_batch() {
                assert!(!self.blocked.contains_key(&self.queue(item)));
                let earlier =
                    self.waiting.range(..item).find(|other| self.queue(**other) == self.queue(item));
                assert_eq!(earlier, None, "in the order of the queue");
                if self.grouping != Grouping::Partition {
                    assert_ne!(self.queue(self.running[0].1), self.queue(item));
                }
                assert!(self.waiting.remove(&item));
                self.running.push((ticket, item));
            }
        }

        fn run(&mut self, step: &Step) {
            let pick = |n: usize, of: usize| (of > 0).then(|| n % of);
            match *step {
                Step::Push { key: n } => {
                    let item = self.keys.len();
                    self.keys.push(key(n));
                    self.waiting.insert(item);
                    self.queues.push(self.keys[item].as_ref(), Owner::default(), item, item);
                }
                Step::Next => {
                    self.next();
                }
                Step::NextInBatch => self.next_in_batch(),
                Step::Done(n) => {
                    if let Some(n) = pick(n, self.running.len()) {
                        let (ticket, item) = self.running.remove(n);
                        self.queues.done(ticket, None);
                        assert!(self.done.insert(item));
                    }
                }
                Step::PutBack(n) => {
                    if let Some(n) = pick(n, self.running.len()) {
                        let (ticket, item) = self.running.remove(n);
                        self.queues.put_back(ticket, item, None);
                        self.waiting.insert(item);
                    }
                }
                Step::Block(n) => {
                    if let Some(n) = pick(n, self.running.len()) {
                        let (ticket, item) = self.running.remove(n);
                        self.waiting.insert(item);
                        if let Some(queue) = self.queues.block(ticket, item) {
                            self.blocked.insert(self.queue(item), queue);
                        }
                    }
                }
                Step::Unblock(n) => {
                    if let Some(n) = pick(n, self.blocked.len())
                        && let Some(name) = self.blocked.keys().nth(n).cloned()
                        && let Some(queue) = self.blocked.remove(&name)
                    {
                        self.queues.unblock(queue);
                    }
                }
            }
            let blocked = self.waiting.iter().filter(|item| self.blocked.contains_key(&self.queue(**item)));
            let (items, bytes) = blocked.fold((0, 0), |(items, bytes), item| (items + 1, bytes + item));
            assert_eq!(self.queues.blocked(), Load { items, bytes });
            let units = self.running.iter().filter(|(ticket, _)| ticket.counted).count();
            assert!(units <= self.at_once);
        }
    }

    proptest! {
        #[test]
        fn queues_do_what_their_rules_say_and_lose_nothing(
            grouping in prop::sample::select(vec![Grouping::Partition, Grouping::Key, Grouping::Entry]),
            at_once in 1usize..5,
            steps in prop::collection::vec(step(), 0..200),
        ) {
            // A partition that is one queue never runs more than one unit.
            let mut model = Model::new(grouping, at_once);
            for step in &steps {
                // Parts of a batch end together with the first, as in the dispatcher.
                if let Step::Done(_) | Step::PutBack(_) | Step::Block(_) = step {
                    let along = model.running.iter().any(|(ticket, _)| !ticket.counted);
                    if along {
                        while let Some(at) = model.running.iter().position(|(ticket, _)| !ticket.counted) {
                            model.run(&match step {
                                Step::Done(_) => Step::Done(at),
                                Step::Block(_) => Step::Block(at),
                                _ => Step::PutBack(at),
                            });
                        }
                    }
                }
                model.run(step);
            }
            // Nothing is stuck and nothing is lost: once no queue is blocked, everything ends.
            for queue in std::mem::take(&mut model.blocked).into_values() {
                model.queues.unblock(queue);
            }
            loop {
                while model.next() {}
                if model.running.is_empty() {
                    break;
                }
                while !model.running.is_empty() {
                    model.run(&Step::Done(0));
                }
            }
            prop_assert_eq!(model.done.len(), model.keys.len());
            prop_assert!(model.queues.keys.is_empty());
        }
    }

    #[test]
    fn a_blocked_queue_blocks_no_other_and_keeps_its_order() {
        let mut queues = KeyQueues::new(Grouping::Key, 1, Ready::default());
        let (a, b) = (Bytes::from("a"), Bytes::from("b"));
        for (key, item) in [(&a, 1), (&a, 2), (&b, 3), (&a, 4)] {
            queues.push(Some(key), Owner::default(), 10, item);
        }
        let (ticket, item) = queues.next().expect("the first");
        let queue = queues.block(ticket, item).expect("nothing else of it runs");
        assert_eq!(queues.blocked(), Load { items: 3, bytes: 30 });
        let (ticket, item) = queues.next().expect("the other queue");
        assert_eq!(item, 3);
        queues.done(ticket, None);
        assert!(queues.next().is_none());
        queues.unblock(queue);
        let order: Vec<_> = std::iter::from_fn(|| {
            let (ticket, item) = queues.next()?;
            queues.done(ticket, None);
            Some(item)
        })
        .collect();
        assert_eq!(order, [1, 2, 4]);
    }

    #[test]
    fn a_batch_of_a_whole_partition_keeps_its_order_when_parts_come_back() {
        let mut queues = KeyQueues::new(Grouping::Partition, 1, Ready::default());
        (1..=5).for_each(|item| queues.push(None, Owner::default(), 0, item));
        let mut batch = vec![queues.next().expect("the first")];
        batch.extend(std::iter::from_fn(|| queues.next_in_batch()).take(3));
        for (ticket, item) in batch {
            if item % 2 == 1 {
                queues.put_back(ticket, item, None);
            } else {
                queues.done(ticket, None);
            }
        }
        let order: Vec<_> = std::iter::from_fn(|| {
            let (ticket, item) = queues.next()?;
            queues.done(ticket, None);
            Some(item)
        })
        .collect();
        assert_eq!(order, [1, 3, 5]);
    }
}
