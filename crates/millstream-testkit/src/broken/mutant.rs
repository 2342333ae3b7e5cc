//! The mistakes, each in a sentence.

/// Names the mistakes once, for the type and for the list of all.
macro_rules! sabotages {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Mutant { $($(#[$doc])* $name,)* }

        impl Mutant {
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
    /// What does not fit into 4 MiB of a page is dropped.
    LargePagesCut,
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
    /// A retry comes back at once instead of at a time.
    RetryTimeIgnored,
    /// What comes back as the same attempt comes back as the next one.
    SnoozeCounts,
    /// What earlier attempts failed with is forgotten.
    HistoryForgotten,
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
    /// A seek leaves the lease to who has it.
    SeekKeepsTheLease,
    /// A seek works for anybody.
    FenceIgnoredOnSeek,
    /// Every time is the beginning.
    SeekIgnoresTime,
    /// A place beyond the end of a log is its beginning.
    BeyondTheEndIsTheBeginning,
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
    /// A trim keeps what is pending, and does not look at what is unread before that.
    TrimForgetsThePosition,
    /// A trim drops what is consumed, whatever the retention says.
    TrimIgnoresRetention,
    /// A trim takes everything for old enough.
    TrimIgnoresAge,
    /// A trim by length keeps one entry too many.
    TrimKeepsOneMore,
    /// Nobody is told what a trim has lost.
    LossUntold,
    /// What was pending counts as unread.
    LossMixed,
    /// The length of a log is told as it was before the append.
    MeasuredBefore,
    /// The lengths of logs come in another order.
    LengthsReversed,

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
    /// No lease has ends of owners before.
    EndsHidden,
    /// Every lease has an end of an owner before.
    EndsMadeUp,
    /// The ends are given with the first answer to a request only.
    EndsToldOnce,
    /// A release forgets the ends of owners before.
    EndsForgotten,
    /// An owner that returns cannot withdraw the end that was counted for it.
    EndNeverWithdrawn,
    /// Every asker counts as one that was answered without a gap.
    JudgesAtOnce,
    /// Nobody may ever take over what was not given back.
    NeverJudges,

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
    /// Everything is purged, whatever its id.
    PurgeIgnoresIds,
    /// A claim keeps nobody away from claiming.
    ClaimsShared,
    /// A claim keeps nobody away from replaying and purging.
    ClaimsIgnored,
    /// A claim is confirmed, also of what is gone.
    ClaimUnchecked,
    /// A claim never runs out.
    ClaimForever,
    /// What is settled with a claim of one's own is taken for somebody else's.
    ClaimsNobodys,
    /// What was left for later is claimed at once.
    LeftForgotten,
    /// What was left for later is claimed by nobody, whatever he says.
    LeftForGood,
    /// What was left for later is settled by whoever comes, also who lost it before.
    LeftIsAnybodys,
    /// Who has not claimed a letter can leave it for later.
    LeaveUnchecked,
    /// A letter is replayed as it was, whatever it is to be.
    EditForgotten,
    /// A letter that was put back is put back again.
    PutTwice,
    /// A letter that was put back is never put back again, whatever is asked.
    PutOnce,
    /// What is put back is confirmed and forgotten.
    PutForgotten,

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
    /// Who creates a group of a topic that has grown meanwhile leaves out what is new.
    GroupMissesGrowth,
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
    /// A change of a topic is confirmed and not stored.
    AlterForgotten,
    /// A change sets everything that it does not name to what new topics have.
    AlterResets,
    /// A change that makes no sense is passed over.
    AlterUnchecked,
    /// Deleting a topic takes its name alone.
    DeleteKeepsTheKeys,
    /// Deleting a topic does nothing.
    DeleteForgotten,
    /// Deleting a topic takes all topics whose names begin like that.
    DeleteByPrefix,
    /// Deleting a group leaves its retries and dead letters behind.
    DeleteKeepsRetries,
    /// Deleting a group takes the topic's other groups with it.
    DeleteTakesOthers,
    /// Deleting answers that there was something.
    DeletedAlways,
    /// Deleting a group of a topic that is not there is passed over.
    DeleteUnknownPassed,
    /// A group is restored on a topic that was deleted.
    RestoreUnchecked,
    /// What was deleted is restored.
    RestoreUndeletes,
    /// What was deleted is restored never again, whoever has created it since.
    DeletedForEver,
    /// A topic that is created again is taken for the one before.
    RebornUntold,
    /// Who worked on a topic that was deleted goes on with the next of its name.
    GenerationUnchecked,
    /// A topic that was lost is said to be restored.
    RestoreForgotten,
    /// A restored group is always said to have been missing.
    RestoredAlways,
    /// Who works in a group that was deleted does not hear of it.
    DeletionUntold,
    /// A pause of a group is confirmed and not kept.
    GroupPauseForgotten,
    /// Members are not told that their group is paused.
    PauseUntold,
    /// All groups of a topic are paused at once.
    PauseTakesOthers,
    /// Pausing what is not there is passed over.
    PauseUnknownPassed,
    /// Creating a group again ends its pause.
    PauseEndsWithCreate,
    /// A pause outlives the group.
    PauseOutlivesGroup,
    /// The lag is what lies between two ids.
    LagByIds,
    /// The oldest entry is the oldest of the log, whoever has read it.
    OldestOfTheLog,
    /// The oldest entry is the oldest that is unread.
    OldestForgetsPending,
    /// The group that has settled the most is named.
    PinsTheFastest,
    /// A group pins whatever it has not read, also if others need it too.
    PinsCountAll,
    /// A group that has settled everything is named as well.
    PinsAlways,
    /// Nobody knows when a group read last.
    PinsWithoutIdle,
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
    /// A heartbeat always joins the group, also after a leave.
    LateHeartbeatJoins,
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
    /// Each answer is that of another server.
    ServerRenamed,
    /// The server tells the time of its first answer for ever.
    ServerTimeStuck,
    /// A member is told when itself would die.
    NextExpiryOwn,
    /// Newest first.
    RosterUnsorted,
    /// All members were heard of when the first of them was.
    HeardOfTogether,
    /// Members whose ttl has passed are not shown.
    RosterHidesTheOverdue,
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

    // Delayed messages.
    /// What was scheduled is due a hundred milliseconds (or as much as it has) early.
    ScheduledEarly,
    /// What is due already waits for an hour.
    PastWaits,
    /// What is due in a century is due now.
    FarIsNow,
    /// A batch waits at the place of its first message.
    ScheduledAtOnePlace,
    /// The partitions of a topic, and the shards of a queue, are one place.
    PlacesShared,
    /// What stands behind a scheduling that failed is not done.
    ScheduleStopsAtBad,
    /// A message without fields is taken for one.
    EmptyScheduled,
    /// What is to be kept is replaced.
    KeepReplaces,
    /// What is to be replaced is kept.
    ReplaceKeeps,
    /// What is to be rejected is passed over in silence.
    RejectKeeps,
    /// An id can be used once.
    IdsNeverFree,
    /// A cancel is confirmed and forgotten.
    CancelForgotten,
    /// Every cancel is said to have taken its message out.
    CancelAlwaysWins,
    /// A cancel of many is told to have failed if one is not there.
    CancelAllOrNothing,
    /// A new due time is confirmed and forgotten.
    RescheduleForgotten,
    /// Whatever is rescheduled is said to have waited.
    RescheduleAlwaysWins,
    /// What is rescheduled is another message.
    RescheduleLosesBody,
    /// What waits is not shown.
    WaitingHidden,
    /// What waits is shown without its body.
    WaitingShownEmpty,
    /// A page starts behind all that is due with the last one of the page before.
    PagesSkipTies,
    /// A page behind a message that is gone is empty.
    PagesNeedTheirCursor,
    /// A page is as long as it gets.
    PagesUnbounded,
    /// Of what waits only that which is due is counted.
    WaitingMiscounted,
    /// It is not counted what is due.
    OverdueUncounted,
    /// What is worked on counts as waiting.
    ClaimedCountsAsWaiting,
    /// A delayed message is promoted twice.
    DelayedTwice,
    /// An owner promotes retries alone.
    PromoteForgetsDelayed,
    /// Retries are promoted by whoever promotes delayed messages.
    RetriesPromotedByAnybody,
    /// It is not told that bodies were lost.
    OrphansHidden,
    /// What recurs is forgotten when it is told what is due next.
    NextForgetsRecurring,
    /// Whoever waits for the schedule waits to the end.
    ScheduleWakesNobody,
    /// Of those who wait for the schedule one is woken.
    ScheduleWakesOne,
    /// A wait for the schedule ends at once.
    ScheduleWaitIgnored,
    /// What came before a wait is not seen by it.
    ScheduleWaitForgetsThePast,
    /// A reader does not tell of an earlier message.
    WokenHidden,
    /// A reader tells of an earlier message with every fetch.
    WokenAlways,

    // What recurs.
    /// Nothing that recurs is ever removed.
    RemoveForgotten,
    /// A pause is confirmed and forgotten.
    PauseForgotten,
    /// What is paused stays so.
    PausedForGood,
    /// Everything is due.
    DueAlways,
    /// What is due comes last first.
    DueReversed,
    /// The server's time is that of another server.
    DueByAnotherClock,
    /// An occurrence is fired by whoever comes.
    FireUnchecked,
    /// An occurrence is confirmed and not scheduled.
    FireForgotten,
    /// An occurrence is scheduled again though it waits.
    FireReplaces,
    /// What is paused fires.
    FireIgnoresPause,
    /// What does not recur again is removed.
    FireForgetsTheOver,

    // Tasks.
    /// The last to create a queue is told that it wins.
    LastQueueWins,
    /// A queue that is not there is made up.
    UnknownQueueInvented,
    /// A queue can have any number of shards.
    ShardsUnchecked,
    /// What is claimed comes last first.
    TasksReversed,
    /// A task is given to two workers.
    ClaimedTwice,
    /// A task comes without its body.
    TaskLosesBody,
    /// A task without body is kept back.
    BodilessHidden,
    /// All claims have one token.
    TokensRepeat,
    /// A settlement counts under any token.
    TokenIgnored,
    /// What is worked on is said to have been replaced.
    ClaimedIsReplaced,
    /// A task that failed is done.
    TaskRetriesDropped,
    /// A claim never runs out.
    ClaimsNeverRunOut,
    /// A claim that ran out is as good as lost, though nobody took it.
    RunOutIsFinal,
    /// A claim that ran out is not counted.
    CrashesUncounted,
    /// A claim that ran out counts as an attempt.
    CrashIsAttempt,
    /// Crashes are never forgotten.
    CrashesForEver,
    /// It is not told which token a task had before.
    BeforeUntold,
    /// Each task is said to have had a token before.
    BeforeMadeUp,
    /// What was never begun crashes as often as its claims run out.
    LostClaimsCrash,
    /// It is not written down that a handler begins.
    BegunForgotten,
    /// Claims that ran out are taken over, whether or not anybody could reach the server.
    OutagesIgnored,
    /// They never are.
    OutagesNeverEnd,
    /// Workers are not told which server answers.
    ServerUntold,
    /// What its own worker claims anew counts as crashed.
    OwnClaimsCrash,
    /// A claim under which nobody has begun kills its task.
    UnbegunClaimsKill,
    /// What is handed back has never crashed.
    HandedBackForgives,
    /// Large tasks are handed out as if they were small.
    ClaimsAreHeavy,
    /// What is paused is not found.
    PausedNotFound,
    /// What takes the place of something that is paused goes on.
    ReplaceUndoesPause,
    /// A task may crash as often as it likes.
    CrashLimitIgnored,
    /// Replayed tasks are confirmed and left dead.
    TaskReplayForgotten,
    /// A replayed task waits for an hour.
    ReplayedLate,
    /// A replayed task takes the place of one that waits.
    ReplayTakesTheId,
    /// What is worked on counts as waiting, and nothing as run out.
    TaskCountsLie,
    /// Nobody is ever called.
    CallsNobody,
    /// Everybody who waits is called.
    CallsEverybody,
    /// A call that nobody waits for is lost.
    CallsForgotten,
    /// A worker that is busy lets nobody know.
    BusyTellsNobody,
    /// All workers are told when the head is due.
    EverybodyWatches,
    /// The first head that a worker was told of stays the head.
    HeadRemembered,
    /// Who does not look out is told to come when it likes.
    WatcherNeverReplaced,
    /// Who has nothing to do is told to wait for long.
    PatienceIgnored,
    /// Claims that run out are forgotten when it is told what is due next.
    NextForgetsClaims,
    /// It is not told that something recurs.
    RecurringUntold,

    // Looking.
    /// Entries are shown as text.
    LookMangles,
    /// Every page of entries is the first.
    LookUnpaged,
    /// Entries are shown oldest first, whatever was asked for.
    LookForward,
    /// A page of entries is as large as it can be.
    LookLimitIgnored,
    /// Looking at what is pending reads what is new.
    LookTakes,
    /// What was noted of pending entries is not shown.
    LookHidesNotes,
    /// Every pending entry is said to have been handed out once.
    LookHidesDeliveries,
    /// Every pending entry is said to have been touched just now.
    LookHidesIdle,
    /// Every page of what is pending is the first.
    PendingUnpaged,
    /// Every page of parked retries is the first.
    ParkedUnpaged,
    /// Parked retries come latest first.
    ParkedReversed,
    /// Parked retries are shown without their bodies.
    ParkedWithoutBody,
    /// Every partition is said to be free.
    OwnersHidden,
    /// No owner is said to have ended.
    OwnersEndsHidden,
    /// Partitions that are free are left out.
    FreeNotShown,
    /// The names under which a group reads are not shown.
    ConsumersHidden,
    /// A server has no name.
    ServerUnnamed,
    /// Everything takes one byte.
    UsageStuck,

    // Checking.
    /// Nothing is ever found.
    AuditBlind,
    /// Where nothing is wrong, something is found.
    AuditSuspects,
    /// Repairs are confirmed and not done.
    RepairForgotten,
    /// Every repair is said to have done something.
    RepairAlways,
}
