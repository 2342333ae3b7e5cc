//! Counts of many dead letters, which take longer than a page may.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::http::{Request, StatusCode};
use bytes::Bytes;
use millstream::crates::core::dead_letters::{Claim, DeadLetterAction, DeadLetters};
use millstream::crates::core::inspect::{Page, Range};
use millstream::crates::core::{Envelope, Fingerprint, History, Reason, wire};
use millstream::{DeadLetter, GroupName, MessageId, Millstream, Result, Topic, TopicPartition};
use millstream_dashboard::{Access, dashboard};

use super::support::ask;

/// Dead letters of which each page takes a second.
struct Slow {
    inner: Arc<dyn DeadLetters>,
    pages: Arc<AtomicUsize>,
}

#[async_trait]
impl DeadLetters for Slow {
    async fn list(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        range: Range,
        limit: usize,
    ) -> Result<Page<DeadLetter>> {
        self.pages.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(1)).await;
        self.inner.list(topic_partition, group, range, limit).await
    }

    async fn claim(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        ids: &[MessageId],
        claim: &Claim,
    ) -> Result<Vec<MessageId>> {
        self.inner.claim(topic_partition, group, ids, claim).await
    }

    async fn settle(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        by: Option<&str>,
        deeds: &[(MessageId, DeadLetterAction)],
    ) -> Result<Vec<MessageId>> {
        self.inner.settle(topic_partition, group, by, deeds).await
    }

    async fn put(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        letters: &[DeadLetter],
        again: bool,
    ) -> Result<Vec<Option<MessageId>>> {
        self.inner.put(topic_partition, group, letters, again).await
    }

    async fn purge_through(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        last: MessageId,
    ) -> Result<usize> {
        self.inner.purge_through(topic_partition, group, last).await
    }
}

const DEAD: &str = "/topics/orders/groups/billing/dead";
/// Number of letters: more than the first steps examine.
const LETTERS: usize = 5_000;

/// A queue with many dead letters of two errors, of which one is rare, and the number of their pages that were read.
async fn queue() -> (Millstream, Arc<AtomicUsize>) {
    let mq = super::queue().await;
    let topic = Topic::<Bytes>::raw("orders");
    mq.producer(topic).await.expect("a topic");
    let (name, group): (_, GroupName) =
        ("orders".parse().expect("a name"), "billing".parse().expect("a name"));
    mq.admin().create_group(&name, &group, millstream::Start::Earliest).await.expect("created");
    let topic_partition = TopicPartition::new(name, 0);
    let letters = (1..=LETTERS as u64).map(|number| DeadLetter {
        id: MessageId::new(number, 0),
        reason: Reason::Exhausted,
        attempts: 2,
        error: if number == 1 { "a rare error".to_owned() } else { format!("no such customer {number}") },
        origin: MessageId::new(number, 1),
        topic_partition: topic_partition.clone(),
        group: group.clone(),
        history: History::default(),
        body: wire::encode(&Envelope::new(Bytes::from_static(b"x"))),
    });
    let letters: Vec<_> = letters.collect();
    let backend = mq.backend().clone();
    let inner = backend.dead_letters().expect("dead letters").clone();
    for some in letters.chunks(1_000) {
        inner.put(&topic_partition, &group, some, true).await.expect("put");
    }
    let pages = Arc::<AtomicUsize>::default();
    (Millstream::over(backend.with_dead_letters(Arc::new(Slow { inner, pages: pages.clone() }))), pages)
}

#[tokio::test(start_paused = true)]
async fn a_page_says_how_far_a_count_is_and_the_count_ends_without_it() {
    let (mq, read) = queue().await;
    let router = dashboard(mq).access(|_| Access::admin("ann")).router();
    let get = async |path: &str| {
        let answer = ask(&router, Request::get(path)).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        answer.body
    };
    let page = get(DEAD).await;
    assert!(page.contains("0 of 5,000 so far; counting goes on") && page.contains("data-live"), "{page}");
    assert!(
        page.contains("The letters are being counted") && !page.contains("No message died here."),
        "{page}"
    );
    // The numbers grow, and are lower bounds.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let page = get(DEAD).await;
    assert!(page.contains(" of 5,000 so far") && page.contains("no such customer &#60;n&#62;"), "{page}");
    assert!(page.contains("≥ ") && !page.contains("a rare error"), "{page}");
    // A count that nobody looks at stops, and the next look continues it.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let stopped = read.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(read.load(Ordering::Relaxed), stopped, "nobody looks");
    let mut looks = 0;
    while get(DEAD).await.contains("so far") {
        tokio::time::sleep(Duration::from_secs(5)).await;
        looks += 1;
        assert!(looks < 100, "it does not end");
    }
    let page = get(DEAD).await;
    assert!(page.contains("4,999") && page.contains("a rare error") && !page.contains("≥"), "{page}");
    let all = read.load(Ordering::Relaxed);
    let print = Fingerprint::of("a rare error");
    // Fifty tabs share one count.
    let form = format!("{DEAD}/replay?fingerprint={print}");
    futures_util::future::join_all((0..50).map(|_| get(&form))).await;
    tokio::time::sleep(Duration::from_secs(9)).await;
    let page = get(&form).await;
    assert!(page.contains("Replay dead letters of") && page.contains("so far"), "{page}");
    assert!(!page.contains("method=\"post\""), "nothing is to be confirmed yet: {page}");
    while get(&form).await.contains("so far") {
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    let page = get(&form).await;
    assert!(page.contains("Replay 1 dead letter") && page.contains("Type 1"), "{page}");
    let shared = read.load(Ordering::Relaxed) - all;
    assert!(shared <= all + 1, "{shared} pages of letters for fifty tabs, {all} for one");
    // The number of all letters is known without a count.
    let page = get(&format!("{DEAD}/purge")).await;
    assert!(page.contains("Purge 5,000 dead letters") && page.contains("Type 5000"), "{page}");
}

#[tokio::test(start_paused = true)]
async fn a_count_ends_with_its_dashboard() {
    let (mq, read) = queue().await;
    let router = dashboard(mq).access(|_| Access::admin("ann")).router();
    assert!(ask(&router, Request::get(DEAD)).await.body.contains("so far"));
    drop(router);
    let before = read.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(read.load(Ordering::Relaxed), before);
}
