//! Replaying dead letters: back to their group, or elsewhere; changed, and at a rate.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use millstream_core::dead_letters::{Claim, DeadLetterAction};
use millstream_core::event::LetterWork;
use millstream_core::log::Append;
use millstream_core::partitioner::{ByKey, Partitioner};
use millstream_core::wire::{self, Fields};
use millstream_core::{
    Backend, DeadLetter, Error, ErrorKind, GroupName, Limits, MessageId, Partition, Result, TopicName,
    TopicPartition, TopicSpec,
};
use tokio::time::Instant;

use super::edit::Edit;
use super::pace::{LONGEST, Pace};
use super::teller::{Came, Teller};
use super::walk::DeadLetterWalk;

/// Header of what was replayed to a topic: the dead letter that it was, as `topic/partition/group/id`. The same for every
/// copy, if a crash ever makes two.
pub const REPLAYED_FROM: &str = "millstream-replayed-from";
/// Header of what was replayed to a topic: the id of the message in the log that it first stood in.
pub const REPLAYED_ORIGIN: &str = "millstream-replayed-origin";
/// Header of what was replayed to a topic: why its group had given it up.
pub const REPLAYED_REASON: &str = "millstream-replayed-reason";

/// The most letters of one step.
const STEP: usize = 100;
/// The most letters that cannot be replayed of which it is told why.
const TOLD: usize = 100;

/// Where a replayed letter goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ReplayTo {
    /// Back to the group that gave it up, and to no other, as a first attempt.
    #[default]
    Group,
    /// To a topic, as a new message for all its groups.
    Topic {
        /// Which one; it must be there.
        topic: TopicName,
        /// To which partition. Default: by the key; without one, one after the other.
        partition: Option<Partition>,
    },
}

/// How dead letters are replayed.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// Where to. Default: back to the group.
    pub to: ReplayTo,
    /// What is changed. Default: nothing.
    pub edit: Edit,
    /// So many a second at most. Default: as fast as it goes.
    pub rate: Option<f64>,
    /// The most letters. Default: all that fit the filter and were there when it began.
    pub limit: Option<u64>,
    /// For how long letters are claimed while they are sent to a topic: if a program dies over them, they can be replayed
    /// again after that. Default: 30 s. At least 1 s, and longer than any request takes.
    pub hold: Duration,
}

impl Default for Replay {
    fn default() -> Self {
        Self {
            to: ReplayTo::Group,
            edit: Edit::default(),
            rate: None,
            limit: None,
            hold: Duration::from_secs(30),
        }
    }
}

impl Replay {
    /// To a topic, as new messages for all its groups.
    #[must_use]
    pub fn to_topic(topic: TopicName) -> Self {
        Self { to: ReplayTo::Topic { topic, partition: None }, ..Self::default() }
    }

    /// Whether it makes sense.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a rate that is none, or a hold that is too short.
    fn check(&self) -> Result<()> {
        let bad = |message: String| Err(Error::new(ErrorKind::InvalidConfig, message));
        match self.rate {
            Some(rate) if !rate.is_finite() || rate.recip() > LONGEST.as_secs_f64() || rate <= 0.0 => {
                bad(format!("a rate of {rate} a second: at least one a day"))
            }
            _ if self.hold < Duration::from_secs(1) => {
                bad(format!("a hold of {:?}: at least 1 s", self.hold))
            }
            _ => Ok(()),
        }
    }
}

/// What came of a replay so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Letters that were replayed.
    pub replayed: u64,
    /// Letters that were gone meanwhile, or that somebody else has claimed.
    pub passed_over: u64,
    /// Letters that stay, since they cannot be sent so.
    pub refused: u64,
    /// Why not, of the first 100.
    pub refusals: Vec<Refusal>,
}

/// A letter that cannot be sent so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The partition of the letter.
    pub topic_partition: TopicPartition,
    /// Its id.
    pub id: MessageId,
    /// Why not.
    pub why: String,
}

/// Replays dead letters, step by step. Dropped between two steps, it leaves nothing behind; dropped within one, what it
/// had claimed comes free after the [hold](Replay::hold).
#[derive(Debug)]
pub struct Replayer {
    backend: Backend,
    group: GroupName,
    replay: Replay,
    walk: DeadLetterWalk,
    /// The target, if it is a topic.
    target: Option<TopicSpec>,
    by_key: ByKey,
    /// The name of its claims.
    by: String,
    pace: Pace,
    /// Read and not dealt with so far.
    batch: Vec<DeadLetter>,
    /// Sent to a topic, and not deleted so far.
    sent: Vec<(TopicPartition, MessageId)>,
    replayed: Replayed,
    teller: Teller,
}

