//! Tasks of a delay queue: claims, tokens, verdicts, dead tasks, and the queues themselves.

pub(crate) mod cost;
pub(crate) mod faults;
pub(crate) mod limits;
pub(crate) mod outages;
pub(crate) mod trimming;
pub(crate) mod watch;

use std::time::Duration;

use bytes::Bytes;
use millstream_core::Timestamp;
use millstream_core::dead_letters::Reason;
use millstream_core::error::ErrorKind;
use millstream_core::history::History;
use millstream_core::id::MessageId;
use millstream_core::log::Settled;
use millstream_core::schedule::{Due, OnConflict, Place, Placed, Schedule, ScheduleId, Scheduling, Shard};
use millstream_core::tasks::{ClaimRequest, Claimed, ClaimedTask, QueueSpec, TaskCounts, Tasks, Verdict};
use millstream_core::wire::{Fields, MAX_BODY_FIELDS};

use crate::server::{Bench, fields, message};

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

/// Longer than any test.
pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const NOW: Duration = Duration::ZERO;

pub(crate) fn shard() -> Shard {
    Shard::new("mails".parse().expect("name"), 1)
}

pub(crate) fn id(id: &str) -> ScheduleId {
    ScheduleId::new(id).expect("an id")
}

pub(crate) fn ask(worker: &str, limit: usize) -> ClaimRequest {
    ClaimRequest {
        worker: worker.into(),
        limit,
        hold: LONG,
        crash_limit: 0,
        longest_sleep: LONG,
        continuity: millstream_core::Continuity::assured(),
    }
}

pub(crate) fn retry(due: Due, task: &ClaimedTask, attempt: u32, error: &str) -> Verdict {
    Verdict::Retry { due, attempt, error: error.into(), history: task.history.clone(), wait: None }
}

pub(crate) fn dead(task: &ClaimedTask, error: &str) -> Verdict {
    let (reason, history) = (Reason::Rejected, task.history.clone());
    Verdict::Dead { reason, attempts: task.attempt, error: error.into(), history, result: None }
}

impl Bench {
    pub(crate) fn tasks(&self) -> &dyn Tasks {
        &self.backend
    }

    pub(crate) fn place(&self) -> Place {
        shard().into()
    }

    pub(crate) async fn put_task(&self, name: &str, due: Due, fields: Fields) -> Placed {
        let one =
            Scheduling { place: self.place(), id: id(name), due, fields, on_conflict: OnConflict::Keep };
        self.backend.schedule(&[one]).await.remove(0).expect("scheduled")
    }

    /// Due at once; within a millisecond, so it is due when this returns.
    pub(crate) async fn put_now(&self, names: impl IntoIterator<Item = String>) {
        for name in names {
            assert_eq!(self.put_task(&name, Due::At(AT(1)), message(&name)).await, Placed::New);
        }
    }

    pub(crate) async fn claim(&self, ask: &ClaimRequest) -> Claimed {
        self.tasks().claim(&shard(), ask).await.expect("claimed")
    }

    /// Claims one task that is due.
    pub(crate) async fn claim_one(&self, worker: &str) -> ClaimedTask {
        let mut claimed = self.claim(&ask(worker, 1)).await;
        assert_eq!(claimed.tasks.len(), 1);
        claimed.tasks.remove(0)
    }

    pub(crate) async fn verdict(&self, task: &ClaimedTask, verdict: Verdict) -> Settled {
        let batch = [(task.id.clone(), task.token.clone(), verdict)];
        self.tasks().settle_tasks(&shard(), &batch).await.expect("settled")
    }

    pub(crate) async fn counts(&self) -> TaskCounts {
        self.tasks().counts(&shard()).await.expect("counted")
    }

    /// Nothing at all is left of the shard's tasks.
    pub(crate) async fn assert_clean(&mut self) {
        let (keys, place) = (self.keys.clone(), self.place());
        let (delay, items, claims, states) =
            (keys.delay(&place), keys.delay_items(&place), keys.claims(&shard()), keys.task_states(&shard()));
        assert_eq!(self.int(&format!("EXISTS {delay} {items} {claims} {states}")).await, 0);
    }
}

