//! The batches role: messages that are counted together.
//!
//! A batch is created, members are added by any number of clients, and it is *sealed*. A member is what a client has
//! [confirmed](Confirmed): its message is stored. The batch has a bit for each, and sends its messages in the step that changes the bits, each once.

use std::time::Duration;

use async_trait::async_trait;

use crate::error::{Error, ErrorKind, Result};
use crate::id::MessageId;
use crate::partition::Place;
use crate::results::MessageResult;
use crate::steps::WorkId;
use crate::timestamp::Timestamp;
use crate::topic::TopicPartition;
use crate::wire::Fields;

pub use crate::message::batches::{
    BATCH_EVENT_HEADER, BATCH_HEADER, BatchEvent, BatchEventKind, BatchId, BatchMember, BatchParent, Demand,
    MAX_MEMBER_RESULT, MAX_MEMBERS, MemberEnd,
};

/// Most numbers of one [`Block`]: 4,096.
pub const MAX_BLOCK: u32 = 4_096;

/// Most members of one call of [`Batches::end_members`], and most notes of one call of [`Batches::notes`].
pub const MAX_ENDS: usize = 1_000;

/// Largest message of a batch in bytes, for each event: 64 KiB.
pub const MAX_CALLBACK: usize = 64 << 10;

/// How long a batch is kept that has not ended, from its last change on: 90 days.
pub const KEPT_OPEN: Duration = Duration::from_secs(90 * 24 * 3_600);

/// How long a batch is kept after all of its members have ended, unless its creator says otherwise: 7 days. A dead letter that is replayed within
/// that time can still bring [`Success`](BatchEventKind::Success).
pub const KEPT_ENDED: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Beginning of the [target](BlockState::target) of members in a delay queue, whose name comes behind it.
pub const QUEUES: &str = "queue/";

/// Beginning of the target of members that are batches; the topic to which they send their messages comes behind it.
pub const BATCHES: &str = "batch/";

/// What a batch is created with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchSpec {
    /// The messages that it sends, by their events: at most one for each. That of a progress has the number of percent after which it is sent again.
    pub callbacks: Vec<(BatchEventKind, Fields)>,
    /// What has to know of its end.
    pub parent: Option<BatchParent>,
    /// How long it is kept after its end; zero for [`KEPT_ENDED`].
    pub keep: Duration,
}

/// Numbers of members that a client has reserved, from the first to the one below the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// The first number.
    pub from: u32,
    /// The number behind the last.
    pub to: u32,
    /// Chosen by the client at random: nobody else confirms the block.
    pub token: u64,
}

/// What became of a block: the numbers below `used` are members, except those that failed. The server may not know a block without used numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// The block.
    pub block: Block,
    /// The number behind the last that was used.
    pub used: u32,
    /// Numbers whose message was not stored, or of which that is not known.
    pub failed: Vec<u32>,
}

/// State of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemberState {
    /// It has not ended.
    Missing,
    /// It is done.
    Done,
    /// It is dead.
    Dead,
    /// Its number was reserved, and nobody confirmed that its message is stored. It is no member; if it ends all the same, it is one.
    LeftOut,
}

impl MemberState {
    /// Those that have bits.
    pub const STORED: [Self; 3] = [Self::Done, Self::Dead, Self::LeftOut];

    /// Returns the word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Done => "done",
            Self::Dead => "dead",
            Self::LeftOut => "left",
        }
    }
}

/// State of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchState {
    /// When it was created.
    pub created: Timestamp,
    /// When it was sealed, if it was.
    pub sealed: Option<Timestamp>,
    /// When all members had ended, if they have.
    pub ended: Option<Timestamp>,
    /// Whether all members are done.
    pub succeeded: bool,
    /// Number of members; until the seal, of all numbers that are reserved and were not left out.
    pub members: u32,
    /// Number of members that are done.
    pub done: u32,
    /// Number of members that are dead.
    pub dead: u32,
    /// Number of numbers that were reserved and are no members.
    pub left_out: u32,
    /// What has to know of its end.
    pub parent: Option<BatchParent>,
    /// Blocks, in the order of their numbers.
    pub blocks: Vec<BlockState>,
}

impl BatchState {
    /// Returns the number of members that have not ended.
    #[must_use]
    pub const fn missing(&self) -> u32 {
        self.members.saturating_sub(self.done).saturating_sub(self.dead)
    }

    /// Returns the error of a change of a batch that is sealed.
    #[must_use]
    pub fn is_sealed(id: &BatchId) -> Error {
        Error::new(ErrorKind::Closed, format!("batch {id} is sealed")).at(&id.place)
    }

    /// Returns the error of a seal by who has members that the batch was sealed without.
    #[must_use]
    pub fn is_sealed_without(id: &BatchId) -> Error {
        let why = format!(
            "batch {id} was sealed without members that this process has added: they are sent, and left out"
        );
        Error::new(ErrorKind::Closed, why).at(&id.place)
    }

    /// Returns the error of a batch that does not exist, or not any longer.
    #[must_use]
    pub fn is_gone(id: &BatchId) -> Error {
        Error::new(ErrorKind::NotFound, format!("batch {id} does not exist")).at(&id.place)
    }

    /// Returns the error of a batch that has no numbers left.
    #[must_use]
    pub fn is_full(id: &BatchId) -> Error {
        let why = format!("batch {id} has {MAX_MEMBERS} members, which is the most");
        Error::new(ErrorKind::TooLarge, why).at(&id.place)
    }

