//! Another version of the library in the same group: 91. The older one is played by its own scripts, which stand beside this
//! file as they were when the format was 1 and nothing was known of outages.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use integration_tests::equipment::baseline::Stalls;
use integration_tests::history::{figure, now_us};
use integration_tests::server::Server;
use integration_tests::{HANG, eventually};
use redis::aio::MultiplexedConnection;

use super::{MS, PARTITIONS, Pair, Work};

const HEARTBEAT: &str = include_str!("older/heartbeat.lua");
const ACQUIRE: &str = include_str!("older/acquire.lua");
const RENEW: &str = include_str!("older/renew.lua");
const RELEASE: &str = include_str!("older/release.lua");
const ACK: &str = include_str!("older/ack.lua");
const TTL_MS: u64 = 2_000;

/// A member of an older version: what it does once in each round, in the order in which it did.
struct Older {
    redis: MultiplexedConnection,
    /// Partition and token of each lease.
    owned: Vec<(u32, String)>,
    joined: bool,
    /// The ids that it has settled.
    settled: BTreeSet<(u32, String)>,
}

impl Older {
    async fn new(server: &Server) -> Self {
        let redis = integration_tests::fixture::raw_connection(&server.url()).await;
        Self { redis, owned: Vec::new(), joined: false, settled: BTreeSet::new() }
    }

    async fn run<T: redis::FromRedisValue>(
        &mut self,
        script: &str,
        keys: &[String],
        args: &[&str],
    ) -> redis::RedisResult<T> {
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(keys.len()).arg(keys).arg(args);
        command.query_async(&mut self.redis).await
    }

    /// What the group says it should own.
    async fn beat(&mut self) -> BTreeSet<u32> {
        let keys = ["members", "member", "assignment", "changes"]
            .map(|name| format!("streaming:mq:{name}:{{items}}:g"));
        let more = ["streaming:mq:topic:{items}:meta", "streaming:mq:group:{items}:g"].map(str::to_owned);
        let keys: Vec<String> = keys.into_iter().chain(more).collect();
        let joining = if self.joined { "0" } else { "1" };
        let ttl = TTL_MS.to_string();
        let args = ["older", "older-1", &ttl, "- -", joining, ""];
        let answer: redis::Value = self.run(HEARTBEAT, &keys, &args).await.expect("a heartbeat is taken");
        self.joined = true;
        let redis::Value::Array(answer) = answer else { panic!("{answer:?}") };
        assert_eq!(answer.len(), 7, "the older scripts answer as they did");
        let ranges: Option<String> = redis::from_redis_value(answer[5].clone()).expect("ranges");
        let mut partitions = BTreeSet::new();
        for range in ranges.iter().flat_map(|ranges| ranges.split(',')).filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            partitions.extend(first.parse::<u32>().expect("a number")..=last.parse().expect("a number"));
        }
        partitions
    }

    fn keys(partition: u32) -> [String; 4] {
        let tag = format!("{{items:p:{partition}}}");
        let of_group = |name: &str| format!("streaming:mq:{name}:{tag}:g");
        [of_group("lease"), of_group("fence"), format!("stream:topic:{tag}"), of_group("held")]
    }

    /// One round: sends a heartbeat, acquires and releases partitions by the assignment, renews, reads, and settles.
    async fn round(&mut self) {
        let should = self.beat().await;
        for (partition, token) in std::mem::take(&mut self.owned) {
            let [lease, fence, ..] = Self::keys(partition);
            if should.contains(&partition) {
                let ttl = TTL_MS.to_string();
                let renewed: redis::RedisResult<i64> =
                    self.run(RENEW, &[lease, fence], &[&token, &ttl]).await;
                renewed.expect("its lease is respected while it lives");
                self.owned.push((partition, token));
            } else {
                let released: redis::RedisResult<i64> =
                    self.run(RELEASE, &[lease, fence], &[&token, "0"]).await;
                released.expect("released");
            }
        }
        for partition in should {
            if self.owned.iter().any(|(owned, _)| *owned == partition) {
                continue;
            }
            let [lease, fence, ..] = Self::keys(partition);
            let (nonce, ttl) = (format!("older-{partition}"), TTL_MS.to_string());
            let answer: redis::RedisResult<redis::Value> =
                self.run(ACQUIRE, &[lease, fence], &["older", &nonce, &ttl]).await;
            let redis::Value::Array(answer) = answer.expect("an answer") else { panic!("no list") };
            if answer[0] == redis::Value::Int(1) {
                let epoch: String = redis::from_redis_value(answer[1].clone()).expect("an epoch");
                self.owned.push((partition, format!("{epoch}:{nonce}")));
            }
        }
        for (partition, token) in self.owned.clone() {
            let [_, fence, log, held] = Self::keys(partition);
            for after in ["0-0", ">"] {
                let mut read = redis::cmd("XREADGROUP");
                read.arg("GROUP")
                    .arg("g")
                    .arg("owner")
                    .arg("COUNT")
                    .arg(10)
                    .arg("STREAMS")
                    .arg(&log)
                    .arg(after);
                let reply: redis::streams::StreamReadReply =
                    read.query_async(&mut self.redis).await.expect("read");
                let ids: Vec<String> =
                    reply.keys.iter().flat_map(|key| key.ids.iter().map(|entry| entry.id.clone())).collect();
                if ids.is_empty() {
                    continue;
                }
                let mut args = vec!["lease", &token, "g", "log"];
                args.extend(ids.iter().map(String::as_str));
                let keys = [fence.clone(), log.clone(), held.clone()];
                let acked: i64 = self.run(ACK, &keys, &args).await.expect("its token is good");
                assert_eq!(acked as usize, ids.len());
                for id in ids {
                    assert!(self.settled.insert((partition, id)), "settled twice");
                }
            }
        }
    }
}

