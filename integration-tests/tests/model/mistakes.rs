//! Wrong variants of the protocol. The checker must refute each of them, or it could not be believed about the right one.

/// One mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mistake {
    /// A retry is two requests: the acknowledgement, then the parking.
    AckBeforeRetry,
    /// An acknowledgement is accepted without the token.
    UnfencedAck,
    /// The token is a counter alone: no nonce, and no clock that makes it grow.
    EpochAlone,
    /// A renewal sets the lease whenever it is free, without a look at the fence.
    RenewAfterRelease,
    /// Retries are put into the log, which all groups read.
    RetryIntoLog,
    /// After a lost answer the reader goes on with new entries.
    NoReread,
    /// A promotion is accepted without the token.
    PromoteWithoutLease,
    /// A promotion is two requests: it asks what is due, then moves that, whether it is still there or not.
    PromoteWithoutGate,
    /// A read is executed however late it arrives: the word of its reader is not compared.
    LateRead,
    /// A new owner reads new entries before the pending ones.
    NewBeforePending,
    /// A reader does not check, after a lost connection, whether the server has lost what it was handed.
    KeepLostTail,
    /// The answer of the old primary to a settlement is received after the reader has begun at the new one, which does not
    /// know of the settlement: the reader took the entry for one in flight.
    LateAnswer,
    /// A dedup id is recorded before its entry is appended, in a request of its own. A mistake of the [producer](super::producer).
    MarkerBeforeAppend,
}
