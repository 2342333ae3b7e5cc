//! Fan-out and fan-in: steps that are messages in any topic, and their results.
//!
//! The members are a batch beside the message that waits for them. It keeps their results and signals the message when all have ended.

use std::fmt;
use std::fmt::Write as _;
use std::future::IntoFuture;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use millstream_core::batches::{BATCHES, BatchId, BatchParent, BatchSpec, KEPT_OPEN, MAX_ENDS, QUEUES};
use millstream_core::cancels::WorkPlace;
use millstream_core::codec::{Codec, Json};
use millstream_core::steps::{MAX_STEPS, OF_MEMBERS, StepKind, StepWait};
use millstream_core::{BatchMember, Error, ErrorKind, GroupName, MessageResult, Result, TopicPartition};
use uuid::Uuid;

use super::{Inner, StepError, StepResult, Steps, unreadable};
use crate::batches::{BatchItem, OpenBatch};

/// Members that are added at the same time.
const AT_ONCE: usize = 100;

/// Most bytes of the number of a member in the record of those that were sent, with what separates it.
const NUMBER: usize = 9;

type Store<'a> = Box<dyn FnOnce(&BatchMember) -> BoxFuture<'a, Result<()>> + Send + 'a>;

/// Members of one step, which are sent when it is awaited: see [`Steps::all`].
#[must_use = "nothing is sent until it is awaited"]
pub struct FanOut<'a> {
    steps: Steps,
    name: String,
    /// Each with its target.
    items: Vec<(String, Store<'a>)>,
    group: Option<String>,
    settled: bool,
}

/// Results of the members of one step, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FanIn {
    name: String,
    results: Vec<Option<MessageResult>>,
}

impl Steps {
    /// Sends a message or schedules a task as a step, waits as [`signal`](Steps::signal) does until it is handled, and returns the reply of its handler, as JSON. A
    /// handler without a reply has `()`.
    ///
    /// ```
    /// # use millstream_engine::{BatchItem, Delivery};
    /// # type BoxError = Box<dyn std::error::Error + Send + Sync>;
    /// # fn charge(_: &str) -> impl BatchItem { struct Never; impl BatchItem for Never { type Stored = (); fn target(&self) -> String { String::new() } fn store<'a>(self, _: &millstream_core::BatchMember) -> futures_util::future::BoxFuture<'a, millstream_core::Result<()>> where Self: 'a { Box::pin(async { Ok(()) }) } } Never }
    /// async fn order(order: Delivery<String>) -> Result<(), BoxError> {
    ///     let steps = order.steps();
    ///     let receipt: u64 = steps.then("charge", charge(&order.payload)).await?; // as payments.send(…)
    ///     println!("receipt {receipt}");
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`all`](Self::all); [`StepError::MemberFailed`] if it was given up.
    pub async fn then<R>(&self, name: &str, item: impl BatchItem + Send) -> StepResult<R>
    where
        Json: Codec<R>,
    {
        self.all(name).with(item).await?.get(0)
    }

    /// Begins a step of several messages and tasks, of any topics: add them [with](FanOut::with), and await it. The message waits, as with [`signal`](Steps::signal),
    /// until all have ended.
    ///
    /// They are sent at the first run that comes here. If one send fails, or the process dies before the one write that notes all of them, the next run sends them again. Behind that,
    /// what later runs would send does not count: they get the results of the first.
    ///
    /// A handler's reply of more than [16 KiB](millstream_core::batches::MAX_MEMBER_RESULT) is not kept, and its result is a failure then.
    pub fn all<'a>(&self, name: &str) -> FanOut<'a> {
        FanOut { steps: self.clone(), name: name.to_owned(), items: Vec::new(), group: None, settled: false }
    }

    /// The same with each of these as a member.
    pub fn each<'a, I>(&self, name: &str, items: impl IntoIterator<Item = I>) -> FanOut<'a>
    where
        I: BatchItem + Send + 'a,
    {
        items.into_iter().fold(self.all(name), FanOut::with)
    }
}

