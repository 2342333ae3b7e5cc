//! The mistakes of [`Broken`](crate::Broken), each described in one sentence.

/// Names the mistakes once, for the type and for the list of all.
macro_rules! sabotages {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A mistake.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Mutant { $($(#[$doc])* $name,)* }

        impl Mutant {
            /// All mistakes.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }
    };
}

sabotages! {
    // Appending.
    /// A batch is appended in reverse order.
    AppendReorders,
    /// Fields are stored in a map: sorted, and each name once.
    AppendMangles,
    /// Entries after one that failed are not appended.
    AppendStopsAtBadEntry,
    /// A batch goes to the partition of its first entry.
    AppendToOnePartition,
    /// Every fifth entry is confirmed and not appended.
    AppendForgets,

    // Appending with a dedup id.
    /// Dedup ids are ignored.
    DedupIgnored,
    /// Dedup ids count across batches only.
    DedupWithinBatchIgnored,
    /// Dedup ids count for ever.
    DedupForEver,
    /// Dedup ids count for half of their window.
    DedupForHalfTheWindow,
    /// Dedup ids count in all partitions of a topic.
    DedupAcrossPartitions,
    /// Earlier partitions are not looked at.
    DedupEarlierIgnored,
    /// A repetition returns a new id.
    DedupMadeUp,
    /// A batch with dedup ids is appended in reverse order.
    DedupReorders,
    /// A window out of bounds is corrected.
    DedupWindowCorrected,

    // Appending with a unique id.
    /// Unique ids are ignored.
    UniqueIgnored,
    /// Unique ids stay in use when their entries are settled.
    UniqueForEver,
    /// Earlier partitions are not looked at.
    UniqueEarlierIgnored,
    /// A duplicate returns a new id.
    UniqueMadeUp,
    /// An append that is repeated is not recognised once its entry is settled.
    UniqueSendIgnored,

    // Reading.
    /// A fetch returns more entries than requested.
    MaxIgnored,
    /// A fetch without result returns immediately.
    WaitIgnored,
    /// A fetch that has to wait returns new entries only when the wait is over.
    WakesLate,
    /// Entries beyond 4 MiB of a page are dropped.
    LargePagesCut,
    /// A new reader starts with new entries.
    PendingSkipped,
    /// Pending entries come newest first.
    PendingReversed,
    /// The delivery count is not kept.
    DeliveriesStuckAtOne,
    /// A reader that is to start over continues with new entries.
    StartOverIgnored,
    /// A reply is lost if its call was dropped.
    DropLosesReply,
    /// Groups compete: an entry delivered to one group is not delivered to another.
    GroupsCompete,
    /// Retries are read only when there is no new entry.
    RetriesLast,
    /// Deleted entries are skipped without a report.
    GhostsHidden,
    /// A lost group looks like an empty log.
    LostGroupHidden,

    // Fencing.
    /// A fetch reads under any token.
    FenceIgnoredOnFetch,
    /// A fetch checks the lease before it waits, and not after.
    FenceCheckedBeforeTheWait,
    /// A settlement takes effect under any token.
    FenceIgnoredOnSettle,
    /// A trim works under any token.
    FenceIgnoredOnTrim,
    /// A promotion works under any token.
    FenceIgnoredOnPromote,
    /// A renewal is confirmed under any token.
    FenceIgnoredOnRenew,
    /// An expired lease is treated as lost, though it was not taken over.
    ExpiryFences,

    // Locks.
    /// A lock is granted to everybody.
    LockTwoHolders,
    /// A request for a lock that is repeated is another one.
    LockNonceIgnored,
    /// All grants of locks have the same epoch.
    LockEpochRepeats,
    /// The number that the guarded store has seen is not heeded.
    LockFenceIgnored,
    /// Renewals of locks are confirmed and forgotten.
    LockRenewForgotten,
    /// A renewal of a lock is confirmed under any token.
    LockRenewUnchecked,
    /// Releases of locks are confirmed and forgotten.
    LockReleaseForgotten,
    /// A release of a lock works under any nonce.
    LockReleaseUnchecked,
    /// Nobody has a place in the queue: whoever asks first is granted a free lock.
    LockQueueIgnored,
    /// Whoever asks for a lock has a place in the queue.
    LockTryQueues,
    /// A client that lost its place in the queue is the last one.
    LockArrivalIgnored,
    /// A client that has ended keeps its place in the queue.
    LockDeadWaiterBlocks,
    /// Nobody is notified of changes of a lock.
    LockChangesUnnoticed,
    /// A grant is not announced.
    LockAnnounceForgotten,
    /// A server that has just started grants locks although the request excludes such servers.
    LockYoungServerGrants,
    /// A lock that has expired is granted at once, whatever the continuity of the caller is.
    LockJudgesAtOnce,
    /// A lock that was not released is never granted again.
    LockNeverJudges,
    /// All locks are one.
    LockNamesCollide,
    /// The holder of a lock is not known.
    LockHolderUnknown,
    /// Operators do not see who waits for a lock.
    LockQueueUnseen,
    /// The list of locks ends with its first part.
    LockListStops,
    /// A forced release ends any grant of the lock.
    LockForcedUnchecked,
    /// Forced releases are confirmed and forgotten.
    LockForcedForgotten,

    // Settling.
    /// Acks are confirmed and forgotten.
    AcksForgotten,
    /// Every settlement is reported as applied.
    SettledAlways,
    /// A batch with one stale settlement is not applied at all.
    SettleAllOrNothing,
    /// A retry is appended to the log again.
    RetryToTheLog,
    /// A retry is a hundred milliseconds early, or as early as its delay allows.
    RetryEarly,
    /// A retry comes back without payload.
    RetryLosesBody,
    /// A retry comes back without attempt, origin and error.
    RetryLosesStory,
    /// A retry comes back immediately instead of at its due time.
    RetryTimeIgnored,
    /// A message that is snoozed comes back as the next attempt instead of the same one.
    SnoozeCounts,
    /// The failures of earlier attempts are forgotten.
    HistoryForgotten,
    /// A retry of a retry names the retry as its origin.
    OriginForgotten,
    /// A retry of a retry wraps the retry.
    RetryWrapsRetry,
    /// A retry without the group is stale, and therefore forgotten.
    LostGroupSettles,
    /// A dead letter is acked and gone.
    DeadLetterDropped,
    /// A dead letter has no reason, attempts or error.
    DeadLetterLosesStory,

    // Results of messages.
    /// No result is stored.
    MessageResultForgotten,
    /// A dead letter has no result.
    DeadLetterResultForgotten,
    /// The last result of a message counts.
    LastMessageResultWins,
    /// A failure is not replaced by a reply.
    MessageFailureStays,
    /// A settlement that is fenced stores its result.
    MessageResultUnfenced,
    /// A settlement that is stale stores its result.
    StaleMessageResultStored,
    /// A result is gone once it was read.
    MessageResultReadOnce,
    /// Who waits for a result looks once.
    MessageResultWaitForgotten,
    /// A result is kept for ever.
    MessageResultNeverLeaves,
    /// All results of a partition are one.
    MessageResultsCollide,

    // Finding tasks.
    /// A task that is found is as it was when it was scheduled.
    FoundTaskForgetsStory,
    /// A task that a worker has is not found.
    ClaimedTaskIsNowhere,
    /// A task whose id is in use is not found once it is done.
    FinishedTaskIsNowhere,

    // Progress of messages.
    /// No progress is stored.
    ProgressForgotten,
    /// Who has lost the right to a message reports.
    ProgressUnfenced,
    /// All lines stay, also those that others replace.
    ProgressUnbounded,
    /// Who follows a message looks once.
    ProgressWaitForgotten,
    /// Progress is kept for ever.
    ProgressNeverLeaves,
    /// All messages of a partition have one progress.
    ProgressesCollide,

    // Holding.
    /// A hold is confirmed and forgotten.
    HoldForgotten,
    /// A hold is treated as an ack.
    HoldIsAck,
    /// A hold is reported as applied, whatever entry it is for.
    HoldUnchecked,
    /// A note of a redelivery is forgotten.
    NotesOfTheLogOnly,
    /// A second note does not replace the first.
    FirstNoteStays,
    /// The next owner does not see the notes of the one before it.
    NotesLostAtTakeover,
    /// A note stays when its entry is settled or skipped.
    NotesOutliveTheirEntry,
    /// A group reads the notes of another one.
    NotesShared,
    /// A note comes back without its error and its author.
    NoteLosesStory,
    /// The wait of a note starts over with every read.
    NoteWaitStands,
    /// The wait of a note ends a hundred milliseconds early, or as early as the wait allows.
    NoteWaitEarly,

    // Seeking.
    /// A seek is confirmed and forgotten.
    SeekForgotten,
    /// A seek leaves the lease with its owner.
    SeekKeepsTheLease,
    /// A seek works under any token.
    FenceIgnoredOnSeek,
    /// Every start time is taken as the beginning.
    SeekIgnoresTime,
    /// A position beyond the end of a log is taken as its beginning.
    BeyondTheEndIsTheBeginning,
    /// Entries that were pending before a seek are delivered after it.
    SeekLeavesPending,
    /// A seek also drops the group's retries.
    SeekDropsRetries,

    // Trimming.
    /// Nothing is ever dropped.
    TrimForgotten,
    /// Everything is dropped, read or not.
    TrimsUnread,
    /// A trim looks at the owner's group only.
    TrimsForOneGroup,
    /// A trim keeps pending entries, and ignores unread entries before them.
    TrimForgetsThePosition,
    /// A trim drops consumed entries, whatever the retention is.
    TrimIgnoresRetention,
    /// A trim treats every entry as old enough.
    TrimIgnoresAge,
    /// A trim by length keeps one entry too many.
    TrimKeepsOneMore,
    /// A trim without a lease does nothing.
    UnleasedTrimForgotten,
    /// Trims without a lease have no turns.
    UnleasedTrimAnytime,
    /// After the first turn nobody has another one.
    UnleasedTrimOnce,
    /// A trim without a lease drops what is old enough, whether the retention protects it or not.
    UnleasedTrimDropsUnsettled,
    /// A trim up to an id drops the entry with that id, too.
    TrimBelowIncludesTheId,
    /// A trim up to an id keeps what is not settled.
    TrimBelowKeepsUnsettled,
    /// The entries that a trim has lost are not reported.
    LossUntold,
    /// Pending entries are counted as unread.
    LossMixed,
    /// The reported length of a log is the one before the append.
    MeasuredBefore,
    /// The lengths of logs are returned in another order.
    LengthsReversed,

    // Leases.
    /// A second owner is granted a resource that is already held.
    TwoOwners,
    /// The same request sent twice counts as two requests.
    NonceIgnored,
    /// A renewal is confirmed and forgotten.
    RenewForgotten,
    /// One lost lease fails the renewal of all.
    RenewAllOrNothing,
    /// An expired lease never becomes free.
    LeaseNeverExpires,
    /// An expired lease cannot be renewed, though it was not taken over.
    ExpiryIsFinal,
    /// A release is confirmed and forgotten.
    ReleaseForgotten,
    /// A released token works until the resource is granted again.
    ReleaseKeepsTheToken,
    /// A release ends the lease of any holder.
    ReleaseUnchecked,
    /// Every grant has the same epoch.
    EpochRepeats,
    /// The partitions of a topic are one resource.
    ResourcesCollide,
    /// The holder of a lease is not reported.
    HolderUnknown,
    /// No lease reports the ends of earlier owners.
    EndsHidden,
    /// Every lease reports the end of an earlier owner.
    EndsMadeUp,
    /// The ends are returned with the first reply to a request only.
    EndsToldOnce,
    /// A release forgets the ends of earlier owners.
    EndsForgotten,
    /// An owner that returns cannot withdraw the end that was counted for it.
    EndNeverWithdrawn,
    /// Every caller is treated as one whose calls were answered without a gap.
    JudgesAtOnce,
    /// A lease that was not released can never be taken over.
    NeverJudges,

    // Cancelling.
    /// What nobody has read is asked for, although nobody can answer.
    CancelNeverAhead,
    /// What an owner may begin is said to be cancelled.
    CancelAlwaysAhead,
    /// What was removed is said to be asked for.
    CancelSaysAsked,
    /// What is nowhere is said to be cancelled.
    CancelInventsMarks,
    /// A mark stays, whatever became of the message since.
    CancelMarkStays,
    /// All groups are asked.
    CancelHitsAllGroups,
    /// No result is stored for what is removed.
    CancelForgetsResult,
    /// Any task with the id is cancelled.
    CancelAnyTask,
    /// What waits is removed although nobody saw it there.
    CancelRemovesUnseen,
    /// A mark with an answer is forgotten.
    CancelForgetsAnswers,
    /// A wait for an answer ends at once.
    CancelWaitsForNothing,
    /// A mark is never forgotten.
    CancelMarkKept,
    /// Marks are returned although they have not changed.
    CancelMarksUnchanged,
    /// Owners see no marks.
    CancelMarksHidden,
    /// The claim of a marked task is not named.
    CancelClaimForgotten,
    /// Many readers are taken for an owner.
    CancelShareForgotten,
    /// What was read is answered as if it were not.
    CancelAheadUnchecked,
    /// No result is stored with an answer.
    CancelAnswerForgetsResult,
    /// A lost right answers.
    CancelFenceIgnored,
    /// An answer replaces another one, as it says.
    CancelAnswersAgain,
    /// An answer for what nobody has cancelled says that somebody asks.
    CancelAnswersInvented,
    /// It cancels no batch.
    CancelBatchForgotten,
    /// Of the batches that are cancelled at a place it returns one.
    CancelOneBatch,

    // Steps.
    /// Steps are confirmed and forgotten.
    StepsForgotten,
    /// A lost right stores steps, as it says.
    StepsFenceIgnored,
    /// Steps have no bound.
    StepsUnbounded,
    /// Of steps that are too large together some are stored.
    StepsPartlyStored,
    /// Of several steps of a kind and name the last counts.
    StepsLastCounts,
    /// Steps of one name are one, whatever they are.
    StepKindsConfused,
    /// The steps come with the time of another clock.
    StepsTimeMadeUp,
    /// The time of a step is that at which it was read.
    StepTimesMadeUp,
    /// All groups have the same steps.
    StepsOfAllGroups,
    /// All messages of a group have the same steps.
    StepsOfAllMessages,
    /// Steps stay when their message is settled.
    StepsNeverLeave,
    /// An ack leaves the steps that it was to drop.
    StepsOutliveAck,
    /// A dead letter has no steps.
    DeadLetterLosesSteps,
    /// A dead letter has the last of its steps alone.
    DeadLetterKeepsOneStep,
    /// A wait is not noted.
    StepWaitForgotten,
    /// A wait is noted although its message is not parked.
    StepWaitUnfenced,
    /// A wait begins again whenever its message is handed back.
    StepWaitRestarts,
    /// A signal that came before the wait is overlooked.
    StepSignalMissed,
    /// A wait for a time ends with a signal of its name.
    StepSleepSignalled,
    /// The name of a signal is not checked.
    SignalNameUnchecked,
    /// A signal for a group that does not exist is for nobody.
    SignalGroupUnchecked,
    /// A signal is confirmed and forgotten.
    SignalForgotten,
    /// A signal says nothing.
    SignalLosesValue,
    /// All groups get a signal.
    SignalHitsAllGroups,
    /// A signal that comes again is said to be stored.
    SignalRepeated,
    /// A signal that comes too late is said to be stored.
    SignalLateStored,
    /// A signal for what is gone is said to be stored.
    SignalGoneStored,
    /// A signal that wakes is said to be stored.
    SignalWakesInSilence,
    /// Each signal that is stored is said to wake.
    SignalAlwaysWakes,

    // Batches.
    /// A batch keeps no results.
    BatchResultsForgotten,
    /// The last result of a member stays.
    BatchResultReplaced,
    /// The result of a dead member stays, though it is done by now.
    BatchResultOfDeathStays,
    /// Results come in the wrong order.
    BatchResultsUnordered,
    /// Members without a result are left out.
    BatchResultsCut,
    /// Results stay when their batch is gone.
    BatchResultsOutlive,
    /// Each note has the result of its member, whether the batch keeps it or not.
    BatchKeepsEachResult,
    /// Notes have no results.
    BatchNotesForgetResults,
    /// Whoever waits for a batch is not told of its end.
    BatchEndUnnoted,
    /// A batch sends no messages.
    BatchMessagesForgotten,
    /// Progress is sent for each percent.
    BatchStepIgnored,
    /// A batch has no parent.
    BatchParentForgotten,
    /// All batches are kept for the same time.
    BatchKeepIgnored,
    /// A message of any size is taken, and not kept.
    BatchMessageUnchecked,
    /// Blocks that a client confirms are not confirmed.
    BatchConfirmForgotten,
    /// Numbers count whose messages were not stored.
    BatchFailedCount,
    /// Numbers that were not used are left out at once.
    BatchNothingGivenBack,
    /// Blocks that nobody knows are confirmed without an effect.
    BatchConfirmUnchecked,
    /// Anybody confirms a block.
    BatchTokenIgnored,
    /// The target of a block is not stored.
    BatchTargetForgotten,
    /// A block of any size is handed out as one of the nearest size.
    BatchCountUnchecked,
    /// A batch that does not exist is made up.
    BatchMadeUp,
    /// A batch grows above the limit.
    BatchFullIgnored,
    /// A batch that is sealed grows.
    BatchSealedGrows,
    /// Blocks that nobody confirmed are members behind the seal.
    BatchSealForgetsOpenBlocks,
    /// Blocks that come behind the seal are confirmed without an effect.
    BatchSealAgainUnchecked,
    /// A number that was left out is no member, whatever becomes of its message.
    BatchLeftOutStays,
    /// A dead member is never done.
    BatchDeadStaysDead,
    /// A member counts each time that it ends.
    BatchCountsTwice,
    /// What is done can die.
    BatchDoneBecomesDead,
    /// The note for the parent is not reported.
    BatchParentNoteHidden,
    /// A batch completes before the seal.
    BatchFiresBeforeSeal,
    /// The message of an event is sent twice.
    BatchEventTwice,
    /// A message is sent for each dead member.
    BatchEachDeathSent,
    /// Steps of progress are sent that were overtaken.
    BatchProgressAll,
    /// A batch that is closed is sealed, and waits.
    BatchCloseSeals,
    /// A batch that is open is not closed.
    BatchCloseLeavesOpen,
    /// The blocks of a batch are hidden.
    BatchBlocksHidden,
    /// Each block is said to be confirmed.
    BatchBlocksConfirmed,
    /// A batch is never gone.
    BatchOutlivesItsTime,
    /// Numbers that were left out are confused with those that are missing.
    BatchLeftOutIsMissing,
    /// Each page of numbers is the last.
    BatchNumbersCut,
    /// The limit of a list of batches is ignored.
    BatchListUnlimited,
    /// Batches are listed by their ids.
    BatchListUnordered,
    /// Settlements leave no notes.
    BatchNoteLost,
    /// Notes are returned newest first.
    BatchNotesReversed,
    /// Notes are read from the front, whatever was read before.
    BatchNotesFromTheFront,
    /// Two notes of a member are one.
    BatchNotesMerged,
    /// Dead members leave no notes.
    BatchDeathUnnoted,
    /// Each note says that its member is done.
    BatchNotesAllDone,
    /// The limit of notes is ignored.
    BatchNotesUnlimited,
    /// A settlement that is refused leaves a note.
    BatchNoteUnfenced,
    /// Notes are never forgotten.
    BatchForgetsNothing,
    /// All notes are forgotten at once.
    BatchForgetsAll,

    // Permits of limits.
    /// One unit more than the limit is granted.
    PermitsOneMore,
    /// A take asks for its first key only.
    PermitsFirstKeyOnly,
    /// Each take costs one unit.
    PermitsCostIgnored,
    /// A cost above the limit is cut to the limit.
    PermitsCostCut,
    /// A limit of zero grants one unit.
    PermitsZeroIsOne,
    /// Nobody is called.
    PermitsNeverCalled,
    /// Who is called is called again.
    PermitsCalledTwice,
    /// Whoever gets nothing waits.
    PermitsAlwaysWait,
    /// A holder that leaves is still waited for.
    PermitsLeaveForgotten,
    /// Who has units does not learn that others wait.
    PermitsWantedNotTold,
    /// Who takes does not learn that others wait.
    PermitsContentionHidden,
    /// What a holder states frees all that it has.
    PermitsHasFreesAll,
    /// What a holder states frees nothing.
    PermitsHasIgnored,
    /// An exchange that comes late is done.
    PermitsNumberIgnored,
    /// Silence is an end at once.
    PermitsJudgeAtOnce,
    /// Silence is never an end.
    PermitsNeverJudge,
    /// A renewal extends nothing.
    PermitsRenewForgotten,
    /// A holder that was ended comes back with a renewal.
    PermitsEndedRejoin,
    /// A holder that was ended may exchange.
    PermitsFenceIgnored,
    /// The next expiry is not said.
    PermitsExpiryHidden,
    /// The end of a holder frees nothing.
    PermitsEndForgotten,
    /// The end of a holder frees a part only, and says that it was all.
    PermitsEndInOnePart,
    /// Takes by rules that have changed are done.
    PermitsRulesIgnored,
    /// A change of the rules is not told.
    PermitsRulesNotTold,
    /// A rule cannot be removed.
    PermitsRuleStays,
    /// Who waits is not listed.
    PermitsWaitingHidden,
    /// An exchange may have any number of steps.
    PermitsUnbounded,
    /// Tokens are all free at once.
    RatesAtOnce,
    /// Each reservation has one token.
    RatesOneToken,
    /// No tokens are saved up.
    RatesBurstForgotten,
    /// Who does not wait gets tokens that are not free.
    RatesAlwaysWait,
    /// A charge is confirmed and forgotten.
    RatesChargeForgotten,
    /// Tokens cannot be given back.
    RatesChargeOnly,
    /// A key is closed for no time.
        RatesCloseForgotten,
    /// A breaker that is opened is closed.
    BreakersNeverOpen,
    /// A breaker that is closed is still listed.
    BreakersStayListed,
    /// Nobody learns that a key is closed.
    RatesCloseNotTold,
    /// Tokens are reserved by rules that have changed.
    RatesRulesIgnored,
    /// A reservation may have any number of steps.
    RatesUnbounded,
    /// How far tokens are reserved is not said.
    RatesStateHidden,

    // Markers of operations.
    /// An operation that runs can be begun again.
    BegunByTwo,
    /// A begin that is sent again is another begin.
    BeginTokenIgnored,
    /// A running marker stays for a day.
    MarkerNeverExpires,
    /// An extension is confirmed and forgotten.
    MarkerExtendForgotten,
    /// If one marker of many cannot be extended, none is.
    MarkersAllOrNothing,
    /// A marker that has expired is lost, though nobody began the operation since.
    ExpiredMarkerIsLost,
    /// The result of an operation is not stored.
    ResultForgotten,
    /// A second completion replaces the result.
    LastResultWins,
    /// A result that is too large is cut.
    LargeResultCut,
    /// A result stays for a day.
    ResultNeverLeaves,
    /// Any caller completes what another one runs.
    CompleteUnfenced,
    /// Abandoning is confirmed and forgotten.
    AbandonForgotten,
    /// Any caller abandons what another one runs.
    AbandonUnfenced,
    /// Abandoning what is done is confirmed.
    DoneIsAbandoned,
    /// The id of an operation ends at a colon.
    OperationsCollide,

    // The schedule.
    /// A promotion moves everything that is due.
    LimitIgnored,
    /// Messages parked together are moved in the order of ids.
    DueTimesMerged,
    /// The next due time is not reported.
    NextUnknown,
    /// A message is always reported as due.
    NextAlwaysNow,
    /// A message that was promoted stays parked, and is promoted twice.
    PromotedTwice,
    /// A promotion also moves the messages that other groups parked.
    PromoteForAllGroups,

    // Dead letters.
    /// Every page is the first.
    ListUnpaged,
    /// Dead letters are listed newest first.
    ListReversed,
    /// Groups and partitions share their dead letters.
    DeadLettersShared,
    /// Bodies are returned as text.
    DeadBodyMangled,
    /// A replay leaves the dead letter where it is.
    ReplayCopies,
    /// A replay appends to the log.
    ReplayToTheLog,
    /// A purge is confirmed and forgotten.
    PurgeForgotten,
    /// Every dead letter is purged, whatever its id.
    PurgeIgnoresIds,
    /// A claim does not prevent other claims.
    ClaimsShared,
    /// A claim does not prevent replaying and purging.
    ClaimsIgnored,
    /// A claim is confirmed, even for a letter that is gone.
    ClaimUnchecked,
    /// A claim never expires.
    ClaimForever,
    /// A settlement under the caller's own claim is treated as one under another's claim.
    ClaimsNobodys,
    /// A letter left for later can be claimed immediately.
    LeftForgotten,
    /// A letter left for later can never be claimed, whatever the request.
    LeftForGood,
    /// A letter left for later can be settled by any caller, including one that lost it before.
    LeftIsAnybodys,
    /// A caller without a claim on a letter can leave it for later.
    LeaveUnchecked,
    /// A letter is replayed unchanged, ignoring the requested edit.
    EditForgotten,
    /// A letter that was put back is put back a second time.
    PutTwice,
    /// A letter that was put back is never put back again, even on request.
    PutOnce,
    /// A put is confirmed and forgotten.
    PutForgotten,
    /// Dead letters that a trim is to drop are counted and stay.
    TrimDeadForgotten,
    /// A trim drops dead letters of any age.
    TrimDeadForgetsAge,
    /// A trim drops dead letters in any number.
    TrimDeadForgetsLength,
    /// A trim drops as many letters less as it has met claims.
    TrimDeadStopsAtClaims,
    /// A trim drops claimed letters.
    TrimDeadTakesClaimed,
    /// A trim keeps letters that were left for later.
    TrimDeadKeepsLeft,
    /// Claims protect letters from a trim when they have expired.
    TrimDeadKeepsExpired,
    /// A trim reports all dropped letters as too old.
    TrimDeadMiscounts,
    /// A trim drops the letters of all groups.
    TrimDeadOfAllGroups,
    /// A dry run of a trim drops letters.
    TrimDeadDryRunDrops,
    /// A trim of dead letters works under any token.
    FenceIgnoredOnTrimDead,

    // The catalog.
    /// Creating a topic that exists returns the passed spec instead of the stored one.
    LastTopicWins,
    /// A topic that does not exist is made up.
    UnknownTopicInvented,
    /// Lists are unsorted.
    ListsUnsorted,
    /// Every group starts with the next entry.
    StartAlwaysLatest,
    /// Every group starts with the oldest entry.
    StartAlwaysEarliest,
    /// A group is always reported as new.
    GroupAlwaysNew,
    /// Creating a group again resets its position.
    GroupStartsAgain,
    /// A group of a topic that has grown in the meantime is created without the new partitions.
    GroupMissesGrowth,
    /// A restored group starts with the oldest entry.
    RestoreForgetsWhere,
    /// Restoring a group that exists moves its position.
    RestoreRewinds,
    /// Pending entries are counted as lag.
    StatsLie,
    /// Retries are not counted.
    StatsForgetRetries,
    /// Empty partitions are left out.
    StatsSkipEmpty,
    /// The position of a group is not reported.
    StatsForgetPosition,
    /// A topic is reported to have grown, and has not.
    ExpandForgotten,
    /// A topic grows, and its groups do not.
    ExpandWithoutGroups,
    /// Growing a topic beyond the limit grows it to the limit instead of failing.
    ExpandStopsAtLimit,
    /// A topic can be made smaller.
    ExpandShrinks,
    /// A change of a topic is confirmed and not stored.
    AlterForgotten,
    /// A change resets every setting that it does not name to the default of new topics.
    AlterResets,
    /// An invalid change is ignored.
    AlterUnchecked,
    /// A change of the packing is confirmed, and dropped.
    AlterKeepsPacking,
    /// Any topic can become packed.
    AlterPacksAny,
    /// Any version of a dictionary is the newest.
    DictionaryOverwritten,
    /// A dictionary that is refused is confirmed.
    DictionaryUnchecked,
    /// A topic has the dictionaries of all topics.
    DictionaryOfAnyTopic,
    /// A dictionary is read by its version alone.
    DictionaryOfAnyId,
    /// A dictionary is stored for whatever topic has the name by now.
    DictionaryOfAnyGeneration,
    /// Deleting a topic deletes its name only.
    DeleteKeepsTheKeys,
    /// Deleting a topic does nothing.
    DeleteForgotten,
    /// Deleting a topic deletes all topics whose names start with its name.
    DeleteByPrefix,
    /// Deleting a group leaves its retries and dead letters behind.
    DeleteKeepsRetries,
    /// Deleting a group deletes the topic's other groups too.
    DeleteTakesOthers,
    /// A deletion always reports that something existed.
    DeletedAlways,
    /// Deleting a group of a topic that does not exist is not an error.
    DeleteUnknownPassed,
    /// A group is restored on a topic that was deleted.
    RestoreUnchecked,
    /// Restoring a deleted topic or group creates it again.
    RestoreUndeletes,
    /// A deleted group or topic can never be restored, even if it was created again.
    DeletedForEver,
    /// The generation of a topic that was created again is not reported.
    RebornUntold,
    /// A client of a deleted topic continues with the next topic of the same name.
    GenerationUnchecked,
    /// Restoring a lost topic is confirmed and forgotten.
    RestoreForgotten,
    /// A restored group is always reported as having been missing.
    RestoredAlways,
    /// The members of a deleted group are not notified.
    DeletionUntold,
    /// A pause of a group is confirmed and not kept.
    GroupPauseForgotten,
    /// Members are not notified that their group is paused.
    PauseUntold,
    /// All groups of a topic are paused at once.
    PauseTakesOthers,
    /// Pausing a group that does not exist is not an error.
    PauseUnknownPassed,
    /// Creating a group again ends its pause.
    PauseEndsWithCreate,
    /// A pause outlives the group.
    PauseOutlivesGroup,
    /// The lag is computed from the distance of two ids.
    LagByIds,
    /// The oldest entry is the oldest of the log, even if it was read.
    OldestOfTheLog,
    /// The oldest entry is the oldest unread one.
    OldestForgetsPending,
    /// The group that has settled the most is reported.
    PinsTheFastest,
    /// A group pins all its unread entries, even those that other groups need too.
    PinsCountAll,
    /// A group that has settled everything is reported too.
    PinsAlways,
    /// A group that was set back is reported to keep entries only from its oldest pending one on.
    PinsForgetUnread,
    /// The time of a group's last read is not reported.
    PinsWithoutIdle,
    /// The count exceeds the requested limit.
    CountIgnoresLimit,
    /// The count always runs to the end of the log.
    CountIgnoresEnd,
    /// The entry that the count starts after is counted too.
    CountIncludesStart,

    // Members.
    /// Only the first heartbeat counts.
    HeartbeatsForgotten,
    /// Members without heartbeats are never dropped.
    MembersNeverDie,
    /// A dropped member can never join again.
    DroppedForGood,
    /// A heartbeat always joins the group, also after a leave.
    LateHeartbeatJoins,
    /// Every member sees itself as the only one.
    MembersMiscounted,
    /// Groups share their members.
    MembershipsShared,
    /// A leave is confirmed and forgotten.
    LeaveForgotten,
    /// The former holder of an id can remove its successor.
    LeaveIgnoresIncarnation,
    /// An id cannot be taken over.
    JoiningIgnored,
    /// The former holder of an id continues undisturbed.
    OldIncarnationAccepted,
    /// The settings of the first heartbeat apply for ever.
    WishesIgnored,
    /// The version never changes.
    VersionStuck,
    /// Every heartbeat creates a version.
    VersionEveryHeartbeat,
    /// The revision never changes.
    RevisionStuck,
    /// The number of partitions at the first heartbeat applies for ever.
    GrowthUnseen,
    /// Each reply reports another server.
    ServerRenamed,
    /// The server always reports the time of its first reply.
    ServerTimeStuck,
    /// The next expiry reported to a member is its own.
    NextExpiryOwn,
    /// Members are listed newest first.
    RosterUnsorted,
    /// All members report the time of the first one's last heartbeat.
    HeartbeatsTogether,
    /// Members whose ttl has passed are hidden.
    RosterHidesTheOverdue,
    /// An assignment is confirmed and forgotten.
    PublishForgotten,
    /// An assignment for any version is accepted for the current one.
    PublishIgnoresVersion,
    /// The last assignment to be published wins.
    PublishTwice,
    /// Every member is assigned all partitions.
    AssignedEverything,
    /// An assignment applies until it is replaced.
    AssignmentOutlivesVersion,
    /// A watch reports a change only when its wait is over.
    WatchDeaf,
    /// A watch reports an earlier change only with the next one.
    WatchForgetsThePast,
    /// A watch does not wait.
    WatchImpatient,
    /// A watch waits longer than requested.
    WatchEndless,

    // Sharing.
    /// Only the first partition is read.
    SharedReadsOnePartition,
    /// Every entry is reported as one of the first partition.
    SharedPartitionsMixed,
    /// Retries are not read.
    SharedRetriesUnread,
    /// A fetch returns more entries than requested.
    SharedMaxIgnored,
    /// A fetch without result returns immediately.
    SharedWaitIgnored,
    /// A fetch that has to wait returns new entries only when the wait is over.
    SharedWakesLate,
    /// A new reader starts with new entries.
    SharedSkipsItsOwn,
    /// A new reader starts with the pending entries of all members.
    SharedSeesOthers,
    /// Entries delivered before look like new ones.
    SharedPendingUnmarked,
    /// A settlement takes effect from any sender.
    SharedSettleUnchecked,
    /// Every settlement is applied as an ack.
    SharedRetriesAcked,
    /// An extension is confirmed and forgotten.
    ExtendForgotten,
    /// An extension takes entries back from the member that claimed them.
    ExtendSteals,
    /// An extension does not report lost entries.
    ExtendSilent,
    /// One lost entry makes an extension report all as lost.
    ExtendAllOrNothing,
    /// An extension counts as a delivery.
    ExtendCountsDeliveries,
    /// Entries that are given back are kept.
    GiveBackForgotten,
    /// Any member can give back another member's entries.
    GiveBackUnchecked,
    /// An entry that was given back looks like one whose holder died.
    GivenBackIsAbandoned,
    /// Entries of live members are claimed.
    ClaimsFromTheLiving,
    /// Entries of members that are not alive are claimed immediately.
    ClaimsAtOnce,
    /// No entries are claimed, even of dead members.
    ClaimsNothing,
    /// A claim returns more entries than requested.
    ClaimIgnoresMax,
    /// A claim does not count as a delivery.
    ClaimDelivered,
    /// A claimed entry has no note.
    ClaimLosesNotes,
    /// The time of the next possible claim is not reported.
    ClaimNextUnknown,
    /// Consumers are never removed and pile up.
    ConsumersNeverRemoved,
    /// A consumer is removed together with its pending entries.
    RemovedWithEntries,
    /// An adoption is reported as complete without having been done.
    AdoptForgotten,
    /// The owner adopts entries that others have just read.
    AdoptsAtOnce,
    /// An adoption works under any token.
    FenceIgnoredOnAdopt,

    // Delayed messages.
    /// A scheduled message is due a hundred milliseconds early, or as early as its delay allows.
    ScheduledEarly,
    /// A message whose due time has passed waits for an hour.
    PastWaits,
    /// A message due in a century is due now.
    FarIsNow,
    /// A whole batch is scheduled at the place of its first message.
    ScheduledAtOnePlace,
    /// The partitions of a topic, and the shards of a queue, share one place.
    PlacesShared,
    /// Items after one that failed to be scheduled are skipped.
    ScheduleStopsAtBad,
    /// A message without fields is accepted.
    EmptyScheduled,
    /// An existing message is replaced where it is to be kept.
    KeepReplaces,
    /// An existing message is kept where it is to be replaced.
    ReplaceKeeps,
    /// A conflict is ignored where it is to be rejected.
    RejectKeeps,
    /// A debounced message is due when the last one said, though that is earlier.
    DebounceHastens,
    /// A debounced message keeps its due time.
    DebounceKeepsDue,
    /// A message of which the last is kept is due when the last one said.
    KeepLastMovesDue,
    /// Of messages of which the last is to be kept the first is kept.
    KeepLastKeepsFirst,
    /// What is debounced while it is worked on is dropped.
    DebounceDropsWhenClaimed,
    /// An id can be used only once.
    IdsNeverFree,
    /// A cancel is confirmed and forgotten.
    CancelForgotten,
    /// Every cancel is reported to have removed its message.
    CancelAlwaysWins,
    /// A cancel of several messages is reported as failed if one does not exist.
    CancelAllOrNothing,
    /// A new due time is confirmed and forgotten.
    RescheduleForgotten,
    /// Every rescheduled message is reported to have been waiting.
    RescheduleAlwaysWins,
    /// A rescheduled message loses its body.
    RescheduleLosesBody,
    /// Retries that are to be given up are released.
    RetriesReleasedInsteadOfKilled,
    /// Retries that are to be released are given up.
    RetriesKilledInsteadOfReleased,
    /// A release or the end of a retry is confirmed and forgotten.
    RetriesSettledAreForgotten,
    /// Every retry is reported to have been waiting.
    RetriesSettledAlways,
    /// Waiting messages are not listed.
    WaitingHidden,
    /// Waiting messages are listed without their bodies.
    WaitingShownEmpty,
    /// A page starts after all messages with the same due time as the last one of the page before.
    PagesSkipTies,
    /// A page that starts after a message that is gone is empty.
    PagesNeedTheirCursor,
    /// A page has no size limit.
    PagesUnbounded,
    /// Only the due messages are counted as waiting.
    WaitingMiscounted,
    /// Due messages are not counted.
    OverdueUncounted,
    /// Claimed tasks are counted as waiting.
    ClaimedCountsAsWaiting,
    /// A delayed message is promoted twice.
    DelayedTwice,
    /// An owner promotes retries only.
    PromoteForgetsDelayed,
    /// Promoters of delayed messages promote retries too.
    RetriesPromotedByAnybody,
    /// Lost bodies are not reported.
    OrphansHidden,
    /// The next due time ignores recurring messages.
    NextForgetsRecurring,
    /// A wait for the schedule always lasts to its end.
    ScheduleWakesNobody,
    /// Only one of the waits for the schedule is woken.
    ScheduleWakesOne,
    /// A wait for the schedule ends immediately.
    ScheduleWaitIgnored,
    /// A wait ignores changes from before it.
    ScheduleWaitForgetsThePast,
    /// A reader does not report an earlier message.
    WokenHidden,
    /// A reader reports an earlier message with every fetch.
    WokenAlways,
    /// The time at a place is that of another server.
    PlaceByAnotherClock,

    // Recurring messages.
    /// A recurring message is never removed.
    RemoveForgotten,
    /// A pause is confirmed and forgotten.
    PauseForgotten,
    /// A paused message is never resumed.
    PausedForGood,
    /// Every recurring message is due.
    DueAlways,
    /// Due messages are returned in reverse order.
    DueReversed,
    /// The reported time is that of another server.
    DueByAnotherClock,
    /// An occurrence is fired, whatever occurrence the caller expects.
    FireUnchecked,
    /// An occurrence is confirmed and not scheduled.
    FireForgotten,
    /// An occurrence is scheduled again though it is waiting.
    FireReplaces,
    /// Paused messages fire.
    FireIgnoresPause,
    /// A message with no further occurrence is removed.
    FireForgetsTheOver,
    /// Occurrences are scheduled in two steps, of which the second begins with the first one again.
    FireStartsOver,

    // Tasks.
    /// Creating a queue that exists returns the passed spec instead of the stored one.
    LastQueueWins,
    /// A queue that does not exist is made up.
    UnknownQueueInvented,
    /// The number of shards of a queue is not checked.
    ShardsUnchecked,
    /// Tasks are claimed in reverse order.
    TasksReversed,
    /// A task is claimed by two workers.
    ClaimedTwice,
    /// A task is claimed without its body.
    TaskLosesBody,
    /// A task without body is withheld.
    BodilessHidden,
    /// All claims have the same token.
    TokensRepeat,
    /// A settlement takes effect under any token.
    TokenIgnored,
    /// A claimed task is reported as replaced.
    ClaimedIsReplaced,
    /// The id of a completed task is free at once.
    FinishedForgotten,
    /// The id of a completed task is never free.
    FinishedForEver,
    /// A task that was completed is reported as one that waits.
    FinishedIsKept,
    /// A task that failed is settled as done.
    TaskRetriesDropped,
    /// A claim never expires.
    ClaimsNeverRunOut,
    /// An expired claim is treated as lost, though it was not taken over.
    RunOutIsFinal,
    /// An expired claim is not counted as a crash.
    CrashesUncounted,
    /// An expired claim counts as an attempt.
    CrashIsAttempt,
    /// The crash count is never reset.
    CrashesForEver,
    /// The token that a task had before is not reported.
    BeforeUntold,
    /// Every task is reported to have had a token before.
    BeforeMadeUp,
    /// Expired claims count as crashes, even if the handler was never begun.
    LostClaimsCrash,
    /// The beginning of a handler is not recorded.
    BegunForgotten,
    /// Expired claims are taken over, even if no worker could reach the server.
    OutagesIgnored,
    /// Expired claims are never taken over.
    OutagesNeverEnd,
    /// The server that replied is not reported to workers.
    ServerUntold,
    /// A task that its own worker claims again counts as crashed.
    OwnClaimsCrash,
    /// A claim under which no handler has begun makes its task dead.
    UnbegunClaimsKill,
    /// Handing a task back resets its crash count.
    HandedBackForgives,
    /// Large tasks are claimed as if they were small.
    ClaimsAreHeavy,
    /// A paused task is not found.
    PausedNotFound,
    /// Replacing a paused task resumes it.
    ReplaceUndoesPause,
    /// The crash limit of a task is ignored.
    CrashLimitIgnored,
    /// Replayed tasks are confirmed and left dead.
    TaskReplayForgotten,
    /// A replayed task waits for an hour.
    ReplayedLate,
    /// A replayed task takes the place of one that waits.
    ReplayTakesTheId,
    /// The retention of dead tasks is not stored with a queue.
    QueueRetentionForgotten,
    /// The deletion of a queue is confirmed and forgotten.
    DeleteQueueForgotten,
    /// A deleted queue leaves its tasks behind.
    DeleteQueueKeepsTasks,
    /// The pause of a queue's shard is confirmed and forgotten.
    QueuePauseForgotten,
    /// The end of a pause of a queue's shard is confirmed and forgotten.
    QueuePausedForGood,
    /// A change of a queue's settings is confirmed and not stored.
    AlterQueueForgotten,
    /// A trim of dead tasks counts and drops nothing.
    TrimTasksForgotten,
    /// A trim of dead tasks ignores the age.
    TrimTasksForgetsAge,
    /// A trim of dead tasks ignores the number.
    TrimTasksForgetsLength,
    /// A trim of dead tasks confuses age and number.
    TrimTasksMiscounts,
    /// A dry run of a trim of dead tasks drops them.
    TrimTasksDryRunDrops,
    /// A worker drops dead tasks under a retention that it may not apply any more.
    TrimTasksLate,
    /// A trim of dead tasks drops those of the other shards too.
    TrimTasksOfAllShards,
    /// A trim of dead tasks schedules them again instead of dropping them.
    TrimTasksReplays,
    /// Claimed tasks are counted as waiting, and no claim as expired.
    TaskCountsLie,
    /// No waiting worker is ever called.
    CallsNobody,
    /// Every waiting worker is called.
    CallsEverybody,
    /// A call that no worker waits for is lost.
    CallsForgotten,
    /// The claim of a busy worker (limit 0) has no effect.
    BusyTellsNobody,
    /// All workers receive the due time of the head.
    EverybodyWatches,
    /// The first head that was reported to a worker stays the head.
    HeadRemembered,
    /// Only the first idle worker receives the next due time; the others always wait for their longest time.
    WatcherNeverReplaced,
    /// The longest wait that a worker requests is ignored.
    LongestSleepIgnored,
    /// The next due time ignores expiring claims.
    NextForgetsClaims,
    /// Recurring messages are not reported.
    RecurringUntold,

    // Inspecting.
    /// Entries are returned as text.
    LookMangles,
    /// Every page of entries is the first.
    LookUnpaged,
    /// Entries are returned oldest first, whatever the requested direction.
    LookForward,
    /// A page of entries ignores the requested limit.
    LookLimitIgnored,
    /// Inspecting pending entries reads new ones.
    LookTakes,
    /// The notes of pending entries are hidden.
    LookHidesNotes,
    /// Every pending entry is reported with one delivery.
    LookHidesDeliveries,
    /// Every pending entry is reported with an idle time of zero.
    LookHidesIdle,
    /// Every page of pending entries is the first.
    PendingUnpaged,
    /// Every page of parked retries is the first.
    ParkedUnpaged,
    /// Parked retries are listed latest first.
    ParkedReversed,
    /// Parked retries are listed without their bodies.
    ParkedWithoutBody,
    /// Every partition is reported as free.
    OwnersHidden,
    /// No owner is reported to have ended.
    OwnersEndsHidden,
    /// Partitions that are free are left out.
    FreeNotShown,
    /// An overview counts one member less than there are.
    OverviewMiscounts,
    /// An overview leaves out topics that are missing.
    OverviewSkipsTopics,
    /// The consumer names of a group are hidden.
    ConsumersHidden,
    /// A server has no name.
    ServerUnnamed,
    /// Every usage is one byte.
    UsageStuck,

    // Auditing.
    /// No fault is ever found.
    AuditBlind,
    /// Faults are found where there are none.
    AuditSuspects,
    /// Repairs are confirmed and not done.
    RepairForgotten,
    /// Every repair is reported to have had an effect.
    RepairAlways,

    // Claims.
    /// It claims seeking, and answers that it is unsupported.
    SeekUnsupported,
    /// It claims the lengths of logs, and answers that it is unsupported.
    LengthsUnsupported,
    /// It claims the durability of single messages, and has no appender for it.
    DurabilityUnsupported,
    /// It claims deduplication, and answers that it is unsupported.
    DedupUnsupported,
    /// It claims the retention of dead letters, and answers that it is unsupported.
    TrimDeadLettersUnsupported,
    /// It claims the retention of dead tasks, and answers that it is unsupported.
    TrimDeadTasksUnsupported,
    /// It claims unique ids, and answers that it is unsupported.
    UniqueUnsupported,
    /// It claims results of messages, and answers that they are unsupported.
    ResultsUnsupported,
    /// As [`SeekUnsupported`](Self::SeekUnsupported).
    UnleasedTrimUnsupported,
    /// It claims deleting queues, and answers that it is unsupported.
    DeleteQueueUnsupported,
    /// Finding tasks is claimed, and is not supported.
    FindTasksUnsupported,
    /// It claims pausing queues, and answers that it is unsupported.
    PauseQueueUnsupported,
    /// It claims rescheduling, and answers that it is unsupported.
    RescheduleUnsupported,
    /// It claims the list of scheduled messages, and answers that it is unsupported.
    ListScheduledUnsupported,
    /// It claims promotion without a lease, and answers that it is unsupported.
    PromoteDelayedUnsupported,
    /// It claims changing retries that wait, and answers that it is unsupported.
    SettleRetriesUnsupported,
    /// It claims restoring topics and groups, and answers that it is unsupported.
    RestoreUnsupported,
    /// It claims expanding topics, and answers that it is unsupported.
    ExpandUnsupported,
    /// It claims changing the settings of topics, and answers that it is unsupported.
    AlterTopicUnsupported,
    /// It claims dictionaries of packs, and answers that they are unsupported.
    DictionariesUnsupported,
    /// It claims counting entries, and answers that it is unsupported.
    CountUnsupported,
    /// It claims pausing groups, and answers that it is unsupported.
    PauseUnsupported,
    /// It claims statistics, and answers that it is unsupported.
    StatsUnsupported,
    /// It claims retention pins, and answers that it is unsupported.
    PinsUnsupported,
    /// It has delay queues, and schedules nothing at their shards.
    ShardsUnsupported,
}
