//! What a trim drops and counts, against a model: groups of ours and foreign ones, positions that somebody set back, entries
//! that somebody deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fastrand::Rng;
use millstream_core::catalog::{Catalog, Start};
use millstream_core::id::MessageId;
use millstream_core::log::{Log, Lost};
use millstream_core::topic::Retention;

use crate::server::Bench;

/// So far apart are the times of entries, so that the time that passes in a test makes no difference.
const STEP_MS: u64 = 1_000_000;

/// A group, as it must stand.
#[derive(Clone, Debug, Default)]
struct Group {
    position: MessageId,
    pending: BTreeSet<MessageId>,
}

/// What the log must hold, and its groups by name. One is none of ours.
struct Model {
    entries: BTreeSet<MessageId>,
    groups: BTreeMap<&'static str, Group>,
    last: MessageId,
}

/// The names, and how they are read.
const GROUPS: [&str; 4] = ["billing", "a", "b", "not:ours"];

struct Case {
    bench: Bench,
    rng: Rng,
    model: Model,
    now_ms: u64,
}

impl Case {
    async fn new(bench: Bench, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let forked = rng.fork();
        let mut case = Self {
            model: Model { entries: BTreeSet::new(), groups: BTreeMap::new(), last: MessageId::ZERO },
            now_ms: now(&bench).await,
            bench,
            rng: forked,
        };
        let log = case.bench.log();
        case.bench.cmd(&format!("DEL {log}")).await;
        let nodes = [1, 2, 3, 5, 100][rng.usize(..5)];
        case.bench.cmd(&format!("CONFIG SET stream-node-max-entries {nodes}")).await;
        for group in &GROUPS[..rng.usize(1..=GROUPS.len())] {
            case.bench.cmd(&format!("XGROUP CREATE {log} {group} 0 MKSTREAM")).await;
            case.model.groups.insert(group, Group::default());
        }
        case.model.last = MessageId::new(case.now_ms - 100_000 * STEP_MS, 0);
        case
    }

    fn group(&mut self) -> &'static str {
        let names: Vec<_> = self.model.groups.keys().copied().collect();
        names[self.rng.usize(..names.len())]
    }

    fn entry(&mut self) -> Option<MessageId> {
        let at = self.rng.usize(..self.model.entries.len().max(1));
        self.model.entries.iter().nth(at).copied()
    }

    async fn step(&mut self) {
        let log = self.bench.log();
        match self.rng.u32(..100) {
            0..35 => {
                for _ in 0..self.rng.u32(1..12) {
                    let last = self.model.last;
                    let same = self.rng.u32(..3) > 0 && last.seq < 1_000;
                    let seq = last.seq + [1, 1, 1, 9, 90][self.rng.usize(..5)];
                    let id = if same {
                        MessageId::new(last.ms, seq)
                    } else {
                        MessageId::new(last.ms + STEP_MS, 0)
                    };
                    let body = "x".repeat([1, 50, 2_000][self.rng.usize(..3)]);
                    self.bench.cmd(&format!("XADD {log} {id} payload {body}")).await;
                    self.model.last = id;
                    self.model.entries.insert(id);
                }
            }
            35..60 => {
                let (group, count) = (self.group(), self.rng.usize(1..15));
                self.bench
                    .cmd(&format!("XREADGROUP GROUP {group} owner COUNT {count} STREAMS {log} >"))
                    .await;
                let Model { entries, groups, .. } = &mut self.model;
                let of_group = groups.get_mut(group).expect("known");
                let read: Vec<_> = entries.range(of_group.position.next()..).take(count).copied().collect();
                of_group.position = read.last().copied().unwrap_or(of_group.position);
                of_group.pending.extend(read);
            }
            60..75 => {
                let group = self.group();
                let (first, some) = (self.rng.bool(), self.rng.usize(..20));
                let pending: Vec<_> = self.model.groups[group].pending.iter().copied().collect();
                for (n, id) in pending.into_iter().enumerate() {
                    if if first { n < some } else { self.rng.bool() } {
                        self.bench.cmd(&format!("XACK {log} {group} {id}")).await;
                        self.model.groups.get_mut(group).expect("known").pending.remove(&id);
                    }
                }
            }
            75..80 => {
                if let Some(id) = self.entry() {
                    self.bench.cmd(&format!("XDEL {log} {id}")).await;
                    self.model.entries.remove(&id);
                }
            }
            80..87 => {
                let group = self.group();
                let id = self.entry().filter(|_| self.rng.u32(..5) > 0).unwrap_or(MessageId::ZERO);
                self.bench.cmd(&format!("XGROUP SETID {log} {group} {id}")).await;
                self.model.groups.get_mut(group).expect("known").position = id;
            }
            _ => self.trim().await,
        }
    }

    async fn trim(&mut self) {
        let Model { entries, groups, .. } = &self.model;
        // The first entry that a group has not settled; behind all of them if there is none.
        let needs = |group: &Group| {
            entries.iter().find(|id| **id > group.position || group.pending.contains(id)).copied()
        };
        let settled = groups.values().map(|group| needs(group).unwrap_or(MessageId::MAX)).min();
        let settled = settled.expect("a group");
        let some = self.rng.usize(1..entries.len() + 2);
        let old = entries.iter().nth(some).map_or(self.now_ms, |id| id.ms) - STEP_MS / 2;
        let age = Duration::from_millis(self.now_ms - old);
        let (retention, bound) = match self.rng.u32(..5) {
            0 | 1 => (Retention::Consumed, settled),
            2 => (Retention::ConsumedAfter(age), settled.min(MessageId::new(old, 0))),
            3 => (Retention::Age(age), MessageId::new(old, 0)),
            _ => {
                let first = entries.len().saturating_sub(some);
                let bound = entries.iter().nth(first).copied();
                (Retention::Length(some as u64), bound.unwrap_or(MessageId::MAX))
            }
        };
        let gone: Vec<_> = entries.range(..bound).copied().collect();
        let lost = groups.iter().filter_map(|(name, group)| {
            let unread = gone.iter().filter(|id| **id > group.position).count() as u64;
            let pending = gone.iter().filter(|id| group.pending.contains(id)).count() as u64;
            // A group whose name is not valid in Millstream cannot be reported.
            let group = name.parse().ok()?;
            (unread + pending > 0).then_some(Lost { group, unread, pending })
        });
        let mut lost: Vec<_> = lost.collect();
        lost.sort_by(|one, other| one.group.cmp(&other.group));
        if !retention.is_lossy() {
            assert_eq!(lost, [], "the model loses nothing");
        }
        let trimmed = self.bench.backend.trim(&self.bench.lease, retention).await.expect("trimmed");
        let what = format!("{retention:?}, of {groups:#?}");
        assert_eq!((trimmed.dropped, trimmed.more, trimmed.lost), (gone.len(), false, lost), "{what}");
        self.model.entries = self.model.entries.split_off(&bound);
        let left = self.bench.backend.lengths(std::slice::from_ref(&self.bench.tp)).await.expect("a length");
        assert_eq!(left, [self.model.entries.len() as u64], "{what}");
    }
}

