//! Failed attempts of messages and tasks: what the logs and the observers have of them.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use integration_tests::eventually;
use millstream::delay::{DelayQueue, Task};
use millstream::{Delivery, Event, Exponential, Fixed, Millstream, Observer, Outcome, Topic};
use tracing_subscriber::fmt::MakeWriter;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    fn all(&self) -> Vec<String> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()
    }

    /// The lines with all of these words.
    fn with(&self, words: &[&str]) -> usize {
        self.all().iter().filter(|line| words.iter().all(|word| line.contains(word))).count()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Attempt, error and key of a message that failed.
type Failed = (u32, Option<String>, Option<Vec<u8>>);

#[derive(Clone, Default)]
struct Failures(Arc<Mutex<Vec<Failed>>>);

impl Observer for Failures {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Handled { attempt, cause: Some(_), error, key, .. } = event {
            let key = key.map(|key| key.as_bytes().to_vec());
            self.0.lock().expect("no panic").push((*attempt, error.map(str::to_owned), key));
        }
    }
}

/// Logs of this thread, which runs everything that the test starts.
fn listen() -> (Lines, tracing::subscriber::DefaultGuard) {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_ansi(false);
    (lines.clone(), tracing::subscriber::set_default(subscriber.with_writer(lines).finish()))
}

#[tokio::test]
async fn an_attempt_that_fails_is_logged_and_observed_with_its_error() {
    let ((lines, _guard), failures) = (listen(), Failures::default());
    let mq = Millstream::at("memory://").observer(failures.clone()).connect().await.expect("connected");
    let topic = || Topic::<String>::new("orders").partitions(1);
    let retry = Exponential::from(Duration::from_millis(1)).attempts(2);
    let handler = |_: Delivery<String>| async { Outcome::retry("the bank is closed") };
    let consumer = mq.consumer(topic(), "billing").retry(retry).start(handler).await.expect("started");
    let numbers = mq.consumer(Topic::<u64>::new("orders").partitions(1), "numbers");
    let numbers = numbers.start(|_: Delivery<u64>| async {}).await.expect("started");
    let sent =
        mq.producer(topic()).await.expect("a producer").send(&"secret order".to_owned()).key("ada").await;
    let id = sent.expect("stored").id.to_string();
    consumer.wait_idle().await.expect("idle");
    numbers.wait_idle().await.expect("idle");

    let of = ["topic_partition=orders/0", "group=billing", &format!("origin={id}"), "the bank is closed"];
    let with = |more: &[&str]| lines.with(&[&of[..], more].concat());
    assert_eq!(with(&["INFO", "attempt=1", "cause=\"error\"", "retried"]), 1, "{:#?}", lines.all());
    assert_eq!(with(&["WARN", "attempt=2", "cause=\"error\"", "dead letter"]), 1, "{:#?}", lines.all());
    // A codec may quote what it could not read: its text is in the dead letter alone.
    assert_eq!(lines.with(&["WARN", "group=numbers", "cause=\"undecodable\"", "dead letter"]), 1);
    assert_eq!(lines.with(&["secret"]), 0, "{:#?}", lines.all());

    let mut seen = failures.0.lock().expect("no panic").clone();
    seen.sort();
    let (error, key) = (Some("the bank is closed".to_owned()), Some(b"ada".to_vec()));
    assert_eq!(seen, [(1, None, key.clone()), (1, error.clone(), key.clone()), (2, error, key)]);
    consumer.shutdown().await;
    numbers.shutdown().await;
}

#[tokio::test]
async fn a_task_that_fails_is_logged() {
    let (lines, _guard) = listen();
    let mq = Millstream::connect("memory://").await.expect("connected");
    let queue = DelayQueue::<String>::new("payments").open(mq.backend()).await.expect("a queue");
    let worker = queue.worker().retry(Fixed::new(Duration::from_millis(1)).attempts(2));
    let handler = |_: Task<String>| async { Outcome::retry("the bank is closed") };
    let worker = worker.start(handler).await.expect("a worker");
    queue.schedule(&"secret task".to_owned()).delay(Duration::ZERO).id("p-7").await.expect("stored");
    let of = ["payments", "task=p-7", "the bank is closed"];
    let with = |more: &[&str]| lines.with(&[&of[..], more].concat());
    eventually(async || with(&["WARN", "attempt=2", "dead"]) == 1, "the task is dead").await;
    assert_eq!(with(&["INFO", "attempt=1", "retried"]), 1, "{:#?}", lines.all());
    assert_eq!(lines.with(&["secret"]), 0, "{:#?}", lines.all());
    worker.shutdown().await;
}
