//! Leader election: a lock that candidates wait for, and followers observe.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::LockName;
use millstream_core::error::Result;
use millstream_core::locks::{ELECTION, LockChange, LockRevision, Locks, PLACE_REFRESH};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::builder::LockBuilder;
use crate::client::LockClient;
use crate::error::AcquireError;
use crate::held::{Held, LockView, Release};

/// As the lease of other leader elections: half of a lock's, since a leader does continuous work.
const DEFAULT_TTL: Duration = Duration::from_secs(15);

/// Builder of a candidate or observer of one election.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it campaigns or observes"]
pub struct LeaderBuilder {
    client: LockClient,
    name: String,
    lock: LockBuilder,
}

impl LeaderBuilder {
    pub(crate) fn new(client: LockClient, name: &str) -> Self {
        let name = format!("{ELECTION}{name}");
        let lock = client.lock(name.clone()).ttl(DEFAULT_TTL).leads();
        Self { client, name, lock }
    }

    /// Sets the time after which a leader that sends nothing any more is replaced. 500 ms to a day; default: 15 s.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { lock: self.lock.ttl(ttl), ..self }
    }

    /// Sets the name of this candidate, which followers see. Default: `pid-` and the number of the process.
    pub fn candidate(self, candidate: impl Into<String>) -> Self {
        Self { lock: self.lock.owner(candidate), ..self }
    }

    /// Sets the highest epoch that the guarded store has seen: see [`LockBuilder::fence_above`].
    pub fn fence_above(self, seen: u64) -> Self {
        Self { lock: self.lock.fence_above(seen), ..self }
    }

    /// Waits until this candidate leads. Candidates lead in the order of their arrival.
    ///
    /// # Errors
    /// As [`LockBuilder::acquire`].
    pub async fn campaign(&self) -> Result<Term, AcquireError> {
        Ok(Term(self.lock.clone().acquire().await?))
    }

    /// Starts to observe who leads. It takes no part in the election.
    ///
    /// # Errors
    /// `InvalidName`; `Unsupported` for a backend without locks; those of the first look.
    pub async fn observe(&self) -> Result<LeaderWatch> {
        let (name, locks) = (LockName::new(&self.name)?, self.client.role()?.clone());
        let first = {
            let (locks, name) = (locks.clone(), name.clone());
            self.client.control().call(async move { look(&*locks, &name).await }).await?
        };
        let (sender, receiver) = watch::channel(first);
        let task = self.client.control().spawn(observe(locks, name, sender));
        Ok(LeaderWatch { receiver, _task: Arc::new(task) })
    }
}

/// The time during which this process leads. Its epoch is the fence of all that it does.
#[derive(Debug)]
#[must_use = "the term ends when this is dropped"]
pub struct Term(Held);

impl Term {
    /// Returns the epoch: larger than those of all terms before.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.0.fence()
    }

    /// Returns a view for the work of the leader.
    #[must_use]
    pub fn view(&self) -> LockView {
        self.0.view()
    }

    /// Whether the term is over: see [`LockView::is_lost`].
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    /// Waits until the term is over because it was not renewed in time.
    pub async fn lost(&self) {
        self.0.lost().await;
    }

    /// Ends the term. The next candidate leads at once.
    ///
    /// # Errors
    /// As [`Held::release`].
    pub async fn resign(self) -> Result<Release> {
        self.0.release().await
    }
}

/// Who leads, and its epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leadership {
    /// Name of the candidate that leads.
    pub candidate: String,
    /// Epoch of its term.
    pub epoch: u64,
}

/// Observer of an election. Followers learn of a new leader within milliseconds, or 900 ms if a notice is lost. What it
/// returns was true a moment ago: what the leader does is fenced by the epoch, not by what followers believe.
#[derive(Clone, Debug)]
pub struct LeaderWatch {
    receiver: watch::Receiver<Option<Leadership>>,
    _task: Arc<AbortOnDropHandle<()>>,
}

impl LeaderWatch {
    /// Returns the leader that was seen last; `None` if nobody led.
    #[must_use]
    pub fn current(&self) -> Option<Leadership> {
        self.receiver.borrow().clone()
    }

    /// Waits for a change, and returns the leader then. Changes between two calls are seen as one.
    pub async fn changed(&mut self) -> Option<Leadership> {
        if self.receiver.changed().await.is_err() {
            // The runtime of the task has ended: nothing changes any more.
            std::future::pending::<()>().await;
        }
        self.receiver.borrow_and_update().clone()
    }
}

async fn look(locks: &dyn Locks, name: &LockName) -> Result<Option<Leadership>> {
    let holder = locks.holder(name).await?;
    Ok(holder.map(|holder| Leadership { candidate: holder.owner, epoch: holder.epoch }))
}

async fn observe(locks: Arc<dyn Locks>, name: LockName, sender: watch::Sender<Option<Leadership>>) {
    let mut seen = LockRevision::default();
    loop {
        match look(&*locks, &name).await {
            Ok(leadership) => {
                sender.send_if_modified(|current| {
                    let changed = *current != leadership;
                    *current = leadership;
                    changed
                });
            }
            Err(error) => {
                tracing::warn!(lock = %name, %error, "who leads is not known");
                sleep(PLACE_REFRESH).await;
            }
        }
        match locks.changed(&name, seen, PLACE_REFRESH).await {
            Ok(LockChange::Called(revision, _)) => seen = revision,
            Ok(LockChange::Maybe) => {
                // The lock may be gone with its changes: what comes then is new, whatever its revision is.
                seen = LockRevision::default();
                sleep(Duration::from_millis(5)).await;
            }
            Ok(LockChange::Nothing) => {}
            Err(error) => {
                tracing::debug!(lock = %name, %error, "no notices of changes: a look follows");
                sleep(PLACE_REFRESH).await;
            }
        }
    }
}
