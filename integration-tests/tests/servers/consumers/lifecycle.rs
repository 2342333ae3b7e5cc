//! Topics and groups that an operator deletes or pauses while consumers run, on Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use integration_tests::equipment::baseline::Stalls;
use integration_tests::history::now_us;
use integration_tests::server::Server;
use integration_tests::{HANG, eventually};
use millstream::admin::InUse;
use millstream::{
    Concurrency, Consumer, ConsumerState, Delivery, ErrorKind, GroupName, Millstream, Record, Sharing, Topic,
    TopicName, TopicSpec,
};

const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(4);

fn names() -> (TopicName, GroupName) {
    ("numbers".parse().expect("a name"), "g".parse().expect("a name"))
}

/// Somebody has to take away what fills a server: those who read, also after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_full_is_drained_by_who_starts() {
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        let stage = Stage::new().await;
        stage.start(sharing).await.shutdown().await;
        stage.send(2_000).await;
        stage.server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        let consumer = stage.start(sharing).await;
        stage.until("all were handled", || stage.handled() == 2_000).await;
        let stats = async || stage.mq.stats(&NUMBERS, "g").await.expect("stats");
        if sharing == Sharing::Shared {
            // All is handled before the upkeep of each partition has begun, perhaps; only that of an owner is done at its end.
            eventually(async || stats().await.iter().all(|one| one.length == 0), "all were dropped").await;
        }
        consumer.shutdown().await;
        let stats = stats().await;
        assert!(stats.iter().all(|one| one.lag == Some(0) && one.pending == 0), "{sharing:?}: {stats:?}");
        assert_eq!(stats.iter().map(|one| one.length).sum::<u64>(), 0, "{sharing:?}: what is settled stays");
        assert_eq!(stage.server.cli(&["CONFIG", "GET", "maxmemory"]), "maxmemory\n1");
    }
}

struct Stage {
    server: Server,
    mq: Millstream,
    handled: Arc<AtomicUsize>,
}

impl Stage {
    async fn new() -> Self {
        let server = Server::start();
        let mq = Millstream::connect(&server.url()).await.expect("connected");
        Self { server, mq, handled: Arc::default() }
    }

    async fn start(&self, sharing: Sharing) -> Consumer {
        let handled = self.handled.clone();
        let mut builder = self.mq.consumer(NUMBERS, "g").lease_ttl(Duration::from_secs(6));
        if sharing == Sharing::Shared {
            builder = builder.sharing(sharing).concurrency(Concurrency::Unordered(4));
        }
        let handler = move |_: Delivery<u64>| {
            handled.fetch_add(1, Ordering::Relaxed);
            async {}
        };
        builder.start(handler).await.expect("started")
    }

    async fn send(&self, count: u64) {
        let producer = self.mq.producer(NUMBERS).await.expect("a producer");
        let values: Vec<u64> = (0..count).collect();
        for sent in producer.send_all(values.iter().map(|n| Record::new(n).key(n.to_be_bytes()))).await {
            sent.expect("sent");
        }
    }

