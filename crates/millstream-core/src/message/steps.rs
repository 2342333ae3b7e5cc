//! Steps: what the handler of a message has done so far, kept beside the message until it is settled.
//!
//! A handler that runs for long, or waits for days, is run again from its beginning after a crash, a failure or a wait. What it has stored under a
//! name is not run again. Steps are checkpoints, not a log that is replayed: a handler may take another way each time.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;

use crate::envelope::Headers;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{MessageId, ScheduleId};
use crate::message::results::part_of;
use crate::name::GroupName;
use crate::partition::{Shard, WorkPlace};
use crate::timestamp::Timestamp;
use crate::topic::TopicPartition;

/// Header of a dead letter: the steps of its message, as [`StepRecord::write`] writes them. It does not count against
/// [`Limits`](crate::Limits).
pub const STEPS_HEADER: &str = "millstream-steps";

/// Most bytes of all steps of a message, 256 KiB: each step writes all of them. A larger result is kept elsewhere, and a reference to it here.
pub const MAX_STEPS: usize = 256 << 10;

/// Most bytes of the name of a step.
pub const MAX_STEP_NAME: usize = 128;

/// Behind the name of a step of several messages in the names of its records about these: which batch they are, as `batch numbers` once they are sent, and the
/// wait for their end. No name that a handler chooses has it.
pub const OF_MEMBERS: char = '\u{1}';

/// Value of a wait that a signal ends.
const BY_SIGNAL: &[u8] = b"s";

/// Beginning of the ids of tasks. A topic of this name has one part more in its ids.
const QUEUE: &str = "queue";

/// Id of a message as one group handles it, or of a task: whom to [signal](crate::Steps::signal).
///
/// ```
/// use millstream_core::{WorkId, WorkPlace};
///
/// let id: WorkId = "signups/3/welcome/1700000000000-0".parse()?;
/// assert!(matches!(&id.place, WorkPlace::Group(it, group) if it.partition.0 == 3 && group.as_str() == "welcome"));
/// let id: WorkId = "queue/mails/1/welcome-42".parse()?;
/// assert!(matches!(&id.place, WorkPlace::Shard(it) if it.shard == 1));
/// # Ok::<(), millstream_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkId {
    /// Partition and group, or shard.
    pub place: WorkPlace,
    /// Id of the message's entry in the log, or of the task.
    pub id: String,
}

impl WorkId {
    /// Creates the id of a message for a group, or of a task.
    #[must_use]
    pub fn new(place: WorkPlace, id: impl fmt::Display) -> Self {
        Self { place, id: id.to_string() }
    }

    /// Creates the id of a message for a group, from where it was [stored](crate::log::Appended).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for a bad name.
    pub fn message(place: &TopicPartition, id: MessageId, group: impl Into<String>) -> Result<Self> {
        Ok(Self::new(WorkPlace::Group(place.clone(), GroupName::new(group.into())?), id))
    }

    fn read(text: &str) -> Option<Self> {
        let of_task = || {
            let mut parts = text.strip_prefix(QUEUE)?.strip_prefix('/')?.splitn(3, '/');
            let (name, digits) = (parts.next()?, parts.next()?);
            let id: ScheduleId = parts.next()?.parse().ok()?;
            let shard = Shard::new(name.parse().ok()?, part_of(digits)?);
            Some(Self::new(WorkPlace::Shard(shard), id))
        };
        let of_message = || {
            let mut parts = text.splitn(4, '/');
            let (topic, digits, group) = (parts.next()?, parts.next()?, parts.next()?);
            let text = parts.next()?;
            let id = text.parse::<MessageId>().ok().filter(|id| id.to_string() == text)?;
            let place = TopicPartition::new(topic.parse().ok()?, part_of(digits)?);
            Some(Self::new(WorkPlace::Group(place, group.parse().ok()?), id))
        };
        of_message().or_else(of_task)
    }
}

/// As `signups/3/welcome/1700000000000-0`, a message in partition 3 of `signups` for the group `welcome`, and
/// `queue/mails/1/welcome-42`, a task in shard 1 of the delay queue `mails`.
impl fmt::Display for WorkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            WorkPlace::Group(place, group) => write!(f, "{place}/{group}/{}", self.id),
            WorkPlace::Shard(shard) => write!(f, "{QUEUE}/{shard}/{}", self.id),
        }
    }
}

impl FromStr for WorkId {
    type Err = Error;

    /// # Errors
    /// [`ErrorKind::InvalidName`] for any other text.
    fn from_str(text: &str) -> Result<Self> {
        Self::read(text).ok_or_else(|| {
            let shown: String = text.chars().take(200).collect();
            let why = format!(
                "{shown:?} is no id of a message for a group, as signups/3/welcome/1700000000000-0, nor of a task, as \
                 queue/mails/1/welcome-42"
            );
            Error::new(ErrorKind::InvalidName, why)
        })
    }
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StepKind {
    /// A step that is done. The time is that of its end, and the value its result.
    Done,
    /// A wait that has begun. The time is that at which it ends, and the value `s` if a signal ends it too.
    Wait,
    /// A signal. The time is that at which it came, and the value what it says.
    Signal,
}

impl StepKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Done, Self::Wait, Self::Signal];

    /// Returns the letter for it.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Done => 'd',
            Self::Wait => 'w',
            Self::Signal => 's',
        }
    }
}

