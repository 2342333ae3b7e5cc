//! Builder of a lock: settings, and the ways to acquire it.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use millstream_core::LockName;
use millstream_core::error::{Problems, Result};

use crate::client::{Attempt, LockClient};
use crate::error::{AcquireError, Lost, RunError};
use crate::held::{Held, LockView};

/// Shortest ttl: below, a busy machine would lose its locks for want of a timely renewal.
const MIN_TTL: Duration = Duration::from_millis(500);
/// Longest ttl. Held locks are renewed, so that a longer one only makes others wait after a crash.
const MAX_TTL: Duration = Duration::from_secs(24 * 3_600);
/// As the watchdog of other lock libraries on Redis: it outlives a pause of most processes and a fail-over.
const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// Builder of a lock. Nothing happens before [`acquire`](Self::acquire), [`try_acquire`](Self::try_acquire) or
/// [`run`](Self::run).
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until the lock is acquired"]
pub struct LockBuilder {
    client: LockClient,
    name: String,
    owner: String,
    ttl: Duration,
    wait: Option<Duration>,
    fence_above: u64,
    leads: bool,
}

impl LockBuilder {
    pub(crate) fn new(client: LockClient, name: String) -> Self {
        let owner = format!("pid-{}", std::process::id());
        Self { client, name, owner, ttl: DEFAULT_TTL, wait: None, fence_above: 0, leads: false }
    }

    /// Sets the time after which the lock ends unless its holder renews it. A live holder does. 500 ms to
    /// a day; default: 30 s. All users of one lock should choose the same: of two, the longer one counts at a takeover.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets how long to wait for the lock. Default: without limit, as a mutex does; dropping the future ends it.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets the highest fence that the guarded store has seen. The grant exceeds it. Default: 0.
    ///
    /// Fences grow by the server's clock and by a stored number. If a fail-over loses the number, to a server whose clock
    /// is behind, only the guarded store knows how far they had come. At most 2^52.
    pub fn fence_above(mut self, seen: u64) -> Self {
        self.fence_above = seen;
        self
    }

    /// Sets the name of the holder, for people to read. Default: `pid-` and the number of the process.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into();
        self
    }

    pub(crate) fn leads(mut self) -> Self {
        self.leads = true;
        self
    }

    fn attempt(self) -> Result<(LockClient, Attempt)> {
        let mut problems = Problems::new("lock");
        let name = problems.take(LockName::new(&self.name));
        problems.require((MIN_TTL..=MAX_TTL).contains(&self.ttl), || {
            format!("the ttl is {:?}, {MIN_TTL:?} to {MAX_TTL:?} are possible", self.ttl)
        });
        problems.require(self.owner.len() <= 256, || {
            format!("the owner is {} bytes long, at most 256 are allowed", self.owner.len())
        });
        problems.finish()?;
        // Parsed above: without a name there was a problem.
        let name = name.map_or_else(|| LockName::new(&self.name), Ok)?;
        let Self { client, owner, ttl, wait, fence_above, leads, .. } = self;
        Ok((client, Attempt { name, owner, ttl, wait, fence_above, leads }))
    }

    /// Waits for the lock, in the order of arrival by the server's clock.
    ///
    /// Cancel safe: if this future is dropped, the place in the queue, or the lock, is given up in the background.
    ///
    /// # Errors
    /// [`AcquireError::Busy`] if it was not granted within [`wait`](Self::wait); [`AcquireError::Failed`] with
    /// `InvalidConfig` for settings beyond their limits, `Unsupported` for a backend without locks, and errors of the
    /// backend that do not pass by themselves, or not in time.
    pub async fn acquire(self) -> Result<Held, AcquireError> {
        let (client, attempt) = self.attempt()?;
        client.acquire(attempt).await
    }

    /// Acquires the lock if it is free and nobody waits for it; returns `None` otherwise.
    ///
    /// # Errors
    /// Those of the backend and of the settings, as for [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Option<Held>> {
        match self.wait(Duration::ZERO).acquire().await {
            Ok(held) => Ok(Some(held)),
            Err(AcquireError::Busy(_)) => Ok(None),
            Err(AcquireError::Failed(error)) => Err(error),
        }
    }

    /// Runs `work` under the lock, and releases it. If the lock is lost, the work is dropped at its next `await`.
    ///
    /// Its result is returned also if the release fails afterwards: the work is done.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// # use millstream_core::Backend;
    /// # use millstream_memory::MemoryBackend;
    /// # let locks = millstream_lock::LockClient::new(&Backend::from(MemoryBackend::new()));
    /// let paid = locks.lock("invoice:42").run(|held| async move { pay(held.fence()).await }).await;
    /// assert_eq!(paid.unwrap(), "paid");
    /// # async fn pay(_: u64) -> Result<&'static str, std::io::Error> { Ok("paid") }
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`RunError::NotAcquired`], [`RunError::Lost`], or [`RunError::Work`] with the error of `work`.
    pub async fn run<T, E, W, F>(self, work: W) -> Result<T, RunError<E>>
    where
        W: FnOnce(LockView) -> F,
        F: Future<Output = Result<T, E>>,
    {
        let held = self.acquire().await?;
        let view = held.view();
        let done = {
            let mut work = pin!(work(view.clone()));
            let mut lost = pin!(view.lost());
            poll_fn(|context| {
                // Before each step: a process that was paused learns of it before it goes on.
                if view.is_lost() {
                    return Poll::Ready(None);
                }
                if let Poll::Ready(done) = work.as_mut().poll(context) {
                    return Poll::Ready(Some(done));
                }
                lost.as_mut().poll(context).map(|()| None)
            })
            .await
        };
        let Some(done) = done else {
            return Err(Lost { name: view.name().clone(), fence: view.fence() }.into());
        };
        if let Err(error) = held.release().await {
            tracing::warn!(lock = %view.name(), %error, "not released: released in the background, or by its ttl");
        }
        done.map_err(RunError::Work)
    }
}
