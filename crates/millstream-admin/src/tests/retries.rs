//! Retries as an operator sees them, and errors by fingerprint.

use std::time::Duration;

use bytes::Bytes;
use millstream_core::log::Settlement;
use millstream_core::{Due, Fingerprint, History, MessageId, Partition, Reason, TopicPartition};

use super::Stage;
use super::dead_letters::Grave;
use crate::{Filter, ShelfAction, ShelfFilter};

/// A stage on which so many messages wait for a retry: one is due each minute; every third was refused.
async fn parked(count: u32) -> (Stage, Vec<(TopicPartition, MessageId)>) {
    let stage = Stage::new().await;
    let appended = stage.append(count).await;
    for partition in 0..super::PARTITIONS {
        let lease = stage.lease(partition).await;
        let mut reader = stage.backend.log().reader(&lease).await.expect("a reader");
        let entries = reader.fetch(count as usize, Duration::ZERO).await.expect("read").entries;
        let batch = entries.iter().map(|entry| {
            let origin = entry.receipt.id;
            let number = appended.iter().position(|(_, id)| *id == origin).expect("one of them") as u32;
            let error = if number.is_multiple_of(3) { "refused".into() } else { format!("took {number}ms") };
            let due = Due::In(Duration::from_secs(60 * (u64::from(number) + 1)));
            (
                entry.receipt,
                Settlement::Retry { due, attempt: 2, origin, error, history: History::default(), wait: None },
            )
        });
        let batch: Vec<_> = batch.collect();
        stage.backend.log().settle(&lease, &batch).await.expect("settled");
    }
    (stage, appended)
}

#[tokio::test(start_paused = true)]
async fn retries_are_listed_by_due_time_and_filtered() {
    let (stage, appended) = parked(30).await;
    let retries = stage.admin.retries(&stage.topic.name, &stage.group).await.expect("the topic");
    let all = ShelfFilter::default();
    let listed = retries.first(&all, 7).await.expect("listed");
    let expected: Vec<_> = appended.iter().take(7).map(|(_, id)| *id).collect();
    assert_eq!(listed.iter().map(|it| it.facts().id).collect::<Vec<_>>(), expected, "by due time");
    let count = async |filter: ShelfFilter| retries.first(&filter, 1_000).await.expect("listed").len();
    assert_eq!(count(all).await, 30);
    let refused = Some(Fingerprint::of("refused"));
    assert_eq!(count(ShelfFilter { fingerprint: refused, ..ShelfFilter::default() }).await, 10);
    assert_eq!(count(ShelfFilter { error: Some("took 1".into()), ..ShelfFilter::default() }).await, 8);
    assert_eq!(
        count(ShelfFilter { partitions: Some(vec![Partition(1)]), ..ShelfFilter::default() }).await,
        10
    );
    assert_eq!(count(ShelfFilter { min_attempts: Some(3), ..ShelfFilter::default() }).await, 0);
    let key = Filter { key: Some(Bytes::from("key-4")), ..Filter::default() };
    assert_eq!(count(ShelfFilter { message: key, ..ShelfFilter::default() }).await, 3);
    let soon = listed[5].facts().at;
    assert_eq!(count(ShelfFilter { before: Some(soon), ..ShelfFilter::default() }).await, 5);
    assert_eq!(count(ShelfFilter { from: Some(soon), ..ShelfFilter::default() }).await, 25);
    let errors = retries.errors(&ShelfFilter::default(), 10, |_| {}).await.expect("counted").into_groups();
    let told: Vec<_> = errors.iter().map(|it| (it.pattern.as_str(), it.count)).collect();
    assert_eq!(told, [("took <n>", 20), ("refused", 10)]);
}

#[tokio::test(start_paused = true)]
async fn selected_retries_are_released_or_given_up_and_others_stay() {
    let (stage, appended) = parked(30).await;
    let retries = stage.admin.retries(&stage.topic.name, &stage.group).await.expect("the topic");
    let refused = ShelfFilter { error: Some("refused".into()), ..ShelfFilter::default() };
    let mut looked = 0;
    let selected = retries.survey(&refused, Some(4), 2, |read| looked = read).await.expect("selected");
    assert_eq!((selected.matched, selected.sample.len()), (4, 2));
    assert!(looked > 0 && looked <= 30, "{looked}");
    let act = async |filter: &ShelfFilter, action, surveyed| {
        let acting = retries.act(filter, Some(4), action, surveyed).await.expect("selected");
        acting.run().await.expect("settled")
    };
    assert_eq!(act(&refused, ShelfAction::Drop, Some(selected.clone())).await, 4);
    assert_eq!(act(&refused, ShelfAction::Drop, Some(selected)).await, 0, "each once");
    let letters = stage.admin.dead_letters(&stage.topic.name, &stage.group).await.expect("the topic");
    let dead = letters.list(10).await.expect("listed");
    assert_eq!(dead.len(), 4);
    for letter in &dead {
        assert_eq!((&letter.reason, letter.attempts, letter.error.as_str()), (&Reason::Killed, 1, "refused"));
        assert!(appended.contains(&(letter.topic_partition.clone(), letter.origin)), "{letter:?}");
    }
    // They come back as other dead letters do.
    assert_eq!(letters.replay_all().await.expect("replayed"), 4);

    assert_eq!(act(&ShelfFilter::default(), ShelfAction::Retry, None).await, 4, "the limit");
    let all = retries.act(&ShelfFilter::default(), None, ShelfAction::Retry, None).await.expect("selected");
    assert_eq!(all.run().await.expect("settled"), 26, "a released one still waits");
    let mut moved = 0;
    for partition in 0..super::PARTITIONS {
        let schedule = stage.backend.schedule();
        moved += schedule.promote(&stage.lease(partition).await, 100).await.expect("promoted").moved;
    }
    assert_eq!(moved, 26, "all are due");
}

#[tokio::test(start_paused = true)]
async fn letters_of_one_error_are_counted_and_selected() {
    let grave = Grave::new(50).await;
    let mut seen = Vec::new();
    let all = ShelfFilter::default();
    let groups = grave.letters.errors(&all, 10, |read| seen.push(read)).await.expect("counted");
    assert_eq!((groups.count(), groups.others()), (50, 0));
    assert_eq!(seen.last(), Some(&50));
    let groups = groups.into_groups();
    let told: Vec<_> = groups.iter().map(|it| (it.pattern.as_str(), it.count)).collect();
    assert_eq!(told, [("timed out", 33), ("no such customer", 17)]);
    assert!(groups.iter().all(|it| it.first < it.last && it.example.id.timestamp() == it.last), "{groups:?}");
    let same = ShelfFilter { fingerprint: Some(groups[1].fingerprint), ..ShelfFilter::default() };
    assert_eq!(grave.letters.survey(&same, None, 0, |_| {}).await.expect("counted").matched, 17);
    assert_eq!(grave.letters.purge_where(&same, None).await.expect("purged"), 17);
    assert_eq!(grave.count().await, 33);
    let few = grave.letters.errors(&all, 0, |_| {}).await.expect("counted");
    assert_eq!((few.count(), few.others()), (33, 33), "no room for groups");
}
