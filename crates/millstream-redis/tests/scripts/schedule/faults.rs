//! Scheduled messages when things go wrong: races, foreign types, a server without memory; and what they cost.

use std::time::Duration;

use millstream_core::Timestamp;
use millstream_core::error::ErrorKind;
use millstream_core::schedule::{Due, OnConflict, Place, Placed, Schedule, Scheduling, Seen, Shard, Waiting};
use tokio::task::JoinSet;

use crate::schedule::{HOUR, LONG, id, one};
use crate::server::{Bench, fetch, fields, message};

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

/// Of many that race for a message exactly one wins: cancels, promotions and those who give it another time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_race_one_wins() {
    let bench = Bench::new().await;
    let place = bench.partition();
    let ids: Vec<_> = (0..400).map(|n| id(&format!("m{n:03}"))).collect();
    let batch: Vec<_> =
        ids.iter().map(|id| one(&place, id.as_str(), Due::At(AT(3)), OnConflict::Keep)).collect();
    bench.park_all(&batch).await;
    let mut racers = JoinSet::new();
    for racer in 0..12 {
        let (backend, tp, place, ids) = (bench.backend.clone(), bench.tp.clone(), place.clone(), ids.clone());
        racers.spawn(async move {
            let mut won = 0;
            for chunk in ids.chunks(20) {
                won += match racer % 3 {
                    0 => backend.promote_delayed(&tp, 20).await.expect("promoted").moved,
                    1 => {
                        let done = backend.cancel(&place, chunk).await.expect("cancelled");
                        done.into_iter().filter(|won| *won).count()
                    }
                    _ => {
                        let due = Due::At(AT(racer));
                        backend.reschedule(&place, chunk, due).await.expect("moved");
                        0
                    }
                };
            }
            won
        });
    }
    let won: usize = racers.join_all().await.into_iter().sum();
    assert_eq!(won + bench.promote_all().await, 400);
    let waiting = bench.backend.waiting(&place).await.expect("counted");
    assert_eq!(waiting, Waiting::default(), "and none is left behind or brought back");
}

#[tokio::test]
async fn a_foreign_type_is_told_and_nothing_is_changed() {
    let mut bench = Bench::new().await;
    for place in [bench.partition(), Bench::shard()] {
        let keys = &bench.keys;
        let (delay, items) = (keys.delay(&place), keys.delay_items(&place));
        let (recur, wake) = (keys.recur(&place), keys.wake(&place));
        for key in [&delay, &items, &recur, &wake] {
            bench.cmd(&format!("DEL {delay} {items} {recur} {wake}")).await;
            bench.cmd(&format!("SET {key} x")).await;
            let due = Due::At(AT(1));
            let batch = [one(&place, "a", due, OnConflict::Keep), one(&place, "b", due, OnConflict::Replace)];
            for result in bench.backend.schedule(&batch).await {
                let error = result.expect_err("a foreign type");
                assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
                assert!(error.to_string().contains(key.as_str()), "{error}");
            }
            let mut errors = Vec::new();
            if *key == delay || *key == items {
                errors.push(bench.backend.cancel(&place, &[id("a")]).await.map(drop));
                errors.push(bench.backend.get(&place, &id("a")).await.map(drop));
            }
            if *key == delay || *key == recur {
                errors.push(bench.backend.reschedule(&place, &[id("a")], due).await.map(drop));
            }
            if *key == delay {
                errors.push(bench.backend.scheduled(&place, None, 9).await.map(drop));
                errors.push(bench.backend.waiting(&place).await.map(drop));
            }
            if *key != wake && matches!(place, Place::Partition(_)) {
                if *key == items {
                    // Where nothing is due, nobody looks at bodies.
                    bench.cmd(&format!("ZADD {delay} 1 a")).await;
                }
                errors.push(bench.backend.promote_delayed(&bench.tp, 9).await.map(drop));
                errors.push(bench.backend.promote(&bench.lease, 9).await.map(drop));
                if *key == items {
                    assert_eq!(bench.int(&format!("ZREM {delay} a")).await, 1, "what is due stays");
                }
            } else if matches!(place, Place::Partition(_)) {
                errors.push(bench.backend.wait(&bench.tp, &Seen::default(), LONG).await.map(drop));
                errors.push(bench.backend.wait(&bench.tp, &Seen("1-1".into()), LONG).await.map(drop));
                errors.push(bench.reader().await.fetch(9, Duration::ZERO).await.map(drop));
            }
            for error in errors {
                assert_eq!(error.expect_err("a foreign type").kind(), ErrorKind::WrongType, "{key}");
            }
            for other in [&delay, &items, &recur, &wake] {
                let expected = i64::from(other == key);
                assert_eq!(
                    bench.int(&format!("EXISTS {other}")).await,
                    expected,
                    "{key}: {other} is untouched"
                );
            }
        }
        bench.cmd(&format!("DEL {delay} {items} {recur} {wake}")).await;
    }
    let (log, place) = (bench.log(), bench.partition());
    bench.park(&place, "a", Due::At(AT(1)), OnConflict::Keep).await;
    bench.cmd(&format!("SET {log} x")).await;
    let error = bench.backend.promote_delayed(&bench.tp, 9).await.expect_err("a foreign type");
    assert_eq!(error.kind(), ErrorKind::WrongType);
    assert_eq!(bench.names(&place).await, ["a"]);
}

