//! Keys that belong together, of which one is lost, empty or of another type while clients run: work goes on or a named error is
//! reported, a repair heals it, and nobody is busy. `docs/protocol.md#keys-that-belong-together` has the most important in words; what the
//! scripts do is tested in `millstream-redis`, `leases::pairs`.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt};
use integration_tests::eventually;
use integration_tests::server::Server;
use millstream::admin::VerifyOptions;
use millstream::delay::{DelayQueue, Task};
use millstream::{Delivery, Error, Event, Fixed, Millstream, Outcome, Topic};
use millstream_core::keys::{Key, Keys};
use millstream_core::locks::{LockReply, LockRequest};
use millstream_core::recurring::Recurrence;
use millstream_core::schedule::{OnConflict, Place, ScheduleId, Shard};
use millstream_core::{Continuity, Envelope, GroupName, LockName, Timestamp, TopicPartition, wire};

const ORDERS: Topic<u64> = Topic::new("orders").partitions(1);
const TTL: Duration = Duration::from_millis(1_000);
/// For what is to stay where it is.
const HOUR: Duration = Duration::from_secs(3_600);
/// Time after which what does not go on is looked for with `verify`.
const PATIENCE: Duration = Duration::from_secs(6);
/// Payloads of a message that stays, of a task that is worked on, and of the rule.
const LATER: u64 = u64::MAX;
const UNDER_WAY: u64 = u64::MAX - 1;
const RULE: u64 = 0;
/// Most requests a second of a client that is not busy: it waits in requests, and renews what it holds.
const BUSY: f64 = 150.0;
/// Rows at a time, each with a server of its own.
const AT_ONCE: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Damage {
    Gone,
    /// The key is there, and has nothing in it.
    Emptied,
    /// Another type is in its place.
    Foreign,
}

struct Stage {
    server: Server,
    mq: Millstream,
    keys: Keys,
    /// Texts of errors that were reported.
    told: Arc<Mutex<Vec<String>>>,
    /// Payloads that were handled to the end.
    handled: Arc<Mutex<Vec<u64>>>,
}

impl Stage {
    async fn new() -> Self {
        let server = tokio::task::spawn_blocking(Server::start).await.expect("a server");
        let told = Arc::<Mutex<Vec<String>>>::default();
        let mq = Millstream::at(server.url()).observer(tell(&told)).await.expect("connected");
        Self { server, mq, keys: Keys::new(), told, handled: Arc::default() }
    }

    /// Returns whether there is a key to damage in this way.
    fn damage(&self, key: &Key, damage: Damage) -> bool {
        let cli = |words: &[&str]| self.server.cli(words);
        let key = key.as_str();
        let kind = cli(&["TYPE", key]);
        match (damage, &*kind) {
            (Damage::Emptied, "string") => _ = cli(&["SET", key, "", "KEEPTTL"]),
            (Damage::Emptied, "stream") => _ = cli(&["XTRIM", key, "MAXLEN", "0"]),
            // Redis has no other empty keys.
            (Damage::Emptied, _) | (Damage::Gone, "none") => return false,
            (Damage::Gone, _) => _ = cli(&["DEL", key]),
            (Damage::Foreign, _) => {
                let write = if kind == "string" { "RPUSH" } else { "SET" };
                cli(&[
                    "EVAL",
                    "redis.call('DEL', KEYS[1]) redis.call(ARGV[1], KEYS[1], 'mine')",
                    "1",
                    key,
                    write,
                ]);
            }
        }
        self.told.lock().expect("lock").clear();
        true
    }

