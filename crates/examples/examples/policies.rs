//! Decisions of one's own: partitioners, a dead-letter policy, the retry policy of single messages, upkeep, an assignor.
//!
//! ```sh
//! cargo run --example policies
//! cargo run --example policies -- --url redis://127.0.0.1
//! ```
//!
//! Visits of a web site are counted. Large customers have a partition to themselves. A visit that cannot be counted is kept with its
//! tenant, unless it is a preview, and says which topic it is to be replayed to. Two instances share the partitions by odd and even.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail, ensure};
use async_trait::async_trait;
use millstream::admin::{Replay, ReplayTo, ShelfFilter};
use millstream::assignment::{Assignment, Assignor, Member};
use millstream::partitioner::{ByKey, Consistent, Partitioner, RoundRobin};
use millstream::policy::{GivenUp, MessageRetry, Notes, PerMessage, Verdict};
use millstream::upkeep::{Lease, Trigger, Upkeep};
use millstream::{
    Consumer, DeadLetterPolicy, Delivery, Fixed, Millstream, Observer, Partition, Topic, TopicPartition,
};

const VISITS: Topic<String> = Topic::new("visits").partitions(4);
const SLOW: Topic<String> = Topic::new("visits.slow").partitions(1);
const LIMIT: Duration = Duration::from_secs(30);

/// Gives partition 0 to one customer. The others share the rest by their keys.
#[derive(Debug)]
struct Reserved(ByKey);

impl Partitioner for Reserved {
    fn partition(&self, key: Option<&[u8]>, partitions: NonZeroU32) -> Partition {
        match (key, NonZeroU32::new(partitions.get() - 1)) {
            (Some(b"acme"), _) | (_, None) => Partition(0),
            (key, Some(rest)) => Partition(self.0.partition(key, rest).0 + 1),
        }
    }
}

/// Drops previews. Of the others it notes the tenant, and a topic for those that were too large.
#[derive(Debug)]
struct ByTenant;

impl DeadLetterPolicy for ByTenant {
    fn judge(&self, given_up: &GivenUp<'_>) -> Verdict {
        let Some(message) = given_up.message else { return Verdict::Keep };
        if message.headers.get("preview").is_some() {
            return Verdict::Discard;
        }
        let tenant = String::from_utf8_lossy(message.key.as_deref().unwrap_or_default());
        let notes = Notes::new().note("tenant", &tenant);
        let too_large = message.payload.len() > 20;
        Verdict::KeepWith(if too_large { notes.replay_to("visits.slow") } else { notes })
    }
}

/// Notes each partition that it is run for. A real one would compact a table, or publish a figure.
#[derive(Clone, Debug, Default)]
struct Census(Arc<Mutex<BTreeSet<TopicPartition>>>);

#[async_trait]
impl Upkeep for Census {
    fn name(&self) -> &'static str {
        "census"
    }

    fn trigger(&self) -> Trigger {
        Trigger::Settled { at_most_every: Duration::from_secs(60) }
    }

    async fn run_once(&self, lease: &Lease, _: &dyn Observer) -> millstream::Result<Option<Duration>> {
        let (topic_partition, _) = lease.partition()?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(topic_partition.clone());
        Ok(None) // when triggered
    }
}

/// Gives the partitions to the members in turn: odd and even ones, if there are two. Unlike the default it ignores who had what,
/// so more partitions move when members come and go.
#[derive(Debug)]
struct InTurn;

impl Assignor for InTurn {
    fn assign(&self, partitions: u32, members: &[Member], _: &Assignment) -> Assignment {
        let all = 0..partitions;
        let of = |nth| all.clone().skip(nth).step_by(members.len()).map(Partition).collect();
        members.iter().enumerate().map(|(nth, member)| (member.id.clone(), of(nth))).collect()
    }
}

/// Counts a visit, unless its page is not known.
async fn count(visit: Delivery<String>) -> Result<(), String> {
    if visit.payload.starts_with("/known") { Ok(()) } else { Err("no such page".to_owned()) }
}

async fn instance(mq: &Millstream, census: &Census) -> Result<Consumer> {
    let builder = mq.consumer(VISITS, "counter").assignor(InTurn).upkeep(Ok(census.clone()));
    let builder = builder.retry(PerMessage::or(Fixed::new(Duration::ZERO).attempts(1)));
    Ok(builder.dead_letters(ByTenant).start(count).await?)
}

