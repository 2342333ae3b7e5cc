//! Tasks under faults: claims that run out, races, a server out of memory, keys of foreign types.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::Timestamp;
use millstream_core::dead_letters::Reason;
use millstream_core::error::ErrorKind;
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::schedule::{Due, Schedule};
use millstream_core::tasks::{ClaimRequest, Tasks, Verdict};
use millstream_redis::RedisBackend;

use crate::server::{Bench, message};
use crate::tasks::{DONE, LONG, NOW, STALE, ask, dead, id, retry, shard};

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

/// Claims that run out at once.
fn brief(worker: &str, limit: usize) -> ClaimRequest {
    ClaimRequest { hold: NOW, ..ask(worker, limit) }
}

fn names(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|n| format!("t-{n:05}"))
}

/// Until a claim that was to hold for no time has run out: it ends with the next millisecond.
async fn run_out() {
    tokio::time::sleep(Duration::from_millis(2)).await;
}

#[tokio::test]
async fn a_claim_that_ran_out_goes_to_the_next_with_a_new_token() {
    let mut bench = Bench::new().await;
    bench.put_now(["t".into()]).await;
    let first = bench.claim(&brief("w-0", 1)).await.tasks.remove(0);
    run_out().await;
    let second = bench.claim(&brief("w-1", 1)).await.tasks.remove(0);
    assert_eq!((second.crashes, second.attempt, second.due), (1, 1, first.due));
    assert_ne!(first.token, second.token);
    let claims = [(first.id.clone(), first.token.clone()), (second.id.clone(), second.token.clone())];
    let extended = bench.tasks().extend(&shard(), &claims, LONG, false).await.expect("extended").ours;
    assert_eq!(extended, [false, true]);
    assert!(bench.claim(&ask("w-2", 1)).await.tasks.is_empty(), "extended");
    assert_eq!(bench.verdict(&first, Verdict::Complete).await, STALE);
    bench.tasks().extend(&shard(), &claims[1..], NOW, false).await.expect("extended");
    run_out().await;
    assert_eq!(bench.counts().await.expired, 1);
    assert_eq!(
        bench.verdict(&second, retry(Due::At(AT(1)), &second, 2, "no")).await,
        DONE,
        "nobody had it since"
    );
    let third = bench.claim_one("w-1").await;
    assert_eq!((third.crashes, third.attempt), (0, 2), "an attempt that was settled forgives");
    assert_eq!(bench.verdict(&third, Verdict::Complete).await, DONE);
    assert_eq!(
        bench.tasks().extend(&shard(), &claims, LONG, false).await.expect("extended").ours,
        [false, false]
    );
    bench.assert_clean().await;
}

#[tokio::test]
async fn what_ran_out_comes_first_and_is_bounded() {
    let bench = Bench::new().await;
    bench.put_now(names(150)).await;
    assert_eq!(bench.claim(&brief("w-1", 100)).await.tasks.len(), 100);
    run_out().await;
    let again = bench.claim(&ask("w-2", 60)).await;
    assert_eq!((again.tasks.len(), again.next), (60, NOW));
    assert!(again.tasks.iter().all(|task| task.crashes == 1));
    let rest = bench.claim(&ask("w-2", 100)).await;
    let crashes: Vec<_> = rest.tasks.iter().map(|task| task.crashes).collect();
    let expected: Vec<_> = [1; 40].into_iter().chain([0; 50]).collect();
    assert_eq!(crashes, expected);
}

