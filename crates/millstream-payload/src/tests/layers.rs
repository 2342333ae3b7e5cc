//! Compression and encryption, over the backend in memory.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use millstream_core::event::{Cause, Event, Ignore};
use millstream_core::policy::Never;
use millstream_core::{Backend, Envelope, ErrorKind, Retention, Topic};
use millstream_memory::MemoryBackend;
use millstream_runtime::{ConsumerBuilder, Delivery, ProducerBuilder, ProducerLayer, Report};

use crate::{Compression, Encryption};

// Kept, since later groups read them too.
const TEXTS: Topic<String> = Topic::new("texts").partitions(1).retention(Retention::Keep);
const BYTES: Topic<Bytes> = Topic::raw("texts");

fn producer(backend: &Backend) -> ProducerBuilder<String> {
    ProducerBuilder::new(backend.clone(), TEXTS, Arc::new(Ignore))
}

fn consumer(backend: &Backend, group: &str) -> ConsumerBuilder<String> {
    ConsumerBuilder::new(backend.clone(), TEXTS, group, Arc::new(Ignore)).retry(Never)
}

/// Handles everything that is there. Returns the payloads that the handler got.
async fn handled(consumer: ConsumerBuilder<String>) -> (Vec<String>, Report) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let consumer = consumer.start({
        let seen = seen.clone();
        move |delivery: Delivery<String>| {
            seen.lock().expect("lock").push(delivery.into_payload());
            async {}
        }
    });
    let consumer = consumer.await.expect("started");
    consumer.wait_idle().await.expect("idle");
    let report = consumer.shutdown().await;
    let seen = seen.lock().expect("lock").clone();
    (seen, report)
}

/// The payloads as they are stored.
async fn stored(backend: &Backend) -> Vec<Bytes> {
    let raw = ConsumerBuilder::new(backend.clone(), BYTES, "raw", Arc::new(Ignore));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let consumer = raw.start({
        let seen = seen.clone();
        move |delivery: Delivery<Bytes>| {
            seen.lock().expect("lock").push(delivery.into_payload());
            async {}
        }
    });
    let consumer = consumer.await.expect("started");
    consumer.wait_idle().await.expect("idle");
    consumer.shutdown().await;
    seen.lock().expect("lock").clone()
}

