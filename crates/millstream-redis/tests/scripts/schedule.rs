//! Scheduled messages at both kinds of places: kept once, moved once and never early, paged, taken out, announced.

pub(crate) mod faults;
pub(crate) mod parked;
pub(crate) mod recurring;
mod retries;
pub(crate) mod wake;

use std::collections::BTreeSet;
use std::time::Duration;

use millstream_core::Timestamp;
use millstream_core::error::ErrorKind;
use millstream_core::schedule::{
    Due, MAX_PAGE, OnConflict, Place, Placed, Promoted, Schedule, ScheduleId, Scheduled, Scheduling, Seen,
    Shard,
};
use redis::Value;

use crate::server::{Bench, fetch, fields, message};

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

pub(crate) const HOUR: Due = Due::In(Duration::from_secs(3_600));
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn id(id: &str) -> ScheduleId {
    ScheduleId::new(id).expect("an id")
}

pub(crate) fn one(place: &Place, name: &str, due: Due, on_conflict: OnConflict) -> Scheduling {
    Scheduling { place: place.clone(), id: id(name), due, fields: message(name), on_conflict }
}

impl Bench {
    pub(crate) fn partition(&self) -> Place {
        self.tp.clone().into()
    }

    pub(crate) fn shard() -> Place {
        Shard::new("mails".parse().expect("name"), 1).into()
    }

    pub(crate) async fn park(&self, place: &Place, name: &str, due: Due, on_conflict: OnConflict) -> Placed {
        let mut results = self.backend.schedule(&[one(place, name, due, on_conflict)]).await;
        results.pop().expect("a result").expect("scheduled")
    }

    pub(crate) async fn park_all(&self, batch: &[Scheduling]) {
        for result in self.backend.schedule(batch).await {
            assert_eq!(result.expect("scheduled"), Placed::New);
        }
    }

    pub(crate) async fn names(&self, place: &Place) -> Vec<String> {
        let page = self.backend.scheduled(place, None, MAX_PAGE).await.expect("a page");
        page.into_iter().map(|one| one.id.to_string()).collect()
    }

    pub(crate) async fn now_ms(&mut self) -> u64 {
        let Value::Array(time) = self.cmd("TIME").await else { panic!("no time") };
        let [seconds, micros] = [0, 1].map(|n: usize| match &time[n] {
            Value::BulkString(text) => String::from_utf8_lossy(text).parse::<u64>().expect("a number"),
            other => panic!("{other:?}"),
        });
        seconds * 1_000 + micros / 1_000
    }

    /// Promotes until nothing is due for a while.
    pub(crate) async fn promote_all(&self) -> usize {
        let mut moved = 0;
        loop {
            let promoted = self.backend.promote_delayed(&self.tp, 200).await.expect("promoted");
            moved += promoted.moved + promoted.orphans;
            match promoted.next {
                Some(next) if next < Duration::from_secs(9) => tokio::time::sleep(next).await,
                _ => return moved,
            }
        }
    }
}

/// Runs every script of this role, for the tests that look at keys and permissions.
pub(crate) async fn life(bench: &mut Bench) {
    for place in [bench.partition(), Bench::shard()] {
        for on_conflict in [OnConflict::Keep, OnConflict::Replace] {
            bench.park(&place, "life", HOUR, on_conflict).await;
        }
        assert!(bench.backend.get(&place, &id("life")).await.expect("read").is_some());
        assert_eq!(bench.names(&place).await, ["life"]);
        let waiting = bench.backend.waiting(&place).await.expect("counted");
        assert_eq!((waiting.total, waiting.overdue), (1, 0));
        let moved = bench.backend.reschedule(&place, &[id("life")], Due::At(AT(1))).await;
        assert_eq!(moved.expect("moved"), [true]);
        assert_eq!(bench.backend.cancel(&place, &[id("life")]).await.expect("cancelled"), [true]);
    }
    let seen = bench.backend.wait(&bench.tp, &Seen::default(), LONG).await.expect("a state");
    let short = Duration::from_millis(1);
    assert_eq!(bench.backend.wait(&bench.tp, &seen, short).await.expect("nothing new"), seen);
    bench.park(&bench.partition(), "gone", Due::NOW, OnConflict::Keep).await;
    assert_eq!(bench.promote_all().await, 1);
}

