//! Checks what batches have sent against what handlers did.

use std::collections::{BTreeMap, BTreeSet};

use millstream::{BatchEvent, BatchEventKind, BatchId, MessageId};

use crate::history::{Line, What};

/// A batch that was sealed.
#[derive(Clone, Debug)]
pub struct Sealed {
    /// Its id.
    pub id: BatchId,
    /// The numbers of its members: those that `add` has returned for.
    pub members: BTreeSet<u64>,
    /// Numbers of messages of which it is not known whether they are stored: each may have become a member.
    pub unknown: BTreeSet<u64>,
    /// When its seal was asked for, by [`now_us`](crate::history::now_us).
    pub asked_us: u64,
}

/// A message of a batch, as its handler saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Id of the message in its partition.
    pub id: MessageId,
    /// What it says.
    pub event: BatchEvent,
    /// When it came.
    pub at_us: u64,
}

/// Returns what is wrong with the messages of batches, by the history of all handlers of members, which is complete.
#[must_use]
pub fn wrong(lines: &[Line], sealed: &[Sealed], seen: &[Seen]) -> Vec<String> {
    let (mut done, mut tried) = (BTreeMap::new(), BTreeMap::new());
    for line in lines {
        if let What::Done(it) | What::Failed(it) = line.what {
            tried.entry(it.number).or_insert(line.at_us);
        }
        if let What::Done(it) = line.what {
            done.entry(it.number).or_insert(line.at_us);
        }
    }
    let mut of: BTreeMap<&BatchId, Vec<&Seen>> = BTreeMap::new();
    for it in seen {
        of.entry(&it.event.batch).or_default().push(it);
    }
    sealed
        .iter()
        .flat_map(|batch| {
            let seen = of.get(&batch.id).map(Vec::as_slice).unwrap_or_default();
            of_batch(batch, seen, (&done, &tried)).into_iter().map(|why| format!("{}: {why}", batch.id))
        })
        .collect()
}

type Times = BTreeMap<u64, u64>;