    fn handled(&self) -> usize {
        self.handled.load(Ordering::Relaxed)
    }

    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let started = Instant::now();
        while !holds() {
            assert!(started.elapsed() < HANG, "never: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// How many commands the server does in 4 s, those inside scripts included.
    async fn commands(&self) -> u64 {
        let began = Instant::now();
        self.server.cli(&["CONFIG", "RESETSTAT"]);
        tokio::time::sleep(Duration::from_secs(4)).await;
        let info = self.server.cli(&["INFO", "stats"]);
        let count = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        let count: u64 = count.and_then(|count| count.trim().parse().ok()).expect("a number");
        // On a busy machine it took longer.
        (count as f64 * 4.0 / began.elapsed().as_secs_f64()) as u64
    }

    /// The keys that are left, but for those by which a deletion is remembered.
    fn keys(&self) -> Vec<String> {
        let keys = self.server.cli(&["KEYS", "*"]);
        let remembered = |key: &&str| key.ends_with(":deleted") || key.contains(":mq:group:");
        keys.lines().filter(|key| !key.is_empty() && !remembered(key)).map(str::to_owned).collect()
    }
}

/// It took no longer than this and what the machine took away from everybody meanwhile. Who is not woken waits for a
/// heartbeat.
fn within(took: Duration, limit: Duration, stalled: Duration) {
    assert!(took < limit + stalled, "{took:?}, of {limit:?}; the machine stood still for {stalled:?}");
}

/// Both instances end within a heartbeat, and nothing comes back.
async fn ends(stage: &Stage, consumers: Vec<Consumer>) {
    let (stalls, started, started_us) = (Stalls::start(), Instant::now(), now_us());
    for consumer in consumers {
        tokio::time::timeout(HANG, consumer.ended()).await.expect("it ends by itself");
        assert_eq!(consumer.cause().expect("a cause").kind(), ErrorKind::Deleted);
        assert_eq!(consumer.health().state, ConsumerState::Deleted);
        consumer.shutdown().await;
    }
    within(started.elapsed(), Duration::from_secs(6), stalls.since(started_us));
    assert_eq!(stage.mq.backend().catalog().topics().await.expect("topics").len(), 0);
}

#[tokio::test]
async fn a_topic_that_is_deleted_by_force_stays_deleted() {
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        let stage = Stage::new().await;
        let consumers = vec![stage.start(sharing).await, stage.start(sharing).await];
        stage.send(100).await;
        stage.until("all handled", || stage.handled() == 100).await;
        let (topic, _) = names();
        stage.mq.admin().delete_topic(&topic, InUse::Force).await.expect("deleted");
        ends(&stage, consumers).await;
        // What a consumer took in that moment is a fence at most.
        let left = stage.keys();
        assert!(left.iter().all(|key| key.contains(":fence:")), "{left:?}");
        // Who starts wants it.
        stage.send(10).await;
        let consumer = stage.start(sharing).await;
        stage.until("all handled", || stage.handled() == 110).await;
        consumer.shutdown().await;
    }
}

#[tokio::test]
async fn a_topic_that_is_created_again_at_once_is_another_one() {
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        let stage = Stage::new().await;
        let refresh = Duration::from_millis(200);
        let producer = stage.mq.producer(NUMBERS).refresh(refresh).await.expect("a producer");
        let consumers = vec![stage.start(sharing).await, stage.start(sharing).await];
        stage.send(100).await;
        stage.until("all handled", || stage.handled() == 100).await;
        let (topic, _) = names();
        let catalog = stage.mq.backend().catalog();
        stage.mq.admin().delete_topic(&topic, InUse::Force).await.expect("deleted");
        let created = catalog.create_topic(&TopicSpec::new(topic.clone(), 1).expect("a topic")).await;
        for consumer in consumers {
            let ended = tokio::time::timeout(HANG, consumer.ended());
            ended.await.expect("it ends by itself");
            assert_eq!(consumer.cause().expect("a cause").kind(), ErrorKind::Deleted);
            consumer.shutdown().await;
        }
        assert_eq!(catalog.topic(&topic).await.expect("the new one"), created.expect("created"));
        assert_eq!(catalog.groups(&topic).await.expect("groups"), []);
        stage.until("the producer sees it", || producer.partitions() == 1).await;
        producer.send(&1).await.expect("sent");
        let consumer = stage.start(sharing).await;
        stage.until("it is handled", || stage.handled() == 101).await;
        // And without another one.
        stage.mq.admin().delete_topic(&topic, InUse::Force).await.expect("deleted");
        tokio::time::timeout(HANG, consumer.ended()).await.expect("it ends by itself");
        consumer.shutdown().await;
        let started = Instant::now();
        while producer.send(&2).await.is_ok() {
            assert!(started.elapsed() < HANG, "a producer is never refused");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(producer.send(&2).await.expect_err("deleted").kind(), ErrorKind::Deleted);
        assert_eq!(catalog.topics().await.expect("topics"), []);
    }
}

#[tokio::test]
async fn a_group_that_is_deleted_by_force_stays_deleted_and_the_others_go_on() {
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        let stage = Stage::new().await;
        let consumers = vec![stage.start(sharing).await, stage.start(sharing).await];
        let other =
            stage.mq.consumer(NUMBERS, "other").start(|_: Delivery<u64>| async {}).await.expect("started");
        stage.send(100).await;
        stage.until("all handled", || stage.handled() == 100).await;
        let (topic, group) = names();
        stage.mq.admin().delete_group(&topic, &group, InUse::Force).await.expect("deleted");
        let (stalls, started, started_us) = (Stalls::start(), Instant::now(), now_us());
        for consumer in consumers {
            tokio::time::timeout(HANG, consumer.ended()).await.expect("it ends by itself");
            assert_eq!(consumer.cause().expect("a cause").kind(), ErrorKind::Deleted);
            consumer.shutdown().await;
        }
        within(started.elapsed(), Duration::from_secs(6), stalls.since(started_us));
        let groups = stage.mq.admin().groups(&topic).await.expect("groups");
        assert_eq!(groups.iter().map(GroupName::as_str).collect::<Vec<_>>(), ["other"]);
        assert!(other.cause().is_none());
        stage.send(100).await;
        stage.until("the other goes on", || other.report().acked == 200).await;
        other.shutdown().await;
    }
}

#[tokio::test]
async fn a_paused_group_holds_everywhere_at_once_and_costs_nothing() {
    for sharing in [Sharing::Exclusive, Sharing::Shared] {
        let stage = Stage::new().await;
        let (topic, group) = names();
        let one = stage.start(sharing).await;
        let two = stage.start(sharing).await;
        stage.send(100).await;
        stage.until("all handled", || stage.handled() == 100).await;
        let idle = stage.commands().await;
        let (stalls, paused, paused_us) = (Stalls::start(), Instant::now(), now_us());
        assert!(stage.mq.admin().pause_group(&topic, &group).await.expect("paused"));
        let is_paused = |consumer: &Consumer| consumer.health().topics[0].group_paused;
        stage.until("the pause has reached it", || is_paused(&one) && is_paused(&two)).await;
        within(paused.elapsed(), Duration::from_secs(2), stalls.since(paused_us));
        stage.send(100).await;
        let while_paused = stage.commands().await;
        let three = stage.start(sharing).await;
        stage.until("the pause has reached it", || is_paused(&three)).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(stage.handled(), 100, "nothing is taken");
        println!("{sharing:?}: {idle} commands in 4 s while idle, {while_paused} while paused");
        assert!(while_paused <= idle + idle / 4 + 20, "{while_paused} commands in 4 s, {idle} while idle");
        let (resumed, resumed_us) = (Instant::now(), now_us());
        assert!(stage.mq.admin().resume_group(&topic, &group).await.expect("resumed"));
        stage.until("all handled", || stage.handled() == 200).await;
        within(resumed.elapsed(), Duration::from_secs(2), stalls.since(resumed_us));
        for consumer in [one, two, three] {
            consumer.shutdown().await;
        }
    }
}
