//! Handlers of many steps, to be killed by tests, and what is wrong with what they did.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream::{Error, StepError, Steps};
use serde::{Deserialize, Serialize};

use crate::history::{Line, Sink, What};

/// How many steps a handler has.
pub const STEPS: u32 = 5;

/// The step before which it waits for a time, and that before which it waits for a signal.
pub const WAITS: [u32; 2] = [2, 4];

/// How long it waits.
pub const NAP: Duration = Duration::from_millis(20);

/// Longer than a test takes.
const LONG: Duration = Duration::from_secs(3_600);

/// Something that happened in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The number of the message.
    pub number: u64,
    /// The step, from 0.
    pub step: u32,
    /// `None` as it begins, and its result once that is stored.
    pub result: Option<u64>,
}

/// Runs the steps of a message: each result is drawn, so no two runs of one have the same.
///
/// # Errors
/// Those of the steps.
pub async fn run(steps: &Steps, number: u64, sink: &Sink) -> Result<(), StepError> {
    for step in 0..STEPS {
        if step == WAITS[0] {
            steps.sleep("nap", NAP).await?;
        } else if step == WAITS[1] {
            let said: Option<u64> = steps.signal("go", LONG).await?;
            sink.write(What::Step(Step { number, step: STEPS, result: said }));
        }
        let draw = async || {
            sink.write(What::Step(Step { number, step, result: None }));
            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..2_000))).await;
            Ok::<_, Error>(fastrand::u64(1..))
        };
        let result = Some(steps.step(&format!("step-{step}"), draw).await?);
        sink.write(What::Step(Step { number, step, result }));
    }
    Ok(())
}

/// Returns what is wrong with the steps of these messages, by the history of all handlers, which is complete.
#[must_use]
pub fn wrong(lines: &[Line], numbers: impl Iterator<Item = u64>) -> Vec<String> {
    let mut of: BTreeMap<u64, Vec<(u64, Step)>> = BTreeMap::new();
    let mut done: BTreeMap<u64, u64> = BTreeMap::new();
    for line in lines {
        match line.what {
            What::Step(step) => of.entry(step.number).or_default().push((line.at_us, step)),
            What::Done(it) => *done.entry(it.number).or_default() += 1,
            _ => {}
        }
    }
    let mut wrong = Vec::new();
    for number in numbers {
        let seen = of.get(&number).map(Vec::as_slice).unwrap_or_default();
        if !done.contains_key(&number) {
            wrong.push(format!("{number} is stuck: {seen:?}"));
        }
        let mut results = [None; STEPS as usize + 1];
        for (at_us, Step { step, result, .. }) in seen {
            let (known, at) = (&mut results[*step as usize], *step as usize);
            match (*known, *result) {
                (Some(_), None) => wrong.push(format!("{number} runs step {at} again after its checkpoint")),
                (Some((was, _)), Some(is)) if was != is => {
                    wrong.push(format!("{number} has two results of step {at}"));
                }
                (None, Some(is)) => *known = Some((is, *at_us)),
                _ => {}
            }
            let before = at.checked_sub(1).and_then(|before| results[before]);
            let nap_us = u64::try_from(NAP.as_micros()).unwrap_or(u64::MAX);
            if *step == WAITS[0] && before.is_none_or(|(_, since)| *at_us < since + nap_us) {
                wrong.push(format!("{number} wakes too early"));
            }
        }
        if results[STEPS as usize].is_none_or(|(said, _)| said != number) {
            wrong.push(format!("{number} does not know what was said to it: {seen:?}"));
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Handling;

    #[test]
    fn histories_are_rejected_in_which_a_step_runs_again_or_is_lost_or_early() {
        let step =
            |at_us, step, result| Line { at_us, pid: 1, what: What::Step(Step { number: 7, step, result }) };
        let handling = Handling { number: 7, partition: 0, attempt: 1, deliveries: 1, epoch: 1 };
        let done = || Line { at_us: 90_000, pid: 1, what: What::Done(handling) };
        let good = || {
            let mut lines =
                vec![step(1, 0, None), step(2, 0, Some(10)), step(3, 1, None), step(4, 1, Some(11))];
            lines.extend([step(30_000, 2, None), step(30_001, 2, None), step(30_002, 2, Some(12))]);
            lines.extend([step(30_003, 3, None), step(30_004, 3, Some(13)), step(40_000, 5, Some(7))]);
            lines.extend([
                step(40_001, 0, Some(10)),
                step(40_002, 4, None),
                step(40_003, 4, Some(14)),
                done(),
            ]);
            lines
        };
        let judge = |lines: &[Line]| wrong(lines, [7].into_iter());
        assert_eq!(judge(&good()), [""; 0]);
        let with = |at: usize, line: Line| {
            let mut lines = good();
            lines.insert(at, line);
            lines
        };
        for (what, lines) in [
            ("stuck", good()[..13].to_vec()),
            ("again", with(13, step(40_002, 1, None))),
            ("another result", with(13, step(40_002, 1, Some(99)))),
            ("early", with(4, step(5_000, 2, None))),
            (
                "deaf",
                good().into_iter().filter(|it| !matches!(it.what, What::Step(it) if it.step == 5)).collect(),
            ),
            ("none", Vec::new()),
        ] {
            assert!(!judge(&lines).is_empty(), "{what}");
        }
    }
}
