//! What recurs in a topic: where it is kept, how it moves, and what its readers see of it.

use std::sync::Arc;

use async_trait::async_trait;
use millstream_core::codec::Json;
use millstream_core::leases::{Acquired, Resource};
use millstream_core::partitioner::by_hash;
use millstream_core::recurring::{DueRecurrences, Recurrence, Recurring};
use millstream_core::schedule::Placed;
use millstream_core::{
    Backend, Envelope, Error, ErrorKind, Event, Lease, Limits, OnConflict, Place, Result, ScheduleId, Start,
    Timestamp, TopicSpec, wire,
};
use tokio::task::{JoinHandle, yield_now};

use crate::tests::support::{EPOCH, MS, SECS, Seen, memory};
use crate::{DelayedPromoter, Promoter, PromoterConfig, RecurringMessages};

/// A network: requests and replies take their time, and may overtake those of others. `bad` is a place that is away.
struct Slow {
    recurring: Arc<dyn Recurring>,
    bad: Option<Place>,
}

impl Slow {
    fn over(backend: &Backend, bad: Option<Place>) -> Backend {
        let slow = Self { recurring: backend.recurring().expect("recurring schedules").clone(), bad };
        backend.clone().with_recurring(Arc::new(slow))
    }

    async fn pass(&self) {
        for _ in 0..fastrand::u8(..5) {
            yield_now().await;
        }
    }

    async fn ask<R>(&self, place: &Place, ask: impl Future<Output = Result<R>>) -> Result<R> {
        self.pass().await;
        if self.bad.as_ref() == Some(place) {
            return Err(Error::new(ErrorKind::Unavailable, "this partition is away"));
        }
        let reply = ask.await;
        self.pass().await;
        reply
    }
}

#[async_trait]
impl Recurring for Slow {
    async fn put(&self, place: &Place, recurrence: &Recurrence, on_conflict: OnConflict) -> Result<Placed> {
        self.ask(place, self.recurring.put(place, recurrence, on_conflict)).await
    }

    async fn remove(&self, place: &Place, id: &ScheduleId) -> Result<bool> {
        self.ask(place, self.recurring.remove(place, id)).await
    }

    async fn pause(&self, place: &Place, id: &ScheduleId, next: Option<Timestamp>) -> Result<bool> {
        self.ask(place, self.recurring.pause(place, id, next)).await
    }

    async fn get(&self, place: &Place, id: &ScheduleId) -> Result<Option<Recurrence>> {
        self.ask(place, self.recurring.get(place, id)).await
    }

    async fn recurrences(
        &self,
        place: &Place,
        after: Option<ScheduleId>,
        limit: usize,
    ) -> Result<Vec<Recurrence>> {
        self.ask(place, self.recurring.recurrences(place, after, limit)).await
    }

    async fn due(&self, place: &Place) -> Result<DueRecurrences> {
        self.ask(place, self.recurring.due(place)).await
    }

    async fn fire(
        &self,
        place: &Place,
        id: &ScheduleId,
        fires: &[Timestamp],
        expected: Timestamp,
        next: Option<Timestamp>,
    ) -> Result<Option<usize>> {
        self.ask(place, self.recurring.fire(place, id, fires, expected, next)).await
    }
}

async fn topic(backend: &Backend, partitions: u32) -> TopicSpec {
    let spec = TopicSpec::new("t".parse().expect("a name"), partitions).expect("a topic");
    backend.catalog().create_topic(&spec).await.expect("created")
}

fn over(backend: &Backend, topic: &TopicSpec) -> RecurringMessages<u64> {
    RecurringMessages::new(backend.clone(), topic.clone(), &Json)
}

fn promote(backend: &Backend, topic: &TopicSpec, fired: &Seen<usize>) -> JoinHandle<()> {
    let tell = fired.clone();
    let observer = move |event: &Event<'_>| {
        if let Event::Fired { messages, .. } = event {
            tell.push(*messages);
        }
    };
    let promoter = DelayedPromoter::new(backend, topic.clone(), PromoterConfig::default()).expect("valid");
    tokio::spawn(promoter.observer(observer).run())
}

