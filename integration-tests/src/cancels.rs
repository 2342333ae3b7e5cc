//! Checks what was answered to cancels against what handlers did.

use std::collections::BTreeMap;

use crate::history::{Handling, Line, What};

/// What a cancel of a message came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The number of the message.
    pub number: u64,
    /// The word for it, as `CancelState` has it.
    pub state: &'static str,
    /// When it was asked for, by [`now_us`](crate::history::now_us).
    pub asked_us: u64,
    /// When it came.
    pub at_us: u64,
}

/// Returns what is wrong with the answers, by the history of all handlers, which is complete.
#[must_use]
pub fn wrong(lines: &[Line], answers: &[Answer]) -> Vec<String> {
    let mut of: BTreeMap<u64, Vec<&Line>> = BTreeMap::new();
    for line in lines {
        if let What::Started(it) | What::Done(it) | What::Failed(it) | What::Cancelled(it) = line.what {
            of.entry(it.number).or_default().push(line);
        }
    }
    let mut wrong = Vec::new();
    for answer in answers {
        let Answer { number, state, at_us, .. } = *answer;
        let its = of.get(&number).map(Vec::as_slice).unwrap_or_default();
        let began = |line: &&&Line| matches!(line.what, What::Started(_));
        let done = |line: &&&Line| matches!(line.what, What::Done(_));
        let runs = |line: &&&Line| began(line) && line.at_us <= at_us && !has_ended(lines, its, line, at_us);
        let found = match state {
            "cancelled" | "stopped" | "withdrawn" => {
                let begins = its.iter().find(|line| began(line) && line.at_us > at_us);
                let certain = state != "withdrawn";
                let goes_on = its.iter().find(runs).filter(|_| certain);
                begins
                    .map(|it| ("begins later", *it))
                    .or(goes_on.map(|it| ("runs", *it)))
                    .or_else(|| its.iter().find(done).filter(|_| certain).map(|it| ("was completed", *it)))
            }
            "done" if !its.iter().any(|line| done(&line) && line.at_us <= at_us) => {
                wrong.push(format!("{answer:?}: nobody has completed it"));
                None
            }
            _ => None,
        };
        wrong.extend(found.map(|(what, line)| format!("{answer:?}: it {what}: {line:?}")));
    }
    wrong
}

/// Whether a handler had ended by then, or its process.
fn has_ended(lines: &[Line], its: &[&Line], begun: &Line, at_us: u64) -> bool {
    let What::Started(handling) = begun.what else { return true };
    let ends = |it: &Handling| *it == handling;
    its.iter().any(|line| {
        line.pid == begun.pid
            && line.at_us <= at_us
            && matches!(&line.what, What::Done(it) | What::Failed(it) if ends(it))
    }) || lines.iter().any(|line| line.pid == begun.pid && line.what == What::Killed && line.at_us <= at_us)
}

/// Returns how long it took to ask handlers that ran already when the cancel began, in microseconds.
#[must_use]
pub fn times_to_handlers(lines: &[Line], answers: &[Answer]) -> Vec<u64> {
    let time = |answer: &Answer| {
        let of = |what: &What, told: bool| match what {
            What::Started(it) if !told => it.number == answer.number,
            What::Cancelled(it) if told => it.number == answer.number,
            _ => false,
        };
        let began =
            lines.iter().filter(|line| of(&line.what, false)).map(|line| line.at_us).collect::<Vec<_>>();
        let told = lines.iter().find(|line| of(&line.what, true))?;
        // One handler alone, which is there all the time.
        let ran = began.len() == 1 && began[0] < answer.asked_us && told.at_us > answer.asked_us;
        ran.then(|| told.at_us - answer.asked_us)
    };
    answers.iter().filter(|answer| answer.state == "stopped").filter_map(time).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at_us: u64, pid: u32, what: What) -> Line {
        Line { at_us, pid, what }
    }

    fn handling(deliveries: u32) -> Handling {
        Handling { number: 7, partition: 0, attempt: 1, deliveries, epoch: 1 }
    }

    fn answers(state: &'static str, at_us: u64) -> [Answer; 1] {
        [Answer { number: 7, state, asked_us: 0, at_us }]
    }

    #[test]
    fn histories_are_rejected_in_which_something_runs_begins_or_is_done_behind_the_answer() {
        let (one, two) = (handling(1), handling(2));
        let begun = line(10, 1, What::Started(one));
        let failed = line(20, 1, What::Failed(one));
        let ended = [begun.clone(), failed.clone()];
        let killed = [begun.clone(), line(20, 1, What::Killed)];
        let of_others = [begun.clone(), line(20, 2, What::Killed), line(20, 2, What::Failed(two))];
        let later =
            [begun.clone(), failed.clone(), line(40, 2, What::Started(two)), line(50, 2, What::Failed(two))];
        let done = [begun.clone(), line(20, 1, What::Done(one))];
        let right: [(&[Line], &str, u64); 9] = [
            (&[], "cancelled", 30),
            (&ended, "stopped", 30),
            (&killed, "stopped", 30),
            (&of_others, "withdrawn", 30),
            (&ended, "asked", 15),
            (&done, "done", 30),
            (&later, "stopped", 60),
            (&later, "asked", 30),
            (&done, "withdrawn", 30),
        ];
        for (lines, state, at_us) in right {
            assert_eq!(wrong(lines, &answers(state, at_us)), [""; 0], "{state} at {at_us}");
        }
        let bad: [(&[Line], &str, u64); 9] = [
            (&ended, "stopped", 15),
            (&ended, "cancelled", 15),
            (&killed, "cancelled", 15),
            (&of_others, "stopped", 30),
            (&later, "stopped", 30),
            (&later, "withdrawn", 30),
            (&done, "cancelled", 30),
            (&ended, "done", 30),
            (&done, "done", 15),
        ];
        for (lines, state, at_us) in bad {
            assert_eq!(wrong(lines, &answers(state, at_us)).len(), 1, "{state} at {at_us}");
        }
    }
}
