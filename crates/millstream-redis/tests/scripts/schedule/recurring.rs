//! What recurs: kept, paused, found when it is due, and fired once by however many that find it.

use std::time::Duration;

use millstream_core::Timestamp;
use millstream_core::error::ErrorKind;
use millstream_core::recurring::{MAX_FIRES, Recurrence, Recurring};
use millstream_core::schedule::{
    Due, MAX_ID_LEN, OnConflict, Place, Placed, Schedule, ScheduleId, Scheduled, Seen,
};
use millstream_lua::RECUR_FIRE;
use tokio::task::JoinSet;

use crate::schedule::id;
use crate::server::{Bench, message};

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

fn recurrence(name: &str, next: Option<u64>) -> Recurrence {
    Recurrence {
        id: id(name),
        rule: "every 5s".into(),
        fields: message(name),
        next: next.map(Timestamp::from_millis),
        paused: false,
    }
}

impl Bench {
    async fn recur(&self, place: &Place, recurrence: &Recurrence, on_conflict: OnConflict) -> Placed {
        Recurring::put(&self.backend, place, recurrence, on_conflict).await.expect("kept")
    }

    async fn due(&self, place: &Place) -> Vec<Recurrence> {
        self.backend.due(place).await.expect("an answer").recurrences
    }
}

/// Runs every script of this role, for the tests that look at keys and permissions.
pub(crate) async fn life(bench: &mut Bench) {
    for place in [bench.partition(), Bench::shard()] {
        bench.recur(&place, &recurrence("r", Some(5)), OnConflict::Keep).await;
        assert_eq!(bench.due(&place).await.len(), 1);
        let fired = bench.backend.fire(&place, &id("r"), &[AT(5)], AT(5), Some(AT(6))).await.expect("fired");
        assert_eq!(fired, Some(1));
        assert!(bench.backend.pause(&place, &id("r"), None).await.expect("paused"));
        assert!(bench.backend.pause(&place, &id("r"), Some(AT(1))).await.expect("goes on"));
        assert_eq!(bench.backend.recurrences(&place, None, 9).await.expect("listed").len(), 1);
        assert!(bench.backend.remove(&place, &id("r")).await.expect("removed"));
        assert_eq!(bench.backend.cancel(&place, &[id("r@5")]).await.expect("cancelled"), [true]);
    }
}

#[tokio::test]
async fn it_is_kept_replaced_or_told_paused_and_removed() {
    let mut bench = Bench::new().await;
    for place in [bench.partition(), Bench::shard()] {
        let first = recurrence("a", Some(7));
        assert_eq!(bench.recur(&place, &first, OnConflict::Reject).await, Placed::New);
        let other = Recurrence { rule: "daily".into(), ..recurrence("a", Some(4_000_000_000_000)) };
        assert_eq!(bench.recur(&place, &other, OnConflict::Keep).await, Placed::Kept);
        let error = Recurring::put(&bench.backend, &place, &other, OnConflict::Reject).await;
        assert_eq!(error.expect_err("there").kind(), ErrorKind::Exists);
        let found = bench.backend.due(&place).await.expect("an answer");
        assert_eq!(found.recurrences, [first]);
        assert!(found.now.as_millis().abs_diff(bench.now_ms().await) < 10_000);
        assert_eq!(bench.recur(&place, &other, OnConflict::Replace).await, Placed::Replaced);
        assert_eq!(bench.due(&place).await, []);
        assert_eq!(
            bench.backend.recurrences(&place, None, 9).await.expect("listed"),
            std::slice::from_ref(&other)
        );

        assert!(bench.backend.pause(&place, &id("a"), Some(AT(9))).await.expect("moved"));
        assert_eq!(bench.due(&place).await, [Recurrence { next: Some(AT(9)), ..other.clone() }]);
        assert!(bench.backend.pause(&place, &id("a"), None).await.expect("paused"));
        assert_eq!(bench.due(&place).await, []);
        let fired = bench.backend.fire(&place, &id("a"), &[AT(9)], AT(9), Some(AT(10))).await;
        assert_eq!(fired.expect("answered"), None, "paused");
        let paused = Recurrence { next: Some(AT(9)), paused: true, ..other.clone() };
        assert_eq!(
            bench.backend.recurrences(&place, None, 9).await.expect("listed"),
            std::slice::from_ref(&paused)
        );
        // Replaced, the pause is what the new one says.
        assert_eq!(bench.recur(&place, &paused, OnConflict::Replace).await, Placed::Replaced);
        assert_eq!(bench.due(&place).await, []);
        assert_eq!(bench.recur(&place, &recurrence("a", None), OnConflict::Replace).await, Placed::Replaced);
        assert_eq!(bench.backend.recurrences(&place, None, 9).await.expect("listed")[0].next, None);

        assert!(bench.backend.remove(&place, &id("a")).await.expect("removed"));
        assert!(!bench.backend.remove(&place, &id("a")).await.expect("answered"));
        assert!(!bench.backend.pause(&place, &id("a"), Some(AT(1))).await.expect("answered"));
        let fired = bench.backend.fire(&place, &id("a"), &[AT(1)], AT(1), None).await;
        assert_eq!(fired.expect("answered"), None);
        for key in [bench.keys.recur(&place), bench.keys.recur_items(&place)] {
            assert_eq!(bench.int(&format!("EXISTS {key}")).await, 0, "{key}");
        }
    }
    let long = recurrence(&"x".repeat(MAX_ID_LEN), None);
    let error = Recurring::put(&bench.backend, &bench.partition(), &long, OnConflict::Keep).await;
    assert_eq!(error.expect_err("what it schedules would have no id").kind(), ErrorKind::InvalidName);
    let empty = Recurrence { fields: Vec::new(), ..recurrence("e", None) };
    let error = Recurring::put(&bench.backend, &bench.partition(), &empty, OnConflict::Keep).await;
    assert_eq!(error.expect_err("no message").kind(), ErrorKind::Encode);
}

