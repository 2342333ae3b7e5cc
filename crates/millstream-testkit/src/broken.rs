//! Backends with one classic mistake each: what the suite is there to find.
//!
//! A suite that nothing fails proves nothing. [`Broken`] stands around a good backend and spoils one thing.
//! The test `every_case_can_fail` runs every case against every [`Sabotage`].

mod catalog;
mod dead_letters;
mod leases;
mod log;
mod members;
mod notes;
mod reader;
mod schedule;
mod shared;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millstream_core::leases::{Lease, Token};
use millstream_core::log::{Entry, Note, Receipt};
use millstream_core::members::{Assignment, Member, Pulse};
use millstream_core::wire::Fields;
use millstream_core::{
    Backend, DeadLetter, GroupName, MemberId, MessageId, Resource, TopicName, TopicPartition,
};
use tokio::time::Instant;

/// Names the mistakes once, for the type and for the list of all.
macro_rules! sabotages {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Sabotage { $($(#[$doc])* $name,)* }

        impl Sabotage {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

sabotages! {
    // Appending.
    /// A batch is appended from its end.
    AppendReorders,
    /// Fields are kept in a map: sorted, and each name once.
    AppendMangles,
    /// What stands behind an entry that failed is not appended.
    AppendStopsAtBadEntry,
    /// A batch goes to the partition of its first entry.
    AppendToOnePartition,
    /// Every fifth entry is confirmed and not appended.
    AppendForgets,

    // Reading.
    /// More is read than was asked for.
    MaxIgnored,
    /// A fetch without result comes back at once.
    WaitIgnored,
    /// A fetch that has to wait sees what came only when the wait is over.
    WakesLate,
    /// A new reader starts with new entries.
    PendingSkipped,
    /// Pending entries come newest first.
    PendingReversed,
    /// The count of deliveries is not kept.
    DeliveriesStuckAtOne,
    /// A reply that nobody waits for any more is lost.
    DropLosesReply,
    /// What one group was handed another group does not get.
    GroupsCompete,
    /// Retries are read only when nothing new is there.
    RetriesLast,
    /// Deleted entries are passed over in silence.
    GhostsHidden,
    /// A lost group looks like an empty log.
    LostGroupHidden,

    // Fencing.
    /// A fetch reads whoever asks.
    FenceIgnoredOnFetch,
    /// A fetch looks at the lease before it waits, and not after.
    FenceCheckedBeforeTheWait,
    /// A settlement counts whoever sends it.
    FenceIgnoredOnSettle,
    /// A trim works for anybody.
    FenceIgnoredOnTrim,
    /// A promotion works for anybody.
    FenceIgnoredOnPromote,
    /// A renewal is confirmed to anybody.
    FenceIgnoredOnRenew,
    /// A lease that ran out is as good as lost, though nobody took it.
    ExpiryFences,

    // Settling.
    /// Acks are confirmed and forgotten.
    AcksForgotten,
    /// Every settlement is said to have taken effect.
    SettledAlways,
    /// A batch with one stale settlement is not done at all.
    SettleAllOrNothing,
    /// A retry is appended to the log again.
    RetryToTheLog,
    /// A retry is a hundred milliseconds (or as much as it has) early.
    RetryEarly,
    /// A retry comes back without payload.
    RetryLosesBody,
    /// A retry comes back without attempt, origin and error.
    RetryLosesStory,
    /// A retry of a retry names the retry as its origin.
    OriginForgotten,
    /// A retry of a retry wraps the retry.
    RetryWrapsRetry,
    /// A retry without the group is stale, and so forgotten.
    LostGroupSettles,
    /// A dead letter is acked and gone.
    DeadLetterDropped,
    /// A dead letter has no reason, attempts and error.
    DeadLetterLosesStory,

    // Holding.
    /// A hold is confirmed and forgotten.
    HoldForgotten,
    /// A hold is taken for an ack.
    HoldIsAck,
    /// A hold is said to take effect, whatever it is of.
    HoldUnchecked,
    /// A note of a redelivery is forgotten.
    NotesOfTheLogOnly,
    /// A second note does not replace the first.
    FirstNoteStays,
    /// The next owner does not see what was noted before it.
    NotesLostAtTakeover,
    /// A note stays when its entry is settled or skipped.
    NotesOutliveTheirEntry,
    /// A group reads what another one noted.
    NotesShared,
    /// A note comes back without its error, and nobody knows by whom it is.
    NoteLosesStory,
    /// The wait of a note starts over with every reading.
    NoteWaitStands,
    /// The wait of a note ends a hundred milliseconds (or as much as it has) early.
    NoteWaitEarly,

    // Seeking.
    /// A seek is confirmed and forgotten.
    SeekForgotten,
    /// A seek works for anybody.
    FenceIgnoredOnSeek,
    /// Every time is the beginning.
    SeekIgnoresTime,
    /// What was pending before a seek is handed out after it.
    SeekLeavesPending,
    /// A seek takes what comes back to the group along.
    SeekDropsRetries,

    // Trimming.
    /// Nothing is ever dropped.
    TrimForgotten,
    /// Everything is dropped, read or not.
    TrimsUnread,
    /// A trim looks at the owner's group only.
    TrimsForOneGroup,

    // Leases.
    /// A second owner is granted what somebody has.
    TwoOwners,
    /// The same request twice is two requests.
    NonceIgnored,
    /// A renewal is confirmed and forgotten.
    RenewForgotten,
    /// One lost lease fails the renewal of all.
    RenewAllOrNothing,
    /// A lease that ran out is never free.
    LeaseNeverExpires,
    /// A lease that ran out cannot be renewed, though nobody took it.
    ExpiryIsFinal,
    /// A release is confirmed and forgotten.
    ReleaseForgotten,
    /// A released token works until somebody else is granted the resource.
    ReleaseKeepsTheToken,
    /// A release ends whatever lease there is.
    ReleaseUnchecked,
    /// Every grant has the same epoch.
    EpochRepeats,
    /// The partitions of a topic are one resource.
    ResourcesCollide,
    /// Nobody is told who holds a lease.
    HolderUnknown,
    /// No lease is ever said to have been abandoned.
    AbandonedNever,
    /// Every lease is said to have been abandoned.
    AbandonedAlways,
    /// Asked again, nobody knows any more whether the lease was abandoned.
    AbandonedToldOnce,
    /// Who releases a lease is taken to have found out what the owner before died over.
    AbandonedForgotten,

    // The schedule.
    /// A promotion moves everything that is due.
    LimitIgnored,
    /// What is parked together is moved in the order of ids.
    DueTimesMerged,
    /// It is not told when the next one is due.
    NextUnknown,
    /// Something is always said to be due.
    NextAlwaysNow,
    /// A message that was promoted stays parked, and is promoted twice.
    PromotedTwice,
    /// A promotion moves what other groups parked, for its own.
    PromoteForAllGroups,

    // Dead letters.
    /// Every page is the first.
    ListUnpaged,
    /// Newest first.
    ListReversed,
    /// Groups and partitions share their dead letters.
    DeadLettersShared,
    /// Bodies are shown as text.
    DeadBodyMangled,
    /// A replay leaves the dead letter where it is.
    ReplayCopies,
    /// A replay appends to the log.
    ReplayToTheLog,
    /// A purge is confirmed and forgotten.
    PurgeForgotten,

    // The catalog.
    /// The last to create a topic is told that it wins.
    LastTopicWins,
    /// A topic that is not there is made up.
    UnknownTopicInvented,
    /// Lists come in no order.
    ListsUnsorted,
    /// Every group starts with what comes next.
    StartAlwaysLatest,
    /// Every group starts with the oldest entry.
    StartAlwaysEarliest,
    /// A group is always said to be new.
    GroupAlwaysNew,
    /// Creating a group again starts it again.
    GroupStartsAgain,
    /// A restored group starts with the oldest entry.
    RestoreForgetsWhere,
    /// Restoring a group that is there moves it.
    RestoreRewinds,
    /// What is pending counts as lag.
    StatsLie,
    /// Retries are not counted.
    StatsForgetRetries,
    /// Partitions in which nothing is are left out.
    StatsSkipEmpty,
    /// It is not told where a group stands.
    StatsForgetPosition,
    /// A topic is said to have grown, and has not.
    ExpandForgotten,
    /// A topic grows, and its groups do not.
    ExpandWithoutGroups,
    /// As far as a topic can grow, it is said to have grown.
    ExpandStopsAtLimit,
    /// A topic can be made smaller.
    ExpandShrinks,
    /// More is counted than was asked for.
    CountIgnoresLimit,
    /// It is counted to the end of the log.
    CountIgnoresEnd,
    /// The entry that is started after counts too.
    CountIncludesStart,

    // Members.
    /// Only the first heartbeat counts.
    HeartbeatsForgotten,
    /// Who is not heard of stays.
    MembersNeverDie,
    /// Who was dropped never gets in again.
    DroppedForGood,
    /// Who was away itself accuses all others that are.
    AwayMemberPrunes,
    /// Everybody is alone.
    MembersMiscounted,
    /// Groups share their members.
    MembershipsShared,
    /// A leave is confirmed and forgotten.
    LeaveForgotten,
    /// Who had an id before can take its successor out.
    LeaveIgnoresIncarnation,
    /// An id cannot be taken over.
    JoiningIgnored,
    /// Who had an id before goes on as if nothing had happened.
    OldIncarnationAccepted,
    /// The wishes of the first heartbeat hold for ever.
    WishesIgnored,
    /// There is only ever one version.
    VersionStuck,
    /// Every heartbeat makes a version.
    VersionEveryHeartbeat,
    /// There is only ever one revision.
    RevisionStuck,
    /// The number of partitions at the first heartbeat holds for ever.
    GrowthUnseen,
    /// A member is told when itself would die.
    NextExpiryOwn,
    /// Newest first.
    RosterUnsorted,
    /// Dead members are shown until somebody drops them.
    RosterShowsTheDead,
    /// An assignment is confirmed and forgotten.
    PublishForgotten,
    /// An assignment for any version is one for this one.
    PublishIgnoresVersion,
    /// The last to publish wins.
    PublishTwice,
    /// Everybody is assigned everything.
    AssignedEverything,
    /// An assignment holds until there is another one.
    AssignmentOutlivesVersion,
    /// A watch sees what comes only when the wait is over.
    WatchDeaf,
    /// A watch sees what came before it only with the next change.
    WatchForgetsThePast,
    /// A watch has no patience at all.
    WatchImpatient,
    /// A watch outlasts its wait.
    WatchEndless,

    // Sharing.
    /// Only the first partition is read.
    SharedReadsOnePartition,
    /// Everything is said to come from the first partition.
    SharedPartitionsMixed,
    /// Retries are not read.
    SharedRetriesUnread,
    /// More is read than was asked for.
    SharedMaxIgnored,
    /// A fetch without result comes back at once.
    SharedWaitIgnored,
    /// A fetch that has to wait sees what came only when the wait is over.
    SharedWakesLate,
    /// A new reader starts with new entries.
    SharedSkipsItsOwn,
    /// A new reader starts with what anybody has.
    SharedSeesOthers,
    /// What was handed out before looks like new.
    SharedPendingUnmarked,
    /// A settlement counts whoever sends it.
    SharedSettleUnchecked,
    /// Whatever is said of an entry, it is done.
    SharedRetriesAcked,
    /// To extend is confirmed and forgotten.
    ExtendForgotten,
    /// To extend takes entries back from who has claimed them.
    ExtendSteals,
    /// Of entries that are lost nothing is said.
    ExtendSilent,
    /// One entry that is lost means that all are.
    ExtendAllOrNothing,
    /// To extend counts as handing out.
    ExtendCountsDeliveries,
    /// What is given back is kept.
    GiveBackForgotten,
    /// Anybody can give back what another has.
    GiveBackUnchecked,
    /// What was given back looks like what somebody died over.
    GivenBackIsAbandoned,
    /// The living are robbed.
    ClaimsFromTheLiving,
    /// Who is not alive is robbed at once.
    ClaimsAtOnce,
    /// Nobody is.
    ClaimsNothing,
    /// More is claimed than was asked for.
    ClaimIgnoresMax,
    /// To claim does not count as handing out.
    ClaimDelivered,
    /// A claimed entry has no note.
    ClaimLosesNotes,
    /// It is not told when there will be more to claim.
    ClaimNextUnknown,
    /// Consumers pile up.
    ConsumersNeverRemoved,
    /// A consumer is removed with what it has.
    RemovedWithEntries,
    /// The owner is told that it has everything.
    AdoptForgotten,
    /// The owner takes what others have just read.
    AdoptsAtOnce,
    /// Anybody adopts.
    FenceIgnoredOnAdopt,
}

/// A backend with one mistake.
#[derive(Clone)]
pub struct Broken {
    inner: Backend,
    sabotage: Sabotage,
    memo: Arc<Mutex<Memo>>,
}

/// What a mistake has to remember.
#[derive(Default)]
struct Memo {
    /// Counts whatever is counted.
    count: u64,
    /// What was appended: for those who drop or repeat it.
    appended: HashMap<TopicPartition, Vec<(MessageId, Fields)>>,
    /// The last grant: for those who do not look at the token.
    granted: HashMap<Resource, Lease>,
    /// Leases that were released here and not there.
    released: HashSet<Resource>,
    /// Who was handed an entry first.
    taken: HashMap<(TopicPartition, MessageId), GroupName>,
    /// Entries up to here are trimmed.
    trimmed: HashMap<TopicPartition, MessageId>,
    /// Where a group starts again, at its next fetch.
    rewound: HashMap<(TopicPartition, GroupName), MessageId>,
    /// What was promoted once.
    promoted: HashMap<(TopicPartition, GroupName), HashSet<Receipt>>,
    /// Groups that were created or have dead letters.
    groups: HashSet<(TopicPartition, GroupName)>,
    /// Dead letters that were replayed and are still shown.
    replayed: Vec<DeadLetter>,
    /// Who noted what, last or first.
    notes: HashMap<(TopicPartition, GroupName, Receipt), (Token, Note)>,
    /// What a seek left pending.
    left: HashMap<(TopicPartition, GroupName), Vec<Entry>>,
    /// Groups whose retries are not shown any more.
    without_retries: HashSet<(TopicPartition, GroupName)>,
    /// Groups that are not on a new partition.
    missing: HashSet<(TopicPartition, GroupName)>,
    /// The first heartbeat of each member that did not leave.
    members: HashMap<(TopicName, GroupName, MemberId), (Member, Instant)>,
    /// The first answer in each group.
    pulses: HashMap<(TopicName, GroupName), Pulse>,
    /// What was published last.
    published: HashMap<(TopicName, GroupName), Assignment>,
}

impl Broken {
    /// `backend` with this mistake. It has to see everything that is done to the backend.
    #[must_use]
    pub fn new(backend: impl Into<Backend>, sabotage: Sabotage) -> Self {
        Self { inner: backend.into(), sabotage, memo: Arc::default() }
    }

    fn memo(&self) -> MutexGuard<'_, Memo> {
        self.memo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is(&self, sabotage: Sabotage) -> bool {
        self.sabotage == sabotage
    }

    /// The lease of whoever holds the resource, if this is what is broken; else `lease`.
    fn unfenced(&self, sabotage: Sabotage, lease: &Lease) -> Lease {
        let granted = self.is(sabotage).then(|| self.memo().granted.get(&lease.resource).cloned()).flatten();
        granted.unwrap_or_else(|| lease.clone())
    }
}

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Broken").field(&self.sabotage).finish()
    }
}

impl From<Broken> for Backend {
    fn from(broken: Broken) -> Self {
        let local = broken.inner.local;
        Self { local, ..Self::new(broken) }
    }
}
