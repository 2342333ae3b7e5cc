//! The claim check, over the backend in memory and a store in a directory.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_admin::Admin;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Ignore;
use millstream_core::policy::Never;
use millstream_core::{Backend, Reason, Retention, Topic};
use millstream_delay::{Promoter, PromoterConfig};
use millstream_memory::MemoryBackend;
use millstream_runtime::{ConsumerBuilder, Delivery, Producer, ProducerBuilder, Report};
use tempfile::TempDir;

use crate::{ClaimCheck, DirectoryStore, PayloadReference, PayloadStore};

const BYTES: Topic<Bytes> = Topic::raw("bytes").partitions(1).retention(Retention::Keep);
const MIB: usize = 1 << 20;

/// What a store makes of what it has.
type Change = fn(Bytes) -> Bytes;

/// A store whose state a test changes.
#[derive(Debug)]
struct Scripted {
    store: DirectoryStore,
    is_away: AtomicBool,
    refuses: AtomicBool,
    fetches: AtomicUsize,
    change: Mutex<Option<Change>>,
}

impl Scripted {
    fn check(&self) -> Result<()> {
        if self.refuses.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Denied, "no rights"));
        }
        match self.is_away.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Unavailable, "the store is away")),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl PayloadStore for Scripted {
    async fn put(&self, reference: &PayloadReference, payload: Bytes) -> Result<()> {
        self.check()?;
        self.store.put(reference, payload).await
    }

    async fn get(&self, reference: &PayloadReference) -> Result<Option<Bytes>> {
        self.fetches.fetch_add(1, Ordering::SeqCst);
        self.check()?;
        let change = *self.change.lock().expect("lock");
        let payload = self.store.get(reference).await?;
        Ok(payload.map(change.unwrap_or(|payload| payload)))
    }
}

/// A backend, a store and its folder.
struct Bench {
    backend: Backend,
    folder: TempDir,
    store: Arc<Scripted>,
    claims: ClaimCheck,
}

fn bench() -> Bench {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Arc::new(Scripted {
        store: DirectoryStore::open(folder.path()).expect("a store"),
        is_away: AtomicBool::new(false),
        refuses: AtomicBool::new(false),
        fetches: AtomicUsize::new(0),
        change: Mutex::default(),
    });
    let claims = ClaimCheck::new(store.clone()).above(1_000);
    Bench { backend: Backend::from(MemoryBackend::new()), folder, store, claims }
}

/// A body that does not repeat itself.
fn body(bytes: usize) -> Bytes {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..bytes).map(|_| next()).collect::<Vec<u8>>().into()
}

impl Bench {
    fn producing(&self) -> ProducerBuilder<Bytes> {
        ProducerBuilder::new(self.backend.clone(), BYTES, Arc::new(Ignore))
    }

    async fn producer(&self) -> Producer<Bytes> {
        self.producing().async_layer(self.claims.clone()).await.expect("a producer")
    }

    fn consumer(&self, group: &str) -> ConsumerBuilder<Bytes> {
        let promoter = Promoter::new(&self.backend, PromoterConfig::default());
        let consumer = ConsumerBuilder::new(self.backend.clone(), BYTES, group, Arc::new(Ignore));
        consumer.retry(Never).upkeep(promoter)
    }

    /// The files of payloads, complete or not.
    fn files(&self) -> Vec<PathBuf> {
        let folders = fs::read_dir(self.folder.path()).expect("the folder");
        let folders = folders.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_dir());
        let files = folders.flat_map(|path| fs::read_dir(path).expect("a folder"));
        files.map(|entry| entry.expect("an entry").path()).collect()
    }

    /// Handles everything, and returns reasons and errors of the dead letters.
    async fn dead(&self, group: &str) -> Vec<(Reason, String)> {
        let (_, report) = handled(self.consumer(group).layer(self.claims.clone())).await;
        let (topic, group) = ("bytes".parse().expect("a name"), group.parse().expect("a name"));
        let queue = Admin::new(self.backend.clone()).dead_letters(&topic, &group).await.expect("a queue");
        let letters = queue.list(100).await.expect("listed");
        assert_eq!(letters.len() as u64, report.dead);
        letters.into_iter().map(|letter| (letter.reason.clone(), letter.error.clone())).collect()
    }
}