/// Retries and delayed messages are promoted together: errors of one kind are reported, the other kind is delivered.
#[tokio::test]
async fn a_foreign_type_on_one_side_does_not_stop_the_other() {
    let mut bench = Bench::new().await;
    let place = bench.partition();
    let (delay, due) = (bench.keys.delay(&place), bench.keys.retry_due(&bench.tp, &bench.group));
    let items = bench.keys.retry_items(&bench.tp, &bench.group);
    let retry_log = bench.keys.retry_log(&bench.tp, &bench.group);
    bench.cmd(&format!("ZADD {due} 1 5-0")).await;
    // MessagePack of attempt, history, and one field.
    let item: &[u8] = b"\x94\xa12\xa0\xa7payload\xa1x";
    let mut put = redis::cmd("HSET");
    put.arg(items.as_str()).arg("5-0").arg(item);
    put.query_async::<redis::Value>(&mut bench.raw).await.expect("parked");
    bench.cmd(&format!("SET {delay} x")).await;
    let error = bench.backend.promote(&bench.lease, 9).await.expect_err("a foreign type");
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    assert_eq!(bench.int(&format!("XLEN {retry_log}")).await, 1, "the retry came");

    bench.cmd(&format!("DEL {delay}")).await;
    bench.cmd(&format!("SET {due} x")).await;
    bench.park(&place, "a", Due::At(AT(1)), OnConflict::Keep).await;
    let error = bench.backend.promote(&bench.lease, 9).await.expect_err("a foreign type");
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    assert_eq!(bench.names(&place).await, [""; 0], "the delayed message came");
}

#[tokio::test]
async fn out_of_memory_nothing_more_is_scheduled_and_the_rest_goes_on() {
    let mut bench = Bench::private(&[]).await;
    let place = bench.partition();
    for name in ["a", "b", "c", "d"] {
        bench.park(&place, name, HOUR, OnConflict::Keep).await;
    }
    bench.cmd("CONFIG SET maxmemory 1").await;
    for (name, on_conflict) in [("e", OnConflict::Keep), ("a", OnConflict::Replace)] {
        let error = bench.backend.schedule(&[one(&place, name, Due::NOW, on_conflict)]).await.remove(0);
        let error = error.expect_err("no memory");
        assert!(error.kind() == ErrorKind::Backpressure && error.is_transient(), "{error}");
    }
    assert_eq!(bench.park(&place, "a", HOUR, OnConflict::Keep).await, Placed::Kept);
    assert_eq!(bench.backend.cancel(&place, &[id("d")]).await.expect("cancelled"), [true]);
    let moved = bench.backend.reschedule(&place, &[id("a"), id("b"), id("d")], Due::At(AT(1))).await;
    assert_eq!(moved.expect("moved"), [true, true, false]);
    assert_eq!(bench.names(&place).await, ["a", "b", "c"]);
    assert_eq!(bench.backend.promote_delayed(&bench.tp, 1).await.expect("promoted").moved, 1);
    assert_eq!(bench.backend.promote(&bench.lease, 9).await.expect("promoted").moved, 1);
    let mut reader = bench.reader().await;
    assert_eq!(fetch(&mut reader, 9).await.entries.len(), 2);
}

