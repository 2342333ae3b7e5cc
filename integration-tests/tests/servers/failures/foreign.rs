//! Bad and foreign input on Redis: each gives its documented error or dead letter, with the raw bytes.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use integration_tests::{eventually, server::Server};
use millstream::{Consumer, Delivery, ErrorKind, Event, Millstream, Outcome, Topic};

const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(1);
const LOG: &str = "stream:topic:{numbers:p:0}";
const DEAD: &str = "stream:topic:{numbers:p:0}:dlq:g";

/// The fields of an entry.
type Entry<'a> = &'a [(&'a [u8], &'a [u8])];

type Told = Arc<Mutex<Vec<String>>>;

async fn connect(server: &Server) -> (Millstream, Told) {
    let told = Told::default();
    let observer = {
        let told = told.clone();
        move |event: &Event<'_>| {
            if let Event::Failing { operation, error, .. } = event {
                told.lock().expect("lock").push(format!("{operation}: {}: {error}", error.kind()));
            }
            if let Event::Recovered { operation, .. } = event {
                told.lock().expect("lock").push(format!("{operation} recovered"));
            }
        }
    };
    (Millstream::at(server.url()).observer(observer).await.expect("connected"), told)
}

async fn tells(told: &Told, what: &str) {
    let has = async || told.lock().expect("lock").iter().any(|line| line.contains(what));
    eventually(has, &format!("{what:?} is told")).await;
}

async fn consumer(mq: &Millstream, seen: &Arc<Mutex<Vec<u64>>>) -> Consumer {
    let seen = seen.clone();
    let consumer = mq.consumer(NUMBERS, "g").start(move |delivery: Delivery<u64>| {
        seen.lock().expect("lock").push(delivery.payload);
        let number = delivery.payload;
        async move { if number == 13 { Outcome::dead_letter("unlucky") } else { Outcome::Ack } }
    });
    consumer.await.expect("started")
}

async fn xadd(server: &Server, key: &str, fields: Entry<'_>) {
    let mut connection = integration_tests::fixture::raw_connection(&server.url()).await;
    let mut command = redis::cmd("XADD");
    command.arg(key).arg("*");
    for (name, value) in fields {
        command.arg(*name).arg(*value);
    }
    command.exec_async(&mut connection).await.expect("added");
}

#[tokio::test]
async fn foreign_entries_are_messages_or_dead_letters_with_their_bytes() {
    let server = Server::start();
    let (mq, _) = connect(&server).await;
    let seen = Arc::default();
    let consumer = consumer(&mq, &seen).await;
    let big = vec![b'1'; (1 << 20) + 1];
    let many: Vec<String> = (0..65).map(|n| format!("h:{n}")).collect();
    let mut headers: Vec<(&[u8], &[u8])> = many.iter().map(|name| (name.as_bytes(), &b"x"[..])).collect();
    headers.push((b"payload", b"1"));
    let names: Vec<String> = (0..3_500).map(|n| format!("f{n}")).collect();
    let crowd: Vec<(&[u8], &[u8])> = names.iter().map(|name| (name.as_bytes(), &b""[..])).collect();

    let good: Entry<'_> =
        &[(b"type", b"x"), (b"payload", b"1"), (b"key", b"\xff\x00"), (b"h:\xff", b"?"), (b"attempt", b"9")];
    xadd(&server, LOG, good).await;
    let bad: [(Entry<'_>, &str, &str); 8] = [
        (&[(b"payload", b"{")], "undecodable", "invalid type: map, expected u64 at line 1 column 0"),
        (&[(b"payload", b"\xff\xfe\x00")], "undecodable", "expected value at line 1 column 1"),
        (&[(b"text", b"hello")], "malformed", "no payload field"),
        (&[(b"payload", b"1"), (b"payload", b"2")], "malformed", "field payload stands twice"),
        (&[(b"key", b"1"), (b"key", b"2"), (b"payload", b"2")], "malformed", "field key stands twice"),
        (&[(b"payload", &big)], "malformed", "too large: bytes of payload: 1048577, at most 1048576"),
        (&headers, "malformed", "too large: headers: 65, at most 64"),
        (&crowd, "malformed", "too large: fields: 3500, at most 3000"),
    ];
    for (fields, ..) in &bad {
        xadd(&server, LOG, fields).await;
    }
    // In a retry log, a plain entry is a message for that group alone.
    xadd(&server, "stream:topic:{numbers:p:0}:retry:g", &[(b"payload", b"2")]).await;
    xadd(&server, LOG, &[(b"payload", b"3")]).await;

    let letters = mq.dead_letters(&NUMBERS, "g").await.expect("dead letters");
    eventually(async || letters.count().await.expect("counted") == 8, "eight are dead").await;
    eventually(async || consumer.report().acked == 3, "three are handled").await;
    consumer.shutdown().await;
    let mut seen = seen.lock().expect("lock").clone();
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3]);
    for (letter, (fields, reason, error)) in letters.list(10).await.expect("listed").iter().zip(bad) {
        assert_eq!((letter.reason.as_str(), letter.error.as_str(), letter.attempts), (reason, error, 0));
        if fields.len() <= 3_000 {
            let body: Vec<(Bytes, Bytes)> = fields
                .iter()
                .map(|(name, value)| (Bytes::copy_from_slice(name), Bytes::copy_from_slice(value)))
                .collect();
            assert_eq!(letter.body, body);
        } else {
            assert_eq!((letter.body.len(), &letter.body[0].0[..]), (1, &b"packed"[..]));
        }
    }
}