impl Replayer {
    pub(super) async fn new(
        backend: Backend,
        group: GroupName,
        replay: Replay,
        walk: DeadLetterWalk,
        teller: Teller,
    ) -> Result<Self> {
        replay.check()?;
        let target = match &replay.to {
            ReplayTo::Group => None,
            ReplayTo::Topic { topic, partition } => {
                let spec = backend.catalog.topic(topic).await?;
                if let Some(partition) = partition.filter(|partition| partition.0 >= spec.partitions) {
                    let message = format!("topic {topic} has no partition {partition}");
                    return Err(Error::new(ErrorKind::NotFound, message));
                }
                Some(spec)
            }
        };
        Ok(Self {
            backend,
            group,
            walk,
            target,
            by_key: ByKey::new(),
            by: format!("replay-{:032x}", fastrand::u128(..)),
            pace: Pace::new(replay.rate),
            replay,
            batch: Vec::new(),
            sent: Vec::new(),
            replayed: Replayed::default(),
            teller,
        })
    }

    /// One step: as many as the rate allows, at most 100. [`wait`](Self::wait) says when to take the next one.
    ///
    /// # Errors
    /// Transient ones: asked again, it goes on where it was. What was sent to a topic without an answer is sent again
    /// then: it may be there twice.
    pub async fn run_once(&mut self) -> Result<()> {
        self.delete_sent().await?;
        let now = Instant::now();
        if self.batch.is_empty() {
            let room = self.pace.room(now).min(STEP);
            if room > 0 {
                self.batch = self.walk.run_once(room).await?;
                self.pace.spend(self.batch.len(), now);
            }
        }
        let mut partitions: BTreeMap<TopicPartition, Vec<DeadLetter>> = BTreeMap::new();
        for letter in &self.batch {
            partitions.entry(letter.topic_partition.clone()).or_default().push(letter.clone());
        }
        for (topic_partition, letters) in partitions {
            match self.target.clone() {
                None => self.send_back(&topic_partition, &letters).await?,
                Some(target) => self.send_elsewhere(&topic_partition, &letters, &target).await?,
            }
        }
        Ok(())
    }

    /// All steps, at the rate.
    ///
    /// # Errors
    /// As [`run_once`](Self::run_once); [`replayed`](Self::replayed) says what was done.
    pub async fn run(&mut self) -> Result<Replayed> {
        while !self.is_done() {
            self.run_once().await?;
            if !self.is_done() {
                tokio::time::sleep(self.wait()).await;
            }
        }
        Ok(self.replayed.clone())
    }

    /// How long to wait before the next step, to keep to the rate.
    #[must_use]
    pub fn wait(&self) -> Duration {
        if self.batch.is_empty() { self.pace.wait(Instant::now()) } else { Duration::ZERO }
    }