#[tokio::test]
async fn a_task_whose_claims_run_out_too_often_dies() {
    let mut bench = Bench::new().await;
    bench.put_now(["a".into(), "b".into()]).await;
    let careful = |limit| ClaimRequest { crash_limit: 3, ..brief("w", limit) };
    for crashes in 0..3 {
        let claimed = bench.claim(&careful(10)).await;
        assert_eq!((claimed.tasks.len(), claimed.crashed), (2, 0));
        assert!(claimed.tasks.iter().all(|task| task.crashes == crashes));
        let ours: Vec<_> = claimed.tasks.into_iter().map(|task| (task.id, task.token)).collect();
        let held = bench.tasks().extend(&shard(), &ours, Duration::from_millis(1), true).await;
        assert_eq!(held.expect("extended").ours, [true; 2]);
        run_out().await;
    }
    for _ in 0..2 {
        let claimed = bench.claim(&careful(1)).await;
        assert_eq!((claimed.tasks.len(), claimed.crashed), (0, 1));
    }
    let letters = bench.tasks().dead_tasks(&shard(), MessageId::ZERO, 10).await.expect("listed");
    let told: Vec<_> = letters.iter().map(|letter| (letter.task.as_str(), &letter.reason)).collect();
    assert_eq!(told, [("a", &Reason::Crashed), ("b", &Reason::Crashed)]);
    assert_eq!((letters[0].attempts, letters[0].error.as_str()), (1, "3 claims ran out"));
    assert_eq!((&letters[0].body, letters[0].history.failures().len()), (&message("a"), 1));
    bench.assert_clean().await;
}

#[tokio::test]
async fn a_server_out_of_memory_lets_workers_get_on() {
    let mut bench = Bench::private(&[]).await;
    bench.put_now(names(5)).await;
    let crashing = bench.claim(&brief("w-0", 1)).await;
    let begun = [(crashing.tasks[0].id.clone(), crashing.tasks[0].token.clone())];
    let begun = bench.tasks().extend(&shard(), &begun, Duration::from_millis(1), true).await;
    assert_eq!(begun.expect("extended").ours, [true]);
    let place = bench.place();
    run_out().await;
    bench.cmd("CONFIG SET maxmemory 1").await;
    let claimed = bench.claim(&ClaimRequest { crash_limit: 1, ..ask("w-1", 4) }).await;
    assert_eq!((claimed.tasks.len(), claimed.crashed), (3, 1), "{crashing:?}");
    let [a, b, c] = &claimed.tasks[..] else { panic!("{claimed:?}") };
    let ours: Vec<_> = claimed.tasks.iter().map(|task| (task.id.clone(), task.token.clone())).collect();
    // Marking and another hold are written to the state too.
    let held = bench.tasks().extend(&shard(), &ours, 2 * LONG, true).await;
    assert_eq!(held.expect("extended").ours, [true; 3]);
    assert_eq!(bench.verdict(a, Verdict::Complete).await, DONE);
    assert_eq!(bench.verdict(b, retry(Due::At(AT(1)), b, 2, "no")).await, DONE);
    assert_eq!(bench.verdict(c, dead(c, "no")).await, DONE);
    let letters = bench.tasks().dead_tasks(&shard(), MessageId::ZERO, 10).await.expect("listed");
    assert_eq!(letters.len(), 2);
    let refused = bench.tasks().replay_tasks(&shard(), &[letters[0].id]).await.expect_err("no memory");
    assert_eq!(refused.kind(), ErrorKind::Backpressure);
    assert!(bench.backend.cancel(&place, &[id("t-00004")]).await.expect("an answer")[0]);
    assert!(bench.tasks().wait(&shard(), LONG).await.expect("called"));
}