#[tokio::test]
async fn a_foreign_type_at_a_log_is_told_to_both_sides_and_heals() {
    let server = Server::start();
    let (mq, told) = connect(&server).await;
    let seen = Arc::default();
    let producer = mq.producer(NUMBERS).await.expect("a producer");
    let consumer = consumer(&mq, &seen).await;
    producer.send(&1).await.expect("sent");
    eventually(async || consumer.report().acked == 1, "it works").await;
    server.cli(&["SET", LOG, "mine"]);
    let error = producer.send(&2).await.expect_err("no stream");
    assert_eq!(error.kind(), ErrorKind::WrongType);
    assert!(error.to_string().contains("numbers/0") || error.to_string().contains(LOG), "{error}");
    tells(&told, "fetch: wrong_type").await;
    server.cli(&["DEL", LOG]);
    tells(&told, "fetch recovered").await;
    producer.send(&3).await.expect("sent");
    eventually(async || consumer.report().acked == 2, "it works again").await;
    consumer.shutdown().await;
}

#[tokio::test]
async fn a_foreign_type_at_the_dead_letters_holds_up_only_the_dead() {
    let server = Server::start();
    let (mq, told) = connect(&server).await;
    server.cli(&["SET", DEAD, "mine"]);
    let seen = Arc::default();
    let producer = mq.producer(NUMBERS).await.expect("a producer");
    let consumer = consumer(&mq, &seen).await;
    for number in [1, 13, 2] {
        producer.send(&number).await.expect("sent");
    }
    tells(&told, "settle: wrong_type").await;
    let pending = async || {
        let client = server.cli(&["XPENDING", LOG, "g"]);
        client.lines().next() == Some("1")
    };
    eventually(pending, "only the dead one is pending").await;
    server.cli(&["DEL", DEAD]);
    tells(&told, "settle recovered").await;
    let letters = mq.dead_letters(&NUMBERS, "g").await.expect("dead letters");
    eventually(async || letters.count().await.expect("counted") == 1, "it is dead").await;
    consumer.shutdown().await;
    assert_eq!(*seen.lock().expect("lock"), [1, 13, 2]);
}

#[tokio::test]
async fn a_foreign_type_at_the_registry_is_a_typed_error() {
    let server = Server::start();
    let (mq, _) = connect(&server).await;
    server.cli(&["SET", "streaming:mq:topic:{numbers}:meta", "mine"]);
    let error = mq.producer(NUMBERS).await.expect_err("no hash");
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    server.cli(&["DEL", "streaming:mq:topic:{numbers}:meta"]);
    server.cli(&["HSET", "streaming:mq:topic:{numbers}:meta", "partitionCount", "many", "format", "1"]);
    let error = mq.producer(NUMBERS).await.expect_err("no number");
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    server.cli(&["HSET", "streaming:mq:topic:{numbers}:meta", "partitionCount", "1", "format", "99"]);
    let error = mq.producer(NUMBERS).await.expect_err("too new");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[tokio::test]
async fn illegal_names_and_sizes_are_refused_before_anything_is_sent() {
    let server = Server::start();
    let (mq, _) = connect(&server).await;
    let before = server.cli(&["DBSIZE"]);
    let topic = Topic::<u64>::new("orders:eu{x}").partitions(0);
    let error = mq.consumer(topic, "a*").start(|_: Delivery<u64>| async {}).await.expect_err("invalid");
    assert_eq!((error.kind(), error.problems().len()), (ErrorKind::InvalidConfig, 3), "{error}");
    let error = Millstream::at(server.url()).namespace("a b").await.expect_err("invalid");
    assert_eq!(error.kind(), ErrorKind::InvalidName);
    let error = Millstream::connect("kafka://x").await.expect_err("unknown");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert_eq!(server.cli(&["DBSIZE"]), before);

    let raw = mq.producer(Topic::raw("bytes")).await.expect("a producer");
    let large = Bytes::from(vec![0; (1 << 20) + 1]);
    assert_eq!(raw.send(&large).await.expect_err("large").kind(), ErrorKind::TooLarge);
    let small = Bytes::new();
    let send = raw.send(&small).key(vec![0; 1025]);
    assert_eq!(send.await.expect_err("large").kind(), ErrorKind::TooLarge);
    let send = (0..65).fold(raw.send(&small), |send, n| send.header(n.to_string(), ""));
    assert_eq!(send.await.expect_err("many").kind(), ErrorKind::TooLarge);
    let send = raw.send(&small).header("h", vec![0; 8 << 10]);
    assert_eq!(send.await.expect_err("large").kind(), ErrorKind::TooLarge);
    assert_eq!(server.cli(&["XLEN", "stream:topic:{bytes:p:0}"]), "0");
}

#[tokio::test]
async fn a_server_that_is_not_there_or_refuses_is_a_typed_error() {
    let server = Server::builder().arg("--requirepass", "s3cret-word").start();
    let with_password = server.url().replace("redis://", "redis://:s3cret-word@");
    Millstream::connect(&with_password).await.expect("the password fits");
    let error = Millstream::connect(&server.url()).await.expect_err("no password");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    let wrong = server.url().replace("redis://", "redis://:wr0ng@");
    let error = Millstream::connect(&wrong).await.expect_err("wrong password");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(!format!("{error:?} {error}").contains("wr0ng"));
    let port = server.port();
    drop(server);
    let error = Millstream::connect(&format!("redis://127.0.0.1:{port}")).await.expect_err("nobody there");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}
