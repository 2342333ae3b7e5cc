//! Who comes for what is due: one watcher, one deputy, and calls that wake one worker.

use std::time::{Duration, Instant};

use millstream_core::schedule::Due;
use millstream_core::tasks::{ClaimRequest, Verdict};

use crate::server::{Bench, message};
use crate::tasks::{DONE, LONG, NOW, ask, retry, shard};

const GRACE: Duration = Duration::from_millis(250);
/// More than a call needs, less than any next in these tests.
const SOON: Duration = Duration::from_millis(40);

async fn next(bench: &Bench, worker: &str) -> Duration {
    bench.claim(&ask(worker, 1)).await.next
}

async fn called(bench: &Bench) -> bool {
    bench.tasks().wait(&shard(), SOON).await.expect("waited")
}

fn about(next: Duration, expected: Duration) -> bool {
    next <= expected + Duration::from_millis(1) && next + Duration::from_secs(1) > expected
}

#[tokio::test]
async fn one_watches_one_is_its_deputy_and_the_others_sleep_on() {
    let bench = Bench::new().await;
    let head = Duration::from_secs(20);
    bench.put_task("t", Due::In(head), message("t")).await;
    assert!(about(next(&bench, "w-1").await, head));
    assert!(!called(&bench).await, "the call was answered by whoever watches");
    let deputy = next(&bench, "w-2").await;
    assert!(deputy > head + GRACE - 2 * SOON && deputy <= head + GRACE, "{deputy:?}");
    for worker in 3..9 {
        assert_eq!(next(&bench, &format!("w-{worker}")).await, LONG);
    }
    assert!(next(&bench, "w-1").await <= head, "still the watcher");
    assert!(next(&bench, "w-2").await < LONG, "still the deputy");
    assert_eq!(next(&bench, "w-3").await, LONG);
}

#[tokio::test]
async fn an_earlier_task_calls_one_worker_and_that_one_watches() {
    let bench = Bench::new().await;
    bench.put_task("late", Due::In(Duration::from_secs(20)), message("t")).await;
    for worker in ["w-1", "w-2", "w-3"] {
        next(&bench, worker).await;
    }
    bench.put_task("later", Due::In(Duration::from_secs(30)), message("t")).await;
    assert!(!called(&bench).await, "not the head");
    let (one, another, calls) = (called(&bench), called(&bench), async {
        bench.put_task("early", Due::In(Duration::from_secs(5)), message("t")).await;
    });
    let (one, another, ()) = tokio::join!(one, another, calls);
    assert!(one != another, "exactly one is called: {one} {another}");
    assert!(
        about(next(&bench, "w-3").await, Duration::from_secs(5)),
        "the head is earlier than the watcher comes"
    );
    assert!(next(&bench, "w-1").await > Duration::from_secs(5), "not the watcher any more");
}

#[tokio::test]
async fn after_a_watcher_that_died_its_deputy_comes_within_the_grace() {
    let bench = Bench::new().await;
    // The server says how long until then, so each call before may take up to a second.
    let (head, calls) = (Duration::from_secs(2), Duration::from_secs(1));
    bench.put_task("t", Due::In(head), message("t")).await;
    assert!(next(&bench, "dies").await <= head + Duration::from_millis(1));
    let deputy = next(&bench, "w-2").await;
    assert!(deputy > head - calls && deputy <= head + GRACE + Duration::from_millis(2), "{deputy:?}");
    tokio::time::sleep(deputy).await;
    assert_eq!(bench.claim(&ask("w-2", 1)).await.tasks.len(), 1);
}

#[tokio::test]
async fn a_worker_without_room_calls_another_if_nobody_comes_in_time() {
    let bench = Bench::new().await;
    let head = Duration::from_secs(20);
    bench.put_task("far", Due::In(head), message("t")).await;
    called(&bench).await;
    assert!(about(next(&bench, "w-1").await, head));
    let busy = bench.claim(&ask("w-1", 0)).await;
    assert_eq!((busy.tasks.len(), busy.next), (0, LONG));
    assert!(called(&bench).await, "it watched, and does not any more");
    assert!(about(next(&bench, "w-2").await, head), "whoever comes watches");
    bench.claim(&ask("w-1", 0)).await;
    assert!(!called(&bench).await, "somebody watches");
    bench.put_now(["t".into()]).await;
    assert!(called(&bench).await, "the head");
    let task = bench.claim_one("w-2").await;
    assert!(called(&bench).await, "w-2 has no room");
    assert!(about(next(&bench, "w-3").await, head));
    assert_eq!(bench.verdict(&task, Verdict::Complete).await, DONE);
}

