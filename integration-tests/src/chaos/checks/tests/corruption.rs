//! Property: a random history that keeps every promise is accepted; with one corruption, its check rejects it.

use std::time::Duration;

use fastrand::Rng;

use crate::chaos::record::{End, Handling, Line, Outcome, Phase, What};

use super::super::{Limits, PlaceLimits, Report, check};
use super::builder::{RUNNER, once, queue};
use super::generator::{ATTEMPTS, TTL_MS, generate};

fn limits() -> Limits {
    let place = PlaceLimits { attempts: ATTEMPTS, per_partition: 1, ..PlaceLimits::default() };
    Limits {
        place,
        lateness: Duration::from_secs(60),
        recovery: Duration::from_secs(1),
        ..Limits::new(Duration::from_millis(TTL_MS))
    }
}

/// Changes a history, and returns whether there was something to change.
type Corruption = fn(&mut Vec<Line>, &mut Rng) -> bool;

/// All corruptions, each with the check that finds it.
const CORRUPTIONS: &[(&str, &str, Corruption)] = &[
    ("an acknowledgement is dropped", "queue", |lines, rng| {
        let Some(at) = pick(lines, rng, is_only_ack) else { return false };
        lines.remove(at);
        true
    }),
    ("a delivery is doubled", "duplicates", |lines, rng| {
        let Some(at) = pick(lines, rng, |lines, at| ended(&lines[at]).is_some() && is_calm(lines, at)) else {
            return false;
        };
        let handling = handling(&lines[at].what).clone();
        let what = What::Begun { handling, intact: true, early_ms: 0 };
        lines.insert(at + 1, Line { what, ..lines[at].clone() });
        true
    }),
    ("a delivery comes again long after its acknowledgement", "duplicates", |lines, rng| {
        let Some(at) = pick(lines, rng, |lines, at| {
            ended(&lines[at]) == Some(End::Acked) && is_long_before_faults(lines, at)
        }) else {
            return false;
        };
        let handling = handling(&lines[at].what).clone();
        let last = lines.len() - 4;
        let end =
            Line { what: What::Ended { handling: handling.clone(), end: End::Acked }, ..lines[at].clone() };
        let end = Line { at_us: lines[last].at_us, ..end };
        let begin = Line { what: What::Begun { handling, intact: true, early_ms: 0 }, ..end.clone() };
        lines.splice(last..last, [begin, end]);
        true
    }),
    ("two messages of a key are swapped", "order", |lines, rng| {
        let calm: Vec<usize> = (0..lines.len()).filter(|at| is_calm(lines, *at)).collect();
        let stored = |number: u64| {
            lines.iter().any(|line| matches!(&line.what, What::Sent { number: it, outcome: Outcome::Stored { .. } } if *it == number))
        };
        let key = |number: u64| {
            lines.iter().find_map(|line| match &line.what {
                What::Sending(message) if message.number == number => message.key,
                _ => None,
            })
        };
        let begins: Vec<(u64, u64, String)> = calm
            .iter()
            .filter_map(|at| match &lines[*at].what {
                What::Begun { handling, .. } if handling.attempt == 1 && stored(handling.number) => {
                    Some((handling.number, key(handling.number)?, handling.place.name.clone()))
                }
                _ => None,
            })
            .collect();
        let pairs: Vec<(u64, u64)> = begins
            .iter()
            .enumerate()
            .filter_map(|(nth, (number, key, to))| {
                let next = begins[nth + 1..].iter().find(|(_, other, at)| other == key && at == to)?;
                Some((*number, next.0))
            })
            .collect();
        let Some((one, two)) = rng.choice(pairs) else { return false };
        for line in lines.iter_mut() {
            if let What::Begun { handling, .. }
            | What::Ended { handling, .. }
            | What::Effect { handling, .. } = &mut line.what
            {
                handling.number = match handling.number {
                    it if it == one => two,
                    it if it == two => one,
                    it => it,
                };
            }
        }
        true
    }),
    ("an epoch regresses", "leases", |lines, rng| {
        let Some(at) = pick(lines, rng, |lines, at| earlier_grant(lines, at).is_some()) else { return false };
        let before = earlier_grant(lines, at).expect("it was chosen");
        if let What::Assigned { epoch, .. } = &mut lines[at].what {
            *epoch = before - rng.u64(0..=1).min(before);
        }
        true
    }),
    ("a task is early by a millisecond", "delays", |lines, rng| {
        let is_task = |lines: &[Line], at: usize| matches!(&lines[at].what, What::Begun { handling, .. } if handling.place == queue() && handling.attempt == 1);
        let Some(at) = pick(lines, rng, is_task) else { return false };
        if let What::Begun { early_ms, .. } = &mut lines[at].what {
            *early_ms = 1;
        }
        true
    }),
    ("a dead letter is lost", "dead_letters", |lines, rng| {
        with_dead(lines, rng, |dead, at| _ = dead.remove(at))
    }),
    ("a dead letter is doubled", "dead_letters", |lines, rng| {
        with_dead(lines, rng, |dead, at| dead.push(dead[at].clone()))
    }),
    ("a dead letter has another reason", "dead_letters", |lines, rng| {
        with_dead(lines, rng, |dead, at| {
            dead[at].1 = if dead[at].1 == "rejected" { "exhausted" } else { "rejected" }.to_owned();
        })
    }),
    ("a message that was acknowledged is dead", "dead_letters", |lines, rng| {
        let Some(at) = pick(lines, rng, is_only_ack) else { return false };
        let Handling { place, number, .. } = handling(&lines[at].what).clone();
        for line in lines {
            if let What::Left { place: it, rest } = &mut line.what
                && *it == place
            {
                rest.dead.push((Some(number), "crashed".to_owned()));
            }
        }
        true
    }),
    ("a handler has a message that nobody sent", "queue", |lines, rng| {
        let Some(at) = pick(lines, rng, |_, _| true) else { return false };
        let unknown = lines.iter().position(|line| matches!(line.what, What::Sending(_)));
        let Some(What::Begun { handling, .. }) = lines
            .iter()
            .skip(at)
            .map(|line| line.what.clone())
            .find(|what| matches!(what, What::Begun { .. }))
        else {
            return false;
        };
        let number = handling.number;
        lines.retain(|line| !matches!(&line.what, What::Sending(message) if message.number == number));
        unknown.is_some()
    }),
    ("a body is another one", "queue", |lines, rng| {
        let Some(at) = pick(lines, rng, |lines, at| matches!(lines[at].what, What::Begun { .. })) else {
            return false;
        };
        if let What::Begun { intact, .. } = &mut lines[at].what {
            *intact = false;
        }
        true
    }),
    ("a message was refused and is there", "queue", |lines, rng| {
        let Some(at) = pick(lines, rng, is_only_ack) else { return false };
        let acked = handling(&lines[at].what).number;
        for line in lines {
            if let What::Sent { number, outcome } = &mut line.what
                && *number == acked
            {
                *outcome = Outcome::Refused("full".to_owned());
            }
        }
        true
    }),
    ("an effect is missing", "effects", |lines, rng| {
        let Some(at) =
            pick(lines, rng, |lines, at| matches!(lines[at].what, What::Effect { accepted: true, .. }))
        else {
            return false;
        };
        lines.remove(at);
        true
    }),
    ("an effect happens twice", "effects", |lines, rng| {
        let is_once = |lines: &[Line], at: usize| matches!(&lines[at].what, What::Effect { handling, accepted: true } if handling.place == once());
        let Some(at) = pick(lines, rng, is_once) else { return false };
        lines.insert(at, lines[at].clone());
        true
    }),
    ("a failure is not recorded", "duplicates", |lines, rng| {
        let is_failure = |lines: &[Line], at: usize| {
            ended(&lines[at]) == Some(End::Failed) && {
                let failed = handling(&lines[at].what);
                let same = |line: &&Line| {
                    matches!(&line.what, What::Begun { handling: it, .. }
                if it.number == failed.number && it.attempt == failed.attempt)
                };
                failed.attempt < ATTEMPTS && is_calm(lines, at) && lines.iter().filter(same).count() == 1
            }
        };
        let Some(at) = pick(lines, rng, is_failure) else { return false };
        lines.remove(at);
        true
    }),
    ("an audit finds something", "conservation", |lines, rng| {
        let at = rng.usize(..lines.len());
        let what = What::Audit { findings: vec!["a hole".to_owned()] };
        lines.insert(at, Line { pid: RUNNER, what, ..lines[at].clone() });
        true
    }),
    ("an entry stays pending", "conservation", |lines, _| {
        let Some(What::Left { rest, .. }) = lines.last_mut().map(|line| &mut line.what) else { return false };
        rest.pending = 1;
        true
    }),
    ("two handlers run at once in a partition", "slots", |lines, rng| {
        let next = |lines: &[Line], at: usize| {
            let end = ended(&lines[at]).map(|_| handling(&lines[at].what))?;
            let same =
                |it: &Handling| (&it.place, it.partition, it.epoch) == (&end.place, end.partition, end.epoch);
            let next = (at + 1..lines.len())
                .find(|it| matches!(&lines[*it].what, What::Begun { handling, .. } if same(handling)))?;
            (end.epoch > 0 && lines[next].pid == lines[at].pid).then_some(next)
        };
        let is_calm = |lines: &[Line], at: usize| next(lines, at).is_some_and(|next| is_calm(lines, next));
        let Some(at) = pick(lines, rng, is_calm) else { return false };
        let to = next(lines, at).expect("it was chosen");
        let end = lines.remove(at);
        lines.insert(to, Line { at_us: lines[to - 1].at_us, ..end });
        true
    }),
    ("a fence is granted twice", "locks", |lines, rng| {
        let Some(at) =
            pick(lines, rng, |lines, at| matches!(lines[at].what, What::Locked { fence: 2.., .. }))
        else {
            return false;
        };
        if let What::Locked { fence, .. } = &mut lines[at].what {
            *fence -= 1;
        }
        true
    }),
    ("a lock is not released", "locks", |lines, rng| {
        let Some(at) = pick(lines, rng, |lines, at| {
            matches!(lines[at].what, What::Releasing { .. }) && is_calm(lines, at)
        }) else {
            return false;
        };
        let granted =
            lines[at..].iter().position(|line| matches!(line.what, What::Locked { .. })).map(|it| at + it);
        let granted = granted.filter(|granted| is_calm(lines, *granted));
        // It is said before and after.
        lines.drain(at..at + 2);
        granted.is_some()
    }),
    ("a write of a former holder is accepted", "locks", |lines, rng| {
        let Some(at) = pick(lines, rng, |lines, at| matches!(lines[at].what, What::Write { fence: 2.., .. }))
        else {
            return false;
        };
        let mut late = lines[at].clone();
        if let What::Write { fence, .. } = &mut late.what {
            *fence = 1;
        }
        lines.insert(at + 1, late);
        true
    }),
    ("a process records nothing", "liveness", |lines, _| {
        let what = What::Runs { name: "worker-9".to_owned(), role: "worker".to_owned() };
        lines.insert(1, Line { pid: 9, what, ..lines[0].clone() });
        true
    }),
    ("nothing is handled after the faults", "liveness", |lines, _| {
        let healed =
            lines.iter().position(|line| matches!(line.what, What::Phase(Phase::Healed))).expect("a phase");
        let mut at = 0;
        lines.retain(|line| {
            at += 1;
            at <= healed || !matches!(line.what, What::Ended { .. })
        });
        true
    }),
];

