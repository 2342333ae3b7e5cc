//! Replay of dead letters: to their group or to a topic, optionally changed and at a limited rate.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_core::dead_letters::{Claim, DeadLetterAction};
use millstream_core::event::LetterWork;
use millstream_core::wire::{self, Malformed};
use millstream_core::{
    Backend, Capability, DeadLetter, Envelope, Error, ErrorKind, GroupName, Limits, MessageId, Partition,
    Result, TopicName, TopicPartition, TopicSpec,
};
use tokio::time::Instant;

mod message;
mod target;

use crate::dead_letters::edit::Edit;
use crate::dead_letters::pace::{LONGEST, Pace};
use crate::shelf::progress::{Came, ProgressSink};
use crate::{Failed, ShelfWalk};

/// Header of a message that was replayed to a topic: the original dead letter, as `topic/partition/group/id`. If a
/// crash leads to two copies, it is the same for both.
pub const REPLAYED_FROM: &str = "millstream-replayed-from";
/// Header of a message that was replayed to a topic: the id of the message in its original log.
pub const REPLAYED_ORIGIN: &str = "millstream-replayed-origin";
/// Header of a message that was replayed to a topic: the reason why its group had given it up.
pub const REPLAYED_REASON: &str = "millstream-replayed-reason";

/// Maximum number of letters in one step.
const STEP: usize = 100;
/// Pause while the target has no room, and the time after which that is an error: the default time limit of a send.
const FULL: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// Maximum number of refused letters for which the reason is kept.
const TOLD: usize = 100;

/// Target of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ReplayTo {
    /// The group that gave the letter up, and no other: it is a first attempt there.
    #[default]
    Group,
    /// A topic, as a new message for all its groups.
    Topic {
        /// Topic; it must exist, and [may be sent to](TopicName::check_target).
        topic: TopicName,
        /// Partition. Default: chosen by the key; without a key, by the place of the letter.
        partition: Option<Partition>,
    },
    /// The topic that the letter's policy has [noted](millstream_core::history::Notes::replay_to), as a new message; the group
    /// if it has noted none. A letter whose topic does not exist is refused.
    Noted,
}

/// Settings of a replay.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// Target. Default: the group.
    pub to: ReplayTo,
    /// Changes. Default: none.
    pub edit: Edit,
    /// Limits of what the changes set: a letter that would exceed them is refused. Default: those of a producer.
    pub limits: Limits,
    /// Maximum number of letters per second. Default: no limit.
    pub rate: Option<f64>,
    /// Maximum number of letters. Default: all that match the filter and were present at the start.
    pub limit: Option<u64>,
    /// Time for which letters are claimed while they are sent to a topic. If the program dies during that, they can be
    /// replayed again after this time. At least 1 s, and longer than any request takes. Default: 30 s.
    pub hold: Duration,
}

impl Default for Replay {
    fn default() -> Self {
        Self {
            to: ReplayTo::Group,
            edit: Edit::default(),
            limits: Limits::default(),
            rate: None,
            limit: None,
            hold: Duration::from_secs(30),
        }
    }
}

impl Replay {
    /// Returns settings for a replay to a topic, as new messages for all its groups.
    #[must_use]
    pub fn to_topic(topic: TopicName) -> Self {
        Self { to: ReplayTo::Topic { topic, partition: None }, ..Self::default() }
    }

    /// Validates the settings.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for an invalid rate, or a hold that is too short; [`ErrorKind::TooLarge`] for changes that are too
    /// large for any message.
    fn check(&self) -> Result<()> {
        let mut set = Envelope::new(self.edit.payload.clone().unwrap_or_default());
        set.key = self.edit.key.clone().flatten();
        for (name, value) in &self.edit.set_headers {
            set.headers.append(name.as_str(), value.clone());
        }
        set.check(&self.limits)?;
        let bad = |message: String| Err(Error::new(ErrorKind::InvalidConfig, message));
        match self.rate {
            Some(rate) if !rate.is_finite() || rate.recip() > LONGEST.as_secs_f64() || rate <= 0.0 => {
                bad(format!("a rate of {rate} per second: the minimum is one per day"))
            }
            _ if self.hold < Duration::from_secs(1) => {
                bad(format!("a hold of {:?}: at least 1 s", self.hold))
            }
            _ => Ok(()),
        }
    }
}

