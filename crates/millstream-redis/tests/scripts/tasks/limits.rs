//! What no call may do at once, and what somebody else put there: large tasks, foreign ids, a clock that is set back,
//! claims that hold on where everything else stands still.

use std::time::Duration;

use bytes::Bytes;
use millstream_core::Timestamp;
use millstream_core::id::MessageId;
use millstream_core::schedule::{Due, Placed, Schedule};
use millstream_core::tasks::{ClaimRequest, ClaimedTask, Tasks, Verdict};
use millstream_core::wire::Fields;
use redis::Value;

use crate::server::{Bench, message};
use crate::tasks::{DONE, LONG, NOW, ask, dead, shard};

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

const LARGE: usize = 600 << 10;

fn large() -> Fields {
    vec![(Bytes::from_static(b"payload"), Bytes::from(vec![b'x'; LARGE]))]
}

async fn put_large(bench: &Bench, count: usize) {
    for n in 0..count {
        bench.put_task(&format!("t-{n}"), Due::At(AT(n as u64 + 1)), large()).await;
    }
}

/// All of them, however many claims that takes.
async fn claim_all(bench: &Bench, count: usize) -> Vec<ClaimedTask> {
    let mut tasks = Vec::new();
    while tasks.len() < count {
        let claimed = bench.claim(&ask("w", 100)).await;
        assert!(!claimed.tasks.is_empty() && claimed.tasks.len() <= 2, "{}", claimed.tasks.len());
        tasks.extend(claimed.tasks);
    }
    tasks
}

#[tokio::test]
async fn no_script_handles_many_large_tasks_at_once_and_none_is_left_out() {
    const COUNT: usize = 12;
    let mut bench = Bench::private(&[]).await;
    put_large(&bench, COUNT).await;
    let tasks = claim_all(&bench, COUNT).await;
    assert_eq!(bench.claim(&ask("w", 100)).await.tasks.len(), 0);

    bench.cmd("CONFIG RESETSTAT").await;
    let batch: Vec<_> =
        tasks.iter().map(|task| (task.id.clone(), task.token.clone(), dead(task, "no"))).collect();
    let settled = bench.tasks().settle_tasks(&shard(), &batch).await.expect("settled");
    assert_eq!((settled.applied, settled.stale), (COUNT, 0));
    assert_eq!(calls(&mut bench, "evalsha").await, 1 + COUNT / 2, "unknown at first, then two at a time");

    let mut dead = Vec::new();
    loop {
        let after = dead.last().map_or(MessageId::ZERO, |(id, _)| *id);
        let page = bench.tasks().dead_tasks(&shard(), after, 1_000).await.expect("listed");
        if page.is_empty() {
            break;
        }
        let bytes: usize = page.iter().map(|task| task.body[0].1.len()).sum();
        assert!(bytes <= (4 << 20) + LARGE, "{} tasks in a page", page.len());
        dead.extend(page.into_iter().map(|task| (task.id, task.task.to_string())));
    }
    let names: Vec<_> = dead.iter().map(|(_, task)| task.clone()).collect();
    assert_eq!(names, (0..COUNT).map(|n| format!("t-{n}")).collect::<Vec<_>>());

    bench.cmd("CONFIG RESETSTAT").await;
    let ids: Vec<_> = dead.iter().map(|(id, _)| *id).collect();
    assert_eq!(bench.tasks().replay_tasks(&shard(), &ids).await.expect("replayed"), COUNT);
    assert_eq!(calls(&mut bench, "evalsha").await, 1 + COUNT / 2, "unknown at first, then two at a time");
    tokio::time::sleep(Duration::from_millis(2)).await;
    claim_all(&bench, COUNT).await;
}

