//! Pages of large entries over a slow link: they arrive, they fill the link, and the server serves others meanwhile.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use integration_tests::proxy::Proxy;
use integration_tests::server::Server;
use millstream_core::catalog::{Catalog, Start};
use millstream_core::history::History;
use millstream_core::inspect::{Inspect, Range, Stream};
use millstream_core::keys::Keys;
use millstream_core::leases::{Acquired, Lease, Leases, Resource};
use millstream_core::log::{Append, Log, Settlement};
use millstream_core::recurring::{Recurrence, Recurring};
use millstream_core::schedule::{Due, OnConflict, Place};
use millstream_core::shared::{Shared, SharedMember};
use millstream_core::wire::Fields;
use millstream_core::{Error, GroupName, MessageId, Partition, Result, Timestamp, TopicPartition, TopicSpec};
use millstream_redis::{RedisBackend, RedisConfig};

const MIB: usize = 1 << 20;
/// Bytes per second of the slowest link that is worth a message queue.
const SLOW: u64 = 10_000_000;
const P: Partition = Partition(0);

/// A server with entries of 1 MiB, and a backend that reaches it over a slow link.
struct Fixture {
    server: Server,
    proxy: Proxy,
    /// Past the link.
    near: RedisBackend,
    far: RedisBackend,
    tp: TopicPartition,
    spec: TopicSpec,
    group: GroupName,
    lease: Lease,
}

impl Fixture {
    async fn new(rate: u64, limit: Duration, entries: usize) -> Self {
        let server = Server::start();
        let proxy = Proxy::to(server.port());
        proxy.rate(Some(rate));
        let connect = async |url: String, limit| {
            let config = RedisConfig::new(url).with_response_timeout(limit);
            RedisBackend::connect(config).await.expect("connected")
        };
        let near = connect(server.url(), Duration::from_secs(30)).await;
        let far = connect(proxy.url(), limit).await;
        let spec = TopicSpec::new("large".parse().expect("a name"), 1).expect("a topic");
        let group: GroupName = "g".parse().expect("a name");
        near.create_topic(&spec).await.expect("created");
        near.create_group(&spec, &group, Start::Earliest).await.expect("created");
        let tp = TopicPartition::new(spec.name.clone(), 0);
        let resource = Resource::partition(tp.clone(), group.clone());
        let granted = near
            .acquire(
                &resource,
                "me",
                "n",
                Duration::from_secs(3_600),
                &millstream_core::Continuity::assured(),
            )
            .await
            .expect("an answer");
        let Acquired::Granted(lease) = granted else { panic!("{granted:?}") };
        let scene = Self { server, proxy, near, far, tp, spec, group, lease };
        scene.append(entries).await;
        scene
    }

    async fn append(&self, entries: usize) {
        let body = bytes::Bytes::from(vec![b'x'; MIB]);
        for _ in 0..entries {
            let fields = vec![("payload".into(), body.clone())];
            let append = Append::new(self.tp.clone(), fields);
            self.near.append(&[append]).await.pop().expect("a result").expect("appended");
        }
    }

    fn member(&self, name: &str) -> SharedMember {
        let consumer = name.parse().expect("a name");
        SharedMember::new(self.spec.name.clone(), self.group.clone(), consumer)
    }

    /// Reads everything once as the owner, over the slow link, and settles nothing.
    async fn read(&self, entries: usize) -> Vec<MessageId> {
        let (mut reader, mut ids) = (self.far.reader(&self.lease).await.expect("a reader"), Vec::new());
        let mut errors = ErrorsInARow::default();
        while ids.len() < entries {
            if let Some(fetched) = errors.of(reader.fetch(512, Duration::ZERO).await) {
                // What came before an error comes again.
                ids.extend(fetched.entries.iter().map(|entry| entry.receipt.id));
                ids.sort_unstable();
                ids.dedup();
            }
        }
        ids
    }

    /// How long the link takes for all of it in one answer, without us.
    fn bare(&self, entries: usize) -> Duration {
        let log = Keys::new().log(&self.tp);
        let log = log.as_str();
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.proxy.port())).expect("connected");
        let started = Instant::now();
        let request = format!("*4\r\n$6\r\nXRANGE\r\n${}\r\n{log}\r\n$1\r\n-\r\n$1\r\n+\r\n", log.len());
        stream.write_all(request.as_bytes()).expect("sent");
        let (mut come, mut buffer) = (0, vec![0; MIB]);
        while come < entries * MIB {
            come += stream.read(&mut buffer).expect("an answer");
        }
        started.elapsed()
    }
}