#[tokio::test]
async fn many_due_at_once_call_one_worker_after_the_other() {
    let bench = Bench::new().await;
    bench.put_now((0..10).map(|n| format!("t-{n}"))).await;
    for n in 0..9 {
        assert!(called(&bench).await, "{n}");
        let claimed = bench.claim(&ask(&format!("w-{n}"), 1)).await;
        assert_eq!((claimed.tasks.len(), claimed.next), (1, NOW));
    }
    assert!(called(&bench).await);
    let last = bench.claim(&ask("w-9", 1)).await;
    assert!(about(last.next, LONG / 3), "while claims are open, three times per hold: {:?}", last.next);
}

#[tokio::test]
async fn a_retry_that_becomes_the_head_calls_unless_somebody_comes_in_time() {
    let bench = Bench::new().await;
    bench.put_now(["a".into(), "b".into()]).await;
    let claimed = bench.claim(&ask("w-1", 5)).await;
    assert!(called(&bench).await, "nobody else stays near");
    let [a, b] = &claimed.tasks[..] else { panic!("{claimed:?}") };
    let due = Due::In(Duration::from_secs(3));
    assert_eq!(bench.verdict(a, retry(due, a, 2, "x")).await, DONE);
    assert!(called(&bench).await, "w-1 comes later than that");
    assert!(about(next(&bench, "w-1").await, Duration::from_secs(3)));
    assert!(called(&bench).await, "it may have received its own call, and passes it on");
    assert_eq!(bench.verdict(b, retry(Due::In(Duration::from_secs(9)), b, 2, "x")).await, DONE);
    assert!(!called(&bench).await, "not the head");
}

#[tokio::test]
async fn claims_that_run_out_and_recurrences_are_looked_out_for() {
    let mut bench = Bench::new().await;
    bench.put_now(["t".into()]).await;
    let hold = Duration::from_secs(7);
    bench.claim(&ClaimRequest { hold, ..ask("w-1", 1) }).await;
    assert!(called(&bench).await);
    assert!(about(next(&bench, "w-2").await, hold));
    let recur = bench.keys.recur(&bench.place());
    let now = bench.claim(&ask("w-2", 1)).await.now;
    bench.cmd(&format!("ZADD {recur} {} daily", now.as_millis() + 4_000)).await;
    let claimed = bench.claim(&ask("w-3", 1)).await;
    assert!(about(claimed.next, Duration::from_secs(4)) && !claimed.recurring, "{claimed:?}");
    bench.cmd(&format!("ZADD {recur} 5 daily")).await;
    let due = bench.claim(&ask("w-3", 1)).await;
    assert!(
        due.recurring && due.next > NOW && due.next <= GRACE,
        "whoever is told has time to fire: {due:?}"
    );
}

/// A call that comes while a wait ends is not lost, and a wait that is dropped takes no later one.
#[tokio::test]
async fn a_wait_ends_in_time_and_its_connection_is_of_use_again() {
    let mut bench = Bench::private(&[]).await;
    for _ in 0..30 {
        let began = Instant::now();
        assert!(!bench.tasks().wait(&shard(), Duration::from_millis(7)).await.expect("waited"));
        assert!(began.elapsed() >= Duration::from_millis(7));
    }
    let clients = bench.cmd("CLIENT LIST").await;
    let text: String = redis::from_redis_value(clients).expect("text");
    assert_eq!(text.matches("name=millstream:wait").count(), 1, "{text}");
    assert!(tokio::time::timeout(SOON, bench.tasks().wait(&shard(), LONG)).await.is_err(), "dropped");
    let wake = bench.keys.wake(&bench.place());
    // The server has noticed when nobody is blocked.
    for _ in 0..200 {
        let info: String = redis::from_redis_value(bench.cmd("INFO clients").await).expect("text");
        if info.contains("blocked_clients:0") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(bench.int(&format!("LPUSH {wake} 1")).await, 1, "nobody takes it");
    assert!(bench.tasks().wait(&shard(), LONG).await.expect("called"), "a call is kept");
    let mut received = 0;
    for n in 0..40_u64 {
        let push = async {
            tokio::time::sleep(Duration::from_micros(2_000 + 50 * n)).await;
            let mut raw = bench.raw.clone();
            redis::cmd("LPUSH").arg(wake.as_str()).arg(1).exec_async(&mut raw).await.expect("called");
        };
        let shard = shard();
        let (called, ()) = tokio::join!(bench.tasks().wait(&shard, Duration::from_millis(3)), push);
        received += i64::from(called.expect("waited"));
    }
    let left = bench.int(&format!("LLEN {wake}")).await;
    assert_eq!(received + left, 40, "every call was received, or is kept");
}