#[tokio::test]
async fn a_large_batch_over_many_places_has_an_answer_for_each() {
    let mut bench = Bench::new().await;
    let mut batch = Vec::new();
    for n in 0..2_500u32 {
        let place = Place::from(Shard::new("many".parse().expect("name"), n % 7));
        let mut scheduling = one(&place, &format!("m{n}"), HOUR, OnConflict::Keep);
        if n % 500 == 0 {
            scheduling.fields = fields(&[(b"payload", &vec![b'x'; 3 << 20])]);
        }
        batch.push(scheduling);
    }
    batch[77].fields.clear();
    // Forgotten scripts are loaded again, and each message is scheduled once.
    bench.cmd("SCRIPT FLUSH").await;
    let results = bench.backend.schedule(&batch).await;
    assert_eq!(results.len(), 2_500);
    for (n, result) in results.iter().enumerate() {
        match result {
            Ok(placed) => assert_eq!(*placed, Placed::New, "{n}"),
            Err(error) => assert!(n == 77 && error.kind() == ErrorKind::Encode, "{n}: {error}"),
        }
    }
    let mut total = 0;
    for shard in 0..7 {
        let place = Place::from(Shard::new("many".parse().expect("name"), shard));
        total += bench.backend.waiting(&place).await.expect("counted").total;
        let first = bench.backend.scheduled(&place, None, 1_000).await.expect("a page");
        assert!(first.len() > 300 && first.is_sorted_by_key(|one| (one.due, one.id.clone())));
    }
    assert_eq!(total, 2_499);
    assert!(bench.backend.schedule(&[]).await.is_empty());
}

/// Not a check: prints what a message costs the server. Run it alone.
#[tokio::test]
#[ignore = "a measurement: it prints costs and asserts none, as they depend on the machine"]
async fn what_a_message_costs_the_server() {
    const COUNT: usize = 100_000;
    let mut bench = Bench::private(&[]).await;
    let place = bench.partition();
    let payload = "x".repeat(128);
    for round in 0..3 {
        let start = bench.used().await;
        for batch in 0..COUNT / 100 {
            let batch: Vec<_> = (batch * 100..(batch + 1) * 100)
                .map(|n| {
                    let due = Due::In(Duration::from_millis(n as u64 % 1_000));
                    let fields = message(&payload);
                    Scheduling { fields, ..one(&place, &format!("message-{n:08}"), due, OnConflict::Keep) }
                })
                .collect();
            bench.park_all(&batch).await;
        }
        let parked = bench.used().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = bench.used().await;
        assert_eq!(bench.promote_all().await, COUNT);
        let after = bench.used().await;
        let per = |micros: f64| micros / COUNT as f64;
        println!(
            "round {round}: schedule {:.2} us, promote {:.2} us, {:.0} B parked",
            per(parked.0 - start.0),
            per(after.0 - before.0),
            (parked.1 - start.1) / COUNT as f64
        );
        let log = bench.log();
        bench.cmd(&format!("DEL {log}")).await;
    }
}

impl Bench {
    /// Microseconds of the server's CPU, and bytes of its memory.
    async fn used(&mut self) -> (f64, f64) {
        let (mut cpu, mut memory) = (0.0, 0.0);
        for section in ["cpu", "memory"] {
            let info: String =
                redis::cmd("INFO").arg(section).query_async(&mut self.raw).await.expect("info");
            for line in info.lines() {
                match line.split_once(':') {
                    Some(("used_cpu_sys" | "used_cpu_user", n)) => {
                        cpu += n.parse::<f64>().expect("seconds") * 1e6;
                    }
                    Some(("used_memory", n)) => memory = n.parse().expect("bytes"),
                    _ => {}
                }
            }
        }
        (cpu, memory)
    }
}