#[tokio::test]
async fn firing_schedules_and_sets_the_next_time_in_one_step() {
    let mut bench = Bench::new().await;
    for place in [bench.partition(), Bench::shard()] {
        let waits = |name: &str, due| Scheduled::new(id(name), due, message("r"));
        bench.recur(&place, &recurrence("r", Some(30)), OnConflict::Keep).await;
        let fire = async |times: &[u64], expected, next: Option<u64>| {
            let times: Vec<_> = times.iter().copied().map(AT).collect();
            bench.backend.fire(&place, &id("r"), &times, AT(expected), next.map(AT)).await.expect("answered")
        };
        assert_eq!(fire(&[30], 29, Some(40)).await, None);
        assert_eq!(fire(&[10, 20, 30], 30, Some(40)).await, Some(3));
        assert_eq!(fire(&[30], 30, Some(50)).await, None, "once");
        let all = bench.backend.scheduled(&place, None, 9).await.expect("a page");
        assert_eq!(all, [waits("r@10", AT(10)), waits("r@20", AT(20)), waits("r@30", AT(30))]);
        assert_eq!(bench.due(&place).await[0].next, Some(AT(40)));

        // What waits is kept, and at a shard what is worked on.
        bench.backend.reschedule(&place, &[id("r@20")], Due::At(AT(99))).await.expect("moved");
        let delay = bench.keys.delay(&place);
        bench.cmd(&format!("ZREM {delay} r@30")).await;
        let (mut expected, left) =
            (vec![waits("r@10", AT(10)), waits("r@20", AT(99))], waits("r@31", AT(31)));
        match &place {
            Place::Partition(_) => expected.insert(1, waits("r@30", AT(30))),
            Place::Shard(shard) => {
                let claims = bench.keys.claims(shard);
                bench.cmd(&format!("ZADD {claims} 9000000000000 r@30")).await;
            }
        }
        // A body that is left of one that neither waits nor is worked on is in nobody's way.
        let items = bench.keys.delay_items(&place);
        bench.cmd(&format!("HSET {items} r@31 leftover")).await;
        let fired = bench.backend.fire(&place, &id("r"), &[AT(20), AT(30), AT(31)], AT(40), None).await;
        assert_eq!(fired.expect("fired"), Some(3));
        expected.insert(expected.len() - 1, left);
        assert_eq!(bench.backend.scheduled(&place, None, 9).await.expect("a page"), expected);
        assert_eq!(bench.due(&place).await, []);
        let over = bench.backend.recurrences(&place, None, 9).await.expect("listed");
        assert_eq!(over, [recurrence("r", None)], "over, and kept");
        assert!(bench.backend.pause(&place, &id("r"), Some(AT(7))).await.expect("goes on"));
        let fired = bench.backend.fire(&place, &id("r"), &[], AT(7), Some(AT(8))).await;
        assert_eq!(fired.expect("none was wanted"), Some(0));
        let error = bench.backend.fire(&place, &id("r"), &vec![AT(1); MAX_FIRES + 1], AT(8), None).await;
        assert_eq!(error.expect_err("too many").kind(), ErrorKind::TooLarge);
    }
}