/// Result of a replay so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Letters that were replayed.
    pub replayed: u64,
    /// Letters that no longer exist, or that another caller has claimed.
    pub passed_over: u64,
    /// Letters that no longer exist after a request for their return to the group that was not answered. Most likely it moved them;
    /// another caller may have done so, or deleted them.
    pub unconfirmed: u64,
    /// Letters that stay, because they cannot be sent with these settings.
    pub refused: u64,
    /// Reasons for the first 100 refused letters.
    pub refusals: Vec<Refusal>,
}

/// Letter that cannot be sent with these settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The partition of the letter.
    pub topic_partition: TopicPartition,
    /// Id of the letter.
    pub id: MessageId,
    /// Reason.
    pub why: String,
}

/// Replays dead letters, step by step. Dropped between two steps of which the last one succeeded, it leaves nothing behind. Dropped within
/// a step, the letters that it had claimed are free again after the [hold](Replay::hold); those of them that were [sent](Self::has_sent) to
/// a topic can be sent again then.
#[derive(Debug)]
pub struct Replayer {
    backend: Backend,
    group: GroupName,
    replay: Replay,
    walk: ShelfWalk,
    /// Target topics by name; `None` if there is no such topic.
    targets: BTreeMap<String, Option<TopicSpec>>,
    /// Name in its claims, unique to this replayer.
    by: String,
    pace: Pace,
    /// Letters that were read and are not processed yet.
    batch: Vec<DeadLetter>,
    /// Since when the target has had no room for any letter.
    full_since: Option<Instant>,
    /// Letters that were sent to a topic and are not deleted yet.
    sent: Vec<(TopicPartition, MessageId)>,
    /// Whose letters were last sent back to the group without an answer.
    unanswered: Option<TopicPartition>,
    replayed: Replayed,
    progress: ProgressSink,
}

impl Replayer {
    pub(super) async fn new(
        backend: Backend,
        group: GroupName,
        replay: Replay,
        walk: ShelfWalk,
        progress: ProgressSink,
    ) -> Result<Self> {
        replay.check()?;
        let mut targets = BTreeMap::new();
        if let ReplayTo::Topic { topic, partition } = &replay.to {
            topic.check_target()?;
            let spec = backend.catalog().topic(topic).await?;
            if let Some(partition) = partition.filter(|partition| partition.0 >= spec.partitions) {
                let message = format!("topic {topic} has no partition {partition}");
                return Err(Error::new(ErrorKind::NotFound, message));
            }
            if spec.max_length.is_some() {
                backend.require(Capability::Lengths)?;
            }
            targets.insert(topic.to_string(), Some(spec));
        }
        Ok(Self {
            backend,
            group,
            walk,
            targets,
            by: format!("replay-{:032x}", fastrand::u128(..)),
            pace: Pace::new(replay.rate),
            replay,
            batch: Vec::new(),
            full_since: None,
            sent: Vec::new(),
            unanswered: None,
            replayed: Replayed::default(),
            progress,
        })
    }

    /// Runs one step: as many letters as the rate allows, at most 100. [`wait`](Self::wait) returns when to run the
    /// next one. A target with a [bound](millstream_core::TopicSpec::max_length) gets as many as it has room for.
    ///
    /// # Errors
    /// Transient ones: the next call continues where this one ended. A message that was sent to a topic without an answer is then
    /// sent again, and recognised. On a backend without [`Capability::Dedup`] it may be there twice. [`ErrorKind::Backpressure`] if
    /// the target has had no room for 30 s.
    pub async fn run_once(&mut self) -> Result<()> {
        self.delete_sent().await?;
        let now = Instant::now();
        if self.batch.is_empty() {
            let room = self.pace.room(now).min(STEP);
            if room > 0 {
                let found = self.walk.run_once(room).await?;
                self.batch = found.into_iter().filter_map(Failed::letter).collect();
                self.pace.spend(self.batch.len(), now);
            }
        }
        let mut ways: BTreeMap<(TopicPartition, Option<String>), Vec<DeadLetter>> = BTreeMap::new();
        for letter in &self.batch {
            let way = (letter.topic_partition.clone(), self.way(letter));
            ways.entry(way).or_default().push(letter.clone());
        }
        for ((topic_partition, to), letters) in ways {
            let Some(to) = to else {
                self.send_back(&topic_partition, &letters).await?;
                continue;
            };
            match self.target(&to).await? {
                Some(target) => self.send_elsewhere(&topic_partition, &letters, &target).await?,
                None => {
                    for letter in &letters {
                        self.replayed.refuse(letter, no_target(&to));
                    }
                    let came = Came { done: 0, passed_over: 0, refused: letters.len() };
                    self.progress.tell(&topic_partition, LetterWork::Replay, came);
                    self.finished(&letters);
                }
            }
        }
        Ok(())
    }