/// Errors may occur, one after the other, but not without end.
#[derive(Default)]
struct ErrorsInARow(usize);

impl ErrorsInARow {
    fn of<T>(&mut self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => {
                self.0 = 0;
                Some(value)
            }
            Err(error) => {
                self.0 += 1;
                assert!(error.is_transient() && self.0 < 12, "it never arrives: {error}");
                None
            }
        }
    }
}

/// Asks the server for nothing, again and again, past the link.
struct Pings {
    over: Arc<AtomicBool>,
    asking: thread::JoinHandle<Vec<Duration>>,
}

impl Pings {
    fn begin(server: &Server) -> Self {
        let (over, port) = (Arc::new(AtomicBool::new(false)), server.port());
        let asking = thread::spawn({
            let over = over.clone();
            move || {
                let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connected");
                stream.set_nodelay(true).expect("set");
                let (mut took, mut pong) = (Vec::new(), [0; 7]);
                while !over.load(Ordering::Relaxed) {
                    let started = Instant::now();
                    stream.write_all(b"PING\r\n").expect("sent");
                    stream.read_exact(&mut pong).expect("an answer");
                    took.push(started.elapsed());
                    thread::sleep(Duration::from_millis(1));
                }
                took
            }
        });
        Self { over, asking }
    }

    /// Of a hundred the slowest but one.
    fn p99(self) -> Duration {
        self.over.store(true, Ordering::Relaxed);
        let mut took = self.asking.join().expect("no panic");
        took.sort_unstable();
        took[took.len() * 99 / 100]
    }
}

/// What one entry costs the server by itself: how long it works on a command that reads one.
fn one_entry(scene: &Fixture) -> Duration {
    let log = Keys::new().log(&scene.tp);
    scene.server.cli(&["CONFIG", "RESETSTAT"]);
    for _ in 0..20 {
        scene.server.cli(&["XRANGE", log.as_str(), "-", "+", "COUNT", "1"]);
    }
    let stats = scene.server.cli(&["INFO", "commandstats"]);
    let each = stats.split("cmdstat_xrange:").nth(1).and_then(|line| {
        line.split(',').find_map(|part| part.strip_prefix("usec_per_call="))?.parse::<f64>().ok()
    });
    Duration::from_secs_f64(each.expect("a number") / 1e6)
}

