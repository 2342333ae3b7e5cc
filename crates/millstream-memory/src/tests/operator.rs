//! What becomes of things that an operator deletes; and what waiting costs others.

use std::time::Duration;

use millstream_core::catalog::Start;
use millstream_core::inspect::Range;
use millstream_core::leases::Acquired;
use millstream_core::log::{Append, Fetched};
use millstream_core::{
    Backend, Due, Envelope, ErrorKind, GroupName, History, Lease, MessageId, Reason, Resource, Settlement,
    TopicPartition, TopicSpec, wire,
};

use crate::MemoryBackend;

struct Bench {
    memory: MemoryBackend,
    backend: Backend,
    tp: TopicPartition,
    group: GroupName,
    lease: Lease,
}

impl Bench {
    async fn new() -> Self {
        let memory = MemoryBackend::new();
        let backend = Backend::from(memory.clone());
        let topic = TopicSpec::new("orders".parse().unwrap(), 2).unwrap();
        let (tp, group) = (TopicPartition::new(topic.name.clone(), 0), GroupName::new("billing").unwrap());
        backend.catalog().create_group(&topic, &group, Start::Earliest).await.unwrap();
        let resource = Resource::partition(tp.clone(), group.clone());
        let lease = grant(&backend, &resource, "1").await.expect("free");
        Self { memory, backend, tp, group, lease }
    }

    async fn append(&self, count: usize) -> Vec<MessageId> {
        let entry = |n: usize| {
            let fields = wire::encode(&Envelope::new(n.to_string()));
            Append::new(self.tp.clone(), fields)
        };
        let batch: Vec<_> = (0..count).map(entry).collect();
        self.backend
            .log()
            .append(&batch)
            .await
            .into_iter()
            .map(|result| result.expect("appended").id)
            .collect()
    }

    async fn fetch(&self) -> millstream_core::Result<Fetched> {
        self.backend.log().reader(&self.lease).await.unwrap().fetch(100, Duration::ZERO).await
    }
}