    /// Returns whether letters were sent to a topic and are not deleted yet, because of an error. Whoever ends early calls
    /// [`settle`](Self::settle) until there are none.
    #[must_use]
    pub fn has_sent(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Runs all steps without an effect, as far as it is known what they would do: [`replayed`](Replayed::replayed) counts what can be
    /// sent in this form. Claims of other callers, and the room in the target, are not looked at.
    ///
    /// # Errors
    /// Transient ones.
    pub async fn preview(mut self) -> Result<Replayed> {
        while !self.walk.is_done() {
            for letter in self.walk.run_once(STEP).await?.into_iter().filter_map(Failed::letter) {
                let ready = match self.way(&letter) {
                    None => self.returned(&letter).map(drop),
                    Some(to) => match self.target(&to).await? {
                        Some(target) => self.message(&letter, &target).map(drop),
                        None => Err(no_target(&to)),
                    },
                };
                match ready {
                    Ok(()) => self.replayed.replayed += 1,
                    Err(why) => self.replayed.refuse(&letter, why),
                }
            }
        }
        Ok(self.replayed)
    }

    /// Returns the topic that a letter is sent to; `None` for its group.
    fn way(&self, letter: &DeadLetter) -> Option<String> {
        match &self.replay.to {
            ReplayTo::Group => None,
            ReplayTo::Topic { topic, .. } => Some(topic.to_string()),
            ReplayTo::Noted => letter.history.replay_to().map(str::to_owned),
        }
    }

    /// Returns how a letter goes back to its group, or the reason why it cannot.
    fn returned(&self, letter: &DeadLetter) -> std::result::Result<DeadLetterAction, String> {
        let edit = &self.replay.edit;
        // In the retry log a pack is no pack: it would come back as it is, whether its dictionary is there again or not.
        if let Err(why @ Malformed::UnknownForm(_)) = wire::decode_body(&letter.body, &Limits::NONE)
            && letter.body.iter().any(|(name, _)| *name == wire::PACK)
        {
            return Err(why.to_string());
        }
        if edit.is_empty() {
            return Ok(DeadLetterAction::Replay);
        }
        let edited = edit.apply_within(&letter.body, &self.replay.limits);
        edited.map(DeadLetterAction::ReplayAs).map_err(|why| why.to_string())
    }

    /// Deletes the letters that were [sent](Self::has_sent).
    ///
    /// # Errors
    /// Transient ones: the call can be repeated.
    pub async fn settle(&mut self) -> Result<()> {
        self.delete_sent().await
    }

    /// Runs all steps, at the configured rate.
    ///
    /// # Errors
    /// Same as [`run_once`](Self::run_once); [`replayed`](Self::replayed) returns what was done before the error.
    pub async fn run(&mut self) -> Result<Replayed> {
        while !self.is_done() {
            self.run_once().await?;
            if !self.is_done() {
                tokio::time::sleep(self.wait()).await;
            }
        }
        Ok(self.replayed.clone())
    }

    /// Returns how long to wait before the next step, to keep to the rate.
    #[must_use]
    pub fn wait(&self) -> Duration {
        match self.full_since {
            Some(_) => FULL.0,
            None if self.batch.is_empty() => self.pace.wait(Instant::now()),
            None => Duration::ZERO,
        }
    }

    /// Returns whether nothing is left to do.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.walk.is_done() && self.batch.is_empty() && self.sent.is_empty()
    }

    /// Returns the result so far.
    #[must_use]
    pub fn replayed(&self) -> &Replayed {
        &self.replayed
    }

