//! Batches: messages that are counted together, and the messages that are sent when all of them have ended.
//!
//! A member names its batch and its number in a header. The step that settles it leaves a note beside it, so a former owner leaves none; whoever
//! owns the partition takes the note to the batch. The batch has a bit for each member, so each counts once, however often it is settled.

use std::fmt;
use std::str::FromStr;

use crate::envelope::{Headers, Limits};
use crate::error::{Error, ErrorKind, Result};
use crate::message::results::{MessageResult, ResultRequest, TOO_LARGE, UNWRITABLE, number_of, part_of};
use crate::message::steps::WorkId;
use crate::name::GroupName;
use crate::topic::TopicPartition;
use crate::wire::{self, Field};

/// Header of a member: a [`BatchMember`] as text.
pub const BATCH_HEADER: &str = "millstream-batch";

/// Header of a message that a batch sends: a [`BatchEvent`] as text.
pub const BATCH_EVENT_HEADER: &str = "millstream-batch-event";

/// Most members of a batch: 10,000,000, for which its bits take 1.25 MB.
pub const MAX_MEMBERS: u32 = 10_000_000;

/// Largest reply of a member in bytes that a batch keeps: 16 KiB, since up to 1,000 are read at once.
pub const MAX_MEMBER_RESULT: usize = 16 << 10;

/// Behind the number of a member whose result the batch keeps.
const KEEPS_RESULT: char = '+';

/// Id of a batch. Its text has the partition to whose log the batch sends its messages, and a number: `reports/3/0af7651916cd43dd8448eb211c80319c`.
///
/// ```
/// use millstream_core::BatchId;
///
/// let id: BatchId = "reports/3/0af7651916cd43dd8448eb211c80319c".parse()?;
/// assert_eq!((id.place.topic.as_str(), id.place.partition.0), ("reports", 3));
/// # Ok::<(), millstream_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchId {
    /// Partition where the batch is stored, and to whose log it sends its messages.
    pub place: TopicPartition,
    /// Its number, which its creator chose at random.
    pub number: u128,
}

impl BatchId {
    /// Creates the id of a batch.
    #[must_use]
    pub fn new(place: TopicPartition, number: u128) -> Self {
        Self { place, number }
    }

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, '/');
        let (name, digits, number) = (parts.next()?, parts.next()?, parts.next()?);
        let place = TopicPartition::new(name.parse().ok()?, part_of(digits)?);
        Some(Self { place, number: number_of(number)? })
    }
}

impl fmt::Display for BatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:032x}", self.place, self.number)
    }
}

impl FromStr for BatchId {
    type Err = Error;

    /// # Errors
    /// [`ErrorKind::InvalidName`] for a text that is no id of a batch.
    fn from_str(text: &str) -> Result<Self> {
        Self::read(text).ok_or_else(|| {
            let shown: String = text.chars().take(200).collect();
            let why = format!(
                "{shown:?} is no id of a batch: it has a topic, a partition and 32 digits, as reports/3/0af7…"
            );
            Error::new(ErrorKind::InvalidName, why)
        })
    }
}

/// Place of a message in a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchMember {
    /// The batch.
    pub batch: BatchId,
    /// Number of the member, from 0, below [`MAX_MEMBERS`].
    pub number: u32,
    /// The group whose settlement counts; `None` for each.
    pub group: Option<GroupName>,
    /// Whether the batch keeps its result.
    pub keeps_result: bool,
}

impl BatchMember {
    /// Creates a place that counts for each group.
    #[must_use]
    pub fn new(batch: BatchId, number: u32) -> Self {
        Self { batch, number, group: None, keeps_result: false }
    }

    /// Reads the value of the header. `None` for anything else.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let mut words = text.splitn(3, ' ');
        let batch = BatchId::read(words.next()?)?;
        let word = words.next()?;
        let digits = word.strip_suffix(KEEPS_RESULT);
        let number = part_of(digits.unwrap_or(word)).filter(|number| *number < MAX_MEMBERS)?;
        let group = words.next().map(str::parse).transpose().ok()?;
        Some(Self { batch, number, group, keeps_result: digits.is_some() })
    }

    /// Returns the place in the headers of a message. `None` if there is no such header, or one that is no place.
    #[must_use]
    pub fn of(headers: &Headers) -> Option<Self> {
        Self::read(headers.get_str(BATCH_HEADER)?)
    }

    /// Whether the settlement by this group counts. A delay queue has none.
    #[must_use]
    pub fn counts_for(&self, group: Option<&GroupName>) -> bool {
        self.group.as_ref().is_none_or(|it| group.is_none_or(|group| it == group))
    }
}