fn owned(consumer: &Consumer) -> Vec<u32> {
    consumer.health().topics[0].owned.iter().map(|partition| partition.0).collect()
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => "memory://".to_owned(),
        [option, url] if option == "--url" => url.clone(),
        _ => bail!("usage: policies [--url URL]"),
    };
    // Runs on one server do not meet.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
    let mq = Millstream::at(url).namespace(format!("policies-{run}")).await?;

    // Which partition a message goes to.
    let reserved = mq.producer(VISITS).partitioner(Reserved(ByKey::new())).await?;
    let consistent = mq.producer(VISITS).partitioner(Consistent::new()).await?;
    let in_turn = mq.producer(VISITS).partitioner(RoundRobin::new()).await?;
    let page = "/known".to_owned();
    let mut places = Vec::new();
    for nth in 0..8 {
        ensure!(reserved.send(&page).key("acme").await?.partition == Partition(0), "acme has partition 0");
        let sent = reserved.send(&page).key(format!("customer-{nth}")).await?;
        ensure!(sent.partition != Partition(0), "others do not");
        let again = consistent.send(&page).key("customer-7").await?;
        ensure!(
            again.partition == consistent.send(&page).key("customer-7").await?.partition,
            "one key, one place"
        );
        places.push(in_turn.send(&page).key("customer-7").await?.partition.0);
    }
    ensure!(places == [0, 1, 2, 3, 0, 1, 2, 3], "whatever the key is: {places:?}");

    // What becomes of failed ones.
    let unknown = |page: &str| format!("/unknown/{page}");
    let thrice = MessageRetry::new(3, Duration::ZERO);
    reserved.send(&unknown("a")).key("acme").header("preview", "1").await?;
    reserved.send(&unknown("b")).key("acme").retry(thrice).await?;
    reserved.send(&unknown("a page with a long name")).key("initech").await?;

    let census = Census::default();
    let one = instance(&mq, &census).await?;
    let other = instance(&mq, &census).await?;
    let deadline = Instant::now() + LIMIT;
    while BTreeSet::from([owned(&one), owned(&other)]) != BTreeSet::from([vec![0, 2], vec![1, 3]]) {
        ensure!(Instant::now() < deadline, "{:?} {:?}", owned(&one), owned(&other));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // One that comes later is waited for, too.
    reserved.send(&page).key("acme").delay(Duration::from_millis(500)).await?;
    tokio::time::timeout(LIMIT, one.wait_idle_with_delayed()).await??;
    let reports = [one.shutdown().await, other.shutdown().await];
    let acked: u64 = reports.iter().map(|report| report.acked).sum();
    ensure!(acked == 8 * 5 + 1, "{reports:?}");

    let dead = mq.dead_letters(&VISITS, "counter").await?;
    let letters = dead.list(10).await?;
    let mut kept = BTreeMap::new();
    for letter in &letters {
        let notes = letter.history.notes();
        kept.insert(notes.get("tenant").unwrap_or("?"), (letter.attempts, letter.history.replay_to()));
    }
    println!("dead letters by tenant: {kept:?}");
    let expected = [("acme", (3, None)), ("initech", (1, Some("visits.slow")))];
    ensure!(letters.len() == 2 && kept == BTreeMap::from(expected), "{kept:?}");

    // What named a topic goes there, and the rest to its group.
    mq.producer(SLOW).await?.close().await;
    let replay = Replay { to: ReplayTo::Noted, ..Replay::default() };
    let replayed = dead.replayer(&ShelfFilter::default(), replay).await?.run().await?;
    ensure!(replayed.replayed == 2 && dead.count().await? == 0, "{replayed:?}");
    let (done, elsewhere) = tokio::sync::oneshot::channel();
    let done = Mutex::new(Some(done));
    let slow = mq.consumer(SLOW, "counter").start(move |visit: Delivery<String>| {
        let done = done.lock().unwrap_or_else(PoisonError::into_inner).take();
        done.map(|done| done.send(visit.payload));
        async {}
    });
    let slow = slow.await?;
    ensure!(
        tokio::time::timeout(LIMIT, elsewhere).await?? == unknown("a page with a long name"),
        "it is there"
    );
    slow.shutdown().await;
    let seen = census.0.lock().unwrap_or_else(PoisonError::into_inner).len();
    ensure!(seen == 4, "upkeep ran for {seen} partitions");
    Ok(())
}