async fn grant(backend: &Backend, resource: &Resource, nonce: &str) -> Option<Lease> {
    let ttl = Duration::from_secs(10);
    match backend
        .leases()
        .acquire(resource, "test", nonce, ttl, &millstream_core::Continuity::assured())
        .await
        .unwrap()
    {
        Acquired::Granted(lease) => Some(lease),
        Acquired::Held(_) => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_parked_retry_without_its_body_becomes_an_orphan() {
    let bench = Bench::new().await;
    let ids = bench.append(1).await;
    let fetched = bench.fetch().await.unwrap();
    let after = Duration::from_secs(1);
    let (due, history) = (Due::In(after), History::default());
    let retry =
        Settlement::Retry { due, attempt: 2, origin: ids[0], error: "no".into(), history, wait: None };
    bench.backend.log().settle(&bench.lease, &[(fetched.entries[0].receipt, retry)]).await.unwrap();
    assert!(bench.memory.operator().delete_parked(&bench.tp, &bench.group, ids[0]));
    assert!(!bench.memory.operator().delete_parked(&bench.tp, &bench.group, ids[0]));
    assert!(bench.memory.operator().delete_entry(&bench.tp, ids[0]));
    tokio::time::sleep(after * 2).await;
    let promoted = bench.backend.schedule().promote(&bench.lease, 10).await.unwrap();
    assert_eq!((promoted.moved, promoted.orphans, promoted.next), (0, 1, None));
    let dead = bench
        .backend
        .dead_letters()
        .expect("dead letters")
        .list(&bench.tp, &bench.group, Range::ALL, 10)
        .await
        .unwrap()
        .items;
    assert_eq!((dead[0].reason.clone(), dead[0].origin), (Reason::Orphan, ids[0]));
    assert!(dead[0].body.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_a_ghost_is_stale_and_leaves_nothing_behind() {
    let bench = Bench::new().await;
    let ids = bench.append(1).await;
    bench.fetch().await.unwrap();
    assert!(bench.memory.operator().delete_entry(&bench.tp, ids[0]));
    let ghosts = bench.fetch().await.unwrap().ghosts;
    let (error, history) = (String::new(), History::default());
    let retry = Settlement::Retry { due: Due::NOW, attempt: 2, origin: ids[0], error, history, wait: None };
    let settled = bench.backend.log().settle(&bench.lease, &[(ghosts[0], retry)]).await.unwrap();
    assert_eq!((settled.applied, settled.stale), (0, 1));
    let fetched = bench.fetch().await.unwrap();
    assert!(fetched.ghosts.is_empty() && fetched.entries.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_log_takes_its_groups_along_and_a_restored_one_reads_all_that_is_new() {
    let bench = Bench::new().await;
    let topic = millstream_core::TopicSpec::new(bench.tp.topic.clone(), 1).unwrap();
    bench.backend.catalog().create_topic(&topic).await.unwrap();
    let ids = bench.append(3).await;
    bench.memory.operator().delete_log(&bench.tp);
    assert_eq!(bench.fetch().await.unwrap_err().kind(), ErrorKind::GroupMissing);
    tokio::time::sleep(Duration::from_millis(5)).await;
    // `ids[2]` is above everything in the new, empty log.
    bench.backend.catalog().restore_group(&bench.tp, &bench.group, ids[2]).await.unwrap();
    let new = bench.append(2).await;
    let fetched = bench.fetch().await.unwrap();
    assert_eq!(fetched.entries.iter().map(|entry| entry.receipt.id).collect::<Vec<_>>(), new);
}

#[tokio::test(start_paused = true)]
async fn somebody_elses_dead_letter_is_listed_and_replayed() {
    let bench = Bench::new().await;
    let body = wire::encode(&Envelope::new("by hand"));
    let id = bench.memory.operator().add_dead_letter(&bench.tp, &bench.group, body.clone());
    let dead = bench
        .backend
        .dead_letters()
        .expect("dead letters")
        .list(&bench.tp, &bench.group, Range::ALL, 10)
        .await
        .unwrap()
        .items;
    assert_eq!((dead[0].id, dead[0].reason.as_str(), &dead[0].body), (id, "", &body));
    assert_eq!(
        bench
            .backend
            .dead_letters()
            .expect("dead letters")
            .replay(&bench.tp, &bench.group, &[id])
            .await
            .unwrap(),
        1
    );
    let entry = bench.fetch().await.unwrap().entries.remove(0);
    assert_eq!(wire::body_of(entry.receipt.source, &entry.fields), &body[..]);
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_is_free_and_a_waiting_reader_learns_of_the_next_owner_at_once() {
    let bench = Bench::new().await;
    let resource = bench.lease.resource.clone();
    let mut reader = bench.backend.log().reader(&bench.lease).await.unwrap();
    let hour = Duration::from_secs(3_600);
    let waiting = tokio::spawn(async move { reader.fetch(1, hour).await });
    tokio::task::yield_now().await;
    assert!(grant(&bench.backend, &resource, "2").await.is_none());
    assert!(bench.memory.operator().expire_lease(&resource));
    let started = tokio::time::Instant::now();
    assert!(grant(&bench.backend, &resource, "3").await.expect("free").epoch > bench.lease.epoch);
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_append_wakes_the_readers_of_its_partition_only() {
    let bench = Bench::new().await;
    let other = TopicPartition::new(bench.tp.topic.clone(), 1);
    let resource = Resource::partition(other, bench.group.clone());
    let lease = grant(&bench.backend, &resource, "2").await.expect("free");
    let mut reader = bench.backend.log().reader(&lease).await.unwrap();
    let waiting = counted(async move { reader.fetch(1, Duration::from_secs(3_600)).await });
    assert!(!waiting.woken_by(async { drop(bench.append(1).await) }).await, "another partition");
}

/// A future under a waker that counts.
struct Task<F: Future> {
    future: std::pin::Pin<Box<F>>,
    wakes: std::sync::Arc<Wakes>,
}

#[derive(Default)]
struct Wakes(std::sync::atomic::AtomicUsize);

impl std::task::Wake for Wakes {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

fn counted<F: Future>(future: F) -> Task<F> {
    Task { future: Box::pin(future), wakes: std::sync::Arc::default() }
}

impl<F: Future> Task<F> {
    async fn woken_by(mut self, cause: impl Future<Output = ()>) -> bool {
        let waker = self.wakes.clone().into();
        let polled = self.future.as_mut().poll(&mut std::task::Context::from_waker(&waker));
        assert!(polled.is_pending());
        let before = self.wakes.0.load(std::sync::atomic::Ordering::Relaxed);
        cause.await;
        self.wakes.0.load(std::sync::atomic::Ordering::Relaxed) > before
    }
}