/// Writes the value of the header: the id of the batch, the number, with `+` if its result is kept, and the group if there is one.
impl fmt::Display for BatchMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.batch, self.number)?;
        if self.keeps_result {
            write!(f, "{KEEPS_RESULT}")?;
        }
        self.group.as_ref().map_or(Ok(()), |group| write!(f, " {group}"))
    }
}

/// What has to know of the end of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchParent {
    /// The batch of which it is a member: it is done with its success, and dead if it is complete without.
    Batch(BatchMember),
    /// The message or task that waits for it, with the name of the [signal](crate::Steps::signal) that it gets when the batch is complete.
    Step(WorkId, String),
}

/// Beginning of the text of a parent that is no batch.
const STEP: &str = "step ";

impl BatchParent {
    /// Reads the text. `None` for anything else.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let Some(step) = text.strip_prefix(STEP) else { return BatchMember::read(text).map(Self::Batch) };
        // The id of a task may have any characters, and a name has no line break.
        let (id, name) = step.rsplit_once('\n')?;
        Some(Self::Step(id.parse().ok()?, name.to_owned()))
    }
}

/// Writes the [member](BatchMember); or `step `, the id, a line break, and the name.
impl fmt::Display for BatchParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Batch(member) => member.fmt(f),
            Self::Step(id, name) => write!(f, "{STEP}{id}\n{name}"),
        }
    }
}

/// How a member ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberEnd {
    /// It was handled. This stays.
    Done,
    /// It was given up: it is a dead letter, or was dropped or cancelled. If a dead letter is replayed, it can still be done.
    Dead,
}

impl MemberEnd {
    /// Returns the word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Dead => "dead",
        }
    }

    /// Reads the word. `None` for any other.
    #[must_use]
    pub fn read(word: &str) -> Option<Self> {
        [Self::Done, Self::Dead].into_iter().find(|it| it.as_str() == word)
    }

    /// Returns how a message with this result ended: one that was handled is done, also if its reply could not be kept.
    #[must_use]
    pub fn of(result: &MessageResult) -> Self {
        match result {
            MessageResult::Failed { reason, .. } if reason != TOO_LARGE && reason != UNWRITABLE => Self::Dead,
            _ => Self::Done,
        }
    }
}

/// Event for which a batch sends a message. No batch sends any before it is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BatchEventKind {
    /// So many percent of the members have ended.
    Progress(u8),
    /// The first member has died.
    Death,
    /// All members have ended, some of them dead perhaps.
    Complete,
    /// All members are done: at once, or after dead letters were replayed.
    Success,
}

impl BatchEventKind {
    /// Returns the word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Progress(_) => "progress",
            Self::Death => "death",
            Self::Complete => "complete",
            Self::Success => "success",
        }
    }

    fn read(word: &str, percent: u8) -> Option<Self> {
        [Self::Progress(percent), Self::Death, Self::Complete, Self::Success]
            .into_iter()
            .find(|it| it.as_str() == word)
    }
}

/// What a message of a batch says: the event, and the counts at that moment.
///
/// ```
/// use millstream_core::batches::{BATCH_EVENT_HEADER, BatchEvent, BatchEventKind};
/// use millstream_core::Headers;
///
/// let mut headers = Headers::new();
/// headers.append(BATCH_EVENT_HEADER, "reports/3/0af7651916cd43dd8448eb211c80319c complete 0 100 98 2");
/// let event = BatchEvent::of(&headers).expect("an event");
/// assert_eq!((event.kind, event.members, event.dead), (BatchEventKind::Complete, 100, 2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchEvent {
    /// The batch.
    pub batch: BatchId,
    /// The event.
    pub kind: BatchEventKind,
    /// Number of members.
    pub members: u32,
    /// Number of those that are done.
    pub done: u32,
    /// Number of those that are dead.
    pub dead: u32,
}

impl BatchEvent {
    /// Creates an event.
    #[must_use]
    pub fn new(batch: BatchId, kind: BatchEventKind, members: u32, done: u32, dead: u32) -> Self {
        Self { batch, kind, members, done, dead }
    }

    /// Returns the event in the headers of a message. `None` if no batch sent it.
    #[must_use]
    pub fn of(headers: &Headers) -> Option<Self> {
        let mut words = headers.get_str(BATCH_EVENT_HEADER)?.split(' ');
        let batch = BatchId::read(words.next()?)?;
        let (word, percent) = (words.next()?, words.next()?.parse().ok()?);
        let kind = BatchEventKind::read(word, percent)?;
        let mut number = || words.next()?.parse::<u32>().ok();
        Some(Self { batch, kind, members: number()?, done: number()?, dead: number()? })
    }
}

/// Writes the value of the header: the batch, the event, the percent of a progress or 0, and the three numbers.
impl fmt::Display for BatchEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batch, kind, members, done, dead } = self;
        let percent = if let BatchEventKind::Progress(percent) = kind { *percent } else { 0 };
        write!(f, "{batch} {} {percent} {members} {done} {dead}", kind.as_str())
    }
}