impl<'a> FanOut<'a> {
    /// Adds a member: a send that is not awaited, or a task to be scheduled.
    pub fn with(mut self, item: impl BatchItem + Send + 'a) -> Self {
        let target = item.target();
        let store: Store<'a> = Box::new(move |member| {
            let storing = item.store(member);
            Box::pin(async move { storing.await.map(drop) })
        });
        self.items.push((target, store));
        self
    }

    /// Names the group whose settlements count, where several groups read the topics of the members. Without it the first group that handles a member counts.
    pub fn counting(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }
}

impl<'a> FanOut<'a> {
    /// Takes failures as results: once all have ended, what became of each is stored, and a member that is replayed later changes nothing. Without it the step has
    /// no result until all are done, so a member that was given up, and is replayed, has its reply in the next run.
    pub fn settled(self) -> Self {
        Self { settled: true, ..self }
    }
}

impl fmt::Debug for FanOut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FanOut")
            .field("name", &self.name)
            .field("members", &self.items.len())
            .finish_non_exhaustive()
    }
}

impl<'a> IntoFuture for FanOut<'a> {
    type Output = StepResult<FanIn>;
    type IntoFuture = BoxFuture<'a, StepResult<FanIn>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Self { steps, name, items, group, settled } = self;
            let group = group.map(GroupName::new).transpose()?;
            let results = fan(steps.inner()?, &name, (items, group), settled).await?;
            Ok(FanIn { name, results })
        })
    }
}

impl FanIn {
    /// Returns the reply of the member at this place, from 0.
    ///
    /// # Errors
    /// [`StepError::MemberFailed`] if it was given up; [`StepError::Refused`] for a reply of another shape, and for a place that is not there.
    pub fn get<R>(&self, member: usize) -> StepResult<R>
    where
        Json: Codec<R>,
    {
        let name = &self.name;
        let reply = match self.results.get(member) {
            Some(Some(MessageResult::Replied(reply))) => reply.clone(),
            Some(Some(MessageResult::Done)) => Bytes::from_static(b"null"),
            Some(Some(MessageResult::Failed { reason, attempts, error })) => {
                let (name, reason, error) = (name.clone(), reason.clone(), error.clone());
                return Err(StepError::MemberFailed { name, member, reason, attempts: *attempts, error });
            }
            // An operator has ended it, or its handler is of a version that keeps no results.
            Some(None) => {
                let (name, error) = (name.clone(), "it has no result".to_owned());
                let reason = millstream_core::results::DISCARDED.to_owned();
                return Err(StepError::MemberFailed { name, member, reason, attempts: 0, error });
            }
            None => {
                let why = format!("step {name:?} has {} members, and none at {member}", self.results.len());
                return Err(Error::new(ErrorKind::NotFound, why).into());
            }
        };
        Ok(Json.decode(&reply).map_err(|error| unreadable(name, &*error))?)
    }

    /// Returns the replies of all members, in their order.
    ///
    /// # Errors
    /// Those of [`get`](Self::get), for the first member that has one.
    pub fn all<R>(&self) -> StepResult<Vec<R>>
    where
        Json: Codec<R>,
    {
        (0..self.results.len()).map(|member| self.get(member)).collect()
    }

    /// Returns what became of the members, in their order; `None` of one that an operator has ended.
    #[must_use]
    pub fn results(&self) -> &[Option<MessageResult>] {
        &self.results
    }
}

