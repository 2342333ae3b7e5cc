//! Checks of the order in which messages are handled.
//!
//! Message `n` of a test has the key `n % keys`, so the message before it with the same key is `n - keys`.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::{Handling, Line, What};
use crate::owners::{How, Terms};

/// The counts of [`strict`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Messages that were handled to the end.
    pub done: usize,
    /// How often a message that was done was handled to the end again.
    pub again: usize,
    /// How often a message was started that had been started under an earlier ownership.
    pub repeated: usize,
    /// The number of attempts that failed.
    pub failed: usize,
}

/// The progress of one ownership through the messages of one key.
#[derive(Clone, Copy)]
enum Step {
    Running(Handling),
    Failed(Handling),
    Done(Handling),
}

/// Checks the guarantees of a strict order, and nothing more:
///
/// 1. Within one ownership, the messages of a key are handled one after the other without a gap: each is started when the
///    one before it was done, or again after it failed, as the next attempt.
/// 2. An ownership starts, for each key, with the message after the last one that was ever done, or further back; then it
///    repeats the end of the done messages.
/// 3. It repeats only messages that were last handled under an ownership that was killed or lost, and no message that was
///    known to be settled: `settled` gives, for the index of a line, messages that must not start after it.
/// 4. An ownership that has ended starts no message once a later one has.
///
/// From 1 and 2 it follows that the first successes of each key are in the order of production.
///
/// # Errors
/// The first line that breaks a guarantee, and the reason.
pub fn strict(
    lines: &[Line],
    keys: u64,
    settled: &BTreeMap<usize, BTreeSet<u64>>,
) -> Result<Counted, String> {
    let terms = Terms::of(lines);
    let mut counted = Counted::default();
    let mut steps: BTreeMap<(u32, u64, u64), Step> = BTreeMap::new();
    let mut newest: BTreeMap<u32, u64> = BTreeMap::new();
    // The message that is to be done next, by key; and the ownership under which a message was done last, by message.
    let mut next: BTreeMap<u64, u64> = BTreeMap::new();
    let mut done_in: BTreeMap<u64, u64> = BTreeMap::new();
    let mut started_in: BTreeMap<u64, u64> = BTreeMap::new();
    let mut never_again: BTreeSet<u64> = BTreeSet::new();

    for (index, line) in lines.iter().enumerate() {
        never_again.extend(settled.get(&index).into_iter().flatten());
        let (What::Started(handling) | What::Done(handling) | What::Failed(handling)) = &line.what else {
            continue;
        };
        let Handling { number, partition, attempt, epoch, .. } = *handling;
        let key = number % keys;
        let broken = |why: &str| Err(format!("line {index}: {why}: {line:?}"));
        let step = steps.get(&(partition, epoch, key)).copied();
        let due = *next.entry(key).or_insert(key);
        match (&line.what, step) {
            (What::Started(_), _) if never_again.contains(&number) => {
                return broken("it was settled");
            }
            (What::Started(_), _) if newest.get(&partition).is_some_and(|newest| *newest > epoch) => {
                return broken("a later owner has begun");
            }
            (What::Started(_), None) => {
                if number > due {
                    return broken(&format!("{due} comes first"));
                }
                if let Some(before) = done_in.get(&number)
                    && terms.0.get(&(partition, *before)).and_then(|term| term.end).map(|(_, how)| how)
                        == Some(How::Revoked)
                {
                    return broken("repeated though its owner ended in an orderly way");
                }
                newest.insert(partition, epoch);
            }
            (What::Started(_), Some(Step::Failed(before))) => {
                if (number, attempt) != (before.number, before.attempt + 1) {
                    return broken(&format!("the next attempt of {} comes first", before.number));
                }
            }
            (What::Started(_), Some(Step::Done(before))) => {
                if number != before.number + keys {
                    return broken(&format!("{} comes after {}", before.number + keys, before.number));
                }
            }
            (What::Started(_), Some(Step::Running(before))) => {
                return broken(&format!("{} has not ended", before.number));
            }
            (_, Some(Step::Running(running))) if running == *handling => {}
            _ => return broken("it was not running"),
        }
        let step = match line.what {
            What::Started(_) => {
                let before = started_in.insert(number, epoch);
                counted.repeated += usize::from(before.is_some_and(|before| before != epoch));
                Step::Running(*handling)
            }
            What::Failed(_) => {
                counted.failed += 1;
                Step::Failed(*handling)
            }
            _ => {
                let again = done_in.insert(number, epoch).is_some();
                *(if again { &mut counted.again } else { &mut counted.done }) += 1;
                if number == due {
                    next.insert(key, due + keys);
                }
                Step::Done(*handling)
            }
        };
        steps.insert((partition, epoch, key), step);
    }
    Ok(counted)
}