#[tokio::test]
async fn a_key_of_a_foreign_type_is_met_before_anything_was_changed() {
    let mut bench = Bench::new().await;
    let (place, keys) = (bench.place(), bench.keys.clone());
    let all = [
        keys.delay(&place),
        keys.delay_items(&place),
        keys.claims(&shard()),
        keys.task_states(&shard()),
        keys.watcher(&shard()),
        keys.wake(&place),
        keys.dead_tasks(&shard()),
        keys.recur(&place),
    ];
    for foreign in &all {
        bench.cmd(&format!("DEL {}", all.each_ref().map(Key::as_str).join(" "))).await;
        bench.put_now(["a".into(), "b".into()]).await;
        bench.cmd(&format!("DEL {}", keys.wake(&place))).await;
        let a = bench.claim(&brief("w", 1)).await.tasks.remove(0);
        bench.cmd(&format!("DEL {}", keys.wake(&place))).await;
        run_out().await;
        let dump = |key: &str| format!("DUMP {key}");
        let mut before = BTreeMap::new();
        for key in all.iter().filter(|key| *key != foreign) {
            before.insert(key, bench.cmd(&dump(key.as_str())).await);
        }
        bench.cmd(&format!("SET {foreign} x")).await;
        let error = bench.tasks().claim(&shard(), &ClaimRequest { crash_limit: 1, ..ask("w", 9) }).await;
        assert_eq!(error.expect_err("foreign").kind(), ErrorKind::WrongType, "claim: {foreign}");
        for verdict in [Verdict::Complete, retry(Due::NOW, &a, 2, "x"), dead(&a, "x")] {
            let batch = [(a.id.clone(), a.token.clone(), verdict)];
            let error = bench.tasks().settle_tasks(&shard(), &batch).await.expect_err("foreign");
            assert_eq!(error.kind(), ErrorKind::WrongType, "settle: {foreign}");
            assert!(error.to_string().contains("settle_tasks"), "{error}");
        }
        for (key, was) in before {
            assert_eq!(bench.cmd(&dump(key.as_str())).await, was, "{key} beside {foreign}");
        }
    }
    bench.cmd(&format!("SET {} x", keys.wake(&place))).await;
    let error = bench.tasks().wait(&shard(), LONG).await.expect_err("foreign");
    assert_eq!(error.kind(), ErrorKind::WrongType);
    bench.cmd(&format!("SET {} x", keys.claims(&shard()))).await;
    assert_eq!(bench.tasks().counts(&shard()).await.expect_err("foreign").kind(), ErrorKind::WrongType);
}

/// Many workers and one who cancels race for the same tasks: each has exactly one winner.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_claims_and_cancels_exactly_one_wins() {
    const TASKS: usize = 2_000;
    let mut bench = Bench::new().await;
    let names: Vec<String> = names(TASKS).collect();
    let place = bench.place();
    let batch: Vec<_> = names
        .iter()
        .map(|name| millstream_core::schedule::Scheduling {
            place: place.clone(),
            id: id(name),
            due: Due::At(AT(1)),
            fields: message(name),
            on_conflict: millstream_core::schedule::OnConflict::Keep,
        })
        .collect();
    assert!(bench.backend.schedule(&batch).await.iter().all(Result::is_ok));
    let backend: Arc<RedisBackend> = Arc::new(bench.backend.clone());
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..6 {
        let backend = backend.clone();
        workers.spawn(async move {
            let mut won = Vec::new();
            loop {
                let tasks: &dyn Tasks = &*backend;
                let claimed = tasks.claim(&shard(), &ask(&format!("w-{worker}"), 7)).await.expect("claimed");
                if claimed.tasks.is_empty() {
                    return won;
                }
                let batch: Vec<_> = claimed
                    .tasks
                    .iter()
                    .map(|task| (task.id.clone(), task.token.clone(), Verdict::Complete))
                    .collect();
                let settled = tasks.settle_tasks(&shard(), &batch).await.expect("settled");
                assert_eq!(settled.stale, 0);
                won.extend(claimed.tasks.into_iter().map(|task| task.id));
            }
        });
    }
    for canceller in 0..2 {
        let (backend, place, names) = (backend.clone(), place.clone(), names.clone());
        workers.spawn(async move {
            let mut won = Vec::new();
            // From the end, where the workers come last, and both through the same ones.
            for name in names.iter().rev().skip(canceller) {
                let id = id(name);
                if backend.cancel(&place, std::slice::from_ref(&id)).await.expect("an answer")[0] {
                    won.push(id);
                }
            }
            won
        });
    }
    let mut winners = BTreeMap::new();
    let mut sides = Vec::new();
    while let Some(won) = workers.join_next().await {
        let won = won.expect("a worker");
        sides.push(won.len());
        for id in won {
            *winners.entry(id).or_insert(0) += 1;
        }
    }
    assert_eq!(winners.len(), TASKS, "{sides:?}");
    assert!(winners.values().all(|times| *times == 1), "{sides:?}");
    bench.assert_clean().await;
}