/// Chooses the position of a line that meets the condition.
fn pick(lines: &[Line], rng: &mut Rng, is_one: impl Fn(&[Line], usize) -> bool) -> Option<usize> {
    let all: Vec<usize> = (0..lines.len()).filter(|at| is_one(lines, *at)).collect();
    rng.choice(all)
}

fn handling(what: &What) -> &Handling {
    match what {
        What::Begun { handling, .. } | What::Ended { handling, .. } | What::Effect { handling, .. } => {
            handling
        }
        other => panic!("no handling: {other:?}"),
    }
}

fn ended(line: &Line) -> Option<End> {
    if let What::Ended { end, .. } = line.what { Some(end) } else { None }
}

/// Whether a line is of the calm phase.
fn is_calm(lines: &[Line], at: usize) -> bool {
    let phase = |at: usize| {
        lines[..=at]
            .iter()
            .rev()
            .find_map(|line| if let What::Phase(phase) = line.what { Some(phase) } else { None })
    };
    phase(at) == Some(Phase::Calm)
}

/// Whether no fault can excuse what follows from this line.
fn is_long_before_faults(lines: &[Line], at: usize) -> bool {
    let first = lines.iter().find(|line| matches!(line.what, What::Fault { .. })).expect("a fault");
    lines[at].at_us + 3 * TTL_MS * 1_000 < first.at_us
}