#[tokio::test]
async fn what_is_there_is_kept_replaced_or_told() {
    use OnConflict::{Keep, Reject, Replace};
    let bench = Bench::new().await;
    for place in [bench.partition(), Bench::shard()] {
        assert_eq!(bench.park(&place, "a", HOUR, Reject).await, Placed::New);
        assert_eq!(bench.park(&place, "a", Due::At(AT(7)), Keep).await, Placed::Kept);
        let kept = bench.backend.get(&place, &id("a")).await.expect("read").expect("waits");
        assert!(kept.due > AT(1_000_000), "as it was: {kept:?}");
        let error = bench.backend.schedule(&[one(&place, "a", HOUR, Reject)]).await.remove(0);
        let error = error.expect_err("it is there");
        assert_eq!(error.kind(), ErrorKind::Exists);
        assert!(error.to_string().contains("schedule a at"), "{error}");
        let other = Scheduling { fields: message("other"), ..one(&place, "a", Due::At(AT(7)), Replace) };
        assert_eq!(*bench.backend.schedule(&[other]).await[0].as_ref().expect("replaced"), Placed::Replaced);
        let found = bench.backend.get(&place, &id("a")).await.expect("read");
        assert_eq!(found, Some(Scheduled::new(id("a"), AT(7), message("other"))));

        // In one batch, the same id stands several times; each goes by those before it.
        let batch = [
            one(&place, "b", Due::At(AT(1)), Keep),
            one(&place, "b", Due::At(AT(2)), Keep),
            one(&place, "b", Due::At(AT(3)), Replace),
            Scheduling { fields: Vec::new(), ..one(&place, "c", HOUR, Keep) },
            one(&place, "b", Due::At(AT(4)), Reject),
        ];
        let results = bench.backend.schedule(&batch).await;
        let kinds: Vec<_> =
            results.iter().map(|r| r.as_ref().map_err(millstream_core::Error::kind)).collect();
        assert_eq!(kinds[..3], [Ok(&Placed::New), Ok(&Placed::Kept), Ok(&Placed::Replaced)]);
        assert_eq!(kinds[3..], [Err(ErrorKind::Encode), Err(ErrorKind::Exists)]);
        assert_eq!(bench.backend.get(&place, &id("b")).await.expect("read").expect("waits").due, AT(3));
        assert_eq!(bench.names(&place).await, ["b", "a"]);
        let batch = [
            one(&place, "a", Due::At(AT(6)), OnConflict::KeepLast),
            one(&place, "a", Due::At(AT(9)), OnConflict::Debounce),
            one(&place, "a", Due::At(AT(8)), OnConflict::Debounce),
            Scheduling { fields: message("last"), ..one(&place, "a", Due::At(AT(1)), OnConflict::KeepLast) },
        ];
        let placed: Vec<_> = bench.backend.schedule(&batch).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(placed, [Placed::Replaced; 4]);
        let found = bench.backend.get(&place, &id("a")).await.expect("read");
        assert_eq!(found, Some(Scheduled::new(id("a"), AT(9), message("last"))));
    }
}

