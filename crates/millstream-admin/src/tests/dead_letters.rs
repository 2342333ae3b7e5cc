//! Dead letters as an operator sees them: listed, counted, purged, taken out and put back.

use std::time::Duration;

use bytes::Bytes;
use millstream_core::dead_letters::{Claim, DeadLetterAction};
use millstream_core::{
    Backend, DeadLetter, Envelope, ErrorKind, GroupName, History, MessageId, Partition, Reason, TopicName,
    TopicPartition, TopicSpec, wire,
};
use millstream_memory::MemoryBackend;

use crate::{
    Admin, Cursor, DeadLetterQueue, Failed, Filter, Imported, ShelfFilter, ShelfQuery, from_line, to_line,
};

pub(crate) const PARTITIONS: u32 = 3;

/// A topic with dead letters of one group, and beside it another topic.
pub(crate) struct Grave {
    pub(crate) backend: Backend,
    pub(crate) letters: DeadLetterQueue,
    pub(crate) topic: TopicName,
    pub(crate) group: GroupName,
}

/// The letter with this number: every third is rejected, every tenth has no payload.
fn letter(number: u32, topic: &TopicName, group: &GroupName) -> DeadLetter {
    let key = format!("key-{}", number % 5);
    let envelope =
        Envelope::new(format!("message {number}")).with_key(key).with_header("trace", number.to_string());
    let rejected = number.is_multiple_of(3);
    DeadLetter {
        id: MessageId::new(u64::from(number) + 1, 0),
        reason: if rejected { Reason::Rejected } else { Reason::Exhausted },
        attempts: 1 + number % 4,
        error: if rejected { "no such customer" } else { "timed out" }.to_owned(),
        origin: MessageId::new(u64::from(number) + 1, 7),
        topic_partition: TopicPartition::new(topic.clone(), number % PARTITIONS),
        group: group.clone(),
        history: History::parse("5 1 timed out"),
        body: if number % 10 == 9 { Vec::new() } else { wire::encode(&envelope) },
    }
}

impl Grave {
    /// With so many letters, in turn of all partitions, one per millisecond.
    pub(crate) async fn new(count: u32) -> Self {
        Self::over(MemoryBackend::new().into(), count).await
    }

