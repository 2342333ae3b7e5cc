//! Logs in: with what a provider returns, and again on open connections before that ends.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use millstream_core::error::Result;
use tokio::time::{Instant, sleep_until};

use crate::credentials::{Credentials, CredentialsProvider};

/// Shortest pause before the provider is asked again without a connection that needs it.
const SHORTEST: Duration = Duration::from_millis(100);
/// Longest pause after the provider has failed.
const LONGEST: Duration = Duration::from_secs(30);

/// The credentials of all connections of a backend. Their only owner.
pub(crate) struct Login {
    provider: Arc<dyn CredentialsProvider>,
    known: Mutex<Option<Known>>,
    /// Number of the known ones: another one whenever they differ from those before.
    number: AtomicU64,
    /// Held while the provider is asked.
    asking: tokio::sync::Mutex<()>,
    /// Whether a task renews them.
    renewed: AtomicBool,
}

#[derive(Clone)]
struct Known {
    credentials: Credentials,
    /// Time from which on they are not used for new connections; `None` if the provider is asked for each connection.
    ask_again: Option<Instant>,
    ends: Option<Instant>,
}

impl Login {
    pub(crate) fn new(provider: Arc<dyn CredentialsProvider>) -> Self {
        Self {
            provider,
            known: Mutex::default(),
            number: AtomicU64::new(0),
            asking: tokio::sync::Mutex::default(),
            renewed: AtomicBool::new(false),
        }
    }

    fn known(&self) -> MutexGuard<'_, Option<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns credentials to open a connection with.
    pub(crate) async fn credentials(self: &Arc<Self>) -> Result<(Credentials, Session)> {
        let fresh = |known: &Known| known.ask_again.is_some_and(|at| Instant::now() < at);
        // One caller asks. The others wait and use its answer, if it has an end.
        let _asking = self.asking.lock().await;
        if !self.known().as_ref().is_some_and(fresh) {
            self.ask().await?;
        }
        let known = self.known();
        let ends = known.as_ref().is_some_and(|known| known.ends.is_some());
        if ends && !self.renewed.swap(true, Ordering::AcqRel) {
            tokio::spawn(renew(Arc::downgrade(self)));
        }
        let number = self.number.load(Ordering::Acquire);
        let credentials = known.as_ref().map(|known| known.credentials.clone());
        let session = Session { login: self.clone(), number: Arc::new(AtomicU64::new(number)) };
        credentials
            .map(|credentials| (credentials, session))
            .ok_or_else(|| crate::error::unexpected("no credentials"))
    }

    /// Forgets credentials that a server has refused: the next connection asks the provider.
    pub(crate) fn refused(&self) {
        if let Some(known) = &mut *self.known() {
            known.ask_again = None;
        }
    }

    async fn ask(&self) -> Result<()> {
        let credentials = self.provider.credentials().await?;
        let now = Instant::now();
        let left =
            credentials.valid_until.map(|until| until.duration_since(SystemTime::now()).unwrap_or_default());
        // A quarter is for providers that fail, and for requests that block a connection meanwhile.
        let ask_again = left.and_then(|left| now.checked_add(left - left / 4));
        let ends = left.and_then(|left| now.checked_add(left));
        let mut known = self.known();
        let same = |known: &Known| {
            (&known.credentials.user, &known.credentials.password)
                == (&credentials.user, &credentials.password)
        };
        if !known.as_ref().is_some_and(same) {
            self.number.fetch_add(1, Ordering::AcqRel);
        }
        *known = Some(Known { credentials, ask_again, ends });
        Ok(())
    }
}