/// Sends the members, waits until they have ended, and returns their results. Not generic: compiled once.
async fn fan(
    inner: &std::sync::Arc<Inner>,
    name: &str,
    (items, group): (Vec<(String, Store<'_>)>, Option<GroupName>),
    settled: bool,
) -> StepResult<Vec<Option<MessageResult>>> {
    if let Some(kept) = inner.begin(name).await? {
        return Ok(read_results(&kept).ok_or_else(|| unreadable(name, &"it has no results"))?);
    }
    let of_members = format!("{name}{OF_MEMBERS}");
    let sent = inner.find(StepKind::Done, &of_members).await?;
    let (batch, numbers) = match sent.map(|record| record.value) {
        Some(sent) => read_sent(&sent).ok_or_else(|| unreadable(name, &"it names no batch"))?,
        None if items.is_empty() => return Ok(Vec::new()),
        None => {
            // Before anything is sent: whoever cannot wait gets no results either.
            inner.can_wait()?;
            let sent = send(inner, name, items, group).await?;
            inner.end(&of_members, write_sent(&sent.0, &sent.1).into()).await?;
            sent
        }
    };
    let backend = &inner.access.backend;
    let open = OpenBatch::open(backend, &batch)?;
    // In each run: a process may have died before.
    let state = inner.repeated(|| open.seal()).await?;
    if state.ended.is_none() {
        let wait = inner.known().await?.wait(&of_members);
        if wait.signal.is_some() {
            // Another batch was taken for this one. It comes again as a failed attempt, and not at once.
            let why = format!("step {name:?} was told that its members have ended, and they have not");
            return Err(Error::new(ErrorKind::Unavailable, why).into());
        }
        let due = wait.due(KEPT_OPEN);
        if wait.is_over {
            let why =
                format!("step {name:?}: {} of {} members have not ended", state.missing(), state.members);
            return Err(Error::new(ErrorKind::NotFound, why).into());
        }
        return inner.park(StepWait::signal(of_members), due).await;
    }
    let role = backend.batches()?;
    let mut results = Vec::with_capacity(numbers.len());
    for some in numbers.chunks(MAX_ENDS) {
        results.extend(inner.repeated(|| role.results(&batch, some)).await?);
    }
    let is_good = |result: &Option<MessageResult>| {
        matches!(result, Some(MessageResult::Replied(_) | MessageResult::Done))
    };
    // A member that was given up may be replayed before the next run, which then gets its reply.
    if settled || results.iter().all(is_good) {
        let kept = write_results(&results);
        match inner.end(name, kept.into()).await {
            // They stay with the batch.
            Err(error) if error.kind() == ErrorKind::TooLarge && !settled => {}
            stored => stored?,
        }
    }
    Ok(results)
}

/// Sends the members, and returns their batch and numbers.
async fn send(
    inner: &Inner,
    name: &str,
    items: Vec<(String, Store<'_>)>,
    group: Option<GroupName>,
) -> Result<(BatchId, Vec<u32>)> {
    if let Some((batch, _)) = items.iter().find(|(target, _)| target.starts_with(BATCHES)) {
        let why = format!("{batch} is a batch: no step can add members to it, so it is none itself");
        return Err(Error::new(ErrorKind::Unsupported, why));
    }
    // Numbers of one topic follow each other, so that they are written as runs.
    let is_mixed = items.iter().any(|(target, _)| Some(target) != items.first().map(|(target, _)| target));
    if is_mixed && items.len() * NUMBER > MAX_STEPS / 2 {
        let why = format!("step {name:?} has {} members of several topics: divide it", items.len());
        return Err(Error::new(ErrorKind::TooLarge, why));
    }
    let backend = &inner.access.backend;
    let place = match &inner.access.id.place {
        WorkPlace::Group(place, _) => place.clone(),
        // The batch of a task is where a member goes: a delay queue has no place for it.
        WorkPlace::Shard(_) => {
            let topic = items.iter().find(|(target, _)| !target.starts_with(QUEUES));
            let topic = topic.map(|(target, _)| target.parse());
            let why = "the members of a task's step need one in a topic, beside which they are counted";
            let topic = topic.transpose()?.ok_or_else(|| Error::new(ErrorKind::Unsupported, why))?;
            TopicPartition::new(topic, 0)
        }
    };
    let number = if backend.is_in_process() { fastrand::u128(..) } else { Uuid::new_v4().as_u128() };
    let batch = BatchId::new(place, number);
    let parent = Some(BatchParent::Step(inner.access.id.clone(), format!("{name}{OF_MEMBERS}")));
    let (role, spec) = (backend.batches()?, BatchSpec { parent, ..BatchSpec::default() });
    inner.repeated(|| role.create(&batch, &spec)).await?;
    let open = OpenBatch::open(backend, &batch)?.keeping_results(group);
    let mut adds: Vec<BoxFuture<'_, Result<u32>>> = Vec::with_capacity(items.len());
    for (target, store) in items {
        adds.push(Box::pin(open.add_to(target, store)));
    }
    let numbers = stream::iter(adds).buffered(AT_ONCE).try_collect().await?;
    open.flush().await?;
    Ok((batch, numbers))
}

/// Writes a batch and the numbers of its members, in runs: `reports/3/0af7… 0-99,104`.
fn write_sent(batch: &BatchId, numbers: &[u32]) -> String {
    let mut text = format!("{batch} ");
    let mut rest = numbers;
    while let Some(first) = rest.first() {
        let run = rest.iter().zip(*first..).take_while(|(number, next)| *number == next).count();
        let last = first + u32::try_from(run).unwrap_or(1) - 1;
        // Writing to a text cannot fail.
        let _ = if run == 1 { write!(text, "{first},") } else { write!(text, "{first}-{last},") };
        rest = &rest[run..];
    }
    text
}

fn read_sent(sent: &[u8]) -> Option<(BatchId, Vec<u32>)> {
    let (batch, runs) = std::str::from_utf8(sent).ok()?.split_once(' ')?;
    let mut numbers = Vec::new();
    for run in runs.split_terminator(',') {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last.checked_sub(first)? >= millstream_core::batches::MAX_MEMBERS {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some((batch.parse().ok()?, numbers))
}

/// Writes results one behind the other, each behind its number of bytes and a space.
fn write_results(results: &[Option<MessageResult>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for result in results {
        let wire = result.as_ref().map(MessageResult::to_wire).unwrap_or_default();
        bytes.extend_from_slice(format!("{} ", wire.len()).as_bytes());
        bytes.extend_from_slice(&wire);
    }
    bytes
}

fn read_results(bytes: &Bytes) -> Option<Vec<Option<MessageResult>>> {
    let (mut results, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let digits = bytes[at..].iter().position(|byte| *byte == b' ')?;
        let size: usize = std::str::from_utf8(&bytes[at..at + digits]).ok()?.parse().ok()?;
        let begin = at + digits + 1;
        at = begin.checked_add(size).filter(|end| *end <= bytes.len())?;
        let wire = bytes.slice(begin..at);
        // One that an operator has ended has none.
        let result = (!wire.is_empty()).then(|| MessageResult::from_wire(&wire));
        results.push(result.transpose().ok()?);
    }
    Some(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_and_its_numbers_are_read_as_they_were_written() {
        let batch: BatchId = "reports/3/0af7651916cd43dd8448eb211c80319c".parse().expect("an id");
        for numbers in [vec![], vec![7], vec![0, 1, 2, 9, 8, 7, 16, 17], (5..40).collect()] {
            let text = write_sent(&batch, &numbers);
            assert_eq!(read_sent(text.as_bytes()), Some((batch.clone(), numbers)), "{text}");
        }
        for bad in [
            "",
            "reports/3 1",
            &format!("{batch} 3-1,"),
            &format!("{batch} x,"),
            &format!("{batch} 0-4294967295,"),
        ] {
            assert_eq!(read_sent(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn results_are_read_as_they_were_written() {
        let results = [Some(MessageResult::Replied(Bytes::from_static(b"1 2 3"))), Some(MessageResult::Done)];
        let bytes = Bytes::from(write_results(&results));
        assert_eq!(read_results(&bytes).as_deref(), Some(&results[..]));
        assert_eq!(read_results(&Bytes::new()), Some(Vec::new()));
        for bad in [&b"x"[..], b"9 +", b"1"] {
            assert_eq!(read_results(&Bytes::copy_from_slice(bad)), None);
        }
    }
}
