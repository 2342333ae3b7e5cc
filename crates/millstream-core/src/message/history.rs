//! Failures of earlier attempts at a message, by the server's clock.

use std::fmt;

use crate::timestamp::Timestamp;

/// The most failures that are kept: the first one, and the newest of the others.
pub const MAX_FAILURES: usize = 10;

/// Longest text of a failure in a history, in bytes; the newest one is also kept at full length beside it.
pub const MAX_TEXT_LEN: usize = 120;

/// The most notes that a dead letter has.
pub const MAX_NOTES: usize = 16;

/// Longest name and value of a note, in bytes.
const MAX_NOTE: (usize, usize) = (64, 512);

/// Name of the note that says where a letter is to be replayed to.
const REPLAY_TO: &str = "replay-to";

/// What a [`DeadLetterPolicy`](crate::DeadLetterPolicy) notes of a message that it keeps: names with values, for operators.
///
/// On the wire a note is a line of the history, `@<name> <value>`, before the failures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes(Vec<(String, String)>);

impl Notes {
    /// Creates an empty list of notes.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a note. A name is cut at 64 bytes, and spaces in it are replaced; a value becomes one line, cut at 512 bytes. Notes
    /// beyond 16 are dropped.
    #[must_use]
    pub fn note(mut self, name: &str, value: &str) -> Self {
        if self.0.len() < MAX_NOTES {
            let name = cut(name, MAX_NOTE.0).replace(char::is_whitespace, "_");
            self.0.push((if name.is_empty() { "_".into() } else { name }, cut(value, MAX_NOTE.1)));
        }
        self
    }

    /// Names the topic that the letter is to be replayed to, for replays that follow that.
    #[must_use]
    pub fn replay_to(self, topic: &str) -> Self {
        self.note(REPLAY_TO, topic)
    }

    /// Returns the value of the first note of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// Returns all notes, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }
}

/// Attempt that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Time at which the server recorded the failure, by its clock.
    pub at: Timestamp,
    /// Number of the attempt.
    pub attempt: u32,
    /// Error of the attempt, in one line, cut to [`MAX_TEXT_LEN`] bytes.
    pub error: String,
}

/// The failures of a message, oldest first; at most [`MAX_FAILURES`]. Of a dead letter, also the [notes](Notes).
///
/// On the wire a failure is a line, `<at> <attempt> <error>`. The client sends the newest one without its time, which the
/// server's script adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    failures: Vec<Failed>,
    /// Boxed, since only letters have some.
    notes: Option<Box<Notes>>,
}

impl History {
    /// Parses the wire form. Invalid lines are skipped.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut history = Self::default();
        for line in text.lines() {
            if let Some((name, value)) = line.strip_prefix('@').and_then(|note| note.split_once(' ')) {
                let notes = history.notes.take().map_or_else(Notes::default, |notes| *notes);
                history.notes = Some(Box::new(notes.note(name, value)));
                continue;
            }
            let mut words = line.splitn(3, ' ');
            let at = words.next().and_then(|word| word.parse().ok()).map(Timestamp::from_millis);
            let attempt = words.next().and_then(|word| word.parse().ok());
            if let (Some(at), Some(attempt)) = (at, attempt) {
                history.push(Failed { at, attempt, error: one_line(words.next().unwrap_or_default()) });
            }
        }
        history
    }

    /// Returns the failures, oldest first.
    #[must_use]
    pub fn failures(&self) -> &[Failed] {
        &self.failures
    }

    /// Returns the notes of a dead letter.
    #[must_use]
    pub fn notes(&self) -> &Notes {
        static NONE: Notes = Notes::new();
        self.notes.as_deref().unwrap_or(&NONE)
    }

    /// Returns the name of the topic that a dead letter is to be replayed to, if its policy has noted one.
    #[must_use]
    pub fn replay_to(&self) -> Option<&str> {
        self.notes().get(REPLAY_TO)
    }

    /// Returns the same history with these notes in place of others.
    #[must_use]
    pub fn with_notes(self, notes: Notes) -> Self {
        Self { notes: (!notes.0.is_empty()).then(|| Box::new(notes)), ..self }
    }

    /// Returns the time at which the first attempt failed, by the server's clock.
    #[must_use]
    pub fn since(&self) -> Option<Timestamp> {
        self.failures.first().map(|failed| failed.at)
    }

    /// Whether no attempt has failed yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.failures.is_empty()
    }

    /// Adds a failure. The first one stays; the oldest of the others is dropped if there are too many.
    pub fn push(&mut self, failed: Failed) {
        self.make_room();
        self.failures.push(failed);
    }

    /// Whether nothing is to be added for this attempt: there was none (0), or its failure is included.
    #[must_use]
    pub fn tells_of(&self, attempt: u32) -> bool {
        attempt == 0 || self.failures.last().is_some_and(|newest| newest.attempt >= attempt)
    }

    /// Adds the failure of an attempt, unless it is [included](Self::tells_of), also with an empty text.
    pub fn add(&mut self, at: Timestamp, attempt: u32, error: &str) {
        if !self.tells_of(attempt) {
            self.push(Failed { at, attempt, error: one_line(error) });
        }
    }

    /// Prepares the same for a script, which knows the time. Returns the wire form of the failures that are kept, up to
    /// where the script continues, and the [`line()`] that the script appends after `<now> `; an empty line if nothing is
    /// to be added.
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

    /// Returns the wire form of the failures that are kept when a script adds one more: it appends `<now> ` and
    /// [`line()`].
    #[must_use]
    pub fn before_one_more(&self) -> String {
        let mut kept = self.clone();
        kept.make_room();
        kept.to_string()
    }

    fn make_room(&mut self) {
        while self.failures.len() >= MAX_FAILURES {
            // Not the first one: `since` returns its time.
            self.failures.remove(1);
        }
    }
}