    /// Sends letters back to their group: one atomic step in the store.
    async fn send_back(&mut self, topic_partition: &TopicPartition, letters: &[DeadLetter]) -> Result<()> {
        let (mut deeds, mut refused) = (Vec::new(), Vec::new());
        for letter in letters {
            match self.returned(letter) {
                Ok(action) => deeds.push((letter.id, action)),
                Err(why) => refused.push((letter, why)),
            }
        }
        let role = self.backend.dead_letters()?;
        // Without a claim, so that letters whose handler left them for later are included.
        let done = match role.settle(topic_partition, &self.group, None, &deeds).await {
            Err(error) => {
                if error.kind() == ErrorKind::Unconfirmed {
                    self.unanswered = Some(topic_partition.clone());
                }
                return Err(error);
            }
            Ok(done) => done,
        };
        let came = Came { done: done.len(), passed_over: deeds.len() - done.len(), refused: refused.len() };
        self.replayed.replayed += came.done as u64;
        if self.unanswered.take_if(|it| it == topic_partition).is_some() {
            self.replayed.unconfirmed += came.passed_over as u64;
        } else {
            self.replayed.passed_over += came.passed_over as u64;
        }
        self.progress.tell(topic_partition, LetterWork::Replay, came);
        refused.into_iter().for_each(|(letter, why)| self.replayed.refuse(letter, why));
        self.finished(letters);
        Ok(())
    }

    /// Sends letters to a topic: claims them, so that no other caller sends them, appends them, and deletes them. A
    /// crash in between leaves letters that can be replayed again once the claim has run out: a letter that is sent again as it was is
    /// recognised, for a time, and no letter is lost.
    async fn send_elsewhere(
        &mut self,
        topic_partition: &TopicPartition,
        letters: &[DeadLetter],
        target: &TopicSpec,
    ) -> Result<()> {
        let mut messages: Vec<_> =
            letters.iter().map(|letter| (letter, self.message(letter, target))).collect();
        if let Some(bound) = target.max_length {
            self.leave_what_has_no_room(&mut messages, bound).await?;
        }
        if messages.is_empty() {
            return Ok(());
        }
        let letters: Vec<DeadLetter> = messages.iter().map(|(letter, _)| (*letter).clone()).collect();
        let claim = Claim { by: self.by.clone(), hold: self.replay.hold, left_too: true };
        let began = Instant::now();
        let ids: Vec<MessageId> = letters.iter().map(|letter| letter.id).collect();
        let role = self.backend.dead_letters()?.clone();
        let claimed = role.claim(topic_partition, &self.group, &ids, &claim).await?;
        if began.elapsed() > self.replay.hold / 2 {
            // The answer took long, so the remaining time of the claim is unknown. The next step claims again.
            return Ok(());
        }
        let (mut mine, mut appends, mut free) = (Vec::new(), Vec::new(), Vec::new());
        for (letter, message) in messages.into_iter().filter(|(letter, _)| claimed.contains(&letter.id)) {
            match message {
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
        for (id, result) in mine.into_iter().zip(self.backend.log().append(&appends).await) {
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
        self.progress.tell(topic_partition, LetterWork::Replay, came);
        let freed: Vec<_> =
            free.into_iter().map(|id| (id, DeadLetterAction::Leave(Duration::ZERO))).collect();
        let deleted = self.delete_sent().await;
        if !freed.is_empty() {
            role.settle(topic_partition, &self.group, Some(&self.by), &freed).await?;
        }
        deleted?;
        failed.map_or(Ok(()), Err)
    }

    /// Deletes the letters that were sent, before any others are sent: so only a crash can cause a second copy.
    async fn delete_sent(&mut self) -> Result<()> {
        let mut partitions: BTreeMap<TopicPartition, Vec<(MessageId, DeadLetterAction)>> = BTreeMap::new();
        for (topic_partition, id) in &self.sent {
            partitions.entry(topic_partition.clone()).or_default().push((*id, DeadLetterAction::Purge));
        }
        for (topic_partition, deeds) in partitions {
            let role = self.backend.dead_letters()?;
            role.settle(&topic_partition, &self.group, Some(&self.by), &deeds).await?;
            self.sent.retain(|(sent, _)| *sent != topic_partition);
        }
        Ok(())
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

fn no_target(to: &str) -> String {
    format!("its note names the topic {to:?}, which does not exist or is ours alone")
}