/// How often a command was called since the statistics were set back.
async fn calls(bench: &mut Bench, command: &str) -> usize {
    let stats: String = redis::from_redis_value(bench.cmd("INFO commandstats").await).expect("text");
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn large_tasks_are_given_up_in_parts_too() {
    let bench = Bench::new().await;
    put_large(&bench, 6).await;
    for _ in 0..3 {
        let tasks = bench.claim(&ClaimRequest { hold: NOW, ..ask("w", 2) }).await.tasks;
        assert_eq!(tasks.len(), 2);
        let begun: Vec<_> = tasks.into_iter().map(|task| (task.id, task.token)).collect();
        bench.backend.extend(&shard(), &begun, NOW, true).await.expect("begun");
        let until = bench.claim(&ask("w", 0)).await.now.saturating_add(Duration::from_millis(1));
        while bench.claim(&ask("w", 0)).await.now < until {}
        let claimed = bench.claim(&ClaimRequest { crash_limit: 1, ..ask("w", 3) }).await;
        assert_eq!((claimed.crashed, claimed.tasks.len()), (2, 0));
    }
    assert_eq!(bench.counts().await.dead, 6);
}

#[tokio::test]
async fn all_dead_tasks_go_without_being_read() {
    let mut bench = Bench::private(&[]).await;
    let dlq = bench.keys.dead_tasks(&shard());
    for n in 0..2_345 {
        bench.cmd(&format!("XADD {dlq} * n {n}")).await;
    }
    bench.cmd("CONFIG RESETSTAT").await;
    assert_eq!(bench.tasks().purge_all(&shard()).await.expect("purged"), 2_345);
    assert_eq!(bench.int(&format!("XLEN {dlq}")).await, 0);
    assert_eq!((calls(&mut bench, "xrevrange").await, calls(&mut bench, "xrange").await), (1, 0));
    assert!(calls(&mut bench, "xtrim").await >= 3, "a part at a time");
    assert_eq!(bench.tasks().purge_all(&shard()).await.expect("purged"), 0);
    bench.cmd(&format!("SET {dlq} x")).await;
    bench.tasks().purge_all(&shard()).await.expect_err("not a stream");
}

#[tokio::test]
async fn a_task_under_no_id_of_ours_is_passed_over_and_given_up() {
    let mut bench = Bench::new().await;
    let (delay, items) = (bench.keys.delay(&bench.place()), bench.keys.delay_items(&bench.place()));
    for name in [&b"t-\xff"[..], b"t-\xef\xbf\xbd"] {
        // The second one is what the first one looks like when it is read as text.
        let mut add = redis::pipe();
        add.cmd("HSET").arg(items.as_str()).arg(name).arg(millstream_item(&message("x")));
        add.cmd("ZADD").arg(delay.as_str()).arg(1).arg(name);
        add.query_async::<Value>(&mut bench.raw).await.expect("added");
    }
    let careful = ClaimRequest { hold: NOW, crash_limit: 3, ..ask("w", 10) };
    let claimed = bench.claim(&ClaimRequest { hold: NOW, ..careful.clone() }).await;
    let names: Vec<_> = claimed.tasks.iter().map(|task| task.id.as_str()).collect();
    assert_eq!(names, ["t-\u{fffd}"], "each is itself");
    assert_eq!(bench.verdict(&claimed.tasks[0], Verdict::Complete).await, DONE);
    let mut crashed = 0;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let claimed = bench.claim(&careful).await;
        assert!(claimed.tasks.is_empty());
        crashed += claimed.crashed;
    }
    assert_eq!(crashed, 1);
    let dead = bench.tasks().dead_tasks(&shard(), MessageId::ZERO, 10).await.expect("listed");
    assert_eq!((dead.len(), dead[0].task.as_str()), (1, dead[0].id.to_string().as_str()));
    bench.assert_clean().await;
}

/// A body as it is stored: `MessagePack` of its names and values.
fn millstream_item(body: &Fields) -> Vec<u8> {
    let mut item = vec![0x90 | (2 * body.len()) as u8];
    for text in body.iter().flat_map(|(name, value)| [name, value]) {
        item.push(0xa0 | text.len() as u8);
        item.extend_from_slice(text);
    }
    item
}

#[tokio::test]
async fn a_clock_that_was_set_back_freezes_no_claim() {
    let mut bench = Bench::new().await;
    let claims = bench.keys.claims(&shard());
    bench.put_now(["dead", "alive", "patient", "long"].map(str::to_owned)).await;
    let tasks = bench.claim(&ask("w", 3)).await.tasks;
    let hour = Duration::from_secs(3_600);
    let long = bench.claim(&ClaimRequest { hold: 3 * hour, ..ask("w", 1) }).await.tasks.remove(0);
    // Its hold is what it was extended by.
    let patient = [(tasks[2].id.clone(), tasks[2].token.clone())];
    assert_eq!(bench.tasks().extend(&shard(), &patient, 2 * hour, false).await.expect("ours").ours, [true]);
    for task in &tasks {
        // As if the clock had been set back by an hour since.
        bench.cmd(&format!("ZINCRBY {claims} 3600000 {}", task.id)).await;
    }
    let before = bench.counts().await;
    let now = bench.claim(&ask("v", 1)).await.now;
    assert_eq!(bench.counts().await, before, "nothing is taken from who may be alive");
    let deadline = async |bench: &mut Bench, task: &ClaimedTask| -> u64 {
        let score: f64 = redis::from_redis_value(bench.cmd(&format!("ZSCORE {claims} {}", task.id)).await)
            .expect("a score");
        score as u64 - now.as_millis()
    };
    for task in &tasks[..2] {
        assert!(deadline(&mut bench, task).await <= 62_000, "{}", task.id);
    }
    let patient = deadline(&mut bench, &tasks[2]).await;
    assert!((7_100_000..=7_202_000).contains(&patient), "{patient}");
    assert!(deadline(&mut bench, &long).await > 10_700_000, "within its hold");
    let alive = [(tasks[1].id.clone(), tasks[1].token.clone())];
    assert_eq!(bench.tasks().extend(&shard(), &alive, LONG, false).await.expect("ours").ours, [true]);
}