fn key(id: &str, byte: u8) -> Encryption {
    Encryption::new(id, &[byte; 32]).expect("a key")
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_compressed_and_encrypted_is_handled_as_it_was() {
    let backend = Backend::from(MemoryBackend::new());
    let producer = producer(&backend).layer(Compression::zstd()).layer(key("one", 1));
    let producer = producer.await.expect("a producer");
    let (long, short) = ("planted ".repeat(1_000), "planted".to_owned());
    producer.send(&long).key("k").await.expect("stored");
    producer.send(&short).await.expect("stored");
    let layers = consumer(&backend, "g").layer(key("two", 2).also("one", &[1; 32]).expect("a key"));
    let (seen, report) = handled(layers.layer(Compression::zstd())).await;
    assert_eq!((seen, report.acked), (vec![long, short], 2));
    let stored = stored(&backend).await;
    assert!(stored[0].len() < 200, "{} bytes", stored[0].len());
    assert_eq!(stored[1].len(), "\"planted\"".len() + 12 + 16, "nonce and tag");
    let shows = |bytes: &Bytes| bytes.windows(7).any(|part| part == b"planted");
    assert!(!stored.iter().any(shows));
}

#[tokio::test(start_paused = true)]
async fn what_was_changed_or_is_plain_is_a_dead_letter_and_an_unknown_key_is_retried() {
    /// What the last layer of the producer does to a message that is encrypted.
    struct Changes(fn(&mut Envelope));
    impl ProducerLayer for Changes {
        fn send(&self, message: &mut Envelope) -> Result<(), millstream_core::BoxError> {
            (self.0)(message);
            Ok(())
        }
    }
    let flip = |message: &mut Envelope| {
        let mut bytes = message.payload.to_vec();
        bytes[13] ^= 1;
        message.payload = bytes.into();
    };
    let short = |message: &mut Envelope| message.payload = message.payload.slice(..11);
    for change in [flip as fn(&mut Envelope), short] {
        let backend = Backend::from(MemoryBackend::new());
        let producer = producer(&backend).layer(key("one", 1)).layer(Changes(change));
        producer.await.expect("a producer").send(&"text".to_owned()).await.expect("stored");
        let (seen, report) = handled(consumer(&backend, "g").layer(key("one", 1))).await;
        assert_eq!((seen.len(), report.dead), (0, 1));
    }

    let backend = Backend::from(MemoryBackend::new());
    producer(&backend).await.expect("a producer").send(&"plain".to_owned()).await.expect("stored");
    let (seen, report) = handled(consumer(&backend, "strict").layer(key("one", 1))).await;
    assert_eq!((seen.len(), report.dead), (0, 1));
    let (seen, _) = handled(consumer(&backend, "lenient").layer(key("one", 1).allow_plain())).await;
    assert_eq!(seen, ["plain"]);

    let backend = Backend::from(MemoryBackend::new());
    let one = producer(&backend).layer(key("one", 1)).await.expect("a producer");
    one.send(&"text".to_owned()).await.expect("stored");
    // An error, which the policy of the consumer retries, and not a rejection.
    let causes = Arc::new(Mutex::new(Vec::new()));
    let observer = {
        let causes = causes.clone();
        move |event: &Event<'_>| {
            if let Event::Handled { cause: Some(cause), .. } = event {
                causes.lock().expect("lock").push(*cause);
            }
        }
    };
    let other = ConsumerBuilder::new(backend.clone(), TEXTS, "g", Arc::new(observer)).retry(Never);
    let (seen, _) = handled(other.layer(key("two", 2))).await;
    assert_eq!((seen.len(), causes.lock().expect("lock").clone()), (0, vec![Cause::Error]));
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_becomes_too_large_is_a_dead_letter() {
    let backend = Backend::from(MemoryBackend::new());
    let producer = producer(&backend).layer(Compression::zstd().level(19)).await.expect("a producer");
    producer.send(&"0".repeat(1_000_000)).await.expect("stored");
    let (seen, report) = handled(consumer(&backend, "g").layer(Compression::zstd().largest(999_999))).await;
    assert_eq!((seen.len(), report.dead), (0, 1));
    let (seen, _) = handled(consumer(&backend, "h").layer(Compression::zstd().largest(1_000_002))).await;
    assert_eq!(seen[0].len(), 1_000_000);
}

#[test]
fn ids_of_keys_are_checked() {
    for id in ["", "with space", "ä", &"x".repeat(65)] {
        assert!(Encryption::new(id, &[0; 32]).is_err(), "{id}");
    }
    assert!(key("one", 1).also("one", &[2; 32]).is_err());
    assert_eq!(
        format!("{:?}", key("one", 77)),
        "Encryption { current: \"one\", keys: [\"one\"], allow_plain: false, .. }"
    );
}

/// As a handler does that passes a message on with its headers, while keys and sizes change.
#[tokio::test(start_paused = true)]
async fn headers_of_an_earlier_send_are_replaced() {
    let backend = Backend::from(MemoryBackend::new());
    let producer = producer(&backend).layer(Compression::zstd()).layer(key("new", 1));
    let producer = producer.await.expect("a producer");
    let (long, short) = ("planted ".repeat(1_000), "planted".to_owned());
    for text in [&long, &short] {
        let send = producer.send(text).header("encryption-key", "old").header("content-encoding", "zstd");
        send.await.expect("stored");
    }
    let refused = producer.send(&long).header("content-encoding", "gzip").await.expect_err("not ours");
    assert_eq!(refused.kind(), ErrorKind::Encode);
    let layers = consumer(&backend, "g").layer(key("old", 2).also("new", &[1; 32]).expect("a key"));
    let (seen, report) = handled(layers.layer(Compression::zstd())).await;
    assert_eq!((seen, report.acked), (vec![long, short], 2));
}

/// The window of a frame is memory that is allocated before anything is read.
#[tokio::test(start_paused = true)]
async fn a_frame_with_a_large_window_is_refused() {
    let backend = Backend::from(MemoryBackend::new());
    // Magic number, no size, and a window of 2^(10 + 16) bytes; then an empty last block.
    let frame = |window: u8| Bytes::from(vec![0x28, 0xb5, 0x2f, 0xfd, 0, window << 3, 1, 0, 0]);
    let raw = ProducerBuilder::new(
        backend.clone(),
        BYTES.partitions(1).retention(Retention::Keep),
        Arc::new(Ignore),
    );
    let raw = raw.await.expect("a producer");
    for window in [16, 0] {
        raw.send(&frame(window)).header("content-encoding", "zstd").await.expect("stored");
    }
    let bytes = ConsumerBuilder::new(backend.clone(), BYTES, "g", Arc::new(Ignore)).retry(Never);
    let bytes = bytes.layer(Compression::zstd().largest(1 << 20));
    let consumer = bytes.start(|_: Delivery<Bytes>| async {}).await.expect("started");
    consumer.wait_idle().await.expect("idle");
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.dead), (1, 1), "the small window is read");
}