/// Handles everything that is there. Returns the payloads and attempts that the handler got.
async fn handled(consumer: ConsumerBuilder<Bytes>) -> (Vec<(Bytes, u32)>, Report) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let consumer = consumer.start({
        let seen = seen.clone();
        move |delivery: Delivery<Bytes>| {
            seen.lock().expect("lock").push((delivery.payload.clone(), delivery.attempt()));
            async {}
        }
    });
    let consumer = consumer.await.expect("started");
    consumer.wait_idle().await.expect("idle");
    let report = consumer.shutdown().await;
    let seen = seen.lock().expect("lock").clone();
    (seen, report)
}

#[tokio::test(start_paused = true)]
async fn payloads_above_the_limit_go_through_the_store_and_every_group_gets_them() {
    let bench = bench();
    let producer = bench.producer().await;
    let bodies = [body(1_000), body(1_001), body(MIB), body(64 * MIB), Bytes::new()];
    for body in &bodies {
        producer.send(body).await.expect("stored");
    }
    assert_eq!(bench.files().len(), 3);
    let (stored, _) = handled(bench.consumer("without")).await;
    let lengths: Vec<_> = stored.iter().map(|(payload, _)| payload.len()).collect();
    assert_eq!(lengths, [1_000, 0, 0, 0, 0]);
    for group in ["one", "two"] {
        let (seen, report) = handled(bench.consumer(group).layer(bench.claims.clone())).await;
        assert!(seen.iter().map(|(payload, _)| payload).eq(&bodies), "{group}");
        assert_eq!(report.acked, 5);
    }
    assert_eq!(bench.files().len(), 3, "no consumer deletes");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_when_the_store_refuses_a_payload() {
    let bench = bench();
    let producer = bench.producer().await;
    let kind = async |body: Bytes| producer.send(&body).await.expect_err("refused").kind();
    bench.store.is_away.store(true, Ordering::SeqCst);
    assert_eq!(kind(body(2_000)).await, ErrorKind::Unavailable);
    producer.send(&body(10)).await.expect("a small one needs no store");
    bench.store.refuses.store(true, Ordering::SeqCst);
    assert_eq!(kind(body(2_000)).await, ErrorKind::Denied);
    assert_eq!(kind(body(64 * MIB + 1)).await, ErrorKind::TooLarge);
    let (seen, _) = handled(bench.consumer("g")).await;
    assert_eq!(seen, [(body(10), 1)]);
}

#[tokio::test(start_paused = true)]
async fn while_the_store_is_away_a_message_waits_and_uses_no_attempt() {
    let bench = bench();
    bench.producer().await.send(&body(2_000)).await.expect("stored");
    bench.store.is_away.store(true, Ordering::SeqCst);
    // The policy allows one attempt.
    let consumer = bench.consumer("g").layer(bench.claims.clone().retry_after(Duration::from_secs(60)));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let consumer = consumer.start({
        let seen = seen.clone();
        move |delivery: Delivery<Bytes>| {
            seen.lock().expect("lock").push(delivery.attempt());
            async {}
        }
    });
    let consumer = consumer.await.expect("started");
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    let fetches = bench.store.fetches.load(Ordering::SeqCst);
    assert!((55..=61).contains(&fetches), "{fetches} in an hour");
    bench.store.is_away.store(false, Ordering::SeqCst);
    consumer.wait_idle().await.expect("idle");
    assert_eq!(*seen.lock().expect("lock"), [1]);
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.dead), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_is_away() {
    #[derive(Debug)]
    struct Hangs(AtomicUsize);

    #[async_trait]
    impl PayloadStore for Hangs {
        async fn put(&self, _: &PayloadReference, _: Bytes) -> Result<()> {
            Ok(())
        }

        async fn get(&self, _: &PayloadReference) -> Result<Option<Bytes>> {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::future::pending().await
        }
    }

    let bench = bench();
    let store = Arc::new(Hangs(AtomicUsize::new(0)));
    let claims = ClaimCheck::new(store.clone()).fetch_timeout(Duration::from_secs(5));
    let producer = bench.producing().async_layer(claims.clone()).await.expect("a producer");
    producer.send(&body(MIB)).await.expect("stored");
    let consumer = bench.consumer("g").layer(claims).start(|_: Delivery<Bytes>| async {});
    let consumer = consumer.await.expect("started");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(store.0.load(Ordering::SeqCst) >= 4, "it tries again after 5 s and 5 s");
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.dead), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_is_a_failed_attempt() {
    let bench = bench();
    bench.producer().await.send(&body(2_000)).await.expect("stored");
    bench.store.refuses.store(true, Ordering::SeqCst);
    let dead = bench.dead("g").await;
    assert!(matches!(&dead[..], [(Reason::Exhausted, error)] if error.contains("no rights")), "{dead:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_missing_or_changed_or_too_large_is_undecodable_and_names_its_reference() {
    let bench = bench();
    bench.producer().await.send(&body(2_000)).await.expect("stored");
    let file = bench.files().pop().expect("a file");
    let name = file.file_name().expect("a name").to_str().expect("text").to_owned();
    let check = async |group: &str, why: &str| {
        let dead = bench.dead(group).await;
        let [(Reason::Undecodable, error)] = &dead[..] else { panic!("{dead:?}") };
        assert!(error.contains(why) && error.contains(&name), "{error}");
    };
    let changes: [Change; 3] = [
        |payload| payload.slice(1..),
        |payload| [&payload[..], b"x"].concat().into(),
        |payload| [b"x", &payload[1..]].concat().into(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        *bench.store.change.lock().expect("lock") = Some(change);
        check(&format!("changed-{number}"), "not the one").await;
    }
    *bench.store.change.lock().expect("lock") = None;
    let small = bench.claims.clone().largest(1_999);
    let (_, report) = handled(bench.consumer("small").layer(small)).await;
    assert_eq!((report.acked, report.dead), (0, 1));
    fs::remove_file(file).expect("removed");
    check("missing", "missing").await;
}

/// What a foreign producer writes into the header is no path, and is not read.
#[tokio::test(start_paused = true)]
async fn a_hostile_reference_reads_nothing() {
    let bench = bench();
    let outside = bench.folder.path().parent().expect("a folder").join("secret");
    let sender = bench.producing().await.expect("a producer");
    let hash = "0".repeat(64);
    let references = [
        outside.to_str().expect("text").to_owned(),
        format!("../../../../../../../../etc/passw:1:{hash}"),
        format!("{}:1:{hash}", "../".repeat(10) + "aa"),
        "file:///etc/passwd".into(),
        "x".repeat(5_000),
    ];
    for reference in &references {
        sender.send(&Bytes::new()).header("claim-check", reference).await.expect("stored");
    }
    let dead = bench.dead("g").await;
    assert_eq!(dead.len(), references.len());
    assert!(
        dead.iter().all(|(cause, error)| *cause == Reason::Undecodable && error.len() < 1_000),
        "{dead:?}"
    );
    assert_eq!(bench.store.fetches.load(Ordering::SeqCst), 0);
    // One of the right form, of an object that nobody put.
    sender
        .send(&Bytes::new())
        .header("claim-check", format!("{}:1:{hash}", "a".repeat(32)))
        .await
        .expect("stored");
    assert_eq!(bench.dead("h").await.len(), references.len() + 1);
    // A length that no memory has.
    let length = format!("{}:18446744073709551615:{hash}", "a".repeat(32));
    sender.send(&Bytes::new()).header("claim-check", length).await.expect("stored");
    assert_eq!(bench.dead("i").await.len(), references.len() + 2);
}

/// A handler that passes a message on with its headers.
#[tokio::test(start_paused = true)]
async fn a_reference_that_was_copied_from_another_message_does_not_count() {
    let bench = bench();
    let (with, without) = (bench.producer().await, bench.producing().await.expect("a producer"));
    with.send(&body(2_000)).await.expect("stored");
    let (tx, rx) = tokio::sync::oneshot::channel();
    let tx = Mutex::new(Some(tx));
    let consumer = bench.consumer("first").start(move |delivery: Delivery<Bytes>| {
        let header = delivery.headers().get("claim-check").cloned();
        if let (Some(tx), Some(header)) = (tx.lock().expect("lock").take(), header) {
            let _ = tx.send(header);
        }
        async {}
    });
    let consumer = consumer.await.expect("started");
    let header = rx.await.expect("a header");
    consumer.shutdown().await;
    for producer in [&with, &without] {
        producer.send(&body(10)).header("claim-check", &header).await.expect("stored");
    }
    with.send(&body(3_000)).header("claim-check", &header).await.expect("stored");
    with.send(&Bytes::new()).header("claim-check", &header).await.expect("stored");
    let (seen, _) = handled(bench.consumer("g").layer(bench.claims.clone())).await;
    let payloads: Vec<_> = seen.into_iter().map(|(payload, _)| payload).collect();
    assert_eq!(payloads, [body(2_000), body(10), body(10), body(3_000), Bytes::new()]);
}

#[cfg(all(feature = "zstd", feature = "encryption"))]
#[tokio::test(start_paused = true)]
async fn behind_compression_and_encryption_the_store_has_what_they_made() {
    use crate::{Compression, Encryption};

    let bench = bench();
    let key = || Encryption::new("one", &[1; 32]).expect("a key");
    let producer = bench.producing().layer(Compression::zstd()).layer(key());
    let producer = producer.async_layer(bench.claims.clone()).await.expect("a producer");
    let text: Bytes = [&body(4_000)[..], &"planted ".repeat(1_000).into_bytes()].concat().into();
    producer.send(&text).key("k").await.expect("stored");
    let [file] = &bench.files()[..] else { panic!("one file") };
    let stored = fs::read(file).expect("a file");
    assert!(stored.len() < 6_000 && !stored.windows(7).any(|part| part == b"planted"));
    let consumer = bench.consumer("g").layer(bench.claims.clone()).layer(key()).layer(Compression::zstd());
    assert_eq!(handled(consumer).await.0, [(text, 1)]);
}

#[tokio::test]
async fn a_directory_that_is_not_there_is_no_missing_payload() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("payloads");
    let store = DirectoryStore::open(&root).expect("a store");
    let reference = PayloadReference::of(b"payload").expect("a reference");
    assert_eq!(store.get(&reference).await.expect("an answer"), None);
    fs::rename(&root, folder.path().join("elsewhere")).expect("renamed");
    // As where a file system is not mounted.
    fs::create_dir(&root).expect("an empty folder");
    assert_eq!(store.get(&reference).await.expect_err("away").kind(), ErrorKind::Unavailable);
    let error = store.put(&reference, Bytes::from_static(b"payload")).await.expect_err("away");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(fs::read_dir(&root).expect("the folder").count(), 0);
}

#[tokio::test]
async fn a_directory_removes_what_is_old_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = DirectoryStore::open(folder.path()).expect("a store");
    let (old, new) = (PayloadReference::of(b"old").expect("one"), PayloadReference::of(b"new").expect("one"));
    for (reference, payload) in [(&old, "old"), (&new, "new")] {
        store.put(reference, payload.into()).await.expect("stored");
    }
    let path = folder.path().join(&old.name()[..2]).join(old.name());
    let foreign = path.with_file_name("foreign");
    let unfinished = path.with_file_name("a".repeat(32) + ".part");
    fs::write(&foreign, "foreign").expect("written");
    fs::write(&unfinished, "half").expect("written");
    let hours = |hours: u64| std::time::SystemTime::now() - Duration::from_secs(3_600 * hours);
    for path in [&path, &foreign, &unfinished] {
        let file = fs::OpenOptions::new().append(true).open(path).expect("a file");
        file.set_modified(hours(2)).expect("a time");
    }
    assert_eq!(store.remove_older(Duration::from_secs(3 * 3_600)).await.expect("removed"), 0);
    assert_eq!(store.remove_older(Duration::from_secs(3_600)).await.expect("removed"), 2);
    assert_eq!(store.get(&old).await.expect("an answer"), None);
    assert_eq!(store.get(&new).await.expect("an answer"), Some("new".into()));
    assert!(foreign.exists() && !unfinished.exists());
    assert_eq!(store.remove_older(Duration::MAX).await.expect("removed"), 0);
}
