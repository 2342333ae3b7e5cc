//! What earlier attempts at a message failed with, by the server's clock.

use std::fmt;

/// The most failures that are kept: the first one, and the newest of the others.
pub const MAX_FAILURES: usize = 10;

/// The longest text of a failure in a history; the newest one is also kept at full length beside it.
pub const MAX_TEXT_LEN: usize = 120;

/// One attempt that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// When that was told to the server: milliseconds since 1970 by its clock.
    pub at: u64,
    /// The number of the attempt.
    pub attempt: u32,
    /// What it failed with, in one line, cut to [`MAX_TEXT_LEN`] bytes.
    pub error: String,
}

/// The failures of a message, oldest first; at most [`MAX_FAILURES`].
///
/// On the wire a failure is a line, `<at> <attempt> <error>`. The client gives the newest one without its time: the
/// server's script knows that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History(Vec<Failed>);

impl History {
    /// Reads the wire form. Lines that are none are passed over.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut history = Self::default();
        for line in text.lines() {
            let mut words = line.splitn(3, ' ');
            let at = words.next().and_then(|word| word.parse().ok());
            let attempt = words.next().and_then(|word| word.parse().ok());
            if let (Some(at), Some(attempt)) = (at, attempt) {
                history.push(Failed { at, attempt, error: one_line(words.next().unwrap_or_default()) });
            }
        }
        history
    }

    /// The failures, oldest first.
    #[must_use]
    pub fn failures(&self) -> &[Failed] {
        &self.0
    }

    /// When the first attempt failed, in milliseconds since 1970 by the server's clock.
    #[must_use]
    pub fn since(&self) -> Option<u64> {
        self.0.first().map(|failed| failed.at)
    }

    /// Whether nothing has failed yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One more failure. The first one stays; of the others the oldest makes room.
    pub fn push(&mut self, failed: Failed) {
        self.make_room();
        self.0.push(failed);
    }

    /// Whether there is nothing to add of this attempt: it was none (0), or its failure stands here.
    #[must_use]
    pub fn tells_of(&self, attempt: u32) -> bool {
        attempt == 0 || self.0.last().is_some_and(|newest| newest.attempt >= attempt)
    }

    /// Adds that an attempt failed, unless this [tells of](Self::tells_of) it.
    pub fn add(&mut self, at: u64, attempt: u32, error: &str) {
        if !self.tells_of(attempt) {
            self.push(Failed { at, attempt, error: one_line(error) });
        }
    }

    /// The same for a script, which knows the time: what is kept, ending where it goes on, and the [`line()`] that it puts
    /// behind that, after `<now> `; an empty one if nothing is to be added.
    #[must_use]
    pub fn adding(&self, attempt: u32, error: &str) -> (String, String) {
        if self.tells_of(attempt) {
            return (self.to_string(), String::new());
        }
        let mut kept = self.before_one_more();
        if !kept.is_empty() {
            kept.push('\n');
        }
        (kept, line(attempt, error))
    }

    /// The wire form of what is kept when one more is added by a script, which puts `<now> ` and [`line()`] behind it.
    #[must_use]
    pub fn before_one_more(&self) -> String {
        let mut kept = self.clone();
        kept.make_room();
        kept.to_string()
    }

    fn make_room(&mut self) {
        while self.0.len() >= MAX_FAILURES {
            self.0.remove(1);
        }
    }
}

/// What a script puts behind its time: `<attempt> <error>`.
#[must_use]
pub fn line(attempt: u32, error: &str) -> String {
    format!("{attempt} {}", one_line(error))
}

fn one_line(error: &str) -> String {
    let mut text: String = error.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    while text.len() > MAX_TEXT_LEN {
        text.pop();
    }
    text
}

/// The wire form.
impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, Failed { at, attempt, error }) in self.0.iter().enumerate() {
            let between = if nth == 0 { "" } else { "\n" };
            write!(f, "{between}{at} {attempt} {error}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn failed(attempt: u32) -> Failed {
        Failed { at: 1_000 + u64::from(attempt), attempt, error: format!("no {attempt}") }
    }

    #[test]
    fn the_first_failure_and_the_newest_are_kept() {
        let mut history = History::default();
        (1..=30).for_each(|attempt| history.push(failed(attempt)));
        let attempts: Vec<_> = history.failures().iter().map(|failed| failed.attempt).collect();
        assert_eq!(attempts, [1, 22, 23, 24, 25, 26, 27, 28, 29, 30]);
        assert_eq!(history.since(), Some(1_001));
    }

    #[test]
    fn what_a_script_appends_reads_back() {
        let mut history = History::default();
        (1..=10).for_each(|attempt| history.push(failed(attempt)));
        let text = format!("{}\n77 {}", history.before_one_more(), line(11, "two\nlines"));
        let back = History::parse(&text);
        assert_eq!(back.failures().len(), MAX_FAILURES);
        let last = Failed { at: 77, attempt: 11, error: "two lines".into() };
        assert_eq!(back.failures().last(), Some(&last));
        assert_eq!(History::parse(&format!("77 {}", line(1, ""))).failures().len(), 1);
    }

    #[test]
    fn each_failure_is_added_once_by_hand_as_by_a_script() {
        let mut history = History::default();
        for (at, attempt, len) in [(5, 0, 0), (5, 1, 1), (6, 1, 1), (7, 3, 2), (8, 2, 2)] {
            let (kept, line) = history.adding(attempt, "no");
            let text = if line.is_empty() { kept } else { format!("{kept}{at} {line}") };
            history.add(at, attempt, "no");
            assert_eq!((History::parse(&text), history.failures().len()), (history.clone(), len));
        }
        assert_eq!(history.to_string(), "5 1 no\n7 3 no");
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in ".*") {
            let history = History::parse(&text);
            prop_assert_eq!(History::parse(&history.to_string()), history);
        }

        #[test]
        fn any_error_makes_one_bounded_line(error in "\\PC*|[\\n\\r\\x00é]{0,200}", attempt: u32) {
            let text = line(attempt, &error);
            prop_assert!(text.len() <= MAX_TEXT_LEN + 11 && text.lines().count() == 1);
        }
    }
}