/// Asks the provider before the credentials end, as long as connections use them.
async fn renew(login: Weak<Login>) {
    let _stopped = Stopped(login.clone());
    let mut failed: u32 = 0;
    loop {
        let Some(it) = login.upgrade() else { return };
        let Some(Known { ask_again, ends: Some(_), .. }) = it.known().clone() else { return };
        let now = Instant::now();
        let at = match (failed, ask_again) {
            (0, Some(at)) => at.max(now + SHORTEST),
            // Refused by a server, or the provider has failed.
            _ => now + (SHORTEST * 2u32.saturating_pow(failed.min(10))).min(LONGEST),
        };
        drop(it);
        sleep_until(at).await;
        let Some(it) = login.upgrade() else { return };
        let _asking = it.asking.lock().await;
        let fresh =
            it.known().as_ref().and_then(|known| known.ask_again).is_some_and(|at| Instant::now() < at);
        if fresh {
            // A connection that was opened meanwhile has asked.
            continue;
        }
        failed = match it.ask().await {
            Ok(()) => 0,
            Err(error) => {
                tracing::warn!(%error, "the credentials cannot be renewed");
                failed.saturating_add(1)
            }
        };
    }
}

/// Lets the next connection start another task, if this one is dropped with its runtime.
struct Stopped(Weak<Login>);

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Some(login) = self.0.upgrade() {
            login.renewed.store(false, Ordering::Release);
        }
    }
}

/// The credentials with which a connection has logged in. Clones belong to the same connection.
#[derive(Clone)]
pub(crate) struct Session {
    login: Arc<Login>,
    number: Arc<AtomicU64>,
}

impl Session {
    /// Returns the credentials to log in with again, to one caller, once there are others.
    pub(crate) fn due(&self) -> Option<Credentials> {
        let (seen, now) = (self.number.load(Ordering::Acquire), self.login.number.load(Ordering::Acquire));
        if seen == now {
            return None;
        }
        self.number.compare_exchange(seen, now, Ordering::AcqRel, Ordering::Acquire).ok()?;
        self.login.known().as_ref().map(|known| known.credentials.clone())
    }
}

/// Returns the words of the command.
pub(crate) fn auth(credentials: &Credentials) -> Vec<&[u8]> {
    let mut words: Vec<&[u8]> = vec![b"AUTH"];
    words.extend(credentials.user.as_ref().map(String::as_bytes));
    words.push(credentials.password.as_bytes());
    words
}

/// Reports a refusal to log in again. The connection stays as it was.
pub(crate) fn refused(error: &impl std::fmt::Display) {
    tracing::warn!(%error, "the server refuses the renewed credentials on an open connection");
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;

    use super::*;

    /// Another password each time.
    struct Counting(AtomicU64, Option<Duration>);

    #[async_trait]
    impl CredentialsProvider for Counting {
        async fn credentials(&self) -> Result<Credentials> {
            let credentials = Credentials::password(format!("p{}", self.0.fetch_add(1, Ordering::Relaxed)));
            Ok(self.1.into_iter().fold(credentials, Credentials::valid_for))
        }
    }

    #[tokio::test]
    async fn what_has_no_end_is_asked_for_each_time() {
        let login = Arc::new(Login::new(Arc::new(Counting(AtomicU64::new(0), None))));
        let (first, session) = login.credentials().await.expect("credentials");
        assert_eq!((&*first.password, session.due()), ("p0", None));
        assert_eq!(login.credentials().await.expect("others").0.password, "p1");
        assert_eq!(session.due().expect("others").password, "p1");
        assert_eq!(session.due(), None, "once");
    }

    #[tokio::test]
    async fn what_has_an_end_is_renewed_before_that_by_itself() {
        let ttl = Duration::from_secs(2);
        let login = Arc::new(Login::new(Arc::new(Counting(AtomicU64::new(0), Some(ttl)))));
        let begun = Instant::now();
        let (_, session) = login.credentials().await.expect("credentials");
        assert_eq!((&*login.credentials().await.expect("the same").0.password, session.due()), ("p0", None));
        let renewed = async {
            while session.number.load(Ordering::Acquire) == login.number.load(Ordering::Acquire) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), renewed).await.expect("renewed");
        assert!(begun.elapsed() >= ttl / 2, "long before the end");
        assert_eq!(session.due().expect("others").password, "p1");
    }

    #[tokio::test]
    async fn what_was_refused_is_not_used_again() {
        let provider = Counting(AtomicU64::new(0), Some(Duration::from_secs(900)));
        let login = Arc::new(Login::new(Arc::new(provider)));
        assert_eq!(login.credentials().await.expect("credentials").0.password, "p0");
        login.refused();
        assert_eq!(login.credentials().await.expect("others").0.password, "p1");
    }
}
