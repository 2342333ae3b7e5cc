//! Replays of dead letters over a link that breaks or freezes in their midst: each message is there once, and the result says what
//! came of each letter.

use std::time::Duration;

use integration_tests::eventually;
use integration_tests::proxy::{Proxy, Way};
use integration_tests::server::Server;
use millstream::admin::{DeadLetterQueue, Replay, Replayed, ShelfFilter};
use millstream::{Delivery, Millstream, Outcome, Topic};
use millstream_redis::{RedisBackend, RedisConfig};

const COUNT: u64 = 450;
const ORDERS: Topic<u64> = Topic::new("orders").partitions(2);
const REPAIR: Topic<u64> = Topic::new("repair").partitions(3);

struct Scene {
    server: Server,
    proxy: Proxy,
    queue: DeadLetterQueue,
}

/// As many dead letters without keys; a second passes before the server is given up.
async fn scene() -> Scene {
    let server = tokio::task::spawn_blocking(Server::start).await.expect("a server");
    let mq = Millstream::at(server.url()).await.expect("connected");
    mq.producer(REPAIR).await.expect("a topic");
    let producer = mq.producer(ORDERS).await.expect("a producer");
    for n in 0..COUNT {
        producer.send(&n).await.expect("sent");
    }
    let rejects = async |_: Delivery<u64>| Outcome::dead_letter("no such order");
    let consumer = mq.consumer(ORDERS, "billing").start(rejects).await.expect("a consumer");
    eventually(async || consumer.report().dead == COUNT, "all are dead").await;
    consumer.shutdown().await;
    let proxy = Proxy::to(server.port());
    let config = RedisConfig::new(proxy.url()).with_response_timeout(Duration::from_secs(1));
    let mq = Millstream::over(RedisBackend::connect(config).await.expect("connected").into());
    let (topic, group) = ("orders".parse().expect("a name"), "billing".parse().expect("a name"));
    let queue = mq.admin().dead_letters(&topic, &group).await.expect("a queue");
    Scene { server, proxy, queue }
}

impl Scene {
    /// Replays all, as the command does; after the first step the link breaks as `fault` says, and is healed after an error.
    async fn replay(&self, settings: Replay, fault: impl Fn(&Proxy)) -> Replayed {
        let mut replayer = self.queue.replayer(&ShelfFilter::default(), settings).await.expect("a replayer");
        replayer.run_once().await.expect("a step");
        fault(&self.proxy);
        let mut failed = 0;
        while !replayer.is_done() {
            if let Err(error) = replayer.run_once().await {
                assert!(error.is_transient() && failed < 50, "{error}");
                failed += 1;
                self.proxy.reset();
                self.proxy.thaw();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        assert!(failed > 0, "an answer was lost");
        replayer.replayed().clone()
    }

    fn length(&self, key: &str) -> u64 {
        let keys = self.server.cli(&["KEYS", key]);
        let keys = keys.lines().map(str::trim).filter(|key| !key.is_empty());
        keys.map(|key| self.server.cli(&["XLEN", key]).trim().parse::<u64>().expect("a number")).sum()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_to_a_topic_whose_answer_is_lost_sends_nothing_twice() {
    let faults: [fn(&Proxy); 2] =
        [|proxy| proxy.swallow("millstream-replayed-from", 1), |proxy| proxy.freeze(Way::Down)];
    for fault in faults {
        let scene = scene().await;
        let settings = Replay::to_topic("repair".parse().expect("a name"));
        let replayed = scene.replay(settings, fault).await;
        assert_eq!(scene.length("stream:topic:{repair:p:*}"), COUNT, "{replayed:?}");
        assert_eq!(replayed, Replayed { replayed: COUNT, ..Replayed::default() });
        assert_eq!(scene.queue.count().await.expect("a count"), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_to_the_group_whose_answer_is_lost_says_what_it_does_not_know() {
    let scene = scene().await;
    let replayed = scene.replay(Replay::default(), |proxy| proxy.freeze(Way::Down)).await;
    assert_eq!(scene.length("stream:topic:{orders:p:*}:retry:billing"), COUNT, "{replayed:?}");
    assert_eq!((replayed.passed_over, replayed.refused), (0, 0), "{replayed:?}");
    assert_eq!(replayed.replayed + replayed.unconfirmed, COUNT);
    assert!((1..=100).contains(&replayed.unconfirmed), "a step of one partition: {replayed:?}");
}
