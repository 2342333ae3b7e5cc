//! Random sequences of everything that can happen to tasks, against a simple model: each is in one place at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_core::schedule::{Due, OnConflict, Placed, ScheduleId, Scheduling, Shard};
use millstream_core::tasks::{ClaimRequest, Verdict};
use millstream_core::{Backend, Envelope, ErrorKind, History, MessageId, Place, Reason, Timestamp, wire};
use proptest::prelude::*;

use crate::MemoryBackend;

/// In microseconds since 1970: in the middle of a millisecond.
const START: u64 = 1_700_000_000_000_567;
const IDS: usize = 4;
const CRASH_LIMIT: u32 = 3;

#[derive(Clone, Debug)]
enum Step {
    Schedule {
        id: usize,
        micros: u64,
        on_conflict: OnConflict,
    },
    Cancel {
        id: usize,
    },
    Reschedule {
        id: usize,
        micros: u64,
    },
    Claim {
        worker: usize,
        limit: usize,
        hold: u64,
    },
    /// The claim is one that was ever given out, counted from the newest.
    Settle {
        claim: usize,
        end: End,
    },
    Extend {
        claim: usize,
        hold: u64,
    },
    Replay {
        nth: usize,
    },
    Purge {
        nth: usize,
    },
    Pass {
        micros: u64,
    },
}

#[derive(Clone, Copy, Debug)]
enum End {
    Complete,
    Retry { micros: u64 },
    Snooze { micros: u64 },
    Dead,
}

/// Where a task is.
#[derive(Clone, Debug, PartialEq)]
enum Is {
    Waiting { due: u64 },
    Claimed { due: u64, deadline: u64, claim: usize, begun: bool },
}

#[derive(Clone, Debug, PartialEq)]
struct Task {
    is: Is,
    attempt: u32,
    crashes: u32,
}

#[derive(Default)]
struct Model {
    now: u64,
    tasks: BTreeMap<usize, Task>,
    dead: Vec<(MessageId, usize)>,
    /// Every claim that was ever given out: the task and its token.
    claims: Vec<(usize, String)>,
    /// What came and what went, of all ids together.
    came: usize,
    went: usize,
}

impl Model {
    fn millis(&self) -> u64 {
        self.now / 1_000
    }

    fn after(&self, micros: u64) -> u64 {
        (self.now + micros).div_ceil(1_000)
    }

    /// What a claim finds: `(id, whether its claim ran out)`.
    fn due(&self) -> Vec<(usize, bool)> {
        let mut due: Vec<_> = self
            .tasks
            .iter()
            .filter_map(|(id, task)| match task.is {
                Is::Claimed { deadline, .. } if deadline <= self.millis() => Some((0, deadline, *id)),
                Is::Waiting { due } if due <= self.millis() => Some((1, due, *id)),
                _ => None,
            })
            .collect();
        due.sort_unstable();
        due.into_iter().map(|(kind, _, id)| (id, kind == 0)).collect()
    }

    fn holder(&self, claim: usize) -> Option<usize> {
        let (id, _) = self.claims.get(claim)?;
        let task = self.tasks.get(id)?;
        matches!(task.is, Is::Claimed { claim: holder, .. } if holder == claim).then_some(*id)
    }

    fn nth_newest(&self, nth: usize) -> Option<usize> {
        self.claims.len().checked_sub(1 + nth % self.claims.len().max(1))
    }
}

struct Bench {
    backend: Backend,
    shard: Shard,
    model: Model,
}

fn id(n: usize) -> ScheduleId {
    ScheduleId::new(format!("task-{n}")).unwrap()
}

fn number(id: &ScheduleId) -> usize {
    id.as_str().strip_prefix("task-").unwrap().parse().unwrap()
}

fn micros(micros: u64) -> Due {
    Due::In(Duration::from_micros(micros))
}

impl Bench {
    fn new() -> Self {
        let backend = Backend::from(MemoryBackend::at(Duration::from_micros(START)));
        let model = Model { now: START, ..Model::default() };
        Self { backend, shard: Shard::new("mails".parse().unwrap(), 0), model }
    }

