//! State of a task beside its body, as stored in the `task_states` hash:
//! `<due> <attempt> <crashes> <begun 0 or 1> <hold> <token or -> <error>` and, behind a line break, the lines of its
//! history. Only scripts use `begun` and `hold`, for how many milliseconds the claim holds.

use millstream_core::Timestamp;
use millstream_core::history::{self, History};
use millstream_core::wire;

/// State of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TaskState {
    pub(crate) due: Timestamp,
    pub(crate) attempt: u32,
    pub(crate) crashes: u32,
    pub(crate) token: String,
    pub(crate) error: String,
    pub(crate) history: History,
}

impl TaskState {
    /// Parses a state; `None` if the text is none. A number that is too large becomes the largest one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (first, history) = text.split_once('\n').unwrap_or((text, ""));
        let mut words = first.splitn(7, ' ');
        let mut number = || {
            let word = words.next()?;
            let digits = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| word.parse::<u64>().unwrap_or(u64::MAX))
        };
        let (due, attempt, crashes, _, _) = (number()?, number()?, number()?, number()?, number()?);
        let small = |number| u32::try_from(number).unwrap_or(u32::MAX);
        let token = words.next().filter(|token| !token.is_empty())?.to_owned();
        let error = words.next()?.to_owned();
        let (due, attempt, crashes) = (Timestamp::from_millis(due), small(attempt), small(crashes));
        Some(Self { due, attempt, crashes, token, error, history: History::parse(history) })
    }
}

/// Formats an error for a state: its first 1,024 bytes, in one line.
pub(crate) fn one_line(error: &str) -> String {
    wire::cut(error).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns two arguments with which a script adds a failure whose time and attempt it knows: the history to keep, up
/// to the place where the script adds, and the error text.
pub(crate) fn adding(history: &History, error: &str) -> (String, String) {
    let mut kept = history.before_one_more();
    if !kept.is_empty() {
        kept.push('\n');
    }
    let line = history::line(0, error);
    (kept, line.strip_prefix("0 ").map_or_else(String::new, str::to_owned))
}

#[cfg(test)]
mod tests {
    use millstream_core::history::Failed;

    use super::*;

    #[test]
    fn a_state_reads_back() {
        let plain = TaskState::parse("17 1 0 0 30000 w:1:1 \n").expect("a new one");
        assert_eq!((plain.due.as_millis(), plain.attempt, plain.crashes), (17, 1, 0));
        assert_eq!((plain.token.as_str(), plain.error.as_str()), ("w:1:1", ""));
        assert!(plain.history.is_empty());
        let tried = TaskState::parse("17 3 2 1 0 - no money\n5 1 no\n9 2 no money").expect("an old one");
        assert_eq!((tried.error.as_str(), tried.history.failures().len()), ("no money", 2));
        let newest = Failed { at: Timestamp::from_millis(9), attempt: 2, error: "no money".into() };
        assert_eq!(tried.history.failures()[1], newest);
        let huge = TaskState::parse("99999999999999999999999 4294967296 0 0 0 t ").expect("clamped");
        assert_eq!((huge.due.as_millis(), huge.attempt), (u64::MAX, u32::MAX));
    }

    #[test]
    fn what_is_no_state_is_none() {
        for text in [
            "",
            "x",
            "1 2 3",
            "1 2 3 0 0 t",
            "1 2 3 t e",
            "-1 1 0 0 0 t ",
            "1 1 x 0 0 t ",
            "1 1 0 0 0  e",
            " 1 1 0 0 0 t e",
            "+1 1 0 0 0 t ",
        ] {
            assert_eq!(TaskState::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_failure_is_one_line_of_text() {
        assert_eq!(adding(&History::default(), "a\nb"), (String::new(), "a b".into()));
        assert_eq!(adding(&History::parse("5 1 no"), ""), ("5 1 no\n".into(), String::new()));
    }
}