    /// Whether nothing is left to do.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.walk.is_done() && self.batch.is_empty() && self.sent.is_empty()
    }

    /// What came of it so far.
    #[must_use]
    pub fn replayed(&self) -> &Replayed {
        &self.replayed
    }

    /// One step in the store: nothing can come between.
    async fn send_back(&mut self, topic_partition: &TopicPartition, letters: &[DeadLetter]) -> Result<()> {
        let edit = &self.replay.edit;
        let (mut deeds, mut refused) = (Vec::new(), Vec::new());
        for letter in letters {
            if edit.is_empty() {
                deeds.push((letter.id, DeadLetterAction::Replay));
                continue;
            }
            match readable(edit.apply(&letter.body)) {
                Ok(body) => deeds.push((letter.id, DeadLetterAction::ReplayAs(body))),
                Err(why) => refused.push((letter, why)),
            }
        }
        let role = &self.backend.dead_letters;
        // Without a claim: what was left for later is meant as well.
        let done = role.settle(topic_partition, &self.group, None, &deeds).await?;
        let came = Came { done: done.len(), passed_over: deeds.len() - done.len(), refused: refused.len() };
        self.replayed.replayed += came.done as u64;
        self.replayed.passed_over += came.passed_over as u64;
        self.teller.tell(topic_partition, LetterWork::Replay, came);
        refused.into_iter().for_each(|(letter, why)| self.replayed.refuse(letter, why));
        self.finished(letters);
        Ok(())
    }

    /// Two steps, in two places: claimed, so that nobody else sends them, then sent, then deleted. Whoever dies in
    /// between leaves letters that can be sent again once the claim has run out: so twice perhaps, and never not at all.
    async fn send_elsewhere(
        &mut self,
        topic_partition: &TopicPartition,
        letters: &[DeadLetter],
        target: &TopicSpec,
    ) -> Result<()> {
        let claim = Claim { by: self.by.clone(), hold: self.replay.hold, left_too: true };
        let began = Instant::now();
        let ids: Vec<MessageId> = letters.iter().map(|letter| letter.id).collect();
        let role = self.backend.dead_letters.clone();
        let claimed = role.claim(topic_partition, &self.group, &ids, &claim).await?;
        if began.elapsed() > self.replay.hold / 2 {
            // The answer was long under way: how much is left of the claim nobody knows. The next step claims anew.
            return Ok(());
        }
        let (mut mine, mut appends, mut free) = (Vec::new(), Vec::new(), Vec::new());
        for letter in letters.iter().filter(|letter| claimed.contains(&letter.id)) {
            match self.message(letter, target) {
                Ok(append) => {
                    mine.push(letter.id);
                    appends.push(append);
                }
                Err(why) => {
                    self.replayed.refuse(letter, why);
                    free.push(letter.id);
                }
            }
        }
        let passed_over = letters.len() - claimed.len();
        self.replayed.passed_over += passed_over as u64;
        let mut came = Came { done: 0, passed_over, refused: free.len() };
        let gone: Vec<_> = letters.iter().filter(|letter| !mine.contains(&letter.id)).cloned().collect();
        self.finished(&gone);
        let mut failed = None;
        for (id, result) in mine.into_iter().zip(self.backend.log.append(&appends).await) {
            match result {
                Ok(_) => {
                    self.replayed.replayed += 1;
                    came.done += 1;
                    self.sent.push((topic_partition.clone(), id));
                    self.batch.retain(|letter| (&letter.topic_partition, letter.id) != (topic_partition, id));
                }
                Err(error) => {
                    free.push(id);
                    failed = Some(error);
                }
            }
        }
        self.teller.tell(topic_partition, LetterWork::Replay, came);
        let freed: Vec<_> =
            free.into_iter().map(|id| (id, DeadLetterAction::Leave(Duration::ZERO))).collect();
        let deleted = self.delete_sent().await;
        if !freed.is_empty() {
            role.settle(topic_partition, &self.group, Some(&self.by), &freed).await?;
        }
        deleted?;
        failed.map_or(Ok(()), Err)
    }

    /// Deletes what was sent: before anything else is, so that nothing is sent twice while we live.
    async fn delete_sent(&mut self) -> Result<()> {
        let mut partitions: BTreeMap<TopicPartition, Vec<(MessageId, DeadLetterAction)>> = BTreeMap::new();
        for (topic_partition, id) in &self.sent {
            partitions.entry(topic_partition.clone()).or_default().push((*id, DeadLetterAction::Purge));
        }
        for (topic_partition, deeds) in partitions {
            let role = &self.backend.dead_letters;
            role.settle(&topic_partition, &self.group, Some(&self.by), &deeds).await?;
            self.sent.retain(|(sent, _)| *sent != topic_partition);
        }
        Ok(())
    }

    /// A letter as it is appended to a topic, or why it cannot be.
    fn message(&self, letter: &DeadLetter, target: &TopicSpec) -> std::result::Result<Append, String> {
        let from = format!("{}/{}/{}", place(&letter.topic_partition), letter.group, letter.id);
        let headers = [
            (REPLAYED_FROM, from),
            (REPLAYED_ORIGIN, letter.origin.to_string()),
            (REPLAYED_REASON, letter.reason.as_str().to_owned()),
        ];
        let edited = self.replay.edit.apply(&letter.body);
        let marked = Edit {
            set_headers: headers.map(|(name, value)| (name.to_owned(), Bytes::from(value))).to_vec(),
            ..Edit::default()
        };
        let fields = readable(marked.apply(&edited))?;
        let partition = match &self.replay.to {
            ReplayTo::Topic { partition: Some(partition), .. } => *partition,
            _ => {
                let key = fields.iter().find(|(name, _)| name == wire::KEY).map(|(_, key)| &key[..]);
                let partitions = NonZeroU32::new(target.partitions).unwrap_or(NonZeroU32::MIN);
                self.by_key.partition(key, partitions)
            }
        };
        let topic_partition = TopicPartition { topic: target.name.clone(), partition };
        Ok(Append { topic_partition, fields })
    }

    fn finished(&mut self, letters: &[DeadLetter]) {
        let done = |it: &DeadLetter| {
            letters.iter().any(|letter| (&letter.topic_partition, letter.id) == (&it.topic_partition, it.id))
        };
        self.batch.retain(|letter| !done(letter));
    }
}

impl Replayed {
    fn refuse(&mut self, letter: &DeadLetter, why: String) {
        self.refused += 1;
        if self.refusals.len() < TOLD {
            let topic_partition = letter.topic_partition.clone();
            self.refusals.push(Refusal { topic_partition, id: letter.id, why });
        }
    }
}

fn place(topic_partition: &TopicPartition) -> String {
    format!("{}/{}", topic_partition.topic, topic_partition.partition)
}

/// The fields, if they are a message: what is none would only die again, and as something else.
fn readable(fields: Fields) -> std::result::Result<Fields, String> {
    match wire::decode_body(&fields, &Limits::default()) {
        Ok(_) => Ok(fields),
        Err(why) => Err(why.to_string()),
    }
}
