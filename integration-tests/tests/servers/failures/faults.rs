//! What may happen to a server under a group of two instances: they live on, say so, and lose nothing.
//! Each is a row of `docs/guarantees.md`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use integration_tests::{eventually, server::Server};
use millstream::{
    Consumer, Delivery, Event, Fixed, GroupName, Millstream, Outcome, Producer, Topic, TopicPartition,
};
use millstream_core::leases::Resource;

const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(4);
const LOG: &str = "stream:topic:{numbers:p:0}";

type Handled = Arc<Mutex<BTreeMap<u64, u32>>>;

/// A producer and two instances of a consumer at work on a private server, and all their events.
struct Fixture {
    server: Server,
    mq: Millstream,
    producer: Producer<u64>,
    consumers: Vec<Consumer>,
    handled: Handled,
    told: Arc<Mutex<Vec<String>>>,
    /// The numbers whose send was confirmed.
    confirmed: Vec<u64>,
    next: u64,
}

impl Fixture {
    async fn begin(server: Server) -> Self {
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let observer = {
            let told = told.clone();
            move |event: &Event<'_>| {
                if !matches!(event, Event::Handled { .. } | Event::Fetched { .. } | Event::Settled { .. }) {
                    told.lock().expect("lock").push(format!("{event:?}"));
                }
            }
        };
        let mq = Millstream::at(server.url()).observer(observer).await.expect("connected");
        let producer =
            mq.producer(NUMBERS).delivery_timeout(Duration::from_secs(20)).await.expect("a producer");
        let handled = Handled::default();
        let mut consumers = Vec::new();
        for _ in 0..2 {
            let handled = handled.clone();
            let consumer = mq
                .consumer(NUMBERS, "g")
                .retry(Fixed::new(Duration::from_millis(20)).attempts(4))
                .lease_ttl(Duration::from_secs(2))
                .start(move |delivery: Delivery<u64>| {
                    let number = delivery.payload;
                    let first = delivery.attempt() == 1;
                    *handled.lock().expect("lock").entry(number).or_default() += 1;
                    async move {
                        tokio::time::sleep(Duration::from_micros(200)).await;
                        if number % 10 == 3 && first { Outcome::retry("once") } else { Outcome::Ack }
                    }
                });
            consumers.push(consumer.await.expect("started"));
        }
        let mut scene =
            Self { server, mq, producer, consumers, handled, told, confirmed: Vec::new(), next: 0 };
        scene.shared().await;
        scene.send(300).await;
        scene.all_handled().await;
        scene
    }

    /// Waits until each instance owns two partitions.
    async fn shared(&self) {
        let group = GroupName::new("g").expect("a name");
        let name = NUMBERS.spec().expect("a topic").name;
        let shared = async || {
            let mut owners: BTreeMap<String, u32> = BTreeMap::new();
            for partition in 0..4 {
                let resource =
                    Resource::partition(TopicPartition::new(name.clone(), partition), group.clone());
                if let Ok(Some(holder)) = self.mq.backend().leases().holder(&resource).await {
                    *owners.entry(holder.owner).or_default() += 1;
                }
            }
            owners.values().eq(&[2, 2])
        };
        eventually(shared, "both own two partitions").await;
    }

    /// Sends numbers one by one, and remembers those that were confirmed.
    async fn send(&mut self, count: u64) {
        for number in self.next..self.next + count {
            if self.producer.send(&number).key(number.to_be_bytes()).await.is_ok() {
                self.confirmed.push(number);
            }
        }
        self.next += count;
    }

    async fn all_handled(&self) {
        let missing = || {
            let handled = self.handled.lock().expect("lock");
            self.confirmed.iter().filter(|number| !handled.contains_key(number)).count()
        };
        eventually(async || missing() == 0, "every confirmed message is handled").await;
        let at_rest = async || {
            let stats = self.mq.stats(&NUMBERS, "g").await;
            stats.is_ok_and(|stats| stats.iter().all(|p| p.pending == 0 && p.retrying == 0))
        };
        eventually(at_rest, "nothing is pending").await;
    }

    fn told(&self, what: &str) -> usize {
        self.told.lock().expect("lock").iter().filter(|line| line.contains(what)).count()
    }

    async fn tells(&self, what: &str) {
        eventually(async || self.told(what) > 0, &format!("{what:?} is told")).await;
    }

    /// Sends and handles more, and ends in order: the consumer has survived.
    async fn lives_on(mut self) -> Self {
        self.send(200).await;
        assert!(self.confirmed.contains(&(self.next - 1)), "the producer works again");
        self.all_handled().await;
        self.shared().await;
        self
    }

    /// Numbers handled more often than their one planned failure explains.
    fn doubled(&self) -> usize {
        let handled = self.handled.lock().expect("lock");
        handled.iter().filter(|(number, times)| **times > 1 + u32::from(*number % 10 == 3)).count()
    }

    async fn end(self) {
        assert_eq!(self.handed_back().await, 0, "nothing is left, and no lease was lost");
    }

    /// Ends, and returns how many were in flight when a lease was lost, or now.
    async fn handed_back(self) -> u64 {
        let mut handed_back = 0;
        for consumer in self.consumers {
            let report = consumer.shutdown().await;
            handed_back += report.handed_back;
            assert_eq!(report.dead, 0, "no outage uses up an attempt: {report:?}");
            assert!(report.acked > 0, "both work: {report:?}");
        }
        handed_back
    }
}

