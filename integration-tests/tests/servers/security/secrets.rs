//! Nothing that Millstream says has a password, or bytes of a message: not at TRACE, not in events, errors and `Debug`.

use std::fmt::Debug;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use integration_tests::eventually;
use integration_tests::server::Server;
use millstream::{Concurrency, Delivery, Event, Exponential, Millstream, Observer, Outcome, Sharing, Topic};
use millstream_redis::RedisConfig;
use tracing_subscriber::fmt::MakeWriter;

/// What must never be seen. Each place has its own, so that a failure names it.
const PASSWORD: &str = "Planted-password-4711";
const PAYLOAD: &str = "Planted-payload-4712";
const KEY: &str = "Planted-key-4713";
const HEADER: &str = "Planted-header-4714";
const FOREIGN: &str = "Planted-foreign-4715";

/// Everything that was said.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Said {
    fn add(&self, what: impl Debug) {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.extend_from_slice(format!("{what:?}\n{what:#?}\n").as_bytes());
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl io::Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Said {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Observer for Said {
    fn observe(&self, event: &Event<'_>) {
        self.add(event);
    }
}

/// How the words might be shown: as text, or as numbers.
fn shown(word: &str) -> [String; 3] {
    let numbers = |form: fn(u8) -> String| word.bytes().take(12).map(form).collect::<Vec<_>>();
    [
        word.to_owned(),
        numbers(|byte| byte.to_string()).join(", "),
        numbers(|byte| format!("{byte:02x}")).concat(),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_is_said_has_a_secret_or_a_message() {
    let said = Said::default();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(said.clone());
    // The runtime's threads take the global one. Another test of this process may have set its own.
    tracing::subscriber::set_global_default(subscriber.finish()).expect("the only test that listens");
    let mut server = Server::builder().appendonly(true).arg("--requirepass", PASSWORD).start();
    let url = server.url().replace("redis://", &format!("redis://:{PASSWORD}@"));
    said.add(RedisConfig::new(&url));
    let wrong = url.replace("4711", "4711-wrong");
    said.add(Millstream::connect(&wrong).await.map(drop).expect_err("refused"));
    said.add(Millstream::connect(&format!("{url}/nonsense")).await.map(drop).expect_err("no database"));

    let mq = Millstream::at(&url).observer(said.clone()).connect().await.expect("connected");
    said.add(&mq);
    let topic = || Topic::<String>::new("secrets").partitions(2);
    for (group, sharing) in [("owners", Sharing::Exclusive), ("members", Sharing::Shared)] {
        let handler = |message: Delivery<String>| async move {
            match message.payload.rsplit(' ').next() {
                Some("dead") => Outcome::dead_letter("no"),
                Some("panic") if message.attempt() == 1 => panic!("at once"),
                Some("retry") if message.attempt() < 3 => Outcome::retry("again"),
                _ => Outcome::Ack,
            }
        };
        let consumer = mq.consumer(topic(), group).sharing(sharing).concurrency(Concurrency::Unordered(8));
        let consumer = consumer.retry(Exponential::from(Duration::from_millis(10)).attempts(3));
        let consumer = consumer.lease_ttl(Duration::from_secs(2)).start(handler).await.expect("a consumer");
        said.add(&consumer);
        // Kept until the test ends.
        std::mem::forget(consumer);
    }
    // Somebody for whom these are numbers.
    let numbers = mq.consumer(Topic::<u64>::new("secrets").partitions(2), "numbers");
    let numbers = numbers.start(|_: Delivery<u64>| async { Outcome::Ack }).await.expect("a consumer");

    let producer = mq.producer(topic()).await.expect("a producer");
    said.add(&producer);
    for what in ["ack", "dead", "panic", "retry"] {
        let payload = format!("{PAYLOAD} {what}");
        let sent = producer.send(&payload).key(KEY).header("what", HEADER).await;
        said.add(sent.expect("stored"));
        let later =
            producer.send(&payload).key(KEY).header("what", HEADER).delay(Duration::from_millis(20)).await;
        said.add(later.expect("parked"));
    }
    let large = PAYLOAD.repeat(1 << 20);
    said.add(producer.send(&large).key(KEY).await.map(drop).expect_err("too large"));
    said.add(producer.send(&String::new()).key(KEY).header(FOREIGN.repeat(2_000), "x").await.err());
    // Entries of somebody else, and keys of other types.
    let mut raw = integration_tests::fixture::raw_connection(&url).await;
    for (partition, fields) in [(0, &[FOREIGN, FOREIGN][..]), (1, &["payload", FOREIGN, "attempt", FOREIGN])]
    {
        let mut add = redis::cmd("XADD");
        add.arg(format!("stream:topic:{{secrets:p:{partition}}}")).arg("*").arg(fields);
        add.exec_async(&mut raw).await.expect("added");
    }

    let letters = async |group: &str| {
        mq.dead_letters(&topic(), group).await.expect("a queue").count().await.unwrap_or(0)
    };
    eventually(async || letters("owners").await >= 2 && letters("members").await >= 2, "some are dead").await;
    eventually(async || letters("numbers").await >= 8, "strings are no numbers").await;
    server.restart();
    eventually(
        async || {
            producer
                .send(&format!("{PAYLOAD} ack"))
                .key(KEY)
                .await
                .inspect_err(|error| said.add(error))
                .is_ok()
        },
        "it is back",
    )
    .await;
    for group in ["owners", "members", "numbers"] {
        let queue = mq.dead_letters(&topic(), group).await.expect("a queue");
        let replayed = queue.replay_all().await;
        said.add(replayed);
    }
    said.add(numbers.shutdown().await);
    let text = said.text();
    assert!(text.contains("DEBUG") && text.contains("secrets") && text.contains("Handled {"), "it listens");
    for word in [PASSWORD, PAYLOAD, KEY, HEADER, FOREIGN] {
        for form in shown(word) {
            if let Some(at) = text.find(&form) {
                let (from, to) = (
                    text[..at].rfind('\n').unwrap_or(0),
                    text[at..].find('\n').map_or(text.len(), |end| at + end),
                );
                panic!("{word} was said: {}", &text[from..to.min(from + 2_000)]);
            }
        }
    }
}
