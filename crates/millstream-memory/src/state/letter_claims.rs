//! Claims of dead letters, and the letters that were put back.

use millstream_core::sorted::SortedMap;
use millstream_core::{MessageId, Timestamp};

/// Claims of a group's dead letters, and the letters that were put back.
#[derive(Clone, Debug, Default)]
pub(crate) struct LetterClaims {
    pub(crate) claims: SortedMap<MessageId, Claimed>,
    /// New ids of letters that were put back, by their old ids; all expire at the same time.
    pub(crate) imports: SortedMap<MessageId, MessageId>,
    pub(crate) imports_until: Timestamp,
}

/// Claim of one letter.
#[derive(Clone, Debug)]
pub(crate) struct Claimed {
    pub(crate) until: Timestamp,
    /// Name of the claim; `None` for a letter that was left for later.
    pub(crate) by: Option<String>,
}

impl LetterClaims {
    /// Returns the name of an unexpired claim; `Some(None)` for a letter that was left for later.
    pub(crate) fn holder(&self, id: MessageId, now: Timestamp) -> Option<Option<&str>> {
        self.claims.get(&id).filter(|it| it.until > now).map(|it| it.by.as_deref())
    }

    /// Removes what has expired.
    pub(crate) fn forget(&mut self, now: Timestamp) {
        self.claims.retain(|_, claimed| claimed.until > now);
        if self.imports_until <= now {
            self.imports.clear();
        }
    }
}