/// Whether a line is the acknowledgement of a message that was confirmed, safe, and handled once.
fn is_only_ack(lines: &[Line], at: usize) -> bool {
    if ended(&lines[at]) != Some(End::Acked) || !is_calm(lines, at) {
        return false;
    }
    let acked = handling(&lines[at].what);
    let same =
        |line: &&Line| matches!(&line.what, What::Begun { handling, .. } if handling.number == acked.number);
    let is_safe = lines
        .iter()
        .any(|line| matches!(&line.what, What::Sending(it) if it.number == acked.number && it.safe));
    let is_stored = lines.iter().any(|line| {
        matches!(&line.what, What::Sent { number, outcome: Outcome::Stored { .. } } if *number == acked.number)
    });
    lines.iter().filter(same).count() == 1 && is_safe && is_stored
}

/// Returns the epoch of the grant of the partition before this one, if this is one.
fn earlier_grant(lines: &[Line], at: usize) -> Option<u64> {
    let What::Assigned { place, partition, .. } = &lines[at].what else { return None };
    lines[..at].iter().rev().find_map(|line| match &line.what {
        What::Assigned { place: it, partition: other, epoch } if (it, other) == (place, partition) => {
            Some(*epoch)
        }
        _ => None,
    })
}

/// Changes the dead letters of a place with some, at a position that is one of a safe, confirmed message.
fn with_dead(
    lines: &mut [Line],
    rng: &mut Rng,
    change: impl FnOnce(&mut Vec<(Option<u64>, String)>, usize),
) -> bool {
    let safe: Vec<u64> = lines
        .iter()
        .filter_map(|line| match &line.what {
            What::Sending(message) if message.safe => Some(message.number),
            _ => None,
        })
        .collect();
    let confirmed: Vec<u64> = lines
        .iter()
        .filter_map(|line| match &line.what {
            What::Sent { number, outcome: Outcome::Stored { .. } } if safe.contains(number) => Some(*number),
            _ => None,
        })
        .collect();
    let mut letters = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if let What::Left { rest, .. } = &line.what {
            let ours = rest
                .dead
                .iter()
                .enumerate()
                .filter(|(_, (number, _))| number.is_some_and(|it| confirmed.contains(&it)));
            letters.extend(ours.map(|(nth, _)| (at, nth)));
        }
    }
    let Some((at, nth)) = rng.choice(letters) else { return false };
    if let What::Left { rest, .. } = &mut lines[at].what {
        change(&mut rest.dead, nth);
    }
    true
}

