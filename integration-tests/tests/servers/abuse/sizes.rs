//! Messages that are too large, too many headers, and JSON that is nested too deep: from producers, and from strangers.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use integration_tests::fixture::raw_connection;
use integration_tests::server::Server;
use integration_tests::{eventually, history::figure};
use millstream::{
    Consumer, ConsumerConfig, DeadLetter, Delivery, ErrorKind, Limits, Millstream, Outcome, ProducerConfig,
    Topic,
};
use millstream_core::TopicPartition;
use millstream_core::keys::Keys;
use millstream_redis::{RedisBackend, RedisConfig};

const HUGE: usize = 64 << 20;
const MANY: usize = 100_000;

fn blobs() -> Topic<Bytes> {
    Topic::raw("blobs").partitions(1)
}

fn log(topic: &str) -> String {
    Keys::new().log(&TopicPartition::new(topic.parse().expect("a name"), 0)).to_string()
}

fn limits(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    change(&mut limits);
    limits
}

/// Connected as usual, with more time: a busy machine copies 64 MiB slowly.
async fn connect(server: &Server) -> Millstream {
    let config = RedisConfig::new(server.url()).with_response_timeout(Duration::from_secs(60));
    Millstream::over(RedisBackend::connect(config).await.expect("connected").into())
}

/// Number of bytes that the server has received so far.
fn received(server: &Server) -> u64 {
    let info = server.cli(&["INFO", "stats"]);
    let count = info.lines().find_map(|line| line.strip_prefix("total_net_input_bytes:"));
    count.and_then(|count| count.trim().parse().ok()).expect("a number")
}

async fn consumer(mq: &Millstream, limits: Limits, seen: &Arc<Mutex<Vec<(u32, usize)>>>) -> Consumer {
    let seen = seen.clone();
    let mut config = ConsumerConfig::default();
    config.limits = limits;
    let consumer = mq.consumer(blobs(), "g").config(config).retry(millstream::Fixed::new(Duration::ZERO));
    let consumer = consumer.start(move |blob: Delivery<Bytes>| {
        assert!(blob.payload.iter().all(|byte| *byte == b'x'), "other bytes than were sent");
        seen.lock().expect("lock").push((blob.attempt(), blob.payload.len()));
        let outcome = match blob.attempt() {
            1 if blob.payload.len() > 1 => Outcome::retry("once"),
            _ => Outcome::Ack,
        };
        async move { outcome }
    });
    consumer.await.expect("started")
}

async fn letters(mq: &Millstream, count: u64) -> Vec<DeadLetter> {
    let letters = mq.dead_letters(&blobs(), "g").await.expect("dead letters");
    eventually(async || letters.count().await.expect("counted") == count, "they are dead").await;
    letters.list(10).await.expect("listed")
}

/// With the default limits it is refused before a byte of it is sent. Where both sides have a larger one it is stored, retried
/// and settled like any other. A consumer with a smaller one keeps it as a dead letter, whole, and goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_of_64_mib_is_refused_or_stored_as_the_limit_says() {
    let server = Server::start();
    let mq = connect(&server).await;
    let producer = mq.producer(blobs()).await.expect("a producer");
    let (huge, small) = (Bytes::from(vec![b'x'; HUGE]), Bytes::from_static(b"x"));
    let before = received(&server);
    let error = producer.send(&huge).await.expect_err("too large");
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(error.to_string().contains("bytes of payload: 67108864, at most 1048576"), "{error}");
    assert!(received(&server) - before < 10_000, "nothing of it was sent");
    producer.send(&small).await.expect("stored");

    let wide = Limits::default().with_payload(HUGE);
    let mut config = ProducerConfig::default();
    config.limits = wide;
    let producer = mq.producer(blobs()).config(config).await.expect("a producer");
    let began = Instant::now();
    producer.send(&huge).await.expect("stored");
    let took = began.elapsed();
    producer.send(&small).await.expect("stored");
    let seen = Arc::default();
    let willing = consumer(&mq, wide, &seen).await;
    eventually(async || willing.report().acked == 3, "all are handled").await;
    let report = willing.shutdown().await;
    assert_eq!((report.retried, report.dead), (1, 0));
    let mut lengths = seen.lock().expect("lock").clone();
    lengths.sort_unstable();
    assert_eq!(lengths, [(1, 1), (1, 1), (1, HUGE), (2, HUGE)]);
    figure("abuse", &format!("a message of 64 MiB was stored in {took:.1?}"));

    let seen = Arc::default();
    let narrow = consumer(&mq, Limits::default(), &seen).await;
    producer.send(&huge).await.expect("stored");
    producer.send(&small).await.expect("stored");
    let letters = letters(&mq, 1).await;
    let letter = &letters[0];
    assert_eq!(letter.reason.as_str(), "malformed");
    assert_eq!(letter.error, "too large: bytes of payload: 67108864, at most 1048576");
    assert!(letter.body.iter().any(|(_, value)| *value == huge), "with its bytes");
    eventually(async || narrow.report().acked == 1, "the next one is handled").await;
    narrow.shutdown().await;
}