/// Reads and claims so many entries of 1 MiB over a link of 10 MB/s, and looks at what the server does for others meanwhile.
async fn beside_pages(entries: usize) {
    let scene = Fixture::new(SLOW, Duration::from_secs(5), entries).await;
    let calm = Pings::begin(&scene.server);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (calm, one) = (calm.p99(), one_entry(&scene));

    let bare = scene.bare(entries);
    let (pings, started) = (Pings::begin(&scene.server), Instant::now());
    assert_eq!(scene.read(entries).await.len(), entries);
    let (took, beside_reads) = (started.elapsed(), pings.p99());

    // All of it is the owner's, who is not alive: somebody claims it over the same link.
    let (member, mut claimed) = (scene.member("next"), 0);
    let pings = Pings::begin(&scene.server);
    while claimed < entries {
        let more = scene
            .far
            .claim(&member, P, &[], Duration::ZERO, 100, &millstream_core::Continuity::assured())
            .await
            .expect("claimed");
        claimed += more.abandoned.entries.len();
    }
    let beside_claims = pings.p99();

    let used = bare.as_secs_f64() / took.as_secs_f64();
    println!(
        "{entries} x 1 MiB at 10 MB/s: {took:.2?}, the link alone {bare:.2?}: {:.0} % of it; PING p99 {beside_reads:.2?} \
         beside reads, {beside_claims:.2?} beside claims, {calm:.2?} alone; one entry costs {one:.2?}",
        100.0 * used
    );
    assert!(used >= 0.7, "{:.0} % of the link was used", 100.0 * used);
    // A busy machine lets them wait without any help of ours.
    let bound = Duration::from_millis(5).max(2 * one).max(8 * calm);
    assert!(
        beside_reads <= bound && beside_claims <= bound,
        "{beside_reads:?}, {beside_claims:?}; {bound:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_fill_a_slow_link_and_the_server_serves_others_meanwhile() {
    beside_pages(32).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the same at full size takes two minutes; for the figures"]
async fn pages_fill_a_slow_link_at_full_size() {
    beside_pages(512).await;
}

/// Retries that are parked and rules that are due, where a single one takes longer than the limit of an answer.
async fn heavy_items_arrive(scene: &Fixture) {
    let heavy: Fields = vec![("payload".into(), vec![b'x'; 4 * MIB].into())];
    let append = Append::new(scene.tp.clone(), heavy.clone());
    scene.near.append(&[append]).await.pop().expect("a result").expect("appended");
    let fetched = scene.near.reader(&scene.lease).await.expect("a reader").fetch(1, Duration::ZERO).await;
    let receipt = fetched.expect("fetched").entries[0].receipt;
    let due = Due::In(Duration::from_secs(3_600));
    let (origin, history) = (receipt.id, History::default());
    let retry = Settlement::Retry { due, attempt: 2, origin, error: "boom".into(), history, wait: None };
    scene.near.settle(&scene.lease, &[(receipt, retry)]).await.expect("parked");
    let (place, id) = (Place::from(scene.tp.clone()), "r".parse().expect("an id"));
    let rule = Recurrence {
        id,
        rule: "every 5s".into(),
        fields: heavy,
        next: Some(Timestamp::from_millis(1)),
        paused: false,
    };
    Recurring::put(&scene.near, &place, &rule, OnConflict::Keep).await.expect("put");

    let mut errors = ErrorsInARow::default();
    let parked = loop {
        if let Some(page) = errors.of(scene.far.parked(&scene.tp, &scene.group, None, 200).await) {
            break page.items;
        }
    };
    assert_eq!(
        parked.iter().map(|one| (one.origin, &one.body)).collect::<Vec<_>>(),
        [(origin, &rule.fields)]
    );
    let due = loop {
        if let Some(due) = errors.of(scene.far.due(&place).await) {
            break due.recurrences;
        }
    };
    assert_eq!(due, [rule]);
}

/// A page that takes longer to arrive than an answer may take to begin, in every way of reading.
async fn arrive(rate: u64, limit: Duration, entries: usize) {
    let scene = Fixture::new(rate, limit, entries).await;
    let first = scene.read(entries).await;
    assert_eq!(scene.read(entries).await, first, "what is pending");

    let (one, mut claimed, mut errors) = (scene.member("one"), Vec::new(), ErrorsInARow::default());
    while claimed.len() < entries {
        let more = errors
            .of(scene
                .far
                .claim(&one, P, &[], Duration::ZERO, 100, &millstream_core::Continuity::assured())
                .await)
            .unwrap_or_default();
        if more.abandoned.entries.is_empty() {
            // What was claimed when an answer was lost.
            let mut reader = scene.far.shared_reader(&one, &[P]).await.expect("a reader");
            while let Some([(_, fetched)]) = errors.of(reader.fetch(512, Duration::ZERO).await).as_deref() {
                claimed.extend(fetched.entries.iter().map(|entry| entry.receipt));
            }
        }
        claimed.extend(more.abandoned.entries.iter().map(|entry| entry.receipt));
        claimed.sort_unstable();
        claimed.dedup();
    }
    assert_eq!(claimed.iter().map(|receipt| receipt.id).collect::<Vec<_>>(), first, "claimed");

    let mut reader = scene.far.shared_reader(&one, &[P]).await.expect("a reader");
    let mut read = Vec::new();
    while read.len() < entries {
        for (_, fetched) in errors.of(reader.fetch(512, Duration::ZERO).await).unwrap_or_default() {
            read.extend(fetched.entries.iter().map(|entry| entry.receipt));
        }
        read.sort_unstable();
        read.dedup();
    }
    assert_eq!(read, claimed, "under one's own name");
    let acks: Vec<_> = read.iter().map(|receipt| (*receipt, Settlement::Ack)).collect();
    let settled = scene.near.settle_shared(&one, P, &acks).await.map_err(|error: Error| error.to_string());
    assert_eq!(settled.map(|settled| settled.applied), Ok(entries));

    let (mut range, mut browsed) = (Range::ALL, Vec::new());
    while browsed.len() < entries {
        let page = scene.far.entries(&scene.tp, &Stream::Log, range, 1_000).await;
        let Some(page) = errors.of(page) else { continue };
        browsed.extend(page.items.iter().map(|stored| stored.id));
        range = range.behind(*browsed.last().expect("a page that is not empty"));
    }
    assert_eq!(browsed, first, "browsed");
    heavy_items_arrive(&scene).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_that_take_longer_than_the_limit_of_an_answer_arrive() {
    arrive(SLOW, Duration::from_millis(300), 12).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the same at full size moves 2 GiB"]
async fn pages_that_take_longer_than_the_limit_of_an_answer_arrive_at_full_size() {
    arrive(60_000_000, Duration::from_secs(5), 384).await;
}
