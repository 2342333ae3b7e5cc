//! Replaying dead letters: once each, with any number of operators; and never lost if one of them dies.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use millstream_core::inspect::{Range, Stream};
use millstream_core::log::{Receipt, Source};
use millstream_core::wire::{self, Decoded};
use millstream_core::{
    Backend, DeadLetter, Envelope, ErrorKind, Limits, MessageId, Partition, TopicChange, TopicPartition,
};
use millstream_memory::MemoryBackend;
use millstream_testkit::chaos::{Chaos, Client, Faults, Role};
use tokio::time::Instant;

use super::dead_letters::{Grave, PARTITIONS, rejected};
use crate::{
    Admin, DeadLetterQueue, Edit, Filter, REPLAYED_FROM, REPLAYED_ORIGIN, REPLAYED_REASON, Replay, ReplayTo,
    Replayed, ShelfAction, ShelfFilter,
};

const HOLD: Duration = Duration::from_secs(30);

fn everything() -> ShelfFilter {
    ShelfFilter::default()
}

fn elsewhere() -> Replay {
    Replay::to_topic("repairs".parse().expect("a name"))
}

impl Grave {
    /// What is in a stream of all partitions of a topic.
    async fn entries(&self, topic: &str, stream: &Stream, source: Source) -> Vec<(TopicPartition, Decoded)> {
        let mut found = Vec::new();
        for partition in 0..PARTITIONS {
            let tp = TopicPartition::new(topic.parse().expect("a name"), partition);
            let page = self
                .backend
                .inspect()
                .expect("inspection")
                .entries(&tp, stream, Range::ALL, 1_000)
                .await
                .expect("read");
            found.extend(page.items.into_iter().map(|it| {
                (tp.clone(), wire::decode(Receipt::new(source, it.id), &it.fields, &Limits::default()))
            }));
        }
        found
    }

    async fn back(&self) -> Vec<(TopicPartition, Decoded)> {
        self.entries("orders", &Stream::Retry(self.group.clone()), Source::Retry).await
    }

    /// What was sent to the other topic.
    async fn sent(&self) -> Vec<Envelope> {
        let entries = self.entries("repairs", &Stream::Log, Source::Log).await;
        entries.into_iter().map(|(_, decoded)| decoded.envelope.expect("a message")).collect()
    }

    /// How often each letter was sent there.
    async fn copies(&self) -> BTreeMap<Bytes, u32> {
        let mut copies = BTreeMap::new();
        for envelope in self.sent().await {
            *copies.entry(envelope.headers.get(REPLAYED_FROM).expect("its header").clone()).or_default() += 1;
        }
        copies
    }

    async fn replay(&self, replay: Replay) -> Replayed {
        let mut replayer = self.letters.replayer(&everything(), replay).await.expect("a replayer");
        replayer.run().await.expect("replayed")
    }
}

#[tokio::test(start_paused = true)]
async fn letters_go_back_to_their_group_as_first_attempts() {
    let grave = Grave::new(30).await;
    let mut replayer = grave.letters.replayer(&rejected(), Replay::default()).await.expect("a replayer");
    let replayed = replayer.run().await.expect("replayed");
    assert_eq!(replayed, Replayed { replayed: 10, ..Replayed::default() });
    let back = grave.back().await;
    assert_eq!(back.len(), 10);
    for (tp, decoded) in &back {
        let number = decoded.origin.ms - 1;
        assert!(number.is_multiple_of(3) && u64::from(tp.partition.0) == number % 3 && decoded.attempt == 1);
    }
    assert_eq!(grave.count().await, 20);
    let limited = grave.replay(Replay { limit: Some(7), ..Replay::default() }).await;
    assert_eq!((limited.replayed, grave.count().await), (7, 13));
}

#[tokio::test(start_paused = true)]
async fn what_dies_again_meanwhile_is_not_replayed_again() {
    let grave = Grave::new(200).await;
    let mut replayer = grave.letters.replayer(&everything(), Replay::default()).await.expect("a replayer");
    replayer.run_once().await.expect("replayed");
    let again = grave.letters.list(1).await.expect("listed").remove(0);
    let again = DeadLetter { id: MessageId::new(u64::MAX, 0), ..again };
    assert_eq!(grave.letters.import(&[again], false).await.expect("imported").put, 1);
    assert_eq!(replayer.run().await.expect("replayed").replayed, 200);
    assert_eq!(grave.count().await, 1, "what came after it began");
}