#[tokio::test]
async fn what_is_worked_on_is_neither_replaced_nor_scheduled_again() {
    let mut bench = Bench::new().await;
    let (shard, partition) = (Bench::shard(), bench.partition());
    for place in [&shard, &partition] {
        bench.park(place, "a", HOUR, OnConflict::Keep).await;
        let delay = bench.keys.delay(place);
        bench.cmd(&format!("ZREM {delay} a")).await;
    }
    let claims = bench.keys.claims(&crate::tasks::shard());
    bench.cmd(&format!("ZADD {claims} 9000000000000 a")).await;
    for on_conflict in [OnConflict::Keep, OnConflict::Replace] {
        assert_eq!(bench.park(&shard, "a", HOUR, on_conflict).await, Placed::Kept);
    }
    for on_conflict in [OnConflict::Reject, OnConflict::Debounce, OnConflict::KeepLast] {
        let rejected = bench.backend.schedule(&[one(&shard, "a", HOUR, on_conflict)]).await.remove(0);
        assert_eq!(rejected.expect_err("worked on").kind(), ErrorKind::Exists);
    }
    assert_eq!(bench.backend.cancel(&shard, &[id("a")]).await.expect("answered"), [false]);
    assert_eq!(bench.backend.reschedule(&shard, &[id("a")], Due::NOW).await.expect("answered"), [false]);
    assert_eq!(bench.backend.get(&shard, &id("a")).await.expect("read"), None);
    // Nobody works on what waits at a partition: a body without a due time is a leftover.
    assert_eq!(bench.park(&partition, "a", HOUR, OnConflict::Keep).await, Placed::New);

    // What a task has been through goes with it.
    let Place::Shard(of) = &shard else { panic!("a shard") };
    let states = bench.keys.task_states(of);
    for name in ["b", "c", "d"] {
        bench.park(&shard, name, HOUR, OnConflict::Keep).await;
        bench.cmd(&format!("HSET {states} {name} x")).await;
    }
    bench.park(&shard, "b", HOUR, OnConflict::Replace).await;
    assert_eq!(bench.backend.cancel(&shard, &[id("c")]).await.expect("cancelled"), [true]);
    assert_eq!(bench.int(&format!("HLEN {states}")).await, 1);
    assert_eq!(bench.int(&format!("HEXISTS {states} d")).await, 1);
}

#[tokio::test]
async fn nothing_is_early_and_all_is_byte_for_byte() {
    let mut bench = Bench::new().await;
    let body = fields(&[(b"payload", b"\xff\x00\r\n"), (b"h:\xfe", b""), (b"h:\xfe", &[b'x'; 70_000])]);
    let mut batch: Vec<_> = (0..300u64)
        .map(|n| {
            let due = Due::In(Duration::from_micros(n * 397));
            Scheduling {
                fields: body.clone(),
                ..one(&bench.partition(), &n.to_string(), due, OnConflict::Keep)
            }
        })
        .collect();
    let earliest = bench.now_ms().await;
    bench.park_all(&batch).await;
    let scheduled = bench.backend.scheduled(&bench.partition(), None, MAX_PAGE).await.expect("a page");
    let due: std::collections::BTreeMap<_, _> =
        scheduled.iter().map(|one| (one.id.clone(), one.due)).collect();
    for message in &batch {
        let Due::In(delay) = message.due else { panic!("a delay") };
        assert!(due[&message.id].as_millis() * 1_000 >= earliest * 1_000 + delay.as_micros() as u64);
    }
    assert_eq!(bench.promote_all().await, 300);
    let mut reader = bench.reader().await;
    let mut read = Vec::new();
    while read.len() < 300 {
        read.extend(fetch(&mut reader, 100).await.entries);
    }
    assert!(read.iter().all(|entry| entry.fields == body));
    // The id of an entry is when it was moved; they were moved by due time.
    batch.sort_by_key(|message| due[&message.id]);
    for (entry, message) in read.iter().zip(&batch) {
        assert!(entry.receipt.id.timestamp() >= due[&message.id], "{message:?} was early");
    }
    assert_eq!(bench.promote_all().await, 0);
    let keys = [bench.keys.delay(&bench.partition()), bench.keys.delay_items(&bench.partition())];
    for key in keys {
        assert_eq!(bench.int(&format!("EXISTS {key}")).await, 0, "nothing is left at {key}");
    }
}