/// Checks that orderly changes of owners have no effect: every message below `messages` is started once and done
/// once, and those of a key in order.
///
/// # Errors
/// The messages that are lost, repeated, or out of order.
pub fn once_each(lines: &[Line], messages: u64, keys: u64) -> Result<(), String> {
    let counted = strict(lines, keys, &BTreeMap::new())?;
    let started = lines.iter().filter(|line| matches!(line.what, What::Started(_))).count();
    let (done, again) = (counted.done as u64, counted.again);
    if (done, again, started as u64) == (messages, 0, messages) {
        Ok(())
    } else {
        Err(format!("of {messages} messages {done} were done, {again} again, in {started} starts"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `S1.5` is the start of message 1 under epoch 5, `F` and `D` its failure and success, `A5`, `R5`, `K5` the
    /// beginning and end of that ownership.
    fn play(script: &str) -> Result<Counted, String> {
        let (mut attempts, mut lines) = (BTreeMap::new(), Vec::new());
        for word in script.split_whitespace() {
            let (kind, rest) = word.split_at(1);
            let (number, epoch) = rest.split_once('.').unwrap_or(("0", rest));
            let (number, epoch): (u64, u64) =
                (number.parse().expect("number"), epoch.parse().expect("epoch"));
            let attempt = *attempts.entry(number).or_insert(1);
            let handling = Handling { number, partition: 0, attempt, deliveries: 1, epoch };
            let what = match kind {
                "S" => What::Started(handling),
                "D" => What::Done(handling),
                "F" => {
                    attempts.insert(number, attempt + 1);
                    What::Failed(handling)
                }
                "A" => What::Assigned(0, epoch),
                "R" => What::Revoked(0, epoch),
                _ => What::Killed,
            };
            lines.push(Line { at_us: 0, pid: u32::try_from(epoch).expect("small"), what });
        }
        strict(&lines, 2, &BTreeMap::from([(lines.len() - 1, BTreeSet::from([100]))]))
    }

    #[test]
    fn what_is_promised_passes() {
        let retried = play("A1 S0.1 S1.1 F0.1 D1.1 S3.1 D3.1 S0.1 D0.1 S2.1 D2.1").expect("in order");
        assert_eq!((retried.done, retried.again, retried.failed), (4, 0, 1));
        let killed =
            play("A1 S0.1 D0.1 S2.1 D2.1 S4.1 K1 A2 S2.2 D2.2 S4.2 D4.2 R2 A3 S6.3 D6.3").expect("replay");
        assert_eq!((killed.done, killed.again, killed.repeated), (4, 1, 2));
    }

    #[test]
    fn everything_else_is_found() {
        for (script, why) in [
            ("A1 S2.1", "0 comes first"),
            ("A1 S0.1 S2.1", "0 has not ended"),
            ("A1 S0.1 F0.1 S2.1", "the next attempt of 0 comes first"),
            ("A1 S0.1 D0.1 S4.1", "2 comes after 0"),
            ("A1 S0.1 D0.1 S0.1", "2 comes after 0"),
            ("A1 S0.1 D0.1 S2.1 D2.1 R1 A2 S0.2", "orderly"),
            ("A1 S0.1 D0.1 S2.1 D2.1 K1 A2 S0.2 D0.2 S4.2", "2 comes after 0"),
            ("A1 S0.1 D0.1 K1 A2 S4.2", "2 comes first"),
            ("A1 S0.1 K1 A2 S1.2 S3.1", "a later owner has begun"),
            ("A1 S0.1 D0.1 D0.1", "it was not running"),
            ("A1 S100.1", "it was settled"),
        ] {
            let error = play(script).expect_err(script);
            assert!(error.contains(why), "{script}: {error}");
        }
        let lines = [Line { at_us: 0, pid: 1, what: What::Ready }];
        assert!(once_each(&lines, 1, 1).is_err(), "a lost message is found");
    }
}