/// Each client ends after one step, and another one promotes before the next begins.
#[tokio::test]
async fn large_messages_are_fired_once_by_clients_that_end_between_steps() {
    let mut bench = Bench::new().await;
    let place = bench.partition();
    let mut large = recurrence("r", Some(1));
    large.fields.push(("more".into(), vec![b'x'; 400 << 10].into()));
    bench.recur(&place, &large, OnConflict::Keep).await;
    let (keys, mut steps, mut moved) = (&bench.keys, Vec::new(), 0);
    let delay = keys.delay(&place);
    let keys = [
        keys.recur(&place),
        keys.recur_items(&place),
        delay.clone(),
        keys.delay_items(&place),
        delay,
        keys.wake(&place),
    ];
    while let Some(due) = bench.due(&place).await.pop().and_then(|due| due.next) {
        let fires: Vec<_> = (due.as_millis()..=8).map(|at| at.to_string()).collect();
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(RECUR_FIRE.source).arg(keys.len());
        for key in &keys {
            cmd.arg(key.as_str());
        }
        cmd.arg("partition").arg("r").arg(due.as_millis()).arg("").arg(fires.join(" "));
        let again = cmd.clone();
        steps.push(cmd.query_async::<i64>(&mut bench.raw).await.expect("fired"));
        moved += bench.backend.promote_delayed(&bench.tp, 200).await.expect("promoted").moved;
        // A request that comes once more, or that of a client that read the same due time.
        assert_eq!(again.query_async::<i64>(&mut bench.raw).await.expect("answered"), -1);
    }
    assert_eq!((steps, moved), (vec![3, 3, 2], 8));
    let log = bench.log();
    assert_eq!(bench.int(&format!("XLEN {log}")).await, 8);
    assert_eq!(bench.backend.recurrences(&place, None, 9).await.expect("listed")[0].next, None, "over");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_that_find_it_due_one_fires_it() {
    let bench = Bench::new().await;
    let place = bench.partition();
    bench.recur(&place, &recurrence("r", Some(1)), OnConflict::Keep).await;
    let mut racers = JoinSet::new();
    for _ in 0..8 {
        let (backend, place) = (bench.backend.clone(), place.clone());
        racers.spawn(async move {
            let mut fired = 0;
            loop {
                let due = backend.due(&place).await.expect("an answer");
                let Some(one) = due.recurrences.first() else { return fired };
                let next = one.next.expect("a time");
                let after = (next < AT(200)).then_some(next.saturating_add(Duration::from_millis(1)));
                let done = backend.fire(&place, &one.id, &[next], next, after).await.expect("fired");
                fired += done.unwrap_or(0);
            }
        });
    }
    let fired: usize = racers.join_all().await.into_iter().sum();
    assert_eq!(fired, 200);
    let expected: Vec<_> = (1..=200).map(|at| format!("r@{at}")).collect();
    assert_eq!(bench.names(&place).await, expected, "each once");
}

#[tokio::test]
async fn pages_are_by_id_and_what_cannot_be_read_is_passed_over() {
    let mut bench = Bench::new().await;
    let place = bench.partition();
    let mut expected: Vec<_> = (0..130).map(|n| format!("{}{n}", ["B", "a", "é"][n % 3])).collect();
    for name in &expected {
        bench.recur(&place, &recurrence(name, None), OnConflict::Keep).await;
    }
    let items = bench.keys.recur_items(&place);
    bench.cmd(&format!("HSET {items} a1 not-an-item \u{1}foreign x")).await;
    expected.retain(|name| name != "a1");
    expected.sort_unstable();
    for limit in [7, 100, 1_000] {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = bench.backend.recurrences(&place, after, limit).await.expect("a page");
            let Some(last) = page.last() else { break };
            assert!(page.len() <= limit.min(100));
            after = Some(last.id.clone());
            seen.extend(page.into_iter().map(|one| one.id.to_string()));
        }
        assert_eq!(seen, expected, "pages of {limit}");
    }
}

