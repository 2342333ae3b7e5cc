//! Ends of locks, as events and metrics name them.

/// End of a lock that a process held, or of a leader's term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockEnd {
    /// Its holder released it, or dropped it and lets it be released in the background.
    Released,
    /// A renewal was refused: another client has taken the lock over, an operator released it, or the server lost it.
    Refused,
    /// No renewal succeeded in time: the holder cannot rely on the lock any more.
    Expired,
    /// It was gone when its holder released it: another client may have held it meanwhile.
    Gone,
}

impl LockEnd {
    /// All variants.
    pub const ALL: [Self; 4] = [Self::Released, Self::Refused, Self::Expired, Self::Gone];

    /// Returns the word for it in metrics and traces.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Refused => "refused",
            Self::Expired => "expired",
            Self::Gone => "gone",
        }
    }
}