    /// Number of requests that the server has had, without commands of scripts.
    fn requests(&self) -> u64 {
        let stats = self.server.cli(&["INFO", "commandstats"]);
        let calls = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let names = ["evalsha", "evalsha_ro", "xread", "xreadgroup", "multi", "blpop"];
            let calls = rest.strip_prefix("calls=")?.split(',').next()?;
            calls.parse::<u64>().ok().filter(|_| names.contains(&name))
        };
        stats.lines().filter_map(calls).sum()
    }

    async fn is_calm(&self, row: &str) {
        let (before, begun) = (self.requests(), Instant::now());
        tokio::time::sleep(Duration::from_secs(1)).await;
        let rate = (self.requests() - before) as f64 / begun.elapsed().as_secs_f64();
        assert!(rate <= BUSY, "{row}: {rate:.0} requests a second");
    }

    fn handle(&self) -> impl Fn(u64, u32) -> Outcome + Clone + Send + Sync + use<> {
        let handled = self.handled.clone();
        move |payload, attempt| match (payload, attempt) {
            (LATER, _) => Outcome::retry_after(HOUR, "later"),
            (RULE, _) | (_, 2..) => {
                handled.lock().expect("lock").push(payload);
                Outcome::Ack
            }
            _ => Outcome::retry("once more"),
        }
    }

    async fn rule(&self, place: &Place) {
        let rule = Recurrence {
            id: ScheduleId::new("rule").expect("an id"),
            rule: "every 500 anchor 0 skip".into(),
            fields: wire::encode(&Envelope::new("0")),
            next: Some(Timestamp::from_millis(500)),
            paused: false,
        };
        let recurring = self.mq.backend().recurring().expect("recurring");
        recurring.put(place, &rule, OnConflict::Keep).await.expect("kept");
    }

    fn fired(&self) -> usize {
        self.handled.lock().expect("lock").iter().filter(|it| **it == RULE).count()
    }

    /// Whether these are handled, and the rule has fired more than once since.
    fn goes_on(&self, payloads: &[u64], fired: usize) -> bool {
        let handled = self.handled.lock().expect("lock");
        payloads.iter().all(|it| handled.contains(it)) && {
            drop(handled);
            self.fired() > fired + 1
        }
    }

    fn is_told(&self, key: &Key, refused: &[Option<Error>]) -> bool {
        let told = self.told.lock().expect("lock");
        let refused = refused.iter().flatten().map(ToString::to_string);
        told.iter().cloned().chain(refused).any(|text| text.contains(key.as_str()))
    }
}