fn of_batch(batch: &Sealed, seen: &[&Seen], (done, tried): (&Times, &Times)) -> Vec<String> {
    let (least, most) = (batch.members.len() as u32, (batch.members.len() + batch.unknown.len()) as u32);
    let mut wrong = Vec::new();
    for it in seen {
        let BatchEvent { kind, members, done: said, dead, .. } = it.event;
        if it.at_us < batch.asked_us {
            wrong.push(format!("{kind:?} before the seal"));
        }
        if !(least..=most).contains(&members) || said + dead > members {
            wrong.push(format!(
                "{kind:?} of {members} members, {said} done and {dead} dead: {least} to {most} were added"
            ));
        }
        let (times, counts) = match kind {
            BatchEventKind::Complete => (tried, said + dead == members),
            BatchEventKind::Success => (done, said == members && dead == 0),
            BatchEventKind::Death if dead == 0 => {
                wrong.push(format!("a death of none: {it:?}"));
                continue;
            }
            _ => continue,
        };
        if !counts {
            wrong.push(format!("{kind:?} with {said} done and {dead} dead of {members}"));
        }
        let early = |number: &&u64| times.get(number).is_none_or(|at_us| *at_us > it.at_us);
        let early: Vec<_> = batch.members.iter().filter(early).collect();
        if !early.is_empty() {
            wrong.push(format!("{kind:?} before {early:?}"));
        }
    }
    // A second delivery of one message is none of a batch's mistakes.
    let ids = |kind: BatchEventKind| -> BTreeSet<MessageId> {
        seen.iter().filter(|it| it.event.kind == kind).map(|it| it.id).collect()
    };
    for kind in [BatchEventKind::Death, BatchEventKind::Complete, BatchEventKind::Success] {
        let sent = ids(kind).len();
        if sent > 1 {
            wrong.push(format!("{kind:?} was sent {sent} times"));
        }
    }
    let steps: Vec<_> =
        seen.iter().filter(|it| matches!(it.event.kind, BatchEventKind::Progress(_))).collect();
    let sent: BTreeSet<_> = steps.iter().map(|it| it.id).collect();
    let kinds: BTreeSet<_> = steps.iter().map(|it| it.event.kind).collect();
    if sent.len() != kinds.len() {
        wrong.push(format!("{} messages of the steps {kinds:?}", sent.len()));
    }
    if ids(BatchEventKind::Complete).is_empty() {
        wrong.push("it is stuck".to_owned());
    } else if ids(BatchEventKind::Success).is_empty()
        && batch.members.iter().all(|it| done.contains_key(it))
        && batch.unknown.is_empty()
    {
        wrong.push("all are done, and it does not say so".to_owned());
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Handling;
    use BatchEventKind::{Complete, Death, Progress, Success};

    fn line(at_us: u64, number: u64, is_done: bool) -> Line {
        let handling = Handling { number, partition: 0, attempt: 1, deliveries: 1, epoch: 1 };
        Line { at_us, pid: 1, what: if is_done { What::Done(handling) } else { What::Failed(handling) } }
    }

    fn id() -> BatchId {
        "ends/0/0af7651916cd43dd8448eb211c80319c".parse().expect("an id")
    }

    fn seen(entry: u64, kind: BatchEventKind, (members, done, dead): (u32, u32, u32), at_us: u64) -> Seen {
        let event = BatchEvent::new(id(), kind, members, done, dead);
        Seen { id: MessageId::new(entry, 0), event, at_us }
    }

    #[test]
    fn histories_are_rejected_in_which_a_message_comes_early_twice_or_never_or_counts_wrong() {
        let batch = |members: &[u64], unknown: &[u64]| Sealed {
            id: id(),
            members: members.iter().copied().collect(),
            unknown: unknown.iter().copied().collect(),
            asked_us: 5,
        };
        let lines = [line(10, 1, true), line(20, 2, false), line(40, 2, true)];
        let complete = seen(1, Complete, (2, 1, 1), 30);
        let success = seen(2, Success, (2, 2, 0), 50);
        let judge = |batch: Sealed, seen: &[&Seen]| {
            let seen: Vec<_> = seen.iter().map(|it| (*it).clone()).collect();
            wrong(&lines, &[batch], &seen)
        };
        let two = || batch(&[1, 2], &[]);
        assert_eq!(judge(two(), &[&complete, &success]), [""; 0]);
        assert_eq!(judge(two(), &[&complete, &complete, &success]), [""; 0], "a second delivery");
        assert_eq!(judge(batch(&[1], &[2]), &[&complete]), [""; 0], "the second one may be none");
        let death = seen(3, Death, (2, 1, 1), 25);
        assert_eq!(judge(two(), &[&death, &complete, &success]), [""; 0]);
        let bad: [(&str, Sealed, &[&Seen]); 10] = [
            ("stuck", two(), &[]),
            ("never succeeds", two(), &[&complete]),
            ("complete is early", two(), &[&seen(1, Complete, (2, 1, 1), 15), &success]),
            ("success is early", two(), &[&complete, &seen(2, Success, (2, 2, 0), 35)]),
            ("twice", two(), &[&complete, &seen(9, Complete, (2, 1, 1), 35), &success]),
            ("before the seal", Sealed { asked_us: 31, ..two() }, &[&complete, &success]),
            ("too few members", batch(&[1, 2, 1], &[]), &[&seen(1, Complete, (1, 1, 0), 30), &success]),
            ("too many members", two(), &[&seen(1, Complete, (3, 2, 1), 30), &success]),
            ("a death of none", two(), &[&seen(3, Death, (2, 2, 0), 25), &complete, &success]),
            (
                "a step twice",
                two(),
                &[
                    &seen(3, Progress(50), (2, 1, 0), 12),
                    &seen(4, Progress(50), (2, 1, 0), 13),
                    &complete,
                    &success,
                ],
            ),
        ];
        for (what, batch, seen) in bad {
            assert!(!judge(batch, seen).is_empty(), "{what}");
        }
    }
}