#[tokio::test]
async fn what_a_handed_out_claim_had_before_is_told_from_what_is_new() {
    let bench = Bench::new().await;
    bench.put_now(["t".into()]).await;
    let first = bench.claim(&ClaimRequest { hold: NOW, ..ask("w", 1) }).await.tasks.remove(0);
    assert_eq!(first.before, None);
    tokio::time::sleep(Duration::from_millis(2)).await;
    let second = bench.claim_one("v").await;
    assert_eq!((second.before.as_ref(), second.crashes), (Some(&first.token), 1));
    assert_eq!(bench.verdict(&second, Verdict::Complete).await, DONE);
    bench.put_now(["t".into()]).await;
    assert_eq!(bench.claim_one("w").await.before, None, "another task with its id");
}

/// The messages' connection is driven by the caller's runtime, which a handler may block.
#[test]
fn claims_are_extended_while_the_callers_runtime_stands_still() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (bench, task) = runtime.block_on(async {
        let bench = Bench::new().await;
        bench.put_now(["t".into()]).await;
        let task = bench.claim_one("w").await;
        (bench, task)
    });
    // Nothing runs on the first runtime from here on.
    let backend = bench.backend.clone();
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let ours = [(task.id.clone(), task.token)];
    let extended = other.block_on(async {
        let shard = shard();
        let extend = Tasks::extend(&backend, &shard, &ours, LONG, true);
        tokio::time::timeout(LONG, async { extend.await.expect("extended") }).await
    });
    assert_eq!(extended.expect("in time").ours, [true]);
    drop(bench);
}

#[tokio::test]
async fn large_redeliveries_are_moved_in_parts() {
    let mut bench = Bench::new().await;
    let (due, items) =
        (bench.keys.retry_due(&bench.tp, &bench.group), bench.keys.retry_items(&bench.tp, &bench.group));
    // MessagePack of four strings: attempt, history, and a field whose value is long.
    let mut item = vec![0x94, 0xa1, b'2', 0xa0, 0xa1, b'p', 0xdb];
    item.extend_from_slice(&(LARGE as u32).to_be_bytes());
    item.extend(vec![b'x'; LARGE]);
    for n in 1..=20 {
        let mut add = redis::pipe();
        add.cmd("HSET").arg(items.as_str()).arg(format!("{n}-0")).arg(&item);
        add.cmd("ZADD").arg(due.as_str()).arg(n).arg(format!("{n}-0"));
        add.query_async::<Value>(&mut bench.raw).await.expect("parked");
    }
    let mut moved = Vec::new();
    while moved.iter().sum::<usize>() < 20 {
        let promoted = bench.backend.promote(&bench.lease, 200).await.expect("promoted");
        moved.push(promoted.moved);
        let left = moved.iter().sum::<usize>() < 20;
        assert_eq!(promoted.next, left.then_some(NOW), "the rest is due at once");
    }
    assert_eq!(moved, [2; 10], "up to 1 MiB, and one more");
}

#[tokio::test]
async fn after_a_restart_nobody_elses_wait_is_ended() {
    let mut bench = Bench::private(&[]).await;
    let wait = Duration::from_millis(100);
    assert!(!bench.tasks().wait(&shard(), wait).await.expect("not called"), "it is kept");
    bench.cmd("CONFIG RESETSTAT").await;
    // To the connection that ends waits, the server looks like another one: client ids start anew there.
    let list: String = redis::from_redis_value(bench.cmd("CLIENT LIST").await).expect("text");
    let id = |line: &str| line.strip_prefix("id=")?.split(' ').next().map(str::to_owned);
    let ours = list.lines().filter(|line| line.contains("name=millstream:messages ")).filter_map(id);
    for id in ours.collect::<Vec<_>>() {
        assert_eq!(bench.int(&format!("CLIENT KILL ID {id}")).await, 1);
    }
    bench.tasks().wait(&shard(), wait).await.expect_err("what came in the last moment may be lost");
    assert_eq!(calls(&mut bench, "client|unblock").await, 0);
    assert!(!bench.tasks().wait(&shard(), wait).await.expect("not called"));
    assert!(calls(&mut bench, "client|unblock").await > 0);
}

#[tokio::test]
async fn a_body_that_is_left_of_a_lost_task_is_not_in_the_way_of_its_id() {
    let mut bench = Bench::new().await;
    bench.put_task("t", Due::At(AT(1)), message("old")).await;
    let delay = bench.keys.delay(&bench.place());
    bench.int(&format!("DEL {delay}")).await;
    assert_eq!(bench.put_task("t", Due::At(AT(1)), message("new")).await, Placed::New);
    let task = bench.claim_one("w").await;
    assert_eq!((task.fields.clone(), task.attempt), (message("new"), 1));
    assert_eq!(bench.put_task("t", Due::At(AT(1)), message("late")).await, Placed::Kept, "it is worked on");
    assert_eq!(bench.verdict(&task, Verdict::Complete).await, DONE);
    bench.assert_clean().await;
}
