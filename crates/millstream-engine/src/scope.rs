//! What deliveries have in common: where their messages were read, and the right under which they are handled.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::log::ProgressRight;
use millstream_core::results::ResultRequest;
use millstream_core::{
    Backend, GroupName, Headers, MessageId, Partition, ScheduleId, Shard, Timestamp, TopicName,
    TopicPartition, WorkId,
};
use tokio_util::sync::CancellationToken;

use crate::cancelled::Cancelled;
use crate::letter::LetterFacts;
use crate::limits::{Begun, Spent};
use crate::requests::Reports;

/// Right to handle messages, such as the lease of their partition, as deliveries see it.
#[async_trait]
pub trait Right: Send + Sync {
    /// Waits until nothing under this right may start any more.
    async fn ending(&self);

    /// Asks the server at once whether the right is still ours, and extends it for another ttl.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](millstream_core::ErrorKind::Fenced) if it is not; transient ones.
    async fn extend(&self) -> Result<()>;

    /// Returns what stores the progress of a message that asks for its result; `None` where none is kept.
    fn reports(&self, request: ResultRequest, attempt: u32) -> Option<Reports>;
}

/// What makes the steps of messages under one right.
pub trait StepsOf: Send + Sync {
    /// Returns what the steps of a message need, with this id of its entry in the log; of a task it is zero.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where there are none.
    fn steps(&self, origin: MessageId) -> Result<StepsAccess>;
}

/// What the steps of a message need.
pub struct StepsAccess {
    /// The backend.
    pub backend: Backend,
    /// The message or task.
    pub id: WorkId,
    /// Returns the right under which it is handled.
    pub right: Box<dyn Fn() -> ProgressRight + Send + Sync>,
}

/// Why a handler may stop early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CancelReason {
    /// The right to the message, or its units of limits, can no longer be relied on. What the handler returns does not count.
    Lost,
    /// A newer message waits for its units, and their limit [says](crate::Limit::or_cancel) that it cancels this one. What the handler returns counts; a
    /// failure, or a wait for later, settles it as discarded.
    Superseded,
    /// It was cancelled from outside. What the handler returns counts if the message is done; anything else settles it as cancelled.
    Cancelled,
}

/// Where messages were read, and the right under which they are handled. Messages that started under the same trust in the lease of a
/// partition share one; a task, and a message in shared mode, has its own.
pub struct DeliveryScope {
    /// The topic and partition; for a task the name of its queue, and the number of its shard.
    pub topic_partition: TopicPartition,
    /// The group; for a task [that of all tasks](GroupName::of_tasks).
    pub group: GroupName,
    /// The epoch of the lease; 0 if there is none.
    pub epoch: u64,
    /// Cancelled when the right can no longer be relied on.
    pub cancelled: CancellationToken,
    /// Cancelled when units of limits can no longer be relied on, if the message has some.
    units: Option<CancellationToken>,
    /// Tokens of rates that the message has spent.
    spent: Option<Spent>,
    /// Cancelled when a newer message waits for its units, if it comes under a limit that says so.
    superseded: Option<CancellationToken>,
    /// Says whether the message was cancelled from outside.
    asked: Asked,
    /// Cancelled when nothing more may start, where there is no right that says so.
    stop: Option<CancellationToken>,
    /// `None`: who handles the message renews its claim, or nobody else can get it meanwhile.
    right: Option<Arc<dyn Right>>,
    /// `None` where handlers have no steps.
    steps: Option<Arc<dyn StepsOf>>,
    facts: Facts,
}

/// What says that a message was cancelled from outside.
#[derive(Clone)]
enum Asked {
    Nobody,
    /// One set for all messages of a partition.
    Set(Arc<Cancelled>),
    /// A token of the message alone.
    Own(CancellationToken),
}

/// What only one kind of messages has.
#[derive(Clone)]
enum Facts {
    /// A message of a topic.
    None,
    Task(Arc<TaskFacts>),
    Letter(Arc<LetterFacts>),
}

/// What only a task of a delay queue has.
#[derive(Clone, Debug)]
pub struct TaskFacts {
    /// Its id, the same on every attempt.
    pub id: ScheduleId,
    /// Its shard.
    pub shard: Shard,
    /// Its due time, by the server's clock.
    pub due: Timestamp,
    /// The time between the due time and the claim.
    pub late: Duration,
    /// How many workers died during this attempt, or stalled for longer than the hold time.
    pub crashes: u32,
}