/// What a message demands to be stored in the step that settles it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Its result.
    pub result: Option<ResultRequest>,
    /// A note for the batch of which it is a member.
    pub member: Option<BatchMember>,
    /// That its steps are dropped, which are stored under this id of its entry in the log. Those of a task are in any case.
    pub steps: Option<Box<str>>,
}

impl Demand {
    /// Returns what the headers of a message demand; `None` for nothing.
    #[must_use]
    pub fn of(headers: &Headers) -> Option<Self> {
        let demand =
            Self { result: ResultRequest::of(headers), member: BatchMember::of(headers), steps: None };
        (!demand.is_empty()).then_some(demand)
    }

    /// Returns what the message with these fields demands; `None` for nothing, and for what is no message.
    #[must_use]
    pub fn in_fields(fields: &[Field]) -> Option<Self> {
        Self::of(&wire::decode_body(fields, &Limits::NONE).ok()?.headers)
    }

    /// Returns the same of what counts for this group.
    #[must_use]
    pub fn in_group(&self, group: &GroupName) -> Self {
        let member = self.member.clone().filter(|member| member.counts_for(Some(group)));
        Self { result: self.result, member, steps: self.steps.clone() }
    }

    /// Whether it is nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.result.is_none() && self.member.is_none() && self.steps.is_none()
    }
}

impl From<ResultRequest> for Demand {
    fn from(request: ResultRequest) -> Self {
        Self { result: Some(request), ..Self::default() }
    }
}

impl From<BatchMember> for Demand {
    fn from(member: BatchMember) -> Self {
        Self { member: Some(member), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "reports/3/0af7651916cd43dd8448eb211c80319c";

    #[test]
    fn what_is_written_is_read_and_nothing_else_is() {
        let id: BatchId = ID.parse().expect("an id");
        assert_eq!(id.to_string(), ID);
        let mut member = BatchMember::new(id.clone(), 17);
        assert_eq!(BatchMember::read(&member.to_string()), Some(member.clone()));
        member.group = Some("billing".parse().expect("a name"));
        assert_eq!(BatchMember::read(&member.to_string()), Some(member.clone()));
        member.keeps_result = true;
        assert_eq!(member.to_string(), format!("{ID} 17+ billing"));
        assert_eq!(BatchMember::read(&member.to_string()), Some(member.clone()));
        for bad in [
            "",
            ID,
            &format!("{ID} -1"),
            &format!("{ID} 017"),
            &format!("{ID} 10000000"),
            &format!("{ID} 1 a b"),
            &format!("{ID} 1++"),
            &format!("{ID} +"),
        ] {
            assert_eq!(BatchMember::read(bad), None, "{bad}");
        }
        for bad in [
            "",
            "reports",
            "reports/3",
            "reports/03/0af7651916cd43dd8448eb211c80319c",
            &format!("{ID}/1"),
            &ID.to_uppercase(),
        ] {
            assert_eq!(bad.parse::<BatchId>().expect_err(bad).kind(), ErrorKind::InvalidName, "{bad}");
        }
        let of = |value: &str| {
            let mut headers = Headers::new();
            headers.append(BATCH_EVENT_HEADER, value.to_owned());
            BatchEvent::of(&headers)
        };
        for kind in [
            BatchEventKind::Progress(40),
            BatchEventKind::Death,
            BatchEventKind::Complete,
            BatchEventKind::Success,
        ] {
            let event = BatchEvent::new(id.clone(), kind, 9, 7, 1);
            assert_eq!(of(&event.to_string()), Some(event));
        }
        for bad in [
            "",
            &format!("{ID} complete 0 1 1"),
            &format!("{ID} begun 0 1 1 0"),
            &format!("{ID} death x 1 1 0"),
        ] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_group_that_is_named_counts_alone() {
        let [billing, other]: [GroupName; 2] = ["billing", "other"].map(|name| name.parse().expect("a name"));
        let mut member = BatchMember::new(ID.parse().expect("an id"), 0);
        assert!(member.counts_for(Some(&billing)) && member.counts_for(None));
        member.group = Some(billing.clone());
        let counts = |group| Demand::from(member.clone()).in_group(group).member.is_some();
        assert_eq!((counts(&billing), counts(&other), member.counts_for(None)), (true, false, true));
    }

    #[test]
    fn what_was_handled_is_done() {
        let failed = |reason| MemberEnd::of(&MessageResult::failed(reason, 1, ""));
        assert_eq!(
            [failed(TOO_LARGE), failed(UNWRITABLE), MemberEnd::of(&MessageResult::Done)],
            [MemberEnd::Done; 3]
        );
        assert_eq!([failed("exhausted"), failed("cancelled"), failed("discarded")], [MemberEnd::Dead; 3]);
    }
}