/// One of the steps of a message.
#[derive(Clone, PartialEq, Eq)]
pub struct StepRecord {
    /// What it is.
    pub kind: StepKind,
    /// When it ended, ends, or came, by the server's clock.
    pub at: Timestamp,
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Bytes,
}

impl StepRecord {
    /// Creates a record.
    #[must_use]
    pub fn new(kind: StepKind, at: Timestamp, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        Self { kind, at, name: name.into(), value: value.into() }
    }

    /// Creates the record of a wait that ends at this time.
    #[must_use]
    pub fn of_wait(wait: &StepWait, ends: Timestamp) -> Self {
        Self::new(StepKind::Wait, ends, wait.name.clone(), if wait.signal { BY_SIGNAL } else { &[] })
    }

    /// Returns the name of the step that it is of.
    #[must_use]
    pub fn step(&self) -> &str {
        self.name.strip_suffix(OF_MEMBERS).unwrap_or(&self.name)
    }

    /// Whether it is about the members of a step.
    #[must_use]
    pub fn is_of_members(&self) -> bool {
        self.name.ends_with(OF_MEMBERS)
    }

    /// Whether it is a wait that a signal ends.
    #[must_use]
    pub fn ends_by_signal(&self) -> bool {
        self.kind == StepKind::Wait && self.value == BY_SIGNAL
    }

    /// Writes records one behind the other: each is its letter, the time in milliseconds, the numbers of bytes of name and value, all separated by
    /// spaces, a newline, the name, and the value.
    #[must_use]
    pub fn write(records: &[Self]) -> Vec<u8> {
        let mut text = Vec::new();
        for Self { kind, at, name, value } in records {
            let lead = format!("{} {} {} {}\n", kind.letter(), at.as_millis(), name.len(), value.len());
            text.extend_from_slice(lead.as_bytes());
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(value);
        }
        text
    }

    /// Reads all records. Of several of one kind and name the first counts, and is returned. Those of a kind that only a later version knows are passed over.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] if the bytes are none.
    pub fn read(bytes: &Bytes) -> Result<Vec<Self>> {
        let mut records: Vec<Self> = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let (record, next) = Self::read_one(bytes, at).ok_or_else(|| {
                let why = format!("the steps of a message cannot be read from byte {at} on");
                Error::new(ErrorKind::Protocol, why)
            })?;
            at = next;
            let Some(record) = record else { continue };
            if !records.iter().any(|it| it.kind == record.kind && it.name == record.name) {
                records.push(record);
            }
        }
        Ok(records)
    }

    /// Returns the record that begins at `from`, and where the next one does.
    fn read_one(bytes: &Bytes, from: usize) -> Option<(Option<Self>, usize)> {
        let rest = bytes.get(from..)?;
        // The lead of a record is short: letter, time, and two lengths.
        let end = rest.iter().take(64).position(|byte| *byte == b'\n')?;
        let lead = std::str::from_utf8(&rest[..end]).ok()?;
        let mut words = lead.split(' ');
        let letter = words.next()?;
        let [letter @ b'a'..=b'z'] = *letter.as_bytes() else { return None };
        let kind = StepKind::ALL.into_iter().find(|kind| kind.letter() == char::from(letter));
        let mut number = || words.next()?.parse::<u64>().ok();
        let at = Timestamp::from_millis(number()?);
        let (name, value) = (usize::try_from(number()?).ok()?, usize::try_from(number()?).ok()?);
        let begin = from + end + 1;
        let behind_name = begin.checked_add(name)?;
        let behind = behind_name.checked_add(value).filter(|behind| *behind <= bytes.len())?;
        let name = std::str::from_utf8(&bytes[begin..behind_name]).ok()?;
        let value = bytes.slice(behind_name..behind);
        Some((kind.map(|kind| Self::new(kind, at, name, value)), behind))
    }

    /// Returns those in the headers of a message that was a dead letter; none if it was not.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn of(headers: &Headers) -> Result<Vec<Self>> {
        headers.get(STEPS_HEADER).map_or(Ok(Vec::new()), Self::read)
    }
}

/// Without the value: it may be a secret.
impl fmt::Debug for StepRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, at, name, value } = self;
        write!(f, "{kind:?}({name:?}, {at:?}, {} bytes)", value.len())
    }
}

/// Wait of a message that is handed back: with a [retry](crate::Settlement::Retry) the server notes it, unless it is noted, and the time that was noted
/// first counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StepWait {
    /// Its name.
    pub name: String,
    /// Whether a [signal](crate::Steps::signal) of this name ends it too.
    pub signal: bool,
}

impl StepWait {
    /// Creates a wait for a time.
    #[must_use]
    pub fn sleep(name: impl Into<String>) -> Self {
        Self { name: name.into(), signal: false }
    }