#[tokio::test(start_paused = true)]
async fn a_letter_sent_elsewhere_is_a_new_message_that_says_where_it_comes_from() {
    let grave = Grave::new(30).await;
    let letters = grave.letters.list(100).await.expect("listed");
    let replayed = grave.replay(elsewhere()).await;
    assert_eq!((replayed.replayed, replayed.passed_over, replayed.refused), (27, 0, 3), "3 have no payload");
    assert_eq!(replayed.refusals[0].why, "no payload field");
    assert_eq!(grave.count().await, 3);
    let sent = grave.sent().await;
    for letter in letters.iter().filter(|letter| !letter.body.is_empty()) {
        let from = format!("orders/{}/billing/{}", letter.topic_partition.partition, letter.id);
        let mine = sent.iter().find(|it| it.headers.get_str(REPLAYED_FROM) == Some(&from)).expect(&from);
        assert_eq!(mine.headers.get_str(REPLAYED_ORIGIN), Some(&*letter.origin.to_string()));
        assert_eq!(mine.headers.get_str(REPLAYED_REASON), Some(letter.reason.as_str()));
        let before = letter.envelope(&Limits::default()).expect("a message");
        assert_eq!((&mine.payload, &mine.key), (&before.payload, &before.key));
        assert_eq!(mine.headers.get("trace"), before.headers.get("trace"));
    }
    let mut places: BTreeMap<Bytes, Vec<u32>> = BTreeMap::new();
    for (tp, decoded) in grave.entries("repairs", &Stream::Log, Source::Log).await {
        let key = decoded.envelope.expect("a message").key.expect("a key");
        places.entry(key).or_default().push(tp.partition.0);
    }
    assert!(places.values().all(|places| places.iter().all(|it| *it == places[0])), "one key, one partition");
}

#[tokio::test(start_paused = true)]
async fn a_partition_can_be_named_and_has_to_be_there() {
    let grave = Grave::new(12).await;
    let to = |topic: &str, partition| Replay {
        to: ReplayTo::Topic { topic: topic.parse().expect("a name"), partition: Some(Partition(partition)) },
        ..Replay::default()
    };
    assert_eq!(grave.replay(to("repairs", 2)).await.replayed, 11);
    let sent = grave.entries("repairs", &Stream::Log, Source::Log).await;
    assert!(sent.iter().all(|(tp, _)| tp.partition.0 == 2));
    for replay in [to("repairs", PARTITIONS), to("none", 0)] {
        let refused = grave.letters.replayer(&everything(), replay).await.expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::NotFound);
    }
    for replay in [
        Replay { rate: Some(0.0), ..Replay::default() },
        Replay { rate: Some(f64::NAN), ..Replay::default() },
        Replay { hold: Duration::ZERO, ..Replay::default() },
    ] {
        let refused = grave.letters.replayer(&everything(), replay).await.expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    }
}

#[tokio::test(start_paused = true)]
async fn an_edit_goes_to_the_group_or_elsewhere_if_it_is_a_message() {
    let grave = Grave::new(20).await;
    let edit = Edit {
        payload: Some("mended".into()),
        set_headers: vec![("mended-by".into(), "me".into())],
        ..Edit::default()
    };
    let only = ShelfFilter {
        message: Filter { payload: Some("message 1".into()), ..Filter::default() },
        ..everything()
    };
    let to_group = Replay { edit: edit.clone(), ..Replay::default() };
    let mut replayer = grave.letters.replayer(&only, to_group).await.expect("a replayer");
    assert_eq!(replayer.run().await.expect("replayed").replayed, 10, "1 and 10 to 18");
    for (_, decoded) in grave.back().await {
        let envelope = decoded.envelope.expect("a message");
        assert_eq!(envelope.payload, "mended");
        assert_eq!(envelope.headers.get_str("mended-by"), Some("me"));
        assert_eq!(envelope.headers.get_str("trace"), Some(&*(decoded.origin.ms - 1).to_string()));
    }
    // Of a payload that was missing an edit makes a message; one that leaves it missing does not.
    let headers = Edit { payload: None, ..edit.clone() };
    let refused = grave.replay(Replay { edit: headers, ..Replay::default() }).await;
    assert_eq!((refused.replayed, refused.refused), (8, 2));
    assert_eq!(grave.replay(Replay { edit, ..elsewhere() }).await.replayed, 2);
    assert_eq!(grave.sent().await.iter().filter(|it| it.payload == "mended").count(), 2);
    assert_eq!(grave.count().await, 0);
}

