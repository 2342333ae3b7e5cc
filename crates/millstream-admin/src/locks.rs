//! Locks and elections: who holds them, who waits, and the end of a grant by force.

use millstream_core::locks::{LockCursor, LockPage, LockState, election};
use millstream_core::{LockName, Result};

use crate::Admin;

impl Admin {
    /// Returns a part of the list of all locks that are held or waited for, those of elections included: about `limit` of
    /// them, in no particular order. Continue with [`LockPage::next`] until it is `None`; a part may be empty before that.
    ///
    /// # Errors
    /// `Unsupported` for a backend without locks; `InvalidConfig` for a cursor of another backend; transient ones.
    pub async fn locks(&self, from: Option<&LockCursor>, limit: usize) -> Result<LockPage> {
        self.backend.locks()?.list(from, limit).await
    }

    /// Returns who holds a lock, and how many wait for it. A lock that nobody uses has no holder and no queue: any name has
    /// a state.
    ///
    /// # Errors
    /// `Unsupported` for a backend without locks; transient ones.
    pub async fn lock(&self, name: &LockName) -> Result<LockState> {
        self.backend.locks()?.state(name).await
    }

    /// Returns the state of the lock of an election: its holder is the leader, and candidates wait for it.
    ///
    /// # Errors
    /// `InvalidName`; those of [`lock`](Self::lock).
    pub async fn leader(&self, name: &str) -> Result<LockState> {
        self.lock(&election(name)?).await
    }

    /// Ends the grant of a lock with this fence, and calls the next client in its queue. Returns `false`, without an effect, if
    /// the lock has another grant by now, or none.
    ///
    /// The holder is not stopped. It learns of it with its next renewal, within a third of its ttl; until then two clients may
    /// work under the lock, and only the fence tells the store apart which of them is late. So end a grant if its holder
    /// hangs and renews all the same; a holder that died is replaced by itself.
    ///
    /// # Errors
    /// `Unsupported` for a backend without locks; transient ones, after which it can be repeated.
    pub async fn release_lock(&self, name: &LockName, fence: u64) -> Result<bool> {
        self.backend.locks()?.force_release(name, fence).await
    }
}