    /// Returns the error of a block that the server does not know, since it lost its latest writes.
    #[must_use]
    pub fn is_lost(id: &BatchId, block: &Block) -> Error {
        let Block { from, to, .. } = block;
        let why = format!("the server has lost members {from} to {} of batch {id}", to.saturating_sub(1));
        Error::new(ErrorKind::Fenced, why).at(&id.place)
    }
}

/// A block of a batch, for whoever looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockState {
    /// The block.
    pub block: Block,
    /// Topic to which its messages are sent; or the name of a delay queue behind [`QUEUES`], or that of a topic behind [`BATCHES`].
    pub target: String,
    /// Whether it was confirmed. False too of one that the seal closed.
    pub confirmed: bool,
}

/// How a member ended, and what is kept of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedMember {
    /// Its number.
    pub number: u32,
    /// How it ended.
    pub end: MemberEnd,
    /// Its result, if the batch [keeps](BatchMember::keeps_result) it.
    pub result: Option<MessageResult>,
}

impl EndedMember {
    /// Creates it without a result.
    #[must_use]
    pub const fn new(number: u32, end: MemberEnd) -> Self {
        Self { number, end, result: None }
    }
}

/// Note at a place, which somebody takes to where it belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchNote {
    /// Its id, by which it is [forgotten](Batches::forget).
    pub id: MessageId,
    /// What it says; `None` if it is none of ours.
    pub said: Option<Noted>,
}

/// What a note says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Noted {
    /// A member of this batch has ended, which was settled at the place.
    Ended(BatchId, EndedMember),
    /// A batch of the place is complete for which a message or task waits: it gets the signal of this name.
    Complete(WorkId, String),
}

/// Counts messages together.
#[async_trait]
pub trait Batches: Send + Sync {
    /// Creates a batch. One that exists is left as it is: the call can be repeated.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] for a callback above [`MAX_CALLBACK`]; transient ones.
    async fn create(&self, id: &BatchId, spec: &BatchSpec) -> Result<()>;

    /// Reserves as many numbers as `block` has, 0 to [`MAX_BLOCK`], for messages to `target`, after blocks were confirmed. Both in one step. Returns the block with
    /// its numbers and the same token. A call that is repeated reserves further numbers; those that nobody confirms are left out by the seal.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the batch is sealed, [`ErrorKind::NotFound`] if it does not exist, [`ErrorKind::TooLarge`] if it has
    /// [`MAX_MEMBERS`](crate::batches::MAX_MEMBERS); [`ErrorKind::Fenced`] if the server has lost a block that is confirmed. Nothing was done then.
    async fn reserve(
        &self,
        id: &BatchId,
        block: Block,
        target: &str,
        confirmed: &[Confirmed],
    ) -> Result<Block>;

    /// Seals a batch after blocks were confirmed. From then on it has the members that it has, without those of blocks that nobody confirmed; and it
    /// sends its messages. One that is sealed stays as it is.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Fenced`] as for [`reserve`](Self::reserve); [`ErrorKind::Closed`] if the batch was sealed without one of
    /// these blocks.
    async fn seal(&self, id: &BatchId, confirmed: &[Confirmed]) -> Result<BatchState>;

    /// Says of up to [`MAX_ENDS`] members how they ended. What is done stays done, and each counts once; the result of one that is done stays too. Numbers
    /// that were never reserved are passed over. Returns whether the batch has ended and has a note for its own parent at its place; `None` if it does not
    /// exist.
    ///
    /// # Errors
    /// Transient ones, after which the call can be repeated.
    async fn end_members(&self, id: &BatchId, ends: &[EndedMember]) -> Result<Option<bool>>;

    /// Seals an open batch without its producers, and, if `dies`, counts all members that have not ended as dead: those that are lost, or that
    /// nobody will handle. If numbers of open blocks are left out by this, the batch succeeds only when these are done too.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; transient ones, after which the call can be repeated.
    async fn close(&self, id: &BatchId, dies: bool) -> Result<BatchState>;

    /// Returns the state of a batch; `None` if it does not exist.
    ///
    /// # Errors
    /// Those of the server.
    async fn state(&self, id: &BatchId) -> Result<Option<BatchState>>;

    /// Returns up to `limit` numbers from `from` on that have this state, and the number from which on to look for more, if there are any.
    ///
    /// # Errors
    /// Those of the server.
    async fn numbers(
        &self,
        id: &BatchId,
        state: MemberState,
        from: u32,
        limit: usize,
    ) -> Result<(Vec<u32>, Option<u32>)>;

    /// Returns the results of these members, in their order: `None` of one that has not ended, or whose result is not kept. At most [`MAX_ENDS`].
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] for a result that is none of ours; those of the server.
    async fn results(&self, id: &BatchId, numbers: &[u32]) -> Result<Vec<Option<MessageResult>>>;

    /// Returns up to `limit` batches of a partition, those that expire first in front.
    ///
    /// # Errors
    /// Those of the server.
    async fn list(&self, place: &TopicPartition, limit: usize) -> Result<Vec<BatchId>>;

    /// Returns the oldest notes of a place behind one, at most [`MAX_ENDS`].
    ///
    /// # Errors
    /// Those of the server.
    async fn notes(&self, place: &Place, after: Option<MessageId>, limit: usize) -> Result<Vec<BatchNote>>;

    /// Removes notes that were taken to their batches.
    ///
    /// # Errors
    /// Those of the server.
    async fn forget(&self, place: &Place, notes: &[MessageId]) -> Result<()>;
}