/// Otherwise the promoters would find it due again and again.
#[tokio::test]
async fn what_nobody_can_fire_is_not_due_for_ever() {
    let mut bench = Bench::new().await;
    let place = bench.partition();
    let (recur, items) = (bench.keys.recur(&place), bench.keys.recur_items(&place));
    for name in ["a", "b", "c"] {
        bench.recur(&place, &recurrence(name, Some(5)), OnConflict::Keep).await;
    }
    bench.cmd(&format!("HDEL {items} a")).await;
    bench.cmd(&format!("HSET {items} b junk")).await;
    let copy = "redis.call('HSET',KEYS[1],'\\1',redis.call('HGET',KEYS[1],'c'))";
    redis::cmd("EVAL").arg(copy).arg(1).arg(items.as_str()).exec_async(&mut bench.raw).await.expect("copied");
    bench.cmd(&format!("ZADD {recur} 1 \u{1}")).await;
    assert_eq!(bench.due(&place).await, [recurrence("c", Some(5))]);
    assert_eq!(bench.int(&format!("ZCARD {recur}")).await, 1);
    assert!(bench.backend.promote_delayed(&bench.tp, 9).await.expect("promoted").recurring);
    for name in ["a", "b"] {
        assert!(!bench.backend.pause(&place, &id(name), Some(AT(1))).await.expect("answered"), "{name}");
        let fired = bench.backend.fire(&place, &id(name), &[AT(1)], AT(1), None).await;
        assert_eq!(fired.expect("answered"), None, "{name}");
    }
}

#[tokio::test]
async fn a_recurrence_that_is_the_head_wakes() {
    let mut bench = Bench::new().await;
    let place = bench.partition();
    let mut seen = bench.backend.wait(&bench.tp, &Seen::default(), Duration::ZERO).await.expect("a state");
    let mut changed = async |bench: &Bench| {
        let now = bench.backend.wait(&bench.tp, &seen, Duration::from_millis(10)).await.expect("waited");
        std::mem::replace(&mut seen, now.clone()) != now
    };
    let far = 3_000_000_000_000;
    bench.recur(&place, &recurrence("a", Some(far)), OnConflict::Keep).await;
    assert!(changed(&bench).await);
    bench.recur(&place, &recurrence("b", Some(far + 1)), OnConflict::Keep).await;
    bench.recur(&place, &recurrence("c", None), OnConflict::Keep).await;
    bench.recur(&place, &Recurrence { paused: true, ..recurrence("d", Some(1)) }, OnConflict::Keep).await;
    assert!(bench.backend.pause(&place, &id("b"), None).await.expect("paused"));
    assert!(!changed(&bench).await);
    assert!(bench.backend.pause(&place, &id("b"), Some(AT(far - 1))).await.expect("goes on"));
    assert!(changed(&bench).await);
    let fired = bench.backend.fire(&place, &id("b"), &[AT(far - 1)], AT(far - 1), Some(AT(far))).await;
    assert_eq!(fired.expect("fired"), Some(1));
    assert!(!changed(&bench).await, "known already");
    bench.park(&place, "later", Due::At(AT(far)), OnConflict::Keep).await;
    assert!(!changed(&bench).await);

    let shard = Bench::shard();
    let wake = bench.keys.wake(&shard);
    for next in [far, far - 1] {
        bench.recur(&shard, &recurrence("a", Some(next)), OnConflict::Replace).await;
        assert_eq!(bench.int(&format!("LLEN {wake}")).await, 1);
    }
    bench.cmd(&format!("DEL {wake}")).await;
    assert!(bench.backend.pause(&shard, &id("a"), Some(AT(far - 2))).await.expect("moved"));
    assert_eq!(bench.int(&format!("LLEN {wake}")).await, 1);
}

#[tokio::test]
async fn a_foreign_type_is_told_and_nothing_is_changed() {
    let mut bench = Bench::new().await;
    for place in [bench.partition(), Bench::shard()] {
        let keys = &bench.keys;
        let (recur, items, delay) = (keys.recur(&place), keys.recur_items(&place), keys.delay(&place));
        let (delay_items, wake) = (keys.delay_items(&place), keys.wake(&place));
        for key in [&recur, &items, &delay, &delay_items, &wake] {
            bench.cmd(&format!("DEL {recur} {items} {delay} {delay_items} {wake}")).await;
            bench.recur(&place, &recurrence("r", Some(9)), OnConflict::Keep).await;
            bench.cmd(&format!("SET {key} x")).await;
            let new = recurrence("new", Some(5));
            let name: ScheduleId = id("r");
            let mut errors =
                vec![bench.backend.fire(&place, &name, &[AT(4)], AT(9), Some(AT(20))).await.map(drop)];
            if key != &delay_items {
                errors.push(Recurring::put(&bench.backend, &place, &new, OnConflict::Keep).await.map(drop));
                errors.push(bench.backend.pause(&place, &name, Some(AT(4))).await.map(drop));
            }
            if key == &recur || key == &items {
                errors.push(bench.backend.remove(&place, &name).await.map(drop));
                errors.push(bench.backend.due(&place).await.map(drop));
            }
            if key == &items {
                errors.push(bench.backend.recurrences(&place, None, 9).await.map(drop));
            }
            for (n, error) in errors.into_iter().enumerate() {
                let error = error.err().unwrap_or_else(|| panic!("{key}: {n} was done"));
                assert_eq!(error.kind(), ErrorKind::WrongType, "{key}: {error}");
            }
            bench.cmd(&format!("DEL {key}")).await;
            if key != &recur && key != &items {
                assert_eq!(bench.due(&place).await, [recurrence("r", Some(9))], "{key}");
            }
            assert_eq!(bench.int(&format!("EXISTS {delay} {delay_items}")).await, 0, "{key}");
        }
    }
}