async fn lease(backend: &Backend, topic: &TopicSpec, partition: u32, group: &str) -> Lease {
    let group = group.parse().expect("a name");
    backend.catalog().create_group(topic, &group, Start::Earliest).await.expect("created");
    let topic_partition = topic.iter().nth(partition as usize).expect("a partition");
    let resource = Resource::partition(topic_partition, group);
    let acquired = backend
        .leases()
        .acquire(&resource, "me", "n", SECS(1_000_000), &millstream_core::Continuity::assured())
        .await;
    let Ok(Acquired::Granted(lease)) = acquired else { panic!("{acquired:?}") };
    lease
}

/// What a group reads in the log of a partition: keys and payloads.
async fn log(backend: &Backend, lease: &Lease) -> Vec<(Option<String>, String)> {
    let mut reader = backend.log().reader(lease).await.expect("a reader");
    let (mut all, mut quiet) = (Vec::new(), 0);
    while quiet < 2 {
        let entries = reader.fetch(1_000, MS(0)).await.expect("read").entries;
        quiet = if entries.is_empty() { quiet + 1 } else { 0 };
        for entry in entries {
            let Envelope { key, payload, .. } =
                wire::decode_body(&entry.fields, &Limits::default()).expect("a message");
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            all.push((key.map(|key| text(&key)), text(&payload)));
        }
    }
    all
}

fn partition_of(bytes: &str, topic: &TopicSpec) -> u32 {
    by_hash(bytes.as_bytes(), topic.partitions)
}

async fn places(recurring: &RecurringMessages<u64>) -> Vec<(String, u32)> {
    let list = recurring.list().await.expect("listed");
    let partition = |place| match place {
        Place::Partition(of) => of.partition.0,
        Place::Shard(shard) => panic!("{shard} is no partition"),
    };
    list.into_iter().map(|entry| (entry.id.to_string(), partition(entry.place))).collect()
}

/// Keys of two partitions.
const KEYS: [&str; 2] = ["eu", "us"];