/// An older member joins, works, and dies beside two of this version: each message has one owner, and no member waits
/// for the older one permanently.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_member_works_beside_newer_ones_and_is_replaced_when_it_dies() {
    let server = Server::start();
    let mut pair = Pair::begin(&server.url(), Work { ttl: MS(TTL_MS), ..Work::default() }).await;
    let mut older = Older::new(&server).await;
    let deadline = Instant::now() + HANG;
    while older.owned.is_empty() {
        assert!(Instant::now() < deadline, "an older member gets its share");
        older.round().await;
        tokio::time::sleep(MS(100)).await;
    }
    // Each partition has an owner again before the first message.
    for _ in 0..10 {
        older.round().await;
        tokio::time::sleep(MS(100)).await;
    }
    for _ in 0..20 {
        pair.send(20).await;
        older.round().await;
        tokio::time::sleep(MS(50)).await;
    }
    let place = |pair: &Pair, number: &u64| {
        let (partition, id) = pair.confirmed[number];
        (partition, id.to_string())
    };
    let deadline = Instant::now() + HANG;
    let handled = |pair: &Pair| pair.handled.lock().expect("lock").keys().copied().collect::<BTreeSet<u64>>();
    loop {
        older.round().await;
        let by_newer = handled(&pair);
        let open: Vec<u64> = pair
            .confirmed
            .keys()
            .filter(|number| !by_newer.contains(number) && !older.settled.contains(&place(&pair, number)))
            .copied()
            .collect();
        if open.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline, "nobody has these: {open:?}");
        tokio::time::sleep(MS(100)).await;
    }
    let by_newer = handled(&pair);
    let both = pair
        .confirmed
        .keys()
        .filter(|n| by_newer.contains(n) && older.settled.contains(&place(&pair, n)))
        .count();
    assert_eq!((both, pair.doubled()), (0, 0), "each message is one's");
    assert!(!older.settled.is_empty() && older.owned.len() < PARTITIONS as usize, "both work");
    figure(
        "fault",
        &format!("older member: {} by it, {} by newer ones", older.settled.len(), by_newer.len()),
    );

    // It dies without leaving the group, with messages in flight.
    let mut theirs = Vec::new();
    for (partition, _) in older.owned.clone() {
        let [_, _, log, _] = Older::keys(partition);
        server.cli(&["XADD", &log, "*", "payload", r#"{"number":1000000,"pad":""}"#]);
        server.cli(&["XREADGROUP", "GROUP", "g", "owner", "COUNT", "1", "STREAMS", &log, ">"]);
        theirs.push(partition);
    }
    let (stalls, died, died_us) = (Stalls::start(), Instant::now(), now_us());
    let settled: BTreeSet<u64> =
        pair.confirmed.keys().filter(|n| older.settled.contains(&place(&pair, n))).copied().collect();
    let came = || pair.handled.lock().expect("lock").get(&1_000_000).map_or(0, Vec::len);
    eventually(async || came() >= theirs.len(), "what it had in hand is handled").await;
    let (took, stalled) = (died.elapsed(), stalls.since(died_us));
    figure("fault", &format!("older member: replaced after {took:.1?}"));
    let promised = MS(TTL_MS) * 2 + Duration::from_secs(6);
    assert!(took < promised + stalled, "{took:?}; the machine stood still for {stalled:?}");
    pair.lives_on_but(&settled).await;
}