fn tell(told: &Arc<Mutex<Vec<String>>>) -> impl Fn(&Event<'_>) + Send + Sync + 'static {
    let told = told.clone();
    move |event| {
        if let Event::Failing { error, .. } = event {
            told.lock().expect("lock").push(error.to_string());
        }
    }
}

const fn verify(repair: bool) -> VerifyOptions {
    VerifyOptions { repair, limit: 1_000, progress: None }
}

/// A consumer with retries and delayed messages that wait, and a rule.
async fn topic(name: &'static str, damage: Damage) {
    let (stage, row) = (Stage::new().await, format!("{name}, {damage:?}"));
    let (keys, tp) = (&stage.keys, TopicPartition::new("orders".parse().expect("a name"), 0));
    let (group, at): (GroupName, _) = ("g".parse().expect("a name"), Place::from(tp.clone()));
    let key = match name {
        "lease" => keys.lease(&tp, &group),
        "fence" => keys.fence(&tp, &group),
        "retry" => keys.retry_due(&tp, &group),
        "retry:item" => keys.retry_items(&tp, &group),
        "delay" => keys.delay(&at),
        "delay:item" => keys.delay_items(&at),
        "recur" => keys.recur(&at),
        "recur:item" => keys.recur_items(&at),
        "members" => keys.members(&tp.topic, &group),
        "member" => keys.member(&tp.topic, &group),
        "assignment" => keys.assignment(&tp.topic, &group),
        "changes" => keys.changes(&tp.topic, &group),
        other => panic!("{other}"),
    };
    let producer = stage.mq.producer(ORDERS).await.expect("a producer");
    let handle = stage.handle();
    let consumer = stage.mq.consumer(ORDERS, "g").lease_ttl(TTL).retry(Fixed::new(TTL / 100));
    let consumer = consumer.start(move |delivery: Delivery<u64>| {
        let outcome = handle(delivery.payload, delivery.attempt());
        async move { outcome }
    });
    let consumer = consumer.await.expect("a consumer");
    stage.rule(&at).await;
    producer.send(&LATER).await.expect("sent");
    producer.send(&LATER).delay(HOUR).await.expect("scheduled");
    producer.send(&1).await.expect("sent");
    eventually(async || stage.goes_on(&[1], 0), "it works").await;
    if stage.damage(&key, damage) {
        let fired = stage.fired();
        let refused = [producer.send(&2).await.err(), producer.send(&3).delay(TTL / 50).await.err()];
        let begun = Instant::now();
        let (goes_on, told) =
            (|| stage.goes_on(&[2, 3], fired), || damage == Damage::Foreign && stage.is_told(&key, &refused));
        while !goes_on() && !told() && begun.elapsed() < PATIENCE {
            tokio::time::sleep(TTL / 50).await;
        }
        stage.is_calm(&row).await;
        let admin = stage.mq.admin();
        // A rule without its message is taken off, which the log says.
        if !goes_on() && !told() && (name, damage) != ("recur:item", Damage::Gone) {
            let found = admin.verify(&tp.topic, verify(false)).await.expect("verified");
            assert!(!found.is_sound(), "{row}: it stands still, and nothing says so");
        }
        if damage == Damage::Foreign {
            stage.server.cli(&["DEL", key.as_str()]);
        }
        admin.verify(&tp.topic, verify(true)).await.expect("repaired");
        // As each instance does when it starts.
        stage.rule(&at).await;
        let fired = stage.fired();
        producer.send(&4).await.expect("sent");
        producer.send(&5).delay(TTL / 50).await.expect("scheduled");
        eventually(async || stage.goes_on(&[4, 5], fired), &format!("{row}: it is healed")).await;
    }
    consumer.shutdown_within(TTL / 2).await;
}

/// A worker of a delay queue with tasks that wait and are claimed, and a rule.
async fn queue(name: &'static str, damage: Damage) {
    let (stage, row) = (Stage::new().await, format!("{name}, {damage:?}"));
    let (keys, shard) = (&stage.keys, Shard::new("mails".parse().expect("a name"), 0));
    let at = Place::from(shard.clone());
    let key = match name {
        "delay" => keys.delay(&at),
        "delay:item" => keys.delay_items(&at),
        "claim" => keys.claims(&shard),
        "claim:state" => keys.task_states(&shard),
        "watcher" => keys.watcher(&shard),
        "wake" => keys.wake(&at),
        "recur" => keys.recur(&at),
        "recur:item" => keys.recur_items(&at),
        other => panic!("{other}"),
    };
    let queue = DelayQueue::<u64>::new("mails").observer(tell(&stage.told));
    let queue = queue.open(stage.mq.backend()).await.expect("a queue");
    let handle = stage.handle();
    let worker = queue.worker().hold(TTL).longest_sleep(TTL).retry(Fixed::new(TTL / 100));
    let worker = worker.observer(tell(&stage.told)).start(move |task: Task<u64>| {
        let (payload, outcome) = (task.payload, handle(task.payload, task.attempt()));
        async move {
            if payload == UNDER_WAY {
                std::future::pending::<()>().await;
            }
            outcome
        }
    });
    let worker = worker.await.expect("a worker");
    stage.rule(&at).await;
    queue.schedule(&UNDER_WAY).await.expect("scheduled");
    queue.schedule(&LATER).await.expect("scheduled");
    queue.schedule(&LATER).delay(HOUR).await.expect("scheduled");
    queue.schedule(&1).await.expect("scheduled");
    eventually(async || stage.goes_on(&[1], 0), "it works").await;
    if stage.damage(&key, damage) {
        let fired = stage.fired();
        let refused = [queue.schedule(&2).delay(TTL / 50).await.err()];
        let begun = Instant::now();
        let (goes_on, told) =
            (|| stage.goes_on(&[2], fired), || damage == Damage::Foreign && stage.is_told(&key, &refused));
        while !goes_on() && !told() && begun.elapsed() < PATIENCE {
            tokio::time::sleep(TTL / 50).await;
        }
        stage.is_calm(&row).await;
        let admin = stage.mq.admin();
        // A rule without its message is taken off, which the log says.
        if !goes_on() && !told() && (name, damage) != ("recur:item", Damage::Gone) {
            let found = admin.verify_queue(&shard.queue, verify(false)).await.expect("verified");
            assert!(!found.is_sound(), "{row}: it stands still, and nothing says so");
        }
        if damage == Damage::Foreign {
            stage.server.cli(&["DEL", key.as_str()]);
        }
        admin.verify_queue(&shard.queue, verify(true)).await.expect("repaired");
        stage.rule(&at).await;
        let fired = stage.fired();
        queue.schedule(&4).delay(TTL / 50).await.expect("scheduled");
        eventually(async || stage.goes_on(&[4], fired), &format!("{row}: it is healed")).await;
    }
    worker.shutdown_within(TTL / 2).await;
}

/// A lock that is held. In its queue are a client that is dead, and one that waits.
async fn lock(name: &'static str, damage: Damage) {
    let (stage, row) = (Stage::new().await, format!("{name}, {damage:?}"));
    let (keys, lock) = (&stage.keys, LockName::new("invoice:42").expect("a name"));
    let key = match name {
        "lock" => keys.lock(&lock),
        "queue" => keys.lock_queue(&lock),
        "places" => keys.lock_places(&lock),
        "changes" => keys.lock_changes(&lock),
        "epoch" => keys.lock_epoch(&lock),
        "index" => keys.lock_index(&lock),
        other => panic!("{other}"),
    };
    let held = stage.mq.lock("invoice:42").ttl(2 * TTL).acquire().await.expect("acquired");
    let first = held.fence();
    let mut dead = LockRequest::new(lock.clone(), "dead", "dead", TTL);
    dead.continuity = Continuity::assured();
    let place = stage.mq.backend().locks().expect("locks").acquire(&dead).await.expect("answered");
    assert!(matches!(place, LockReply::Wait(_)), "{place:?}");
    let acquire = |mq: &Millstream| {
        let mq = mq.clone();
        async move { mq.lock("invoice:42").ttl(TTL).wait(integration_tests::HANG / 2).acquire().await }
    };
    let waiting = tokio::spawn(acquire(&stage.mq));
    let queue = keys.lock_queue(&lock);
    eventually(async || stage.server.cli(&["ZCARD", queue.as_str()]) == "2", "both wait").await;
    if stage.damage(&key, damage) {
        stage.is_calm(&row).await;
        let released = held.release().await.err().map(|error| error.to_string());
        stage.is_calm(&row).await;
        let granted = match waiting.await.expect("no panic") {
            Ok(granted) => granted,
            Err(error) => {
                let told = format!("{error} {}", released.unwrap_or_default());
                assert!(damage == Damage::Foreign && told.contains(key.as_str()), "{row}: {told}");
                stage.server.cli(&["DEL", key.as_str()]);
                acquire(&stage.mq).await.unwrap_or_else(|error| panic!("{row}: it is healed: {error}"))
            }
        };
        assert!(granted.fence() > first, "{row}: {} after {first}", granted.fence());
    }
}

/// Runs all rows of a table, some at a time.
async fn check<F: Future<Output = ()>>(names: &[&'static str], run: fn(&'static str, Damage) -> F) {
    let damages = [Damage::Gone, Damage::Emptied, Damage::Foreign];
    let rows = names.iter().flat_map(|name| damages.map(|damage| (*name, damage)));
    stream::iter(rows).for_each_concurrent(AT_ONCE, |(name, damage)| run(name, damage)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_and_a_group_go_on_or_say_so_and_are_healed() {
    let names = ["lease", "fence", "retry", "retry:item", "delay", "delay:item", "recur", "recur:item"];
    check(&names, topic).await;
    check(&["members", "member", "assignment", "changes"], topic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delay_queue_goes_on_or_says_so_and_is_healed() {
    let names = ["delay", "delay:item", "claim", "claim:state", "watcher", "wake", "recur", "recur:item"];
    check(&names, queue).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_granted_or_says_so_and_is_healed() {
    check(&["lock", "queue", "places", "changes", "epoch", "index"], lock).await;
}
