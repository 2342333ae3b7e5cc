//! Relays whose way to the database is slow or cut. The database is SQLite.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::dedup::DedupId;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::{Event, Ignore, Observer};
use millstream_core::log::{Append, DedupIdentity};
use millstream_core::span::{self, Detail, MessagingOperation, Span, Tracer};
use millstream_core::{Backend, Envelope, Headers, Retention, Topic, TopicPartition, TraceContext, wire};
use millstream_memory::{MemoryBackend, SuspendableClock};
use tempfile::TempDir;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::OutboxRelayConfig;
use super::batch::Planned;
use super::run::Run;
use super::spans::Spans;
use super::topics::Topics;
use super::trimming::Trims;
use crate::outbox::row::{RowName, StoredRow};
use crate::outbox::store::{self, Failed, Grant, PageLimits, Sample, Shares, Store};
use crate::{Database, Outbox, migrate};

const LINES: Topic<Bytes> = Topic::raw("lines").partitions(1);

/// The way of one relay to the database.
struct Link {
    inner: Arc<dyn Store>,
    /// Requests wait while it is cut.
    is_cut: watch::Sender<bool>,
    /// Time that a page takes.
    page_takes: Duration,
    /// Links that are cut when this relay wants to delete what it has stored.
    cut_at_settle: Mutex<Vec<watch::Sender<bool>>>,
    /// Number of renewals that were answered.
    renewals: watch::Sender<u32>,
    /// Whether it is cut behind the next page that has rows.
    cut_behind_page: AtomicBool,
}

impl Link {
    fn to(database: &Database) -> Self {
        Self {
            inner: store::open(database),
            is_cut: watch::Sender::new(false),
            page_takes: Duration::ZERO,
            cut_at_settle: Mutex::default(),
            renewals: watch::Sender::new(0),
            cut_behind_page: AtomicBool::new(false),
        }
    }

    async fn passes(&self) {
        until(&self.is_cut, |is_cut| !is_cut).await;
    }
}

#[async_trait]
impl Store for Link {
    async fn renew(&self, me: &str, ttl: Duration) -> Result<Shares> {
        self.passes().await;
        let shares = self.inner.renew(me, ttl).await;
        self.renewals.send_modify(|count| *count += 1);
        shares
    }

    async fn acquire(&self, me: &str, ttl: Duration, shards: &[i16]) -> Result<Vec<Grant>> {
        self.passes().await;
        self.inner.acquire(me, ttl, shards).await
    }

    async fn release(&self, me: &str, shards: &[i16]) -> Result<()> {
        self.passes().await;
        self.inner.release(me, shards).await
    }

    async fn leave(&self, me: &str) -> Result<()> {
        self.inner.leave(me).await
    }

    async fn promote(&self, shards: &[i16]) -> Result<u64> {
        self.passes().await;
        self.inner.promote(shards).await
    }

    async fn page(&self, shards: &[i16], limits: PageLimits) -> Result<Vec<StoredRow>> {
        self.passes().await;
        tokio::time::sleep(self.page_takes).await;
        let rows = self.inner.page(shards, limits).await?;
        if !rows.is_empty() && self.cut_behind_page.swap(false, Ordering::Relaxed) {
            self.is_cut.send_replace(true);
            self.passes().await;
        }
        Ok(rows)
    }

    async fn settle(
        &self,
        me: &str,
        ttl: Duration,
        grants: &[Grant],
        stored: &[RowName],
        failed: &[Failed],
    ) -> Result<Vec<i16>> {
        for link in self.cut_at_settle.lock().expect("a lock").drain(..) {
            link.send_replace(true);
        }
        self.passes().await;
        self.inner.settle(me, ttl, grants, stored, failed).await
    }

    async fn sample(&self) -> Result<Sample> {
        self.passes().await;
        self.inner.sample().await
    }

    fn listen(&self, wake: Arc<Notify>) -> Option<AbortOnDropHandle<()>> {
        self.inner.listen(wake)
    }
}

/// A queue and a database.
struct Scene {
    backend: Backend,
    database: Database,
    _folder: TempDir,
}

impl Scene {
    async fn new() -> Self {
        let folder = TempDir::new().expect("it works");
        let url = format!("sqlite:{}?mode=rwc", folder.path().join("test.db").display());
        let database = Database::connect(&url).await.expect("it works");
        migrate(&database).await.expect("it works");
        Self { backend: MemoryBackend::new().into(), database, _folder: folder }
    }

    /// Starts a relay, which runs until the returned value is dropped.
    async fn relay(&self, name: &str, link: &Arc<Link>, config: &OutboxRelayConfig) -> watch::Sender<bool> {
        self.observed_relay(name, link, config, Arc::new(Ignore)).await
    }