async fn now(bench: &Bench) -> u64 {
    use millstream_core::schedule::Schedule;
    Schedule::now(&bench.backend).await.expect("a time").as_millis()
}

#[tokio::test]
async fn what_is_dropped_and_lost_is_what_a_model_says() {
    let mut bench = Bench::private(&[]).await;
    for seed in 0..300 {
        let mut case = Case::new(bench, seed).await;
        let steps = case.rng.u32(5..60);
        for step in 0..steps {
            // Said only if it fails.
            println!("seed {seed}, step {step} of {steps}");
            case.step().await;
        }
        bench = case.bench;
    }
}

/// More than one call looks at, and with ghosts among them.
#[tokio::test]
async fn what_is_pending_and_lost_is_counted_over_many_calls() {
    let mut bench = Bench::private(&[]).await;
    let log = bench.log();
    let other = "other".parse().expect("a name");
    bench.backend.create_group(&bench.spec, &other, Start::Earliest).await.expect("created");
    let appended = bench.append_many(5_000).await;
    bench.cmd(&format!("XREADGROUP GROUP billing owner COUNT 4000 STREAMS {log} >")).await;
    bench.cmd(&format!("XREADGROUP GROUP other owner COUNT 1000 STREAMS {log} >")).await;
    // Every third is a ghost, and 1,500 in a row.
    let ghosts = (0..5_000).filter(|n| n % 3 == 0 || (2_000..3_500).contains(n));
    let ghosts: BTreeSet<usize> = ghosts.collect();
    for n in &ghosts {
        bench.cmd(&format!("XDEL {log} {}", appended[*n])).await;
    }
    let load = bench.watch_load().await;
    let trimmed = bench.backend.trim(&bench.lease, Retention::Length(100)).await.expect("trimmed");
    let left = 5_000 - ghosts.len();
    assert_eq!((trimmed.dropped, trimmed.more), (left - 100, false));
    let whole = |range: std::ops::Range<usize>| range.filter(|n| !ghosts.contains(n)).count() as u64;
    let last = (0..5_000).filter(|n| !ghosts.contains(n)).nth(left - 100).expect("there");
    let lost = [
        Lost { group: bench.group.clone(), unread: whole(4_000..last), pending: whole(0..4_000) },
        Lost { group: other, unread: whole(1_000..last), pending: whole(0..1_000) },
    ];
    assert_eq!(trimmed.lost, lost);
    bench.is_never_held_up(&load, Duration::from_millis(20)).await;
}

/// Ghosts of a group that nobody tends are passed over a hundred at a time; what is settled goes all the same.
#[tokio::test]
async fn ghosts_that_nobody_settles_keep_nothing() {
    let mut bench = Bench::private(&[]).await;
    let log = bench.log();
    bench.cmd(&format!("XGROUP CREATE {log} not:ours 0")).await;
    let appended = bench.append_many(2_000).await;
    bench.cmd(&format!("XREADGROUP GROUP billing owner COUNT 2000 STREAMS {log} >")).await;
    bench.cmd(&format!("XREADGROUP GROUP not:ours x COUNT 2000 STREAMS {log} >")).await;
    for (n, id) in appended.iter().enumerate() {
        bench.cmd(&format!("XACK {log} billing {id}")).await;
        if n % 2 == 0 && n < 1_800 {
            bench.cmd(&format!("XDEL {log} {id}")).await;
        } else if n != 1_900 {
            bench.cmd(&format!("XACK {log} not:ours {id}")).await;
        }
    }
    let trimmed = bench.backend.trim(&bench.lease, Retention::Consumed).await.expect("trimmed");
    assert_eq!((trimmed.dropped, trimmed.lost), (1_000, Vec::new()), "up to the one that is pending");
}