    /// Creates a wait for a signal, or a time.
    #[must_use]
    pub fn signal(name: impl Into<String>) -> Self {
        Self { name: name.into(), signal: true }
    }
}

/// Checks the name of a step, a wait or a signal.
///
/// # Errors
/// [`ErrorKind::InvalidName`] for one that is empty, has more than [`MAX_STEP_NAME`] bytes, or a control character.
pub fn check_name(name: &str) -> Result<()> {
    let is_good = !name.is_empty() && name.len() <= MAX_STEP_NAME && !name.chars().any(char::is_control);
    if is_good {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_STEP_NAME).collect();
    let why = format!(
        "{shown:?} is no name of a step: it has 1 to {MAX_STEP_NAME} bytes, and no control characters"
    );
    Err(Error::new(ErrorKind::InvalidName, why))
}

/// Checks the name of a signal, which may be that of a batch for the step that waits for it.
///
/// # Errors
/// Those of [`check_name`].
pub fn check_signal(name: &str) -> Result<()> {
    check_name(name.strip_suffix(OF_MEMBERS).unwrap_or(name))
}

/// Returns the error of a message that would have more than [`MAX_STEPS`].
#[must_use]
pub fn too_large() -> Error {
    let why = format!("the steps of the message would have more than {MAX_STEPS} bytes");
    Error::new(ErrorKind::TooLarge, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: StepKind, name: &str, value: &'static [u8]) -> StepRecord {
        StepRecord::new(kind, Timestamp::from_millis(1_700_000_000_000), name, value)
    }

    #[test]
    fn records_are_read_as_they_are_written_whatever_their_bytes() {
        let records = vec![
            record(StepKind::Done, "charge", b"{\"id\":7}\n\0\xff"),
            record(StepKind::Wait, "d 1 1 1\n", b""),
            record(StepKind::Signal, "größe", b"d 1 1 1\nab"),
        ];
        let written = Bytes::from(StepRecord::write(&records));
        assert_eq!(StepRecord::read(&written).expect("records"), records);
        assert!(!format!("{records:?}").contains("id"), "values may be secrets");
        assert_eq!(StepRecord::read(&Bytes::new()).expect("none"), []);
    }

    #[test]
    fn the_first_of_a_kind_and_name_counts() {
        let both = [record(StepKind::Done, "a", b"1"), record(StepKind::Done, "a", b"2")];
        let other = record(StepKind::Signal, "a", b"3");
        let written = StepRecord::write(&[&both[..], std::slice::from_ref(&other)].concat());
        assert_eq!(StepRecord::read(&written.into()).expect("records"), [both[0].clone(), other]);
    }

    #[test]
    fn a_kind_of_a_later_version_is_passed_over() {
        let known = record(StepKind::Done, "a", b"1");
        let both = [&b"x 1 1 1\nab"[..], &StepRecord::write(std::slice::from_ref(&known))].concat();
        assert_eq!(StepRecord::read(&both.into()).expect("records"), [known]);
    }

    #[test]
    fn bytes_that_are_no_records_are_an_error() {
        let good = StepRecord::write(&[record(StepKind::Done, "a", b"1")]);
        for at in 1..good.len() {
            let cut = Bytes::copy_from_slice(&good[..at]);
            assert_eq!(StepRecord::read(&cut).expect_err("cut").kind(), ErrorKind::Protocol, "{at}");
        }
        for bad in [
            &b"X 1 1 1\nab"[..],
            b"d -1 1 1\nab",
            b"d 1 18446744073709551615 1\nab",
            b"d 1 1 18446744073709551615\nab",
            b"d 1 1 0\n\xff",
            &[b' '; 200],
        ] {
            assert!(StepRecord::read(&Bytes::copy_from_slice(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_id_is_read_as_it_is_written_and_nothing_else_is() {
        for text in [
            "signups/3/welcome/1700000000000-0",
            "queue/mails/1/a/b",
            "queue/3/welcome/1700000000000-0",
            "queue/mails/1/1-0",
        ] {
            let id: WorkId = text.parse().expect(text);
            assert_eq!(id.to_string(), text);
        }
        assert!(matches!(
            "queue/3/welcome/1700000000000-0".parse::<WorkId>().expect("a message").place,
            WorkPlace::Group(..)
        ));
        for bad in
            ["", "signups/3/welcome", "signups/03/welcome/1-0", "signups/3/welcome/x", "queue/mails/1/"]
        {
            assert_eq!(bad.parse::<WorkId>().expect_err(bad).kind(), ErrorKind::InvalidName, "{bad}");
        }
    }

    #[test]
    fn names_have_a_length_and_no_control_characters() {
        assert!(check_name("charge the card").is_ok());
        assert!(check_name(&"x".repeat(MAX_STEP_NAME)).is_ok());
        for bad in ["", "a\nb", &"x".repeat(MAX_STEP_NAME + 1)] {
            assert_eq!(check_name(bad).expect_err(bad).kind(), ErrorKind::InvalidName);
        }
    }
}
