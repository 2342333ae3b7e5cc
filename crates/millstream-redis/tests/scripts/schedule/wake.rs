//! Notifications of a new earliest due time: to waiting clients, to one worker of a shard, to the reader.

use std::time::{Duration, Instant};

use millstream_core::Timestamp;
use millstream_core::log::Log;
use millstream_core::schedule::{Due, OnConflict, Schedule, Seen};

use crate::schedule::{HOUR, LONG, id};
use crate::server::{Bench, fetch};

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

#[tokio::test]
async fn who_waits_is_woken_by_a_new_head_and_by_nothing_else() {
    let mut bench = Bench::new().await;
    let place = bench.partition();
    let backend = bench.backend.clone();
    let first = backend.wait(&bench.tp, &Seen::default(), LONG).await.expect("at once");
    assert_eq!(first.0, "0-0");
    let topic_partition = bench.tp.clone();
    let waits = |seen: Seen, timeout: Duration| {
        let (backend, tp) = (backend.clone(), topic_partition.clone());
        async move { backend.wait(&tp, &seen, timeout).await.expect("waited") }
    };
    let (seen, also, _) = tokio::join!(waits(first.clone(), LONG), waits(first.clone(), LONG), async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        bench.park(&place, "a", HOUR, OnConflict::Keep).await
    });
    assert!(seen != first && seen == also, "all who wait are woken");
    assert_eq!(waits(first.clone(), LONG).await, seen, "what came between two calls is not missed");

    let short = Duration::from_millis(20);
    bench.park(&place, "b", Due::In(Duration::from_secs(7_200)), OnConflict::Keep).await;
    bench.backend.reschedule(&place, &[id("b")], Due::In(Duration::from_secs(7_000))).await.expect("moved");
    bench.park(&place, "a", Due::NOW, OnConflict::Keep).await;
    bench.backend.cancel(&place, &[id("b")]).await.expect("cancelled");
    assert_eq!(waits(seen.clone(), short).await, seen, "none of that is a new head");
    bench.backend.reschedule(&place, &[id("a")], Due::NOW).await.expect("moved");
    let earlier = waits(seen.clone(), LONG).await;
    assert_ne!(earlier, seen);
    bench.park(&place, "a", Due::At(AT(1)), OnConflict::Replace).await;
    assert_ne!(waits(earlier.clone(), LONG).await, earlier);
    let wake = bench.keys.wake(&place);
    assert_eq!(bench.int(&format!("XLEN {wake}")).await, 1);

    // Nobody reads what is left of a wait that was dropped.
    let seen = waits(Seen::default(), LONG).await;
    for _ in 0..20 {
        let dropped = tokio::time::timeout(Duration::from_millis(2), waits(seen.clone(), LONG)).await;
        dropped.expect_err("nothing happens");
    }
    assert_eq!(waits(Seen("nonsense".into()), LONG).await, seen);
    assert_eq!(waits(seen.clone(), short).await, seen);
}

#[tokio::test]
async fn at_a_shard_one_is_called_once() {
    let mut bench = Bench::new().await;
    let place = Bench::shard();
    let wake = bench.keys.wake(&place);
    for (name, due, length) in [("a", 9, 1), ("b", 8, 1), ("c", 7, 1)] {
        bench.park(&place, name, Due::At(AT(due)), OnConflict::Keep).await;
        assert_eq!(
            bench.int(&format!("LLEN {wake}")).await,
            length,
            "a call that nobody took is kept, one of them"
        );
    }
    bench.cmd(&format!("DEL {wake}")).await;
    bench.park(&place, "d", HOUR, OnConflict::Keep).await;
    assert_eq!(bench.int(&format!("LLEN {wake}")).await, 0);
    bench.backend.reschedule(&place, &[id("d")], Due::At(AT(6))).await.expect("moved");
    assert_eq!(bench.int(&format!("LLEN {wake}")).await, 1);
}

#[tokio::test]
async fn a_reader_is_told_of_a_new_head_once() {
    let bench = Bench::new().await;
    let place = bench.partition();
    let mut reader = bench.reader().await;
    assert!(!fetch(&mut reader, 9).await.woken, "nothing was ever scheduled");
    let started = Instant::now();
    let (fetched, _) = tokio::join!(reader.fetch(9, LONG), async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        bench.park(&place, "a", HOUR, OnConflict::Keep).await
    });
    let fetched = fetched.expect("fetched");
    assert!(fetched.woken && fetched.entries.is_empty() && started.elapsed() < LONG / 2);
    assert!(!reader.fetch(9, Duration::from_millis(20)).await.expect("fetched").woken, "once");

    // While it did not wait, or was busy with what was there.
    bench.park(&place, "b", Due::In(Duration::from_secs(60)), OnConflict::Keep).await;
    bench.append_many(3).await;
    let fetched = reader.fetch(9, LONG).await.expect("fetched");
    assert!(fetched.woken && fetched.entries.len() == 3);
    bench.append_many(9).await;
    assert!(fetch(&mut reader, 4).await.entries.len() >= 3, "and there is more");
    bench.park(&place, "c", Due::In(Duration::from_secs(50)), OnConflict::Keep).await;
    assert!(fetch(&mut reader, 4).await.woken, "without a wait, too");

    // A reader that is new cannot know which notifications an earlier one received.
    let dropped = tokio::time::timeout(Duration::from_millis(5), async {
        loop {
            reader.fetch(9, LONG).await.expect("fetched");
        }
    });
    dropped.await.expect_err("nothing more comes");
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.push(reader.fetch(20, Duration::from_millis(5)).await.expect("fetched").woken);
    }
    assert_eq!(seen.iter().filter(|woken| **woken).count(), 1, "{seen:?}");
    let mut second = bench.backend.reader(&bench.lease).await.expect("a reader");
    let mut woken = 0;
    for _ in 0..4 {
        woken += usize::from(second.fetch(20, Duration::from_millis(5)).await.expect("fetched").woken);
    }
    assert_eq!(woken, 1);
}