pub(crate) const DONE: Settled = Settled { applied: 1, stale: 0 };
pub(crate) const STALE: Settled = Settled { applied: 0, stale: 1 };

/// Runs every script of tasks at least once.
pub(crate) async fn life(bench: &mut Bench) {
    bench.put_now(["a".into(), "b".into(), "c".into()]).await;
    let claimed = bench.claim(&ask("w-1", 3)).await;
    let [a, b, c] = &claimed.tasks[..] else { panic!("{claimed:?}") };
    let ours: Vec<_> = claimed.tasks.iter().map(|task| (task.id.clone(), task.token.clone())).collect();
    assert_eq!(bench.tasks().extend(&shard(), &ours, LONG, false).await.expect("extended").ours, [true; 3]);
    assert_eq!(bench.verdict(a, Verdict::Complete).await, DONE);
    assert_eq!(bench.verdict(b, retry(Due::At(AT(2)), b, 2, "no")).await, DONE);
    assert_eq!(bench.verdict(c, dead(c, "never")).await, DONE);
    let again = bench.claim_one("w-1").await;
    assert_eq!((again.id.as_str(), again.due, again.attempt, again.error.as_str()), ("b", AT(2), 2, "no"));
    assert_eq!(bench.verdict(&again, Verdict::Complete).await, DONE);
    let tasks = bench.tasks();
    let letters = tasks.dead_tasks(&shard(), MessageId::ZERO, 9).await.expect("listed");
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    assert_eq!(tasks.replay_tasks(&shard(), &[letter.id]).await.expect("replayed"), 1);
    assert!(tasks.wait(&shard(), LONG).await.expect("called"));
    assert!(!tasks.wait(&shard(), Duration::from_millis(3)).await.expect("not called"));
    let back = bench.claim_one("w-1").await;
    assert_eq!((back.id.as_str(), back.attempt, &back.fields), ("c", 1, &message("c")));
    assert_eq!(bench.verdict(&back, Verdict::Complete).await, DONE);
    assert_eq!(bench.counts().await, TaskCounts::default());
    let spec = QueueSpec::new(shard().queue, 4);
    assert_eq!(bench.tasks().create_queue(&spec).await.expect("created"), spec);
    bench.assert_clean().await;
}

#[tokio::test]
async fn a_task_is_claimed_when_it_is_due_and_by_one_worker() {
    let mut bench = Bench::new().await;
    life(&mut bench).await;
    let in_a_while = Duration::from_secs(1);
    bench.put_task("later", Due::In(in_a_while), message("later")).await;
    let early = bench.claim(&ask("w-1", 5)).await;
    assert!(early.tasks.is_empty() && early.next <= in_a_while + Duration::from_millis(1));
    assert!(early.next > Duration::from_millis(20), "{:?}", early.next);
    tokio::time::sleep(early.next).await;
    let task = bench.claim_one("w-1").await;
    assert_eq!((task.attempt, task.crashes, task.error.as_str()), (1, 0, ""));
    assert!(task.due >= early.now && task.history.is_empty() && task.token.starts_with("w-1:"));
    assert!(bench.claim(&ask("w-2", 5)).await.tasks.is_empty(), "it is the other one's");
    let [other, wrong] = [Verdict::Complete, Verdict::Complete].map(|verdict| verdict);
    let stranger = ClaimedTask { token: "w-2:1:1".into(), ..task.clone() };
    assert_eq!(bench.verdict(&stranger, other).await, STALE);
    let unclaimed = ClaimedTask { token: "-".into(), ..task.clone() };
    assert_eq!(bench.verdict(&unclaimed, wrong).await, STALE);
    assert_eq!(bench.put_task("later", Due::NOW, message("x")).await, Placed::Kept, "it is worked on");
    assert!(!bench.backend.cancel(&bench.place(), &[id("later")]).await.expect("an answer")[0]);
    let twice = [0, 1].map(|_| (task.id.clone(), task.token.clone(), Verdict::Complete));
    let settled = bench.tasks().settle_tasks(&shard(), &twice).await.expect("settled");
    assert_eq!(settled, Settled { applied: 1, stale: 1 }, "once");
    assert_eq!(bench.verdict(&task, Verdict::Complete).await, STALE);
    bench.assert_clean().await;
}