/// The number and the size of headers have limits, which errors name. A limit that is raised above what an entry may have is
/// one that no consumer would read, so that one holds for producers too.
#[tokio::test]
async fn headers_without_end_are_refused_by_the_client() {
    let server = Server::start();
    let mq = connect(&server).await;
    let value = Bytes::from_static(b"x");
    let many = |producer: &millstream::Producer<Bytes>, count: usize| {
        let producer = producer.clone();
        let value = value.clone();
        async move { (0..count).fold(producer.send(&value), |send, n| send.header(format!("h{n}"), "v")).await }
    };
    let plain = mq.producer(blobs()).await.expect("a producer");
    let before = received(&server);
    let error = many(&plain, MANY).await.expect_err("too many");
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(error.to_string().contains("headers: 100000, at most 64"), "{error}");
    for (name, header) in [("n".repeat(1 << 20), "v".to_owned()), ("n".to_owned(), "v".repeat(64 << 20))] {
        let error = plain.send(&value).header(name, header).await.expect_err("too large");
        assert_eq!(error.kind(), ErrorKind::TooLarge);
        assert!(
            error.to_string().contains("bytes of headers: ") && error.to_string().contains("at most 8192"),
            "{error}"
        );
    }
    assert!(received(&server) - before < 10_000, "nothing of them was sent");

    let wide = limits(|it| (it.headers, it.header_bytes) = (usize::MAX, usize::MAX));
    let mut config = ProducerConfig::default();
    config.limits = wide;
    let raised = mq.producer(blobs()).config(config).await.expect("a producer");
    let error = many(&raised, MANY).await.expect_err("no consumer would read it");
    assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
    assert!(error.to_string().contains("at most 2990"), "{error}");
    many(&raised, 2_000).await.expect("stored");
    raised.send(&value).header("n".repeat(1 << 20), "v".repeat(1 << 20)).await.expect("stored");
    let seen = Arc::default();
    let consumer = consumer(&mq, wide, &seen).await;
    eventually(async || consumer.report().acked == 2, "what is stored is handled").await;
    assert_eq!(consumer.shutdown().await.dead, 0);
}