/// Returns the part of a line that a script writes after its time: `<attempt> <error>`.
#[must_use]
pub fn line(attempt: u32, error: &str) -> String {
    format!("{attempt} {}", one_line(error))
}

fn one_line(error: &str) -> String {
    cut(error, MAX_TEXT_LEN)
}

/// Returns the text in one line, with at most this many bytes.
fn cut(text: &str, most: usize) -> String {
    let mut text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    while text.len() > most {
        text.pop();
    }
    text
}

/// Writes the wire form.
impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (name, value) in self.notes().iter() {
            write!(f, "{between}@{name} {value}")?;
            between = "\n";
        }
        for Failed { at, attempt, error } in &self.failures {
            write!(f, "{between}{} {attempt} {error}", at.as_millis())?;
            between = "\n";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn failed(attempt: u32) -> Failed {
        Failed {
            at: Timestamp::from_millis(1_000 + u64::from(attempt)),
            attempt,
            error: format!("no {attempt}"),
        }
    }

    #[test]
    fn the_first_failure_and_the_newest_are_kept() {
        let mut history = History::default();
        (1..=30).for_each(|attempt| history.push(failed(attempt)));
        let attempts: Vec<_> = history.failures().iter().map(|failed| failed.attempt).collect();
        assert_eq!(attempts, [1, 22, 23, 24, 25, 26, 27, 28, 29, 30]);
        assert_eq!(history.since(), Some(Timestamp::from_millis(1_001)));
    }

    #[test]
    fn what_a_script_appends_reads_back() {
        let mut history = History::default();
        (1..=10).for_each(|attempt| history.push(failed(attempt)));
        let text = format!("{}\n77 {}", history.before_one_more(), line(11, "two\nlines"));
        let back = History::parse(&text);
        assert_eq!(back.failures().len(), MAX_FAILURES);
        let last = Failed { at: Timestamp::from_millis(77), attempt: 11, error: "two lines".into() };
        assert_eq!(back.failures().last(), Some(&last));
        assert_eq!(History::parse(&format!("77 {}", line(1, ""))).failures().len(), 1);
    }

    #[test]
    fn each_failure_is_added_once_by_hand_as_by_a_script() {
        let mut history = History::default();
        for (at, attempt, len) in [(5, 0, 0), (5, 1, 1), (6, 1, 1), (7, 3, 2), (8, 2, 2)] {
            let (kept, line) = history.adding(attempt, "no");
            let text = if line.is_empty() { kept } else { format!("{kept}{at} {line}") };
            history.add(Timestamp::from_millis(at), attempt, "no");
            assert_eq!((History::parse(&text), history.failures().len()), (history.clone(), len));
        }
        assert_eq!(history.to_string(), "5 1 no\n7 3 no");
    }

    #[test]
    fn notes_read_back_beside_failures_that_a_script_adds() {
        let notes = Notes::new().note("tenant of\tours", "acme\n@x y").replay_to("orders.slow");
        let mut history = History::default().with_notes(notes.clone());
        history.push(failed(1));
        let (kept, line) = history.adding(2, "no");
        let back = History::parse(&format!("{kept}77 {line}"));
        assert_eq!((back.notes(), back.failures().len(), back.replay_to()), (&notes, 2, Some("orders.slow")));
        assert_eq!(notes.get("tenant_of_ours"), Some("acme @x y"));
        let alone = History::default().with_notes(notes.clone());
        let (kept, line) = alone.adding(1, "no");
        assert_eq!(History::parse(&format!("{kept}77 {line}")).failures().len(), 1);
        let many = (0..99).fold(Notes::new(), |notes, _| notes.note("", &"é".repeat(999)));
        assert!(many.iter().count() == MAX_NOTES && many.iter().all(|it| it == ("_", &*"é".repeat(256))));
        let long = History::default().with_notes(many);
        assert_eq!(History::parse(&long.to_string()), long);
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