#[tokio::test(start_paused = true)]
async fn two_promoters_fire_each_occurrence_once_and_readers_see_it() {
    fastrand::seed(1);
    let backend = Slow::over(&memory(), None);
    let topic = topic(&backend, 4).await;
    let (recurring, fired) = (over(&backend, &topic), Seen::default());
    let promoters = [promote(&backend, &topic, &fired), promote(&backend, &topic, &fired)];
    assert_eq!(recurring.id("beat").every(SECS(1)).payload(&7).key("eu").await.expect("put"), Placed::New);
    tokio::time::sleep(SECS(60) + MS(500)).await;
    let lease = lease(&backend, &topic, partition_of("eu", &topic), "g").await;
    assert_eq!(log(&backend, &lease).await, vec![(Some("eu".to_owned()), "7".to_owned()); 60]);
    assert_eq!(fired.all().iter().sum::<usize>(), 60);
    promoters.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn the_promoters_of_two_groups_fire_each_once_and_both_groups_read_it() {
    fastrand::seed(2);
    let backend = Slow::over(&memory(), None);
    let topic = topic(&backend, 3).await;
    let recurring = over(&backend, &topic);
    let home = partition_of("beat", &topic);
    let leases = [lease(&backend, &topic, home, "one").await, lease(&backend, &topic, home, "two").await];
    let config = PromoterConfig::default().with_longest_sleep(SECS(1));
    let promoters = leases.clone().map(|lease| {
        let promoter = Promoter::new(&backend, config.clone()).expect("valid");
        tokio::spawn(async move { promoter.run(&lease).await })
    });
    recurring.id("beat").every(SECS(10)).payload(&1).await.expect("put");
    tokio::time::sleep(SECS(601)).await;
    for lease in &leases {
        assert_eq!(log(&backend, lease).await, vec![(None, "1".to_owned()); 60], "without a key");
    }
    promoters.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn it_is_kept_where_its_key_says_or_else_its_id() {
    let backend = memory();
    let topic = topic(&backend, 16).await;
    let recurring = over(&backend, &topic);
    recurring.id("keyed").every(SECS(60)).payload(&1).key("eu").await.expect("put");
    recurring.id("bare").every(SECS(60)).payload(&1).await.expect("put");
    let mut expected = vec![
        ("keyed".to_owned(), partition_of("eu", &topic)),
        ("bare".to_owned(), partition_of("bare", &topic)),
    ];
    assert_ne!(partition_of("eu", &topic), partition_of("keyed", &topic), "or this shows nothing");
    expected.sort_by_key(|(_, partition)| *partition);
    assert_eq!(places(&recurring).await, expected);
}

#[tokio::test(start_paused = true)]
async fn by_its_id_it_is_found_under_any_key() {
    let backend = memory();
    let topic = topic(&backend, 16).await;
    let (recurring, fired) = (over(&backend, &topic), Seen::default());
    let home = partition_of("eu", &topic);
    let lease = lease(&backend, &topic, home, "g").await;
    let promoter = promote(&backend, &topic, &fired);
    recurring.id("r").every(SECS(60)).payload(&5).key("eu").await.expect("put");
    assert!(recurring.id("r").pause().await.expect("paused"));
    let entry = &recurring.list().await.expect("listed")[0];
    assert!(entry.paused && entry.next.is_none());
    tokio::time::sleep(SECS(600)).await;
    assert_eq!(fired.len(), 0);
    assert!(recurring.id("r").run_now().await.expect("runs"));
    tokio::time::sleep(MS(100)).await;
    assert_eq!(log(&backend, &lease).await.len(), 1, "also while it is paused");
    assert!(recurring.id("r").resume().await.expect("resumed"));
    assert!(recurring.id("r").resume().await.expect("it goes on already"));
    tokio::time::sleep(SECS(61)).await;
    assert_eq!(fired.len(), 1, "what passed in the pause is not made up for");
    assert!(recurring.id("r").remove().await.expect("removed"));
    for gone in [
        recurring.id("r").remove().await,
        recurring.id("r").pause().await,
        recurring.id("r").resume().await,
        recurring.id("r").run_now().await,
    ] {
        assert!(!gone.expect("not there"));
    }
    assert!(recurring.list().await.expect("listed").is_empty());
    promoter.abort();
}

#[tokio::test(start_paused = true)]
async fn under_another_key_it_moves_with_its_pause_and_next_time() {
    let backend = memory();
    let topic = topic(&backend, 16).await;
    let recurring = over(&backend, &topic);
    let [from, to] = KEYS.map(|key| partition_of(key, &topic));
    assert_ne!(from, to, "or nothing moves");
    let put =
        async |key, period| recurring.id("r").every(SECS(period)).payload(&1).key(key).await.expect("put");
    assert_eq!(put("eu", 60).await, Placed::New);
    let next = async || recurring.list().await.expect("listed")[0].next;
    let first = next().await.expect("it recurs");
    tokio::time::sleep(SECS(90)).await;
    assert_eq!(put("us", 60).await, Placed::Replaced);
    assert_eq!(places(&recurring).await, [("r".to_owned(), to)], "there, and no longer here");
    assert_eq!(next().await, Some(first), "what was due is still due");
    assert_eq!(put("us", 60).await, Placed::Kept);
    assert!(recurring.id("r").pause().await.expect("paused"));
    assert_eq!(put("eu", 30).await, Placed::Replaced);
    assert_eq!(places(&recurring).await, [("r".to_owned(), from)]);
    assert!(recurring.list().await.expect("listed")[0].paused, "a pause moves with it");
    assert!(recurring.id("r").resume().await.expect("resumed"));
    let rate = next().await.expect("it recurs").saturating_duration_since(Timestamp::from_millis(EPOCH));
    assert!(rate > SECS(90) && rate <= SECS(121), "its new rate: {rate:?}");
}

#[tokio::test(start_paused = true)]
async fn in_a_topic_that_has_grown_it_is_found_and_moves() {
    let backend = memory();
    let topic = topic(&backend, 1).await;
    let recurring = over(&backend, &topic);
    recurring.id("r").every(SECS(60)).payload(&1).key("eu").await.expect("put");
    let grown = backend.catalog().expand(&topic.name, 16).await.expect("grows");
    assert_eq!(places(&recurring).await, [("r".to_owned(), 0)]);
    assert!(recurring.id("r").pause().await.expect("found"));
    recurring.id("r").every(SECS(60)).payload(&1).key("eu").await.expect("put");
    let home = partition_of("eu", &grown);
    assert_ne!(home, 0, "or nothing moves");
    assert_eq!(places(&recurring).await, [("r".to_owned(), home)], "by a handle that was opened before");
    assert!(recurring.id("r").resume().await.expect("found"));
}

#[tokio::test(start_paused = true)]
async fn put_under_several_keys_at_once_it_is_kept_under_exactly_one() {
    let mut won = [0, 0];
    for seed in 0..300 {
        fastrand::seed(seed);
        let backend = Slow::over(&memory(), None);
        let topic = topic(&backend, 4).await;
        let homes = KEYS.map(|key| partition_of(key, &topic));
        let recurring = over(&backend, &topic);
        let put = async |key| recurring.id("r").every(SECS(60)).payload(&1).key(key).await.expect("put");
        if seed % 2 == 0 {
            put(KEYS[0]).await;
        }
        // Twice each: programs of two versions that are started at the same time.
        tokio::join!(put(KEYS[0]), put(KEYS[1]), put(KEYS[0]), put(KEYS[1]));
        let kept = places(&recurring).await;
        assert_eq!(kept.len(), 1, "seed {seed}: {kept:?}");
        let winner = homes.iter().position(|home| *home == kept[0].1).expect("one of them");
        won[winner] += 1;
    }
    assert!(won.iter().all(|won| *won > 10), "all the same order: {won:?}");
}

#[tokio::test(start_paused = true)]
async fn one_partition_that_is_away_keeps_the_others_from_nothing_and_is_told() {
    fastrand::seed(3);
    let backend = memory();
    let topic = topic(&backend, 16).await;
    let recurring = over(&backend, &topic);
    recurring.id("r").every(SECS(60)).payload(&1).key("eu").await.expect("put");
    let home = partition_of("eu", &topic);
    let bad = topic.iter().find(|other| other.partition.0 != home).map(Place::from);
    let cut = over(&Slow::over(&backend, bad), &topic);
    assert_eq!(cut.id("r").pause().await.expect_err("told").kind(), ErrorKind::Unavailable);
    assert!(recurring.list().await.expect("listed")[0].paused, "where it is it was done");
    let put = cut.id("r").every(SECS(60)).payload(&1).key("us").await;
    assert_eq!(put.expect_err("told").kind(), ErrorKind::Unavailable);
    assert_eq!(places(&recurring).await, [("r".to_owned(), home)], "nothing is lost");
    recurring.id("r").every(SECS(60)).payload(&1).key("us").await.expect("again, without harm");
    assert_eq!(places(&recurring).await, [("r".to_owned(), partition_of("us", &topic))]);
}

#[tokio::test(start_paused = true)]
async fn one_of_many_is_found() {
    let backend = memory();
    let topic = topic(&backend, 1).await;
    let recurring = over(&backend, &topic);
    for nth in 0..150 {
        recurring.id(format!("r{nth}")).every(SECS(60)).payload(&1).await.expect("put");
    }
    for id in ["r", "z"] {
        // Before everything that begins with it, and behind all of it: on a late page.
        recurring.id(id).every(SECS(60)).payload(&1).await.expect("put");
    }
    for id in ["r", "r0", "r99", "r149", "z"] {
        assert!(recurring.id(id).run_now().await.expect("asked"), "{id}");
    }
    for id in ["q", "r150", "s", "ü", "\u{10ffff}"] {
        assert!(!recurring.id(id).run_now().await.expect("asked"), "{id}");
    }
    assert_eq!(recurring.list().await.expect("listed").len(), 152);
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_is_said() {
    let backend = memory();
    let topic = topic(&backend, 2).await;
    let recurring = over(&backend, &topic);
    let kind = |result: Result<Placed>| result.expect_err("invalid").kind();
    assert_eq!(kind(recurring.id("r").every(SECS(1)).await), ErrorKind::InvalidConfig, "no payload");
    assert_eq!(kind(recurring.id("r").payload(&1).await), ErrorKind::InvalidConfig, "no rule");
    assert_eq!(kind(recurring.id("\n").every(SECS(1)).payload(&1).await), ErrorKind::InvalidName);
    assert_eq!(recurring.id("").pause().await.expect_err("invalid").kind(), ErrorKind::InvalidName);
    let limits = Limits::default().with_payload(2);
    let small = over(&backend, &topic).limits(limits);
    assert_eq!(kind(small.id("r").every(SECS(1)).payload(&100).await), ErrorKind::TooLarge);
    let gone = TopicSpec::new("gone".parse().expect("a name"), 2).expect("a topic");
    assert_eq!(kind(over(&backend, &gone).id("r").every(SECS(1)).payload(&1).await), ErrorKind::NotFound);
    assert!(recurring.list().await.expect("listed").is_empty());
}