#[tokio::test]
async fn a_promotion_tells_when_to_come_back() {
    let mut bench = Bench::new().await;
    let place = bench.partition();
    let none = Promoted::default();
    assert_eq!(bench.backend.promote_delayed(&bench.tp, 9).await.expect("promoted"), none);
    assert_eq!(bench.backend.promote(&bench.lease, 9).await.expect("promoted"), none);
    for name in ["a", "b", "c"] {
        bench.park(&place, name, Due::At(AT(5)), OnConflict::Keep).await;
    }
    bench.park(&place, "later", HOUR, OnConflict::Keep).await;
    for (limit, moved, zero) in [(2, 2, true), (0, 0, true), (9, 1, false), (9, 0, false)] {
        let promoted = bench.backend.promote(&bench.lease, limit).await.expect("promoted");
        assert_eq!((promoted.moved, promoted.orphans, promoted.recurring), (moved, 0, false));
        let next = promoted.next.expect("one waits");
        let near = if zero { Duration::ZERO } else { Duration::from_millis(3_600_001) };
        assert!(next <= near && near - next < Duration::from_secs(60), "{next:?}");
    }
    let fraction = bench.backend.promote_delayed(&bench.tp, 9).await.expect("promoted").next;
    assert!(fraction.expect("one waits").subsec_nanos() % 1_000 == 0, "{fraction:?}");

    // A retry that is due sooner counts, and so does what recurs.
    let (retries, recur) = (bench.keys.retry_due(&bench.tp, &bench.group), bench.keys.recur(&place));
    let soon = bench.now_ms().await + 600_000;
    bench.cmd(&format!("ZADD {retries} {soon} 1-1")).await;
    let next = bench.backend.promote(&bench.lease, 9).await.expect("promoted").next.expect("parked");
    assert!((Duration::from_secs(590)..=Duration::from_secs(600)).contains(&next), "{next:?}");
    bench.cmd(&format!("ZADD {recur} {} r", soon - 300_000)).await;
    let promoted = bench.backend.promote(&bench.lease, 9).await.expect("promoted");
    assert!(promoted.next.expect("recurs") <= Duration::from_secs(300) && !promoted.recurring);
    bench.cmd(&format!("ZADD {recur} 1 r")).await;
    let promoted = bench.backend.promote_delayed(&bench.tp, 9).await.expect("promoted");
    assert!(promoted.next == Some(Duration::ZERO) && promoted.recurring);
}

#[tokio::test]
async fn what_lost_its_body_is_counted_and_keeps_nobody_waiting() {
    let mut bench = Bench::new().await;
    let place = bench.partition();
    let (delay, items) = (bench.keys.delay(&place), bench.keys.delay_items(&place));
    for name in ["a", "b", "c", "d"] {
        bench.park(&place, name, Due::At(AT(5)), OnConflict::Keep).await;
    }
    bench.cmd(&format!("HDEL {items} a")).await;
    bench.cmd(&format!("HSET {items} b not-an-item c {}", "\u{1}")).await;
    bench.cmd(&format!("ZADD {delay} 4 \u{1}foreign inf far")).await;
    let page = bench.backend.scheduled(&place, None, 2).await.expect("a page");
    let names: Vec<_> = page.iter().map(|one| (one.id.as_str(), one.fields.len())).collect();
    assert_eq!(names, [("a", 0), ("b", 0)], "an id that is none of ours is passed over");
    let promoted = bench.backend.promote_delayed(&bench.tp, 200).await.expect("promoted");
    assert_eq!((promoted.moved, promoted.orphans), (1, 4));
    // Bytes that are no message go to every group as what cannot be read.
    let log = bench.log();
    let entries = bench.cmd(&format!("XRANGE {log} - +")).await;
    let entries: Vec<(String, Vec<(String, String)>)> = redis::from_redis_value(entries).expect("entries");
    let bodies: Vec<_> = entries.iter().map(|(_, body)| (&*body[0].0, &*body[0].1)).collect();
    assert_eq!(bodies, [("packed", "not-an-item"), ("packed", "\u{1}"), ("payload", "d")]);
    let far = bench.backend.scheduled(&place, None, 9).await.expect("a page");
    assert_eq!((far.len(), far[0].due), (1, AT(u64::MAX)));
    let after = Some((far[0].due, far[0].id.clone()));
    assert_eq!(bench.backend.scheduled(&place, after, 9).await.expect("a page"), []);
}