#[tokio::test]
async fn out_of_memory_nothing_is_added_and_the_rest_goes_on() {
    let mut bench = Bench::private(&[]).await;
    let place = bench.partition();
    for name in ["a", "b"] {
        bench.recur(&place, &recurrence(name, Some(5)), OnConflict::Keep).await;
    }
    bench.cmd("CONFIG SET maxmemory 1").await;
    let error = Recurring::put(&bench.backend, &place, &recurrence("c", None), OnConflict::Keep).await;
    assert_eq!(error.expect_err("no memory").kind(), ErrorKind::Backpressure);
    let error = bench.backend.fire(&place, &id("a"), &[AT(5)], AT(5), Some(AT(6))).await;
    assert_eq!(error.expect_err("no memory").kind(), ErrorKind::Backpressure);
    assert_eq!(bench.due(&place).await.len(), 2, "it is due still");
    assert!(bench.backend.pause(&place, &id("a"), None).await.expect("paused"));
    assert!(bench.backend.pause(&place, &id("a"), Some(AT(7))).await.expect("goes on"));
    assert!(bench.backend.remove(&place, &id("b")).await.expect("removed"));
    assert_eq!(bench.due(&place).await, [recurrence("a", Some(7))]);
}

#[tokio::test]
async fn what_somebody_gave_an_odd_time_fires_and_gets_on() {
    let mut bench = Bench::new().await;
    let place = bench.partition();
    let recur = bench.keys.recur(&place);
    bench.recur(&place, &recurrence("r", Some(1)), OnConflict::Keep).await;
    for (odd, time) in [("1000.5", 1_001), ("-1", 0), ("-inf", 0), ("0.25", 1)] {
        bench.cmd(&format!("ZADD {recur} {odd} r")).await;
        let found = bench.due(&place).await;
        assert_eq!(found[0].next, Some(AT(time)), "{odd}");
        let fired = bench.backend.fire(&place, &id("r"), &[], AT(time), Some(AT(4_000_000_000_000))).await;
        assert_eq!(fired.expect("an answer"), Some(0), "{odd}");
        assert_eq!(bench.due(&place).await, []);
    }
}

#[tokio::test]
async fn a_replacement_is_paused_as_the_one_before_was_and_one_is_read_alone() {
    let mut bench = Bench::new().await;
    for place in [bench.partition(), Bench::shard()] {
        let backend = &bench.backend;
        let get = async || Recurring::get(backend, &place, &id("r")).await.expect("an answer");
        assert_eq!(get().await, None);
        let first = recurrence("r", Some(5));
        bench.recur(&place, &first, OnConflict::Keep).await;
        assert_eq!(get().await.as_ref(), Some(&first));
        assert!(backend.pause(&place, &id("r"), None).await.expect("paused"));
        let other = Recurrence { rule: "daily".into(), next: Some(AT(6)), ..first };
        assert_eq!(bench.recur(&place, &other, OnConflict::Replace).await, Placed::Replaced);
        let paused = Recurrence { paused: true, ..other.clone() };
        assert_eq!(get().await, Some(paused));
        assert_eq!(bench.due(&place).await, []);
        let items = bench.keys.recur_items(&place);
        bench.cmd(&format!("HSET {items} r garbage")).await;
        assert_eq!(Recurring::get(&bench.backend, &place, &id("r")).await.expect("an answer"), None);
        assert_eq!(bench.recur(&place, &other, OnConflict::Replace).await, Placed::Replaced);
        assert_eq!(bench.due(&place).await, [other], "what cannot be read is not paused");
    }
}