#[test]
fn random_histories_without_a_breach_are_accepted() {
    let (mut repeated, mut lost, mut losses) = (0, 0, 0);
    for seed in 0..40 {
        for with_data in [false, true] {
            let report = check(&generate(seed, with_data), &limits());
            assert!(report.is_clean(), "seed {seed}, with data faults: {with_data}\n{report}");
            repeated += report.figures.repeated.values().sum::<usize>();
            lost += report.figures.places.values().map(|it| it.lost_by_server).sum::<usize>();
            losses += report.figures.losses;
        }
    }
    assert!(repeated > 20 && lost > 10 && losses > 10, "{repeated} repeated, {lost} lost, {losses} losses");
}

#[test]
fn each_corruption_is_found_by_its_check() {
    for (what, by, corrupt) in CORRUPTIONS {
        let mut done = 0;
        for seed in 0..8 {
            let mut lines = generate(seed, false);
            if !corrupt(&mut lines, &mut Rng::with_seed(seed)) {
                continue;
            }
            done += 1;
            let report: Report = check(&lines, &limits());
            let found = report.violations.iter().any(|it| it.check == *by);
            assert!(found, "seed {seed}: {what}, and {by} did not find it\n{report}");
        }
        assert!(done >= 4, "{what}: only {done} histories had something to corrupt");
    }
}