impl DeliveryScope {
    /// Creates the scope of messages of a partition.
    #[must_use]
    pub fn new(
        topic_partition: TopicPartition,
        group: GroupName,
        epoch: u64,
        cancelled: CancellationToken,
        right: Arc<dyn Right>,
    ) -> Self {
        Self {
            topic_partition,
            group,
            epoch,
            cancelled,
            units: None,
            spent: None,
            superseded: None,
            asked: Asked::Nobody,
            stop: None,
            right: Some(right),
            steps: None,
            facts: Facts::None,
        }
    }

    /// Creates the scope of a message that no right covers, such as one that a test makes. It is never cancelled.
    #[must_use]
    pub fn without_right(topic_partition: TopicPartition, group: GroupName, epoch: u64) -> Self {
        let cancelled = CancellationToken::new();
        Self {
            topic_partition,
            group,
            epoch,
            cancelled,
            units: None,
            spent: None,
            superseded: None,
            asked: Asked::Nobody,
            stop: None,
            right: None,
            steps: None,
            facts: Facts::None,
        }
    }

    /// Creates the scope of a dead letter, which is claimed with others of its page. Nothing may start once `stop` is cancelled.
    #[must_use]
    pub fn of_letter(
        (topic_partition, group): (TopicPartition, GroupName),
        letter: Arc<LetterFacts>,
        cancelled: CancellationToken,
        stop: CancellationToken,
    ) -> Self {
        let (stop, facts) = (Some(stop), Facts::Letter(letter));
        Self {
            topic_partition,
            group,
            epoch: 0,
            cancelled,
            units: None,
            spent: None,
            superseded: None,
            asked: Asked::Nobody,
            stop,
            right: None,
            steps: None,
            facts,
        }
    }

    /// Creates the scope of a task, whose claim its worker renews. Nothing may start once `stop` is cancelled.
    #[must_use]
    pub fn of_task(task: Arc<TaskFacts>, cancelled: CancellationToken, stop: CancellationToken) -> Self {
        let topic = TopicName::of_queue(&task.shard.queue);
        let topic_partition = TopicPartition { topic, partition: Partition(task.shard.shard) };
        let group = GroupName::of_tasks();
        let (stop, facts) = (Some(stop), Facts::Task(task));
        Self {
            topic_partition,
            group,
            epoch: 0,
            cancelled,
            units: None,
            spent: None,
            superseded: None,
            asked: Asked::Nobody,
            stop,
            right: None,
            steps: None,
            facts,
        }
    }

    /// Returns the scope of a message that also has units of limits, and the token that is cancelled when they can no longer be relied on.
    #[must_use]
    pub fn with_units(&self, units: CancellationToken) -> Self {
        let Self { topic_partition, group, epoch, cancelled, asked, stop, right, steps, facts, .. } = self;
        Self {
            topic_partition: topic_partition.clone(),
            group: group.clone(),
            epoch: *epoch,
            cancelled: cancelled.clone(),
            units: Some(units),
            spent: None,
            superseded: None,
            asked: asked.clone(),
            stop: stop.clone(),
            right: right.clone(),
            steps: steps.clone(),
            facts: facts.clone(),
        }
    }

    /// Adds what the message has of limits beside units.
    #[must_use]
    pub fn with_begun(self, Begun { spent, superseded }: Begun) -> Self {
        Self { spent, superseded, ..self }
    }

    /// Gives its messages steps.
    #[must_use]
    pub fn with_steps(self, steps: Arc<dyn StepsOf>) -> Self {
        Self { steps: Some(steps), ..self }
    }

    /// Returns what the steps of one of its messages need.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where there are none.
    pub fn steps(&self, origin: MessageId) -> Result<StepsAccess> {
        let why = "steps are for messages of a consumer and tasks of a worker: this is neither";
        self.steps.as_ref().ok_or_else(|| Error::new(ErrorKind::Unsupported, why))?.steps(origin)
    }

    /// Lets its messages be cancelled from outside.
    #[must_use]
    pub fn with_cancelled(self, asked: Arc<Cancelled>) -> Self {
        Self { asked: Asked::Set(asked), ..self }
    }

