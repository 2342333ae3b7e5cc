//! Packs among many consumers: each pack is one consumer's, and its messages are settled one by one.

use millstream_core::Continuity;
use millstream_core::catalog::Start;
use millstream_core::id::MessageId;
use millstream_core::log::{Fetched, Log, Note, Receipt, Settled, Settlement};
use millstream_core::shared::{Claimed, Shared, SharedReader};

use super::{NOW, P, member, open, receipts, take};
use crate::server::{Bench, dead, ids, retry};
use crate::settle::packed::packed;

async fn settle(bench: &Bench, name: &str, batch: &[(Receipt, Settlement)]) -> (usize, usize) {
    let Settled { applied, stale, .. } =
        bench.backend.settle_shared(&member(bench, name), P, batch).await.expect("settled");
    (applied, stale)
}

fn acks(receipts: &[Receipt]) -> Vec<(Receipt, Settlement)> {
    receipts.iter().map(|receipt| (*receipt, Settlement::Ack)).collect()
}

async fn claim(bench: &Bench, name: &str, max: usize) -> Claimed {
    let claimed = bench.backend.claim(&member(bench, name), P, &[], NOW, max, &Continuity::assured()).await;
    claimed.expect("claimed")
}

/// Everything that a new reader finds under the consumer's name.
async fn under_its_name(bench: &Bench, name: &str) -> Fetched {
    let mut reader: Box<dyn SharedReader> = open(bench, name).await;
    let read = reader.fetch(100, NOW).await.expect("fetched");
    let mut found = Fetched::default();
    for (_, fetched) in read.into_iter().filter(|(_, fetched)| fetched.pending) {
        found.entries.extend(fetched.entries);
    }
    found
}

#[tokio::test]
async fn a_pack_goes_to_one_consumer_and_what_is_left_of_it_to_the_next() {
    let bench = packed().await;
    let appended = bench.append_many(10).await;
    let (mut a, mut b) = (open(&bench, "a").await, open(&bench, "b").await);
    let first = take(&mut a, 2).await;
    assert_eq!(ids(&first), appended, "all of its messages, though two were asked for");
    assert!(take(&mut b, 10).await.entries.is_empty());
    let of = receipts(&first);
    assert!(bench.backend.extend(&member(&bench, "a"), P, &of).await.expect("extended").is_empty());
    assert_eq!(settle(&bench, "b", &acks(&of)).await, (0, 10), "they are not b's");
    assert_eq!(settle(&bench, "a", &acks(&of[..4])).await, (4, 0));
    assert_eq!(ids(&under_its_name(&bench, "a").await), appended[4..], "what is not settled is found again");

    let claimed = claim(&bench, "b", 10).await;
    assert_eq!(ids(&claimed.abandoned), appended[4..]);
    assert!(claimed.abandoned.entries.iter().all(|entry| entry.deliveries > 1));
    assert_eq!(settle(&bench, "a", &acks(&of[4..])).await, (0, 6), "too late");
    let lost = bench.backend.extend(&member(&bench, "a"), P, &of[4..]).await.expect("extended");
    assert_eq!(lost, of[4..], "every message of the pack");
    assert_eq!(settle(&bench, "b", &acks(&of[4..])).await, (6, 0));
    let claimed = claim(&bench, "a", 10).await;
    assert!(claimed.abandoned.entries.is_empty(), "{claimed:?}");
}

#[tokio::test]
async fn a_pack_that_is_given_back_is_claimed_without_what_was_settled() {
    let bench = packed().await;
    let appended = bench.append_many(5).await;
    let mut a = open(&bench, "a").await;
    let of = receipts(&take(&mut a, 5).await);
    let batch = [(of[0], Settlement::Ack), (of[1], retry(NOW, 2, of[1].id)), (of[2], dead(of[2].id))];
    assert_eq!(settle(&bench, "a", &batch).await, (3, 0));
    let note = Note { attempt: 2, error: "not yet".to_owned(), ..Note::default() };
    assert_eq!(settle(&bench, "a", &[(of[3], Settlement::Hold(note))]).await, (1, 0));
    bench.backend.give_back(&member(&bench, "a"), P, &of[3..]).await.expect("given back");

    let claimed = claim(&bench, "b", 100).await;
    assert!(claimed.abandoned.entries.is_empty(), "{claimed:?}");
    assert_eq!(ids(&claimed.given_back), appended[3..]);
    let notes: Vec<_> = claimed.given_back.entries.iter().map(|entry| entry.note.as_ref()).collect();
    assert_eq!(notes[0].map(|note| (note.attempt, note.error.as_str())), Some((2, "not yet")));
    assert_eq!(notes[1], None, "a note is of one message");
    assert_eq!(settle(&bench, "b", &acks(&of[3..])).await, (2, 0));
}

/// Which consumer reads the pack in which a group begins is not known.
#[tokio::test]
async fn a_group_that_begins_inside_a_pack_gets_the_rest_of_it() {
    let bench = packed().await;
    let appended = bench.append_many(6).await;
    bench.backend.seek(&bench.lease, Start::After(appended[2])).await.expect("moved");
    let mut a = open(&bench, "a").await;
    let read = take(&mut a, 6).await;
    assert_eq!(ids(&read), appended[3..]);
    assert_eq!(settle(&bench, "a", &acks(&receipts(&read))).await, (3, 0));
    assert!(under_its_name(&bench, "a").await.entries.is_empty());
}

#[tokio::test]
async fn many_packs_are_claimed_in_portions() {
    let bench = packed().await;
    let mut appended: Vec<MessageId> = Vec::new();
    for _ in 0..30 {
        appended.extend(bench.append_many(20).await);
    }
    let mut a = open(&bench, "a").await;
    let read = take(&mut a, 600).await;
    assert_eq!(ids(&read), appended);
    let mut claimed = Vec::new();
    while claimed.len() < 600 {
        let some = claim(&bench, "b", 40).await.abandoned.entries;
        assert!((1..=40 + 20).contains(&some.len()), "{} were claimed, 40 asked for", some.len());
        let receipts: Vec<_> = some.iter().map(|entry| entry.receipt).collect();
        assert_eq!(settle(&bench, "b", &acks(&receipts)).await, (some.len(), 0));
        claimed.extend(receipts.iter().map(|receipt| receipt.id));
    }
    assert_eq!(claimed, appended);
}