#[tokio::test]
async fn tasks_come_by_due_time_up_to_the_limit() {
    let bench = Bench::new().await;
    for n in (0..250_u64).rev() {
        bench.put_task(&format!("t-{n:03}"), Due::At(AT(n + 1)), message("x")).await;
    }
    let mut came = Vec::new();
    for limit in [1, 100, 1_000, 100] {
        let claimed = bench.claim(&ask("w-1", limit)).await;
        assert!(claimed.tasks.len() <= 100);
        assert_eq!(claimed.next == NOW, came.len() + claimed.tasks.len() < 250);
        came.extend(claimed.tasks.into_iter().map(|task| (task.id.to_string(), task.due)));
    }
    let all: Vec<_> = (0..250).map(|n| (format!("t-{n:03}"), AT(n + 1))).collect();
    assert_eq!(came, all);
    let counts = bench.counts().await;
    assert_eq!((counts.waiting.total, counts.claimed, counts.expired), (0, 250, 0));
}

#[tokio::test]
async fn retries_keep_what_failed_and_a_snooze_adds_nothing() {
    let mut bench = Bench::new().await;
    bench.put_now(["t".into()]).await;
    let first = bench.claim_one("w").await;
    assert_eq!(bench.verdict(&first, retry(Due::At(AT(3)), &first, 2, "no\nmoney")).await, DONE);
    assert_eq!(bench.verdict(&first, Verdict::Complete).await, STALE, "the token went with the claim");
    let second = bench.claim_one("w").await;
    assert_eq!((second.due, second.attempt, second.error.as_str()), (AT(3), 2, "no money"));
    let [failed] = second.history.failures() else { panic!("{:?}", second.history) };
    assert!(failed.attempt == 1 && failed.error == "no money" && failed.at > AT(1_000_000_000_000));
    assert_eq!(bench.verdict(&second, retry(Due::At(AT(4)), &second, 2, "")).await, DONE);
    let snoozed = bench.claim_one("w").await;
    assert_eq!((snoozed.attempt, snoozed.error.as_str()), (2, "no money"));
    assert_eq!(snoozed.history, second.history);

    let mut task = snoozed;
    for attempt in 3..20 {
        let error = format!("no {}", "x".repeat(3_000));
        assert_eq!(bench.verdict(&task, retry(Due::At(AT(4)), &task, attempt, &error)).await, DONE);
        task = bench.claim_one("w").await;
        assert_eq!((task.attempt, task.error.len()), (attempt, 1_024));
    }
    let attempts: Vec<_> = task.history.failures().iter().map(|failed| failed.attempt).collect();
    assert_eq!(attempts, [1, 10, 11, 12, 13, 14, 15, 16, 17, 18]);

    assert_eq!(bench.verdict(&task, dead(&task, "never")).await, DONE);
    let dead = bench.tasks().dead_tasks(&shard(), MessageId::ZERO, 10).await.expect("listed").remove(0);
    assert_eq!((dead.task.as_str(), &dead.reason, dead.attempts), ("t", &Reason::Rejected, 19));
    assert_eq!((dead.error.as_str(), &dead.body), ("never", &message("t")));
    let attempts: Vec<_> = dead.history.failures().iter().map(|failed| failed.attempt).collect();
    assert_eq!(attempts, [1, 11, 12, 13, 14, 15, 16, 17, 18, 19]);
    bench.assert_clean().await;
}