/// The process of the server is killed and comes back later.
#[tokio::test]
async fn a_restart_of_the_server_loses_nothing() {
    let mut scene = Fixture::begin(Server::builder().appendonly(true).start()).await;
    let sending = async {
        scene.send(2_000).await;
        scene
    };
    let mut scene = sending.await;
    scene.server.kill();
    scene.tells("Failing").await;
    scene.server.restart();
    let scene = scene.lives_on().await;
    scene.tells("Recovered").await;
    scene.end().await;
}

/// Every connection is cut, several times, under load.
#[tokio::test]
async fn cut_connections_are_made_again() {
    let mut scene = Fixture::begin(Server::start()).await;
    for _ in 0..5 {
        scene.send(100).await;
        for kind in ["normal", "master", "pubsub"] {
            scene.server.cli(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
        }
    }
    let scene = scene.lives_on().await;
    scene.tells("Failing").await;
    scene.tells("Recovered").await;
    assert_eq!(scene.doubled(), 0, "the same owner skips what it holds");
    scene.end().await;
}

/// The script cache is emptied.
#[tokio::test]
async fn flushed_scripts_are_loaded_again() {
    let mut scene = Fixture::begin(Server::start()).await;
    for _ in 0..5 {
        scene.server.cli(&["SCRIPT", "FLUSH"]);
        scene.send(50).await;
    }
    let scene = scene.lives_on().await;
    assert_eq!(scene.doubled(), 0);
    assert_eq!(scene.told("Failing"), 0, "nobody notices: {:?}", scene.told);
    scene.end().await;
}

/// The group is destroyed. It is created again at its position, and reported.
#[tokio::test]
async fn a_destroyed_group_is_restored_at_its_frontier() {
    let mut scene = Fixture::begin(Server::start()).await;
    for partition in 0..4 {
        let log = format!("stream:topic:{{numbers:p:{partition}}}");
        assert_eq!(scene.server.cli(&["XGROUP", "DESTROY", &log, "g"]), "1");
    }
    scene.send(100).await;
    let scene = scene.lives_on().await;
    assert_eq!(scene.told("GroupRestored"), 4, "{:?}", scene.told);
    assert_eq!(scene.doubled(), 0, "everything before was settled");
    scene.end().await;
}

/// Somebody deletes the streams, with what is in them. What comes after is handled.
#[tokio::test]
async fn a_deleted_stream_is_told_and_survived() {
    let scene = Fixture::begin(Server::start()).await;
    for partition in 0..4 {
        let tag = format!("{{numbers:p:{partition}}}");
        scene.server.cli(&["DEL", &format!("stream:topic:{tag}"), &format!("stream:topic:{tag}:retry:g")]);
    }
    scene.tells("GroupRestored").await;
    let scene = scene.lives_on().await;
    assert_eq!(scene.doubled(), 0);
    scene.end().await;
}

/// At its worst: everything is gone, leases included.
#[tokio::test]
async fn a_flushed_server_is_told_and_survived() {
    let scene = Fixture::begin(Server::start()).await;
    scene.server.cli(&["FLUSHALL"]);
    scene.tells("LeaseLost").await;
    let scene = scene.lives_on().await;
    // Messages that were sent before the last lease was found lost may have been in flight then.
    scene.handed_back().await;
}

/// The server answers nobody for some seconds.
#[tokio::test]
async fn a_paused_server_is_waited_for() {
    let mut scene = Fixture::begin(Server::start()).await;
    scene.server.cli(&["CLIENT", "PAUSE", "3000", "ALL"]);
    scene.send(20).await;
    let mut scene = scene.lives_on().await;
    scene.server.cli(&["CLIENT", "PAUSE", "1000", "WRITE"]);
    scene.send(20).await;
    let scene = scene.lives_on().await;
    assert_eq!(scene.doubled(), 0, "a pause is no reason to handle twice");
    scene.end().await;
}

/// The process of the server is stopped and goes on later.
#[tokio::test]
async fn a_stopped_server_process_is_waited_for() {
    let scene = Fixture::begin(Server::start()).await;
    scene.server.pause();
    tokio::time::sleep(Duration::from_secs(3)).await;
    scene.server.resume();
    let scene = scene.lives_on().await;
    assert_eq!(scene.doubled(), 0);
    scene.end().await;
}

/// Somebody's script keeps the server busy.
#[tokio::test]
async fn a_busy_server_is_waited_for() {
    let scene = Fixture::begin(Server::builder().arg("--busy-reply-threshold", "50").start()).await;
    let url = scene.server.url();
    let busy = std::thread::spawn(move || {
        let client = redis::Client::open(url).expect("a client");
        let mut connection = client.get_connection().expect("a connection");
        let script = "local till = redis.call('TIME')[1] + 3 while redis.call('TIME')[1] - till < 0 do end";
        redis::cmd("EVAL").arg(script).arg(0).query::<()>(&mut connection)
    });
    let scene = scene.lives_on().await;
    busy.join().expect("no panic").expect("the script ended");
    scene.end().await;
}

/// Pending entries are deleted. They are reported, and do not stay pending.
#[tokio::test]
async fn deleted_pending_entries_are_told_and_leave_the_list() {
    let server = Server::start();
    let ghosts: Arc<Mutex<usize>> = Arc::default();
    let observer = {
        let ghosts = ghosts.clone();
        move |event: &Event<'_>| {
            if let Event::Ghosts { entries, .. } = event {
                *ghosts.lock().expect("lock") += entries;
            }
        }
    };
    let mq = Millstream::at(server.url()).observer(observer).await.expect("connected");
    let producer = mq.producer(NUMBERS).await.expect("a producer");
    let mut ids = Vec::new();
    for number in 0..5_u64 {
        ids.push(producer.send(&number).partition(0).await.expect("sent").id);
    }
    let stuck = mq
        .consumer(NUMBERS, "g")
        .shutdown_timeout(Duration::from_millis(50))
        .start(|_: Delivery<u64>| std::future::pending::<()>())
        .await
        .expect("started");
    let pending = async || mq.stats(&NUMBERS, "g").await.expect("stats")[0].pending;
    eventually(async || pending().await == 5, "all are pending").await;
    assert_eq!(stuck.shutdown().await.handed_back, 5);
    for id in &ids[1..4] {
        assert_eq!(server.cli(&["XDEL", LOG, &id.to_string()]), "1");
    }
    let consumer = mq.consumer(NUMBERS, "g").start(|_: Delivery<u64>| async {}).await.expect("started");
    eventually(async || consumer.report().acked == 2, "what is left is handled").await;
    eventually(async || pending().await == 0, "nothing stays pending").await;
    assert_eq!(*ghosts.lock().expect("lock"), 3);
    consumer.shutdown().await;
}