    /// Lets its only message be cancelled from outside: it is once this token is.
    #[must_use]
    pub fn with_asked(self, asked: CancellationToken) -> Self {
        Self { asked: Asked::Own(asked), ..self }
    }

    /// Waits until the message with this id is cancelled, for any reason.
    pub async fn interrupted(&self, id: &(dyn fmt::Display + Sync), headers: &Headers) {
        let superseded = async {
            match &self.superseded {
                Some(superseded) => superseded.cancelled().await,
                None => pending().await,
            }
        };
        let asked = async {
            match &self.asked {
                Asked::Nobody => pending().await,
                Asked::Set(asked) => asked.added(id, headers).await,
                Asked::Own(asked) => asked.cancelled().await,
            }
        };
        tokio::select! {
            // One order, so that simulations repeat themselves.
            biased;
            () = self.lost() => {}
            () = superseded => {}
            () = asked => {}
        }
    }

    /// Returns why the message with this id is cancelled; `None` if it is not.
    #[must_use]
    pub fn cancel_reason(&self, id: &dyn fmt::Display, headers: &Headers) -> Option<CancelReason> {
        if self.is_cancelled() {
            return Some(CancelReason::Lost);
        }
        if self.is_asked(id, headers) {
            return Some(CancelReason::Cancelled);
        }
        self.superseded.as_ref()?.is_cancelled().then_some(CancelReason::Superseded)
    }

    /// Whether the message with this id was cancelled from outside.
    #[must_use]
    pub fn is_asked(&self, id: &dyn fmt::Display, headers: &Headers) -> bool {
        match &self.asked {
            Asked::Nobody => false,
            Asked::Set(asked) => asked.has(id, headers),
            Asked::Own(asked) => asked.is_cancelled(),
        }
    }

    /// Returns what stores the progress of one of its messages, which asks for its result; `None` where none is kept.
    #[must_use]
    pub fn reports(&self, request: ResultRequest, attempt: u32) -> Option<Reports> {
        self.right.as_ref()?.reports(request, attempt)
    }

    /// Closes the rates that the message came under for this time.
    pub fn close_rates(&self, time: Duration) {
        if let Some(spent) = &self.spent {
            spent.close(time);
        }
    }

    /// Corrects how many tokens of this limit the message has spent. False if it came under no rate of this name.
    #[must_use]
    pub fn correct_cost(&self, limit: &str, tokens: u32) -> bool {
        self.spent.as_ref().is_some_and(|spent| spent.correct(limit, tokens))
    }

    /// Whether the right, or units of limits, can no longer be relied on.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled() || self.units.as_ref().is_some_and(CancellationToken::is_cancelled)
    }

    /// Waits until the right, or units of limits, can no longer be relied on.
    pub async fn lost(&self) {
        match &self.units {
            None => self.cancelled.cancelled().await,
            Some(units) => tokio::select! {
                () = self.cancelled.cancelled() => {}
                () = units.cancelled() => {}
            },
        }
    }

    /// Returns what only a task has; `None` for a message of a topic.
    #[must_use]
    pub fn task(&self) -> Option<&Arc<TaskFacts>> {
        match &self.facts {
            Facts::Task(task) => Some(task),
            _ => None,
        }
    }

    /// Returns what only a dead letter has.
    #[must_use]
    pub fn letter(&self) -> Option<&Arc<LetterFacts>> {
        match &self.facts {
            Facts::Letter(letter) => Some(letter),
            _ => None,
        }
    }

    /// Waits until nothing under this right may start any more.
    pub async fn ending(&self) {
        let stop = match (&self.right, &self.stop) {
            (Some(right), _) => return right.ending().await,
            (None, Some(stop)) => stop,
            (None, None) => &self.cancelled,
        };
        tokio::select! {
            biased;
            () = self.cancelled.cancelled() => {}
            () = stop.cancelled() => {}
        }
    }

    /// Asks the server at once whether the message is still ours, and extends the right for another ttl. Without a right there is
    /// nothing to ask.
    ///
    /// # Errors
    /// Those of [`Right::extend`].
    pub async fn extend(&self) -> Result<()> {
        match &self.right {
            Some(right) => right.extend().await,
            None => Ok(()),
        }
    }
}

impl fmt::Debug for DeliveryScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeliveryScope")
            .field("topic_partition", &self.topic_partition)
            .field("group", &self.group)
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}