#[tokio::test]
async fn pages_are_by_due_time_then_by_bytes_and_survive_what_goes() {
    let bench = Bench::new().await;
    let place = bench.partition();
    let mut expected = BTreeSet::new();
    let mut batch = Vec::new();
    for n in 0..700u64 {
        // Many of one millisecond; upper case, lower case and beyond ASCII: no locale has a say.
        let name = format!("{}{}", ["B", "a", "é", "b", "A"][n as usize % 5], n / 5);
        let due = 5_000_000_000_000 + n % 3;
        expected.insert((due, id(&name)));
        batch.push(one(&place, &name, Due::At(AT(due)), OnConflict::Keep));
    }
    // So far away, 5e12 would be cut: what is in 100 years.
    batch.iter_mut().for_each(|one| {
        if let Due::At(due) = &mut one.due {
            *due = due.saturating_sub(Duration::from_millis(2_500_000_000_000));
        }
    });
    let expected: Vec<_> = expected.into_iter().map(|(due, id)| (AT(due - 2_500_000_000_000), id)).collect();
    bench.park_all(&batch).await;
    for limit in [1, 7, 199, 200, 201, 1_000] {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = bench.backend.scheduled(&place, after, limit).await.expect("a page");
            assert!(page.iter().all(|one| one.fields == message(one.id.as_str())));
            seen.extend(page.iter().map(|one| (one.due, one.id.clone())));
            after = seen.last().cloned();
            if page.len() < limit {
                break;
            }
        }
        assert_eq!(seen, expected, "pages of {limit}");
    }
    let gone = expected[300].clone();
    assert_eq!(bench.backend.cancel(&place, std::slice::from_ref(&gone.1)).await.expect("gone"), [true]);
    let page = bench.backend.scheduled(&place, Some(gone), 1).await.expect("a page");
    assert_eq!(page[0].id, expected[301].1, "behind one that is gone");
    assert_eq!(bench.backend.scheduled(&place, None, 0).await.expect("a page"), []);
}

#[tokio::test]
async fn a_late_page_costs_no_more_among_a_million_of_one_millisecond() {
    let mut bench = Bench::private(&[]).await;
    let place = bench.partition();
    let mut fill = redis::cmd("EVAL");
    fill.arg("for i = 1, 1000000 do redis.call('ZADD', KEYS[1], 7, string.format('%07d', i)) end").arg(1);
    fill.arg(bench.keys.delay(&place).as_str()).exec_async(&mut bench.raw).await.expect("a million");
    for last in [0, 499_999, 999_990] {
        bench.cmd("CONFIG RESETSTAT").await;
        let after = Some((AT(7), id(&format!("{last:07}"))));
        let page = bench.backend.scheduled(&place, after, 5).await.expect("a page");
        let names: Vec<_> = page.iter().map(|one| one.id.to_string()).collect();
        assert_eq!(names, (last + 1..last + 6).map(|n| format!("{n:07}")).collect::<Vec<_>>());
        let info: String =
            redis::cmd("INFO").arg("commandstats").query_async(&mut bench.raw).await.expect("info");
        let calls = info.lines().find_map(|line| line.strip_prefix("cmdstat_zrange:calls=")).expect("calls");
        let calls: usize = calls.split(',').next().and_then(|n| n.parse().ok()).expect("a number");
        assert!(calls <= 22, "{calls} looks for the page behind {last}");
        assert!(!info.contains("zrangebyscore"), "an offset would be counted off one by one");
    }
    let waiting = bench.backend.waiting(&place).await.expect("counted");
    assert_eq!((waiting.total, waiting.overdue), (1_000_000, 1_000_000));
}