    async fn observed_relay(
        &self,
        name: &str,
        link: &Arc<Link>,
        config: &OutboxRelayConfig,
        observer: Arc<dyn Observer>,
    ) -> watch::Sender<bool> {
        let catalog = self.backend.catalog().clone();
        let mut topics = Topics::new(catalog.clone(), config.partitioner.clone(), config.window);
        topics.declare(&LINES.spec().expect("it works")).await.expect("it works");
        let (stop, stopped) = watch::channel(false);
        let known = (topics, Trims::new(self.backend.log().clone(), catalog, Arc::new(Ignore)));
        let backend = &self.backend;
        let run = Run::new(link.clone(), backend, known, config.clone(), observer, name.into(), stopped);
        tokio::spawn(run.run());
        stop
    }

    async fn write(&self, rows: u64) {
        let mut tx = self.database.begin().await.expect("it works");
        for row in 0..rows {
            Outbox::new().send(&mut tx, &LINES, &Bytes::from(row.to_string())).await.expect("it works");
        }
        tx.commit().await.expect("it works");
    }

    async fn number(&self, sql: &str) -> i64 {
        self.database.rows(sql, &[], "count").await.expect("it works")[0].int(0).expect("it works")
    }

    /// Waits until all rows were deleted, and returns the number of messages.
    async fn sent(&self) -> u64 {
        eventually(async || self.number("SELECT count(*) FROM millstream_outbox").await == 0).await;
        let place = TopicPartition::new("lines".parse().expect("it works"), 0);
        self.backend.log().lengths(&[place]).await.expect("it works")[0]
    }
}

async fn eventually(holds: impl AsyncFn() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("it does not come about");
}

async fn until<T: Send + Sync>(value: &watch::Sender<T>, holds: impl FnMut(&T) -> bool) {
    value.subscribe().wait_for(holds).await.expect("the sender is borrowed");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_that_take_longer_than_the_ttl_are_sent() {
    let scene = Scene::new().await;
    let config = OutboxRelayConfig { ttl: Duration::from_millis(300), ..OutboxRelayConfig::default() };
    let link = Arc::new(Link { page_takes: Duration::from_millis(400), ..Link::to(&scene.database) });
    let _relay = scene.relay("a", &link, &config).await;
    scene.write(3).await;
    assert_eq!(scene.sent().await, 3);
}
/// The database is away for longer than the window, at the moment when a page was stored and not yet deleted. Another relay
/// reaches it first.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_stored_before_a_long_outage_is_not_stored_again() {
    let scene = Scene::new().await;
    let (ttl, window) = (Duration::from_millis(1_500), Duration::from_secs(3));
    let config = OutboxRelayConfig { ttl, window, ..OutboxRelayConfig::default() };
    let (a, b) = (Arc::new(Link::to(&scene.database)), Arc::new(Link::to(&scene.database)));
    *a.cut_at_settle.lock().expect("a lock") = vec![a.is_cut.clone(), b.is_cut.clone()];
    let _a = scene.relay("a", &a, &config).await;
    eventually(async || scene.number("SELECT count(holder) FROM millstream_outbox_leases").await == 1).await;
    let _b = scene.relay("b", &b, &config).await;
    until(&b.renewals, |count| *count > 0).await;
    scene.write(20).await;
    until(&a.is_cut, |is_cut| *is_cut).await;
    tokio::time::sleep(window + Duration::from_millis(500)).await;

    let before = *b.renewals.borrow();
    b.is_cut.send_replace(false);
    // The second one comes after all that it does because of the first.
    until(&b.renewals, |count| *count >= before + 2).await;
    a.is_cut.send_replace(false);
    assert_eq!(scene.sent().await, 20);
}

/// The machine is suspended between a page and its append. Meanwhile another relay sends the rows, and the window ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_was_read_before_a_suspension_is_not_sent_behind_it() {
    let machine = SuspendableClock::new();
    let mut scene = Scene::new().await;
    scene.backend = scene.backend.with_boot_clock(machine.clone());
    let config = OutboxRelayConfig::default();
    let a = Arc::new(Link { cut_behind_page: AtomicBool::new(true), ..Link::to(&scene.database) });
    let _a = scene.relay("a", &a, &config).await;
    scene.write(20).await;
    until(&a.is_cut, |is_cut| *is_cut).await;
    machine.suspend(2 * config.window);
    let mut tx = scene.database.begin().await.expect("it works");
    tx.conn()
        .script(
            "UPDATE millstream_outbox_leases SET holder = 'b', epoch = epoch + 1; DELETE FROM millstream_outbox",
            "take over",
        )
        .await
        .expect("it works");
    tx.commit().await.expect("it works");
    let before = *a.renewals.borrow();
    a.is_cut.send_replace(false);
    // It knows by then whose the rows are.
    until(&a.renewals, |count| *count > before).await;
    assert_eq!(scene.sent().await, 0);
}

/// Observer whose tracer notes each span as a text.
#[derive(Clone, Default)]
struct Noted(Arc<Mutex<Vec<String>>>);