    fn place(&self) -> Place {
        self.shard.clone().into()
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Schedule { id, micros, on_conflict } => self.schedule(id, micros, on_conflict).await,
            Step::Cancel { id: n } => {
                let waits = matches!(self.model.tasks.get(&n), Some(Task { is: Is::Waiting { .. }, .. }));
                // Twice at once: at most one wins.
                let cancelled = self.backend.schedule().cancel(&self.place(), &[id(n), id(n)]).await.unwrap();
                assert_eq!(cancelled, [waits, false]);
                if waits {
                    self.model.tasks.remove(&n);
                    self.model.went += 1;
                }
            }
            Step::Reschedule { id: n, micros: later } => {
                let due = self.model.after(later);
                let task = self.model.tasks.get_mut(&n);
                let waits = task.is_some_and(|task| {
                    let waits = matches!(task.is, Is::Waiting { .. });
                    if waits {
                        task.is = Is::Waiting { due };
                    }
                    waits
                });
                let moved = self.backend.schedule().reschedule(&self.place(), &[id(n)], micros(later)).await;
                assert_eq!(moved.unwrap(), [waits]);
            }
            Step::Claim { worker, limit, hold } => self.claim(worker, limit, hold).await,
            Step::Settle { claim, end } => self.settle(claim, end).await,
            Step::Extend { claim, hold } => {
                let Some(claim) = self.model.nth_newest(claim) else { return };
                let (n, token) = self.model.claims[claim].clone();
                let holder = self.model.holder(claim);
                let (hold, begins) = (Duration::from_micros(hold), hold % 2 == 1);
                let held = self
                    .backend
                    .tasks()
                    .expect("delay queues")
                    .extend(&self.shard, &[(id(n), token)], hold, begins)
                    .await;
                let held = held.unwrap().ours;
                assert_eq!(held, [holder.is_some()]);
                let until = self.model.after(u64::try_from(hold.as_micros()).unwrap());
                if let Some(Task { is: Is::Claimed { deadline, begun, .. }, .. }) =
                    holder.and_then(|id| self.model.tasks.get_mut(&id))
                {
                    *deadline = until;
                    *begun |= begins;
                }
            }
            Step::Replay { nth } => {
                let Some((dead, n)) = self.nth_dead(nth) else { return };
                let free = !self.model.tasks.contains_key(&n);
                let moved = self
                    .backend
                    .tasks()
                    .expect("delay queues")
                    .replay_tasks(&self.shard, &[dead, dead])
                    .await
                    .unwrap();
                assert_eq!(moved, usize::from(free));
                if free {
                    self.model.dead.retain(|(id, _)| *id != dead);
                    let is = Is::Waiting { due: self.model.after(0) };
                    self.model.tasks.insert(n, Task { is, attempt: 1, crashes: 0 });
                }
            }
            Step::Purge { nth } => {
                let Some((dead, _)) = self.nth_dead(nth) else { return };
                assert_eq!(
                    self.backend
                        .tasks()
                        .expect("delay queues")
                        .purge_tasks(&self.shard, &[dead, dead])
                        .await
                        .unwrap(),
                    1
                );
                self.model.dead.retain(|(id, _)| *id != dead);
                self.model.went += 1;
            }
            Step::Pass { micros } => {
                tokio::time::advance(Duration::from_micros(micros)).await;
                self.model.now += micros;
            }
        }
    }

    fn nth_dead(&self, nth: usize) -> Option<(MessageId, usize)> {
        self.model.dead.get(nth % self.model.dead.len().max(1)).copied()
    }

    async fn schedule(&mut self, n: usize, later: u64, on_conflict: OnConflict) {
        let fields = wire::encode(&Envelope::new(format!("{n}")));
        let (place, due) = (self.place(), micros(later));
        let one = Scheduling { place, id: id(n), due, fields, on_conflict };
        let placed = self.backend.schedule().schedule(&[one]).await.remove(0);
        let there = self.model.tasks.get(&n).map(|task| matches!(task.is, Is::Waiting { .. }));
        let expected = match (there, on_conflict) {
            (None, _) => Ok(Placed::New),
            (Some(_), OnConflict::Reject) => Err(ErrorKind::Exists),
            (Some(true), OnConflict::Replace) => Ok(Placed::Replaced),
            (Some(_), _) => Ok(Placed::Kept),
        };
        assert_eq!(placed.map_err(|error| error.kind()), expected);
        if let Ok(Placed::New | Placed::Replaced) = expected {
            self.model.came += usize::from(there.is_none());
            let is = Is::Waiting { due: self.model.after(later) };
            self.model.tasks.insert(n, Task { is, attempt: 1, crashes: 0 });
        }
    }

    async fn claim(&mut self, worker: usize, limit: usize, hold: u64) {
        let ask = ClaimRequest {
            worker: format!("worker-{worker}"),
            limit,
            hold: Duration::from_micros(hold),
            crash_limit: CRASH_LIMIT,
            longest_sleep: Duration::from_secs(5),
            continuity: millstream_core::Continuity::assured(),
        };
        let claimed = self.backend.tasks().expect("delay queues").claim(&self.shard, &ask).await.unwrap();
        assert!(claimed.next <= ask.longest_sleep);
        let (mut tasks, mut crashed) = (claimed.tasks.into_iter(), 0);
        let model = &mut self.model;
        for (n, ran_out) in model.due().into_iter().take(limit) {
            let task = model.tasks.get_mut(&n).unwrap();
            // The first one counts unless it is the worker's own, a further one only if a handler had begun.
            let begun = matches!(task.is, Is::Claimed { begun: true, .. });
            let own = match task.is {
                Is::Claimed { claim, .. } => model.claims[claim].1.starts_with(&format!("{}-", ask.worker)),
                Is::Waiting { .. } => false,
            };
            task.crashes += u32::from(ran_out && (begun || task.crashes == 0 && !own));
            if ran_out && begun && task.crashes >= CRASH_LIMIT {
                // Which id it has among the dead is found out below.
                model.tasks.remove(&n);
                model.dead.push((MessageId::MAX, n));
                crashed += 1;
                continue;
            }
            let (Is::Waiting { due } | Is::Claimed { due, .. }) = task.is;
            let given = tasks.next().expect("one more is due");
            let expected = (n, Timestamp::from_millis(due), task.attempt, task.crashes);
            assert_eq!((number(&given.id), given.due, given.attempt, given.crashes), expected);
            assert!(due * 1_000 <= model.now, "{given:?} is early");
            assert!(model.claims.iter().all(|(_, token)| *token != given.token), "a token twice");
            let deadline = (model.now + hold).div_ceil(1_000);
            task.is = Is::Claimed { due, deadline, claim: model.claims.len(), begun: false };
            model.claims.push((n, given.token));
        }
        assert_eq!((tasks.next().map(|task| task.id), claimed.crashed), (None, crashed));
        self.name_the_dead().await;
    }

    async fn settle(&mut self, claim: usize, end: End) {
        let Some(claim) = self.model.nth_newest(claim) else { return };
        let (n, token) = self.model.claims[claim].clone();
        let holder = self.model.holder(claim);
        let attempt = self.model.tasks.get(&n).map_or(1, |task| task.attempt);
        let (error, history) = ("no".to_owned(), History::default());
        let verdict = match end {
            End::Complete => Verdict::Complete,
            End::Retry { micros: later } => {
                Verdict::Retry { due: micros(later), attempt: attempt + 1, error, history, wait: None }
            }
            End::Snooze { micros: later } => {
                Verdict::Retry { due: micros(later), attempt, error: String::new(), history, wait: None }
            }
            End::Dead => {
                let (reason, result) = (Reason::Rejected, None);
                Verdict::Dead { reason, attempts: attempt, error, history, result }
            }
        };
        let twice = [(id(n), token.clone(), verdict.clone()), (id(n), token, verdict)];
        let settled =
            self.backend.tasks().expect("delay queues").settle_tasks(&self.shard, &twice).await.unwrap();
        let applied = usize::from(holder.is_some());
        assert_eq!((settled.applied, settled.stale), (applied, 2 - applied));
        let Some(n) = holder else { return };
        let model = &mut self.model;
        match end {
            End::Complete => model.went += 1,
            End::Dead => model.dead.push((MessageId::MAX, n)),
            End::Retry { .. } | End::Snooze { .. } => {}
        }
        let before = model.tasks.remove(&n).unwrap();
        if let End::Retry { micros } | End::Snooze { micros } = end {
            let attempt = attempt + u32::from(matches!(end, End::Retry { .. }));
            let is = Is::Waiting { due: model.after(micros) };
            // Handed back before a handler began, it keeps what was against it.
            let begun = matches!(before.is, Is::Claimed { begun: true, .. });
            let kept = matches!(end, End::Snooze { .. }) && !begun;
            model.tasks.insert(n, Task { is, attempt, crashes: if kept { before.crashes } else { 0 } });
        }
        self.name_the_dead().await;
    }

    /// New dead tasks stand behind the old ones, in the order in which they died.
    async fn name_the_dead(&mut self) {
        let dead = self
            .backend
            .tasks()
            .expect("delay queues")
            .dead_tasks(&self.shard, MessageId::ZERO, 1_000)
            .await
            .unwrap();
        assert_eq!(dead.len(), self.model.dead.len());
        for (dead, (id, n)) in dead.iter().zip(&mut self.model.dead) {
            assert!(*id == MessageId::MAX || *id == dead.id);
            assert_eq!(number(&dead.task), *n);
            *id = dead.id;
        }
    }

    /// Nothing is in two places, and nothing is lost.
    async fn compare(&self) {
        let model = &self.model;
        let listed = self.backend.schedule().scheduled(&self.place(), None, 1_000).await.unwrap();
        let listed: Vec<_> = listed.iter().map(|one| (one.due, number(&one.id))).collect();
        let waiting = |(n, task): (&usize, &Task)| match task.is {
            Is::Waiting { due } => Some((Timestamp::from_millis(due), *n)),
            Is::Claimed { .. } => None,
        };
        let mut waits: Vec<_> = model.tasks.iter().filter_map(waiting).collect();
        waits.sort_unstable();
        assert_eq!(listed, waits);
        let counts = self.backend.tasks().expect("delay queues").counts(&self.shard).await.unwrap();
        let due = model.due();
        let expired = due.iter().filter(|(_, ran_out)| *ran_out).count();
        let count = |n: usize| n as u64;
        assert_eq!(counts.waiting.total, count(waits.len()));
        assert_eq!(counts.waiting.overdue, count(due.len() - expired));
        assert_eq!(counts.claimed, count(model.tasks.len() - waits.len()));
        assert_eq!((counts.expired, counts.dead), (count(expired), count(model.dead.len())));
        let there = counts.waiting.total + counts.claimed + counts.dead;
        assert_eq!(there, count(model.came - model.went), "what came is there or went");
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let later = || prop_oneof![Just(0), 1..3_000u64];
    let conflict = prop_oneof![Just(OnConflict::Keep), Just(OnConflict::Replace), Just(OnConflict::Reject)];
    let end = prop_oneof![
        2 => Just(End::Complete),
        2 => later().prop_map(|micros| End::Retry { micros }),
        1 => later().prop_map(|micros| End::Snooze { micros }),
        2 => Just(End::Dead),
    ];
    let hold = || prop_oneof![Just(0), 1..4_000u64];
    let step = prop_oneof![
        6 => (0..IDS, later(), conflict)
            .prop_map(|(id, micros, on_conflict)| Step::Schedule { id, micros, on_conflict }),
        2 => (0..IDS).prop_map(|id| Step::Cancel { id }),
        2 => (0..IDS, later()).prop_map(|(id, micros)| Step::Reschedule { id, micros }),
        6 => (0..2usize, 0..4usize, hold())
            .prop_map(|(worker, limit, hold)| Step::Claim { worker, limit, hold }),
        5 => (0..4usize, end).prop_map(|(claim, end)| Step::Settle { claim, end }),
        2 => (0..4usize, hold()).prop_map(|(claim, hold)| Step::Extend { claim, hold }),
        2 => (0..9usize).prop_map(|nth| Step::Replay { nth }),
        1 => (0..9usize).prop_map(|nth| Step::Purge { nth }),
        4 => (0..3_000u64).prop_map(|micros| Step::Pass { micros }),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_task_is_in_one_place_and_exactly_one_of_those_who_race_wins(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let mut bench = Bench::new();
            for step in steps {
                bench.step(step).await;
                bench.compare().await;
            }
        });
    }
}