#[tokio::test]
async fn bytes_in_are_bytes_out_also_over_death_and_replay() {
    let mut bench = Bench::new().await;
    let backend = bench.backend.clone();
    let tasks: &dyn Tasks = &backend;
    let odd =
        fields(&[(b"payload", b"\xff\x00\r\n"), (b"f", b"1"), (b"\xfe", b""), (b"f", b"2"), (b"", b"x")]);
    let most: Fields =
        (0..MAX_BODY_FIELDS).map(|i| (Bytes::from(format!("f{i}")), Bytes::from_static(b"\xff"))).collect();
    for (name, body) in [("odd", odd), ("most", most)] {
        bench.put_task(name, Due::At(AT(1)), body.clone()).await;
        let task = bench.claim_one("w").await;
        assert_eq!(task.fields, body);
        assert_eq!(bench.verdict(&task, dead(&task, "x")).await, DONE);
        let letter = tasks.dead_tasks(&shard(), MessageId::ZERO, 10).await.expect("listed").remove(0);
        assert_eq!(letter.body, body);
        assert_eq!(bench.put_task(name, Due::At(AT(1)), message("other")).await, Placed::New);
        let ids = [letter.id, letter.id, MessageId::new(1, 1)];
        assert_eq!(tasks.replay_tasks(&shard(), &ids).await.expect("replayed"), 0, "its id is in use");
        let other = bench.claim_one("w").await;
        assert_eq!(tasks.replay_tasks(&shard(), &ids).await.expect("replayed"), 0, "and worked on");
        assert_eq!(bench.verdict(&other, Verdict::Complete).await, DONE);
        // A body that is left of a task which neither waits nor is worked on is in nobody's way.
        let items = bench.keys.delay_items(&shard().into());
        bench.cmd(&format!("HSET {items} {name} leftover")).await;
        assert_eq!(tasks.replay_tasks(&shard(), &ids).await.expect("replayed"), 1, "once");
        tokio::time::sleep(Duration::from_millis(2)).await;
        let back = bench.claim_one("w").await;
        assert_eq!((back.id.as_str(), back.attempt, &back.fields), (name, 1, &body));
        assert_eq!((back.error.as_str(), &back.history), ("", &History::default()));
        assert_eq!(bench.verdict(&back, Verdict::Complete).await, DONE);
    }
}

#[tokio::test]
async fn what_somebody_put_there_or_deleted_is_told() {
    let mut bench = Bench::new().await;
    let (place, keys) = (bench.place(), bench.keys.clone());
    let (items, dlq, delay) = (keys.delay_items(&place), keys.dead_tasks(&shard()), keys.delay(&place));
    bench.put_now(["lost".into(), "strange".into(), "list".into()]).await;
    bench.cmd(&format!("HDEL {items} lost")).await;
    bench.cmd(&format!("HSET {items} strange garbage")).await;
    bench.cmd(&format!("ZADD {delay} -inf foreign")).await;
    let claimed = bench.claim(&ask("w", 10)).await;
    for task in &claimed.tasks {
        match task.id.as_str() {
            "lost" | "foreign" => assert_eq!(task.fields, Fields::new()),
            "strange" => assert_eq!(task.fields, fields(&[(b"packed", b"garbage")])),
            _ => assert_eq!(task.fields, message("list")),
        }
        assert_eq!(bench.verdict(task, dead(task, "x")).await, DONE);
    }
    bench.cmd(&format!("XADD {dlq} * hello world")).await;
    let tasks = bench.tasks();
    let letters = tasks.dead_tasks(&shard(), MessageId::ZERO, 10).await.expect("listed");
    assert_eq!(letters.len(), 5);
    assert_eq!(letters[4].body, fields(&[(b"hello", b"world")]));
    assert_eq!((letters[4].task.to_string(), letters[4].reason.as_str()), (letters[4].id.to_string(), ""));
    let after = tasks.dead_tasks(&shard(), letters[3].id, 10).await.expect("listed");
    assert_eq!(after.len(), 1);
    let ids: Vec<_> = letters.iter().map(|letter| letter.id).collect();
    assert_eq!(tasks.replay_tasks(&shard(), &ids[1..]).await.expect("replayed"), 4);
    assert_eq!(tasks.purge_tasks(&shard(), &ids).await.expect("purged"), 1);
    tokio::time::sleep(Duration::from_millis(2)).await;
    let again = bench.claim(&ask("w", 10)).await;
    let foreign = again.tasks.iter().find(|task| task.id.to_string() == ids[4].to_string()).expect("there");
    assert_eq!(foreign.fields, fields(&[(b"hello", b"world")]));
    assert_eq!(again.tasks.len(), 4);
}