impl Observer for Noted {
    fn observe(&self, _: &Event<'_>) {}

    fn tracer(&self) -> Option<Arc<dyn Tracer>> {
        Some(Arc::new(self.clone()))
    }
}

impl Tracer for Noted {
    fn start(&self, operation: &MessagingOperation<'_>) -> Box<dyn Span> {
        let contexts = operation.messages.iter().filter_map(|it| TraceContext::of(it.headers?)).count();
        let MessagingOperation { kind, destination, partition, batch, is_carried, .. } = *operation;
        let text = format!(
            "{kind:?} {destination} {partition:?} of {batch:?}, {contexts} contexts, carried: {is_carried}"
        );
        Box::new(Ending(text, self.clone()))
    }
}

struct Ending(String, Noted);

impl Span for Ending {
    fn context(&self) -> Option<TraceContext> {
        None
    }

    fn set(&mut self, _: Detail<'_>) {}

    fn enter(&mut self, work: &mut dyn FnMut()) {
        work();
    }

    fn end(&mut self, failed: Option<span::Failed>) {
        let text = format!("{}, {failed:?}", self.0);
        self.1.0.lock().expect("a lock").push(text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_has_a_span_for_each_topic() {
    let scene = Scene::new().await;
    let wide = Topic::raw("wide").partitions(64);
    scene.backend.catalog().create_topic(&wide.spec().expect("it works")).await.expect("it works");
    let mut tx = scene.database.begin().await.expect("it works");
    let body = Bytes::from_static(b"1");
    let context = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for key in 0..20 {
        Outbox::new().send(&mut tx, &wide, &body).key(key.to_string()).await.expect("it works");
    }
    Outbox::new().send(&mut tx, &LINES, &body).header("traceparent", context).await.expect("it works");
    Outbox::new().send(&mut tx, &LINES, &body).await.expect("it works");
    tx.commit().await.expect("it works");
    let (noted, config) = (Noted::default(), OutboxRelayConfig::default());
    let _relay = scene
        .observed_relay("a", &Arc::new(Link::to(&scene.database)), &config, Arc::new(noted.clone()))
        .await;
    assert_eq!(scene.sent().await, 2);
    let spans = noted.0.lock().expect("a lock").clone();
    let expected = [
        "Send lines Some(0) of Some(2), 1 contexts, carried: false, None",
        "Send wide None of Some(20), 0 contexts, carried: false, None",
    ];
    assert_eq!(spans, expected);
}

#[test]
fn the_span_of_messages_that_fail_has_the_kind_of_the_first_error() {
    let planned = |partition| {
        let topic_partition = TopicPartition::new("lines".parse().expect("it works"), partition);
        let id = DedupId::new(vec![1]).expect("it works");
        let identity = DedupIdentity { id, window: Duration::from_secs(60), earlier: Vec::new() };
        let append = Append::new(topic_partition, wire::encode(&Envelope::default())).with(identity);
        Planned { row: RowName { id: 1, message_id: vec![1] }, append, headers: Headers::new() }
    };
    let messages = [planned(3), planned(3), planned(3)];
    let mut spans = Spans::since(Instant::now());
    spans.add(&messages[0], None);
    spans.add(&messages[1], Some(&Error::new(ErrorKind::Backpressure, "full")));
    spans.add(&messages[2], Some(&Error::new(ErrorKind::Unavailable, "away")));
    let noted = Noted::default();
    spans.end(&noted);
    let failed = r#"Some(Failed { error: "backpressure", messages: 2 })"#;
    let expected = format!("Send lines Some(3) of Some(3), 0 contexts, carried: false, {failed}");
    assert_eq!(*noted.0.lock().expect("a lock"), [expected]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lossy_retention_holds_without_a_consumer() {
    let scene = Scene::new().await;
    let lossy = LINES.retention(Retention::Length(5)).spec().expect("it works");
    scene.backend.catalog().create_topic(&lossy).await.expect("it works");
    let link = Arc::new(Link::to(&scene.database));
    let _relay = scene.relay("a", &link, &OutboxRelayConfig::default()).await;
    scene.write(20).await;
    scene.sent().await;
    eventually(async || scene.sent().await == 5).await;
}

#[tokio::test(start_paused = true)]
async fn each_partition_has_its_turn_where_there_are_more_than_a_round_trims() {
    let backend = Backend::from(MemoryBackend::new());
    let many = LINES.partitions(200).retention(Retention::Length(5)).spec().expect("it works");
    let many = backend.catalog().create_topic(&many).await.expect("it works");
    let mut trims = Trims::new(backend.log().clone(), backend.catalog().clone(), Arc::new(Ignore));
    let partitions: Vec<_> = many.iter().collect();
    for _ in 0..60 {
        for topic_partition in &partitions {
            let fields = wire::encode(&Envelope::default());
            let append = Append::new(topic_partition.clone(), fields);
            backend.log().append(&[append]).await.pop().expect("a result").expect("it works");
            trims.stored(topic_partition);
        }
        trims.begin().await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    // 4 rounds of a second reach all of them.
    let longest = backend.log().lengths(&partitions).await.expect("it works").into_iter().max();
    assert!(longest < Some(5 + 20), "{longest:?}");
}