#[tokio::test(start_paused = true)]
async fn so_many_a_second_go_and_no_more() {
    for replay in [Replay::default(), elsewhere()] {
        let grave = Grave::new(60).await;
        let replay = Replay { rate: Some(20.0), ..replay };
        let mut replayer = grave.letters.replayer(&everything(), replay).await.expect("a replayer");
        let began = Instant::now();
        while !replayer.is_done() {
            replayer.run_once().await.expect("replayed");
            let done = replayer.replayed().replayed + replayer.replayed().refused;
            assert!(
                done as f64 <= 1.0 + 20.0 * began.elapsed().as_secs_f64(),
                "{done} in {:?}",
                began.elapsed()
            );
            tokio::time::sleep(replayer.wait()).await;
        }
        assert!(began.elapsed() < Duration::from_secs(4), "{:?} for 60 at 20 a second", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_operators_each_letter_is_replayed_by_one() {
    // Several batches for each: with fewer letters, one of them may be ahead of the other all the time.
    const LETTERS: u64 = 2_400;
    for replay in [Replay::default(), elsewhere()] {
        for seed in 1..=8 {
            let backend = Chaos::new(MemoryBackend::new(), seed);
            let grave = Grave::over(slow(&backend).backend(), LETTERS as u32).await;
            let run = async |grave: &Grave| grave.replay(replay.clone()).await;
            let (one, two) = tokio::join!(run(&grave), run(&grave));
            assert!(one.replayed > 0 && two.replayed > 0, "{seed}: {one:?} {two:?}");
            let (both, all) = (one.replayed + two.replayed, LETTERS as usize);
            if replay.to == ReplayTo::Group {
                assert_eq!((both, grave.back().await.len()), (LETTERS, all));
            } else {
                // A tenth of them cannot be read.
                assert_eq!((both, grave.sent().await.len()), (LETTERS * 9 / 10, all * 9 / 10));
                assert!(grave.copies().await.values().all(|copies| *copies == 1));
            }
        }
    }
}

fn slow(chaos: &Chaos) -> Client {
    let client = chaos.client();
    client.suffer(&Faults::none().latency(Duration::from_millis(1), Duration::from_millis(9)));
    client
}

#[tokio::test(start_paused = true)]
async fn what_somebody_died_over_before_it_was_sent_is_sent_once_after_the_hold() {
    let grave = Grave::new(9).await;
    let letters = grave.letters.list(100).await.expect("listed");
    grave.claim(&letters[..4], "who-dies", HOLD).await;
    let replayed = grave.replay(elsewhere()).await;
    assert_eq!((replayed.replayed, replayed.passed_over), (5, 4), "what somebody has is passed over");
    assert_eq!(grave.replay(elsewhere()).await.replayed, 0);
    tokio::time::advance(HOLD).await;
    assert_eq!(grave.replay(elsewhere()).await.replayed, 4);
    assert!(grave.copies().await.values().all(|copies| *copies == 1));
    assert_eq!((grave.sent().await.len(), grave.count().await), (9, 0));
}

/// The same dead letters, over a connection of one's own.
async fn through(client: &Client, grave: &Grave) -> DeadLetterQueue {
    let admin = Admin::new(client.backend());
    admin.dead_letters(&grave.topic, &grave.group).await.expect("the topic")
}

/// A queue with one's own connection to it that can fail.
async fn linked(count: u32) -> (Grave, Client) {
    let backend = Backend::from(MemoryBackend::new());
    let client = Chaos::new(backend.clone(), 7).client();
    (Grave::over(backend, count).await, client)
}

#[tokio::test(start_paused = true)]
async fn who_dies_between_sending_and_deleting_leaves_letters_that_are_sent_again_and_stored_once() {
    let (grave, client) = linked(9).await;
    let letters = through(&client, &grave).await;
    let mut replayer = letters.replayer(&everything(), elsewhere()).await.expect("a replayer");
    // It sends the letters that it has claimed of the first partition, and dies before it receives the reply.
    let slow = Faults::none().latency(Duration::from_millis(100), Duration::from_millis(100));
    client.suffer_in(Role::Log, &slow);
    let step = tokio::time::timeout(Duration::from_secs(5), async {
        while grave.sent().await.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        client.kill();
    });
    let (_, died) = tokio::join!(step, tokio::time::timeout(HOLD / 2, replayer.run_once()));
    assert!(died.is_err() || died.is_ok_and(|step| step.is_err()), "it did not get through");
    drop(replayer);
    let sent = grave.sent().await.len();
    assert_eq!((sent, grave.count().await), (3, 9), "sent, and not deleted");

    assert_eq!(grave.replay(elsewhere()).await.replayed, 6, "the rest at once");
    tokio::time::advance(HOLD).await;
    assert_eq!(grave.replay(elsewhere()).await.replayed, 3, "those once more");
    let copies = grave.copies().await;
    assert_eq!((copies.len(), copies.values().sum::<u32>(), grave.count().await), (9, 9, 0));
}

#[tokio::test(start_paused = true)]
async fn who_lives_sends_nothing_twice_while_deleting_fails() {
    let (grave, client) = linked(30).await;
    let letters = through(&client, &grave).await;
    let mut replayer = letters.replayer(&everything(), elsewhere()).await.expect("a replayer");
    let mut failures = 0;
    for round in 0..10_000 {
        // Of its claims and deletions most come to nothing; what is appended is always answered.
        let faults = Faults::none().refused(0.3).lost_requests(0.2).lost_replies(0.2);
        client.suffer_in(Role::DeadLetters, &faults.timeout(Duration::from_millis(1)));
        failures += u32::from(replayer.run_once().await.is_err());
        if replayer.is_done() {
            break;
        }
        assert!(round < 9_999, "it never ends: {replayer:?}");
    }
    assert!(failures > 5, "{failures} failures");
    let copies = grave.copies().await;
    assert_eq!((copies.len(), grave.count().await), (27, 3));
    assert!(copies.values().all(|copies| *copies == 1), "{copies:?}");
}

#[tokio::test(start_paused = true)]
async fn who_ends_early_deletes_what_is_sent_and_nobody_sends_it_again() {
    let (grave, client) = linked(30).await;
    let letters = through(&client, &grave).await;
    let mut replayer = letters.replayer(&everything(), elsewhere()).await.expect("a replayer");
    client.suffer_in(Role::DeadLetters, &Faults::none().refused(0.5));
    for _ in 0..10_000 {
        if replayer.has_sent() {
            break;
        }
        let _ = replayer.run_once().await;
    }
    assert!(replayer.has_sent() && !replayer.is_done(), "some are sent, and not deleted");
    while replayer.has_sent() {
        let _ = replayer.settle().await;
    }
    drop(replayer);
    tokio::time::advance(HOLD).await;
    grave.replay(elsewhere()).await;
    let copies = grave.copies().await;
    assert_eq!((copies.len(), grave.count().await), (27, 3));
    assert!(copies.values().all(|copies| *copies == 1), "{copies:?}");
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_sent_stays_and_is_free() {
    let (grave, client) = linked(9).await;
    let letters = through(&client, &grave).await;
    let mut replayer = letters.replayer(&everything(), elsewhere()).await.expect("a replayer");
    client.suffer_in(Role::Log, &Faults::none().refused(1.0));
    assert_eq!(replayer.run_once().await.expect_err("no connection").kind(), ErrorKind::Unavailable);
    assert_eq!((grave.count().await, grave.sent().await.len()), (9, 0));
    assert_eq!(grave.replay(Replay { limit: Some(1), ..elsewhere() }).await.replayed, 1, "nobody has it");
    client.suffer_in(Role::Log, &Faults::none());
    let replayed = replayer.run().await.expect("replayed");
    assert_eq!((replayed.replayed, replayed.passed_over), (8, 1));
    assert!(grave.copies().await.values().all(|copies| *copies == 1));
}

/// An operator over a bad connection, who tries again until nothing is left to do.
async fn persist(client: Client, letters: DeadLetterQueue) {
    let faults = Faults::none()
        .latency(Duration::from_millis(1), Duration::from_millis(20))
        .timeout(Duration::from_millis(50))
        .refused(0.05)
        .lost_requests(0.05)
        .lost_replies(0.05);
    client.suffer(&faults);
    let mut replayer = loop {
        if let Ok(replayer) = letters.replayer(&everything(), elsewhere()).await {
            break replayer;
        }
    };
    while !replayer.is_done() {
        let _ = replayer.run_once().await;
        tokio::time::sleep(replayer.wait()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_fails_nothing_is_lost_and_nothing_is_there_twice() {
    for seed in 0..20 {
        let backend = Backend::from(MemoryBackend::new());
        let chaos = Chaos::new(backend.clone(), seed);
        let grave = Grave::over(backend, 60).await;
        let mut operators = Vec::new();
        for _ in 0..3 {
            let client = chaos.client();
            let letters = through(&client, &grave).await;
            operators.push(tokio::spawn(persist(client, letters)));
        }
        for operator in operators {
            operator.await.expect("it ended");
        }
        tokio::time::advance(HOLD).await;
        grave.replay(elsewhere()).await;
        let copies = grave.copies().await;
        assert_eq!((copies.len(), grave.count().await), (54, 6), "seed {seed}");
        assert!(copies.values().all(|copies| *copies == 1), "seed {seed}: answers of appends were lost");
    }
}

#[tokio::test(start_paused = true)]
async fn a_target_with_a_bound_gets_no_more_than_it_has_room_for() {
    let grave = Grave::new(30).await;
    let target = "repairs".parse().expect("a name");
    let bound = TopicChange::new().max_length(2);
    grave.backend.catalog().alter_topic(&target, &bound).await.expect("altered");
    let mut replayer = grave.letters.replayer(&everything(), elsewhere()).await.expect("a replayer");
    let began = Instant::now();
    let full = replayer.run().await.expect_err("it is full, and nobody reads it");
    assert_eq!(full.kind(), ErrorKind::Backpressure, "{full}");
    assert!(began.elapsed() >= Duration::from_secs(30), "it waited for room: {:?}", began.elapsed());
    let sent = u64::from(2 * PARTITIONS);
    assert_eq!((replayer.replayed().replayed, grave.sent().await.len() as u64), (sent, sent));
    assert_eq!(replayer.replayed().replayed + grave.count().await, 30);
    // With room it goes on, and no letter is sent twice.
    let admin = Admin::new(grave.backend.clone());
    let mut copies = grave.copies().await;
    while !replayer.is_done() {
        admin.trim_topic_below(&target, None, MessageId::MAX).await.expect("trimmed");
        while replayer.run_once().await.is_ok() && !replayer.is_done() && grave.sent().await.is_empty() {
            tokio::time::sleep(replayer.wait()).await;
        }
        assert!(grave.sent().await.len() as u64 <= sent);
        copies.extend(grave.copies().await);
    }
    assert_eq!((copies.len(), replayer.replayed().replayed), (27, 27));
}

#[tokio::test(start_paused = true)]
async fn what_was_changed_before_an_error_is_counted() {
    let mut partly = 0;
    for seed in 0..40 {
        let backend = Backend::from(MemoryBackend::new());
        let client = Chaos::new(backend.clone(), seed).client();
        let grave = Grave::over(backend, 30).await;
        let letters = through(&client, &grave).await;
        let all = ShelfFilter::default();
        let mut acting = letters.act(&all, None, ShelfAction::Drop, None).await.expect("begun");
        // One request for each partition.
        client.suffer_in(Role::DeadLetters, &Faults::none().refused(0.3));
        let mut ended = Ok(());
        while !acting.is_done() && ended.is_ok() {
            ended = acting.run_once().await.map(drop);
        }
        assert_eq!(acting.changed() + grave.count().await, 30, "{ended:?}");
        partly += u32::from(ended.is_err() && acting.changed() > 0);
    }
    assert!(partly > 0, "some requests before an error were done");
}