#[tokio::test]
async fn the_first_to_create_a_queue_decides() {
    let mut bench = Bench::new().await;
    let queue = |name: &str, shards| QueueSpec::new(name.parse().expect("name"), shards);
    let missing = bench.tasks().queue(&queue("mails", 1).name).await.expect_err("none");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    for shards in [0, 1_025, u32::MAX] {
        let error = bench.tasks().create_queue(&queue("mails", shards)).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    }
    let first = queue("mails", 3);
    assert_eq!(bench.tasks().create_queue(&first).await.expect("created"), first);
    assert_eq!(bench.tasks().create_queue(&queue("mails", 7)).await.expect("there"), first);
    assert_eq!(bench.tasks().queue(&first.name).await.expect("there"), first);
    bench.tasks().create_queue(&queue("calls", 1_024)).await.expect("created");
    let names: Vec<_> =
        bench.tasks().queues().await.expect("queues").iter().map(ToString::to_string).collect();
    assert_eq!(names, ["calls", "mails"]);
    let meta = bench.keys.queue_meta(&first.name);
    for (change, kind) in [
        ("shards 0", ErrorKind::Protocol),
        ("shards x", ErrorKind::Protocol),
        ("format 2", ErrorKind::Unsupported),
    ] {
        bench.cmd(&format!("HSET {meta} shards 3 format 1")).await;
        bench.cmd(&format!("HSET {meta} {change}")).await;
        assert_eq!(bench.tasks().queue(&first.name).await.expect_err(change).kind(), kind, "{change}");
    }
    bench.cmd(&format!("SET {meta} x")).await;
    let error = bench.tasks().create_queue(&first).await.expect_err("a string");
    assert_eq!(error.kind(), ErrorKind::WrongType);
}

#[tokio::test]
async fn a_worker_needs_a_name_that_is_one() {
    let bench = Bench::new().await;
    for worker in ["", "a b", "a\n", &"x".repeat(129)] {
        let error = bench.tasks().claim(&shard(), &ask(worker, 1)).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{worker:?}");
    }
    assert!(bench.tasks().settle_tasks(&shard(), &[]).await.expect("nothing").applied == 0);
    assert!(bench.tasks().extend(&shard(), &[], LONG, false).await.expect("nothing").ours.is_empty());
}

/// Ids of completed tasks are kept in a key with a ttl, and are removed as others are added.
#[tokio::test]
async fn ids_of_completed_tasks_are_trimmed_and_expire() {
    let mut bench = Bench::new().await;
    let key = bench.keys.finished(&shard());
    for portion in 0..3 {
        let old: Vec<_> = (1..=100).map(|n| format!("{n} old-{portion}-{n}")).collect();
        bench.cmd(&format!("ZADD {key} {}", old.join(" "))).await;
    }
    for (name, left) in [("a", 101), ("b", 2), ("c", 3)] {
        bench.put_now([name.to_owned()]).await;
        let task = bench.claim_one("w").await;
        assert_eq!(bench.verdict(&task, Verdict::CompleteFor(LONG)).await, DONE);
        assert_eq!(bench.int(&format!("ZCARD {key}")).await, left, "after {name}");
    }
    let ttl = bench.int(&format!("PTTL {key}")).await;
    assert!((1..=60_000).contains(&ttl), "{ttl}");
    assert_eq!(bench.put_task("a", Due::NOW, message("a")).await, Placed::Done);
    bench.assert_clean().await;

    // Somebody else's data: nothing is settled or scheduled half-way.
    bench.put_now(["d".to_owned()]).await;
    let task = bench.claim_one("w").await;
    bench.cmd(&format!("SET {key} theirs")).await;
    let batch = [(task.id.clone(), task.token.clone(), Verdict::CompleteFor(LONG))];
    assert!(bench.tasks().settle_tasks(&shard(), &batch).await.is_err());
    let (place, fields, due, on_conflict) = (bench.place(), message("e"), Due::NOW, OnConflict::Keep);
    let other = Scheduling { place, id: id("e"), due, fields, on_conflict };
    assert!(bench.backend.schedule(&[other]).await[0].is_err());
    assert_eq!((bench.counts().await.claimed, bench.counts().await.waiting.total), (1, 0));
    bench.cmd(&format!("DEL {key}")).await;
    assert_eq!(bench.verdict(&task, Verdict::Complete).await, DONE);
    bench.assert_clean().await;
}