    pub(crate) async fn over(backend: Backend, count: u32) -> Self {
        let spec = |name: &str| TopicSpec::new(name.parse().expect("a name"), PARTITIONS).expect("a topic");
        let (orders, other) = (spec("orders"), spec("repairs"));
        for topic in [&orders, &other] {
            backend.catalog().create_topic(topic).await.expect("created");
        }
        let (topic, group): (_, GroupName) = (orders.name.clone(), "billing".parse().expect("a name"));
        for number in 0..count {
            let letter = letter(number, &topic, &group);
            let put = backend
                .dead_letters()
                .expect("dead letters")
                .put(&letter.topic_partition, &group, std::slice::from_ref(&letter), true)
                .await;
            assert!(put.expect("put")[0].is_some());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let letters = Admin::new(backend.clone()).dead_letters(&topic, &group).await.expect("the topic");
        Self { backend, letters, topic, group }
    }

    /// Another letter, with the number of one that was there before.
    pub(crate) async fn die(&self, number: u32) {
        let letter = letter(number, &self.topic, &self.group);
        let role = self.backend.dead_letters().expect("dead letters");
        let put = role.put(&letter.topic_partition, &self.group, std::slice::from_ref(&letter), true).await;
        assert!(put.expect("put")[0].is_some());
    }

    /// Claims letters for somebody.
    pub(crate) async fn claim(&self, letters: &[DeadLetter], by: &str, hold: Duration) {
        for letter in letters {
            let claim = Claim { by: by.to_owned(), hold, left_too: false };
            let role = self.backend.dead_letters().expect("dead letters");
            let claimed = role.claim(&letter.topic_partition, &self.group, &[letter.id], &claim).await;
            assert_eq!(claimed.expect("asked"), [letter.id]);
        }
    }

    pub(crate) async fn count(&self) -> u64 {
        self.letters.count().await.expect("counted")
    }
}

fn numbers(letters: &[DeadLetter]) -> Vec<u64> {
    letters.iter().map(|letter| letter.origin.ms - 1).collect()
}

fn numbers_of(items: &[Failed]) -> Vec<u64> {
    items.iter().map(|it| it.facts().origin.ms - 1).collect()
}

pub(crate) fn rejected() -> ShelfFilter {
    ShelfFilter { reason: Some(Reason::Rejected), ..ShelfFilter::default() }
}

#[tokio::test(start_paused = true)]
async fn letters_of_all_partitions_come_by_time_in_pages() {
    let grave = Grave::new(50).await;
    for newest_first in [false, true] {
        let mut query = ShelfQuery { newest_first, limit: 7, ..ShelfQuery::default() };
        let mut seen = Vec::new();
        loop {
            let page = grave.letters.page(&query).await.expect("a page");
            assert!(page.items.len() <= 7);
            seen.extend(numbers_of(&page.items));
            query.after = page.next.map(|next| next.to_string().parse::<Cursor>().expect("a cursor"));
            if query.after.is_none() {
                break;
            }
        }
        if newest_first {
            seen.reverse();
        }
        assert_eq!(seen, (0..50).collect::<Vec<_>>(), "newest first: {newest_first}");
    }
    assert_eq!(numbers(&grave.letters.list(4).await.expect("listed")), [0, 1, 2, 3]);
    assert_eq!(grave.letters.list(1_000).await.expect("listed").len(), 50);
    assert_eq!(grave.count().await, 50);
}

#[tokio::test(start_paused = true)]
async fn a_filter_is_looked_through_in_bounded_steps() {
    let grave = Grave::new(60).await;
    let all = grave.letters.list(100).await.expect("listed");
    let query = |filter, looks| ShelfQuery { filter, looks, ..ShelfQuery::default() };
    let page = grave.letters.page(&query(rejected(), 10_000)).await.expect("a page");
    assert_eq!(numbers_of(&page.items), (0..60).step_by(3).collect::<Vec<_>>());
    assert_eq!((page.looked_at, page.next), (60, None));

    let died = ShelfFilter {
        from: Some(all[20].id.timestamp()),
        before: Some(all[25].id.timestamp()),
        ..ShelfFilter::default()
    };
    let page = grave.letters.page(&query(died, 10_000)).await.expect("a page");
    assert_eq!((numbers_of(&page.items), page.looked_at), ((20..25).collect(), 5), "nothing else is read");

    let key = ShelfFilter {
        message: Filter { key: Some("key-2".into()), ..Filter::default() },
        partitions: Some(vec![Partition(2)]),
        ..ShelfFilter::default()
    };
    let page = grave.letters.page(&query(key, 10_000)).await.expect("a page");
    assert_eq!(numbers_of(&page.items), [2, 17, 32, 47]);

    let nowhere = ShelfFilter { error: Some("no such thing".into()), ..ShelfFilter::default() };
    let page = grave.letters.page(&query(nowhere.clone(), 10)).await.expect("a page");
    assert!(page.items.is_empty() && page.looked_at <= 1_000);
    let survey = grave.letters.survey(&nowhere, None, 5, |_| {}).await.expect("looked");
    assert_eq!((survey.matched, survey.looked_at), (0, 60));
}

#[tokio::test(start_paused = true)]
async fn a_survey_counts_and_changes_nothing() {
    let grave = Grave::new(30).await;
    let survey = grave.letters.survey(&ShelfFilter::default(), None, 2, |_| {}).await.expect("looked");
    assert_eq!((survey.matched, survey.looked_at, survey.sample.len()), (30, 30, 2));
    assert_eq!(
        survey.reasons.into_iter().collect::<Vec<_>>(),
        [("exhausted".into(), 20), ("rejected".into(), 10)]
    );
    assert_eq!(survey.partitions.values().copied().collect::<Vec<_>>(), [10; 3]);
    let some = grave.letters.survey(&rejected(), Some(4), 100, |_| {}).await.expect("looked");
    assert_eq!(numbers_of(&some.sample), [0, 3, 6, 9]);
    assert_eq!(grave.count().await, 30);
}

#[tokio::test(start_paused = true)]
async fn one_letter_is_found_by_partition_and_id() {
    let grave = Grave::new(10).await;
    let letter = grave.letters.list(10).await.expect("listed").remove(4);
    let found = grave.letters.get(Partition(1), letter.id).await.expect("asked").expect("there");
    assert_eq!(format!("{found:?}"), format!("{letter:?}"));
    assert!(grave.letters.get(Partition(2), letter.id).await.expect("asked").is_none());
    let (admin, none) = (Admin::new(grave.backend.clone()), "none".parse().expect("a name"));
    let missing = admin.dead_letters(&none, &grave.group).await;
    assert_eq!(missing.expect_err("no topic").kind(), ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_purge_takes_what_fits_and_what_nobody_has() {
    let grave = Grave::new(40).await;
    let all = grave.letters.list(100).await.expect("listed");
    grave.claim(&all[..1], "somebody", Duration::from_secs(60)).await;
    assert!(!grave.letters.purge(&all[0]).await.expect("asked"), "somebody has it");
    assert!(grave.letters.purge(&all[1]).await.expect("asked"));
    assert!(!grave.letters.purge(&all[1]).await.expect("asked"), "it is gone");
    assert_eq!(grave.letters.purge_where(&rejected(), Some(5)).await.expect("purged"), 4, "of the first 5");
    assert_eq!(grave.letters.purge_where(&rejected(), None).await.expect("purged"), 9);
    assert_eq!(grave.count().await, 26);
    assert_eq!(grave.letters.purge_all().await.expect("purged"), 26, "claimed or not");
    assert_eq!(grave.count().await, 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_out_comes_back_as_it_was_and_once() {
    let grave = Grave::new(25).await;
    let before = grave.letters.list(100).await.expect("listed");
    let lines: Vec<String> = before.iter().map(|letter| to_line(letter).expect("a line")).collect();
    let read: Vec<DeadLetter> = lines.iter().map(|line| from_line(line).expect("a letter")).collect();
    let import = async |again| grave.letters.import(&read, again).await.expect("imported");
    assert_eq!(import(false).await, Imported { put: 0, passed_over: 25 }, "all are still there");

    assert_eq!(grave.letters.purge_all().await.expect("purged"), 25);
    assert_eq!(import(false).await, Imported { put: 25, passed_over: 0 });
    assert_eq!(import(false).await, Imported { put: 0, passed_over: 25 }, "the same file once more");
    let same = |letter: &DeadLetter| format!("{:?}", DeadLetter { id: MessageId::ZERO, ..letter.clone() });
    let after = grave.letters.list(100).await.expect("listed");
    let sorted = |letters: &[DeadLetter]| {
        let mut all: Vec<_> = letters.iter().map(same).collect();
        all.sort();
        all
    };
    assert_eq!(sorted(&after), sorted(&before), "but for their ids");

    assert_eq!(grave.letters.replay_all().await.expect("replayed"), 25);
    assert_eq!(import(false).await.put, 0, "what was replayed meanwhile does not come back by itself");
    assert_eq!(import(true).await, Imported { put: 25, passed_over: 0 }, "but on purpose");
    grave.letters.purge_all().await.expect("purged");
    tokio::time::advance(Duration::from_secs(8 * 24 * 3_600)).await;
    assert_eq!(import(false).await.put, 25, "after a week it is forgotten");
}

#[tokio::test(start_paused = true)]
async fn letters_of_somewhere_else_are_refused_before_any_is_put() {
    let grave = Grave::new(2).await;
    let good = grave.letters.list(1).await.expect("listed").remove(0);
    grave.letters.purge_all().await.expect("purged");
    let tp = |topic: &str, partition| TopicPartition::new(topic.parse().expect("a name"), partition);
    let bad = [
        DeadLetter { topic_partition: tp("repairs", 0), ..good.clone() },
        DeadLetter { topic_partition: tp("orders", PARTITIONS), ..good.clone() },
        DeadLetter { group: "shipping".parse().expect("a name"), ..good.clone() },
    ];
    for bad in bad {
        let refused = grave.letters.import(&[good.clone(), bad], false).await.expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{refused}");
    }
    assert_eq!(grave.count().await, 0);
}

#[tokio::test(start_paused = true)]
async fn large_letters_come_in_small_pages() {
    let grave = Grave::new(0).await;
    let large = DeadLetter {
        body: vec![("payload".into(), Bytes::from(vec![7; 1 << 20]))],
        ..letter(0, &grave.topic, &grave.group)
    };
    let letters: Vec<_> =
        (1..=12).map(|ms| DeadLetter { id: MessageId::new(ms, 0), ..large.clone() }).collect();
    assert_eq!(grave.letters.import(&letters, false).await.expect("imported").put, 12);
    let query = ShelfQuery { limit: 12, ..ShelfQuery::default() };
    let page = grave.letters.page(&query).await.expect("a page");
    assert!((4..=5).contains(&page.items.len()) && page.next.is_some(), "{} letters", page.items.len());
    assert_eq!(grave.letters.list(12).await.expect("listed").len(), 12, "a list is as long as asked for");
}

#[tokio::test(start_paused = true)]
async fn what_was_left_or_claimed_is_listed_like_all() {
    let grave = Grave::new(3).await;
    let all = grave.letters.list(10).await.expect("listed");
    grave.claim(&all[..2], "me", Duration::from_secs(60)).await;
    let leave = [(all[0].id, DeadLetterAction::Leave(Duration::from_secs(60)))];
    let role = grave.backend.dead_letters().expect("dead letters");
    role.settle(&all[0].topic_partition, &grave.group, Some("me"), &leave).await.expect("left");
    assert_eq!(grave.letters.list(10).await.expect("listed").len(), 3);
    assert_eq!(grave.letters.replay_all().await.expect("replayed"), 2, "not what somebody has");
}

/// Who was asked about three letters has said nothing of the thousand that died since.
#[tokio::test(start_paused = true)]
async fn what_dies_after_a_survey_is_not_meant() {
    let grave = Grave::new(9).await;
    let survey = grave.letters.survey(&rejected(), None, 1, |_| {}).await.expect("a survey");
    assert_eq!(survey.matched, 3);
    for number in [0, 3, 6, 30, 31, 32] {
        grave.die(number).await;
    }
    let filter = ShelfFilter { up_to: Some(survey.ends), ..rejected() };
    assert_eq!(grave.letters.purge_where(&filter, None).await.expect("purged"), 3);
    assert_eq!(grave.count().await, 12);
    // Nothing was there, so nothing is meant.
    let empty = Grave::new(0).await;
    let survey = empty.letters.survey(&rejected(), None, 1, |_| {}).await.expect("a survey");
    empty.die(0).await;
    let filter = ShelfFilter { up_to: Some(survey.ends), ..rejected() };
    assert_eq!(empty.letters.purge_where(&filter, None).await.expect("purged"), 0);
}