/// What a stranger appends beside the library: it is kept as a dead letter with its bytes, and holds up nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_stranger_appends_without_limits_is_kept_and_holds_up_nothing() {
    let server = Server::start();
    let mq = connect(&server).await;
    let producer = mq.producer(blobs()).await.expect("a producer");
    let seen = Arc::default();
    let consumer = consumer(&mq, Limits::default(), &seen).await;
    let mut raw = raw_connection(&server.url()).await;
    let huge = vec![b'x'; HUGE];
    let names: Vec<String> = (0..MANY).map(|n| format!("h:{n}")).collect();
    let crowd: Vec<(&[u8], &[u8])> = names.iter().map(|name| (name.as_bytes(), &b"v"[..])).collect();
    let crowd: Vec<(&[u8], &[u8])> = crowd.into_iter().chain([(&b"payload"[..], &b"x"[..])]).collect();
    let name = [b"h:", &vec![b'n'; 8 << 20][..]].concat();
    let bad: [Vec<(&[u8], &[u8])>; 3] =
        [vec![(b"payload", &huge)], crowd, vec![(&name, &huge[..8 << 20]), (b"payload", b"x")]];
    for fields in &bad {
        let mut command = redis::cmd("XADD");
        command.arg(log("blobs")).arg("*");
        for (name, value) in fields {
            command.arg(*name).arg(*value);
        }
        command.exec_async(&mut raw).await.expect("added");
        producer.send(&Bytes::from_static(b"x")).await.expect("stored");
    }
    let letters = letters(&mq, 3).await;
    eventually(async || consumer.report().acked == 3, "those between them are handled").await;
    let says = [
        "too large: bytes of payload: 67108864, at most 1048576",
        "too large: fields: 100001, at most 3000",
        "too large: bytes of headers: 16777216, at most 8192",
    ];
    for ((letter, fields), says) in letters.iter().zip(&bad).zip(says) {
        assert_eq!((letter.reason.as_str(), letter.error.as_str()), ("malformed", says));
        if fields.len() <= 3_000 {
            let body = letter.body.iter().map(|(name, value)| (&name[..], &value[..]));
            assert!(body.eq(fields.iter().copied()), "{says}: other bytes");
        } else {
            // More than a script can pass on: one value that has them all.
            assert_eq!((letter.body.len(), &letter.body[0].0[..]), (1, &b"packed"[..]));
            let values = fields.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
            assert!(letter.body[0].1.len() >= values, "{} of {values} bytes", letter.body[0].1.len());
        }
    }
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.dead), (3, 3));
}

/// JSON that would need a stack of its depth to be parsed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_that_is_nested_without_end_is_kept_and_no_stack_overflows() {
    const TREES: Topic<serde_json::Value> = Topic::new("trees").partitions(1);
    let server = Server::start();
    let mq = connect(&server).await;
    // A producer of bytes writes them to the same topic.
    let raw = mq.producer(Topic::raw("trees").partitions(1)).await.expect("a producer");
    let bombs =
        ["[".repeat(1 << 20), "{\"a\":".repeat(200_000), format!("{}{}", "[".repeat(129), "]".repeat(129))];
    let mut stranger = raw_connection(&server.url()).await;
    for bomb in &bombs {
        raw.send(&Bytes::copy_from_slice(bomb.as_bytes())).await.expect("stored");
        let mut add = redis::cmd("XADD");
        add.arg(log("trees")).arg("*").arg("payload").arg(bomb.as_bytes());
        add.exec_async(&mut stranger).await.expect("added");
    }
    let deepest = format!("{}{}", "[".repeat(127), "]".repeat(127));
    raw.send(&Bytes::copy_from_slice(deepest.as_bytes())).await.expect("stored");
    let consumer = mq.consumer(TREES, "g").start(|tree: Delivery<serde_json::Value>| async move {
        if tree.payload.is_array() { Outcome::Ack } else { Outcome::dead_letter("no list") }
    });
    let consumer = consumer.await.expect("started");
    let letters = mq.dead_letters(&TREES, "g").await.expect("dead letters");
    eventually(async || letters.count().await.expect("counted") == 6, "they are dead").await;
    eventually(async || consumer.report().acked == 1, "what is as deep as is allowed is handled").await;
    for (letter, bomb) in
        letters.list(10).await.expect("listed").iter().zip(bombs.iter().flat_map(|it| [it, it]))
    {
        assert_eq!((letter.reason.as_str(), letter.attempts), ("undecodable", 0));
        assert!(letter.error.contains("recursion limit exceeded"), "{}", letter.error);
        let payload = letter.body.iter().find(|(name, _)| name == "payload").map(|(_, value)| &value[..]);
        assert!(payload == Some(bomb.as_bytes()), "with its bytes");
    }
    consumer.shutdown().await;
}
