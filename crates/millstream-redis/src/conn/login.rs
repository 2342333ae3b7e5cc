//! Logs in: with what a provider returns, and again on open connections before that ends.
//!
//! An open connection logs in while nothing else is under way on it. Redis 8.0 and 8.6 and Valkey 8.0 send no reply to an
//! `AUTH` that they refuse while they have other replies to send: each later reply would be taken for that of the command
//! before.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use millstream_core::error::{Error, ErrorKind, Result};
use tokio::time::{Instant, sleep_until, timeout};

use crate::conn::once::OneTask;
use crate::credentials::{Credentials, CredentialsProvider};

/// Shortest pause before the provider is asked again without a connection that needs it.
const SHORTEST: Duration = Duration::from_millis(100);
/// Longest pause after the provider has failed.
const LONGEST: Duration = Duration::from_secs(30);
/// Maximum time for an answer of the provider. After that it counts as failed, and is asked again.
const ANSWER: Duration = Duration::from_secs(30);
/// First pause before an open connection that was refused logs in again. Doubled each time, up to [`LONGEST`].
const REFUSED: Duration = Duration::from_secs(1);

/// The credentials of all connections of a backend. Their only owner.
pub(crate) struct Login {
    provider: Arc<dyn CredentialsProvider>,
    known: Mutex<Option<KnownLogin>>,
    /// Version of the known ones. Grows whenever the provider returns others.
    version: AtomicU64,
    /// Held while the provider is asked.
    asking: tokio::sync::Mutex<()>,
    /// Renews them.
    renewal: OneTask,
}

#[derive(Clone)]
struct KnownLogin {
    credentials: Credentials,
    /// Time from which on they are not used for new connections; `None` if the provider is asked for each connection.
    ask_again: Option<Instant>,
    ends: Option<Instant>,
    /// Whether a server has refused them.
    refused: bool,
}

impl KnownLogin {
    /// Whether they need not be asked for now.
    fn is_fresh(&self, now: Instant) -> bool {
        self.ask_again.is_some_and(|at| now < at)
    }

    /// Whether they can be used, as far as is known.
    fn is_valid(&self, now: Instant) -> bool {
        !self.refused && self.ends.is_some_and(|ends| now < ends)
    }
}

impl Login {
    pub(crate) fn new(provider: Arc<dyn CredentialsProvider>) -> Self {
        Self {
            provider,
            known: Mutex::default(),
            version: AtomicU64::new(0),
            asking: tokio::sync::Mutex::default(),
            renewal: OneTask::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Option<KnownLogin>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns credentials to open a connection with.
    pub(crate) async fn credentials(self: &Arc<Self>) -> Result<(Credentials, Session)> {
        // In their last quarter they are renewed by a task: a provider that fails or hangs costs no connection until they end.
        let usable = || self.known().as_ref().is_some_and(|known| known.is_valid(Instant::now()));
        if !usable() {
            // One caller asks. The others wait and use its answer, if it has an end.
            let _asking = self.asking.lock().await;
            if !usable() {
                self.ask().await?;
            }
        }
        let known = self.known();
        let ends = known.as_ref().is_some_and(|known| known.ends.is_some());
        if ends {
            self.renewal.start(|| renew(Arc::downgrade(self)));
        }
        let version = self.version.load(Ordering::Acquire);
        let credentials = known.as_ref().map(|known| known.credentials.clone());
        let session = Session { login: self.clone(), state: Arc::new(SessionState::new(version)) };
        credentials
            .map(|credentials| (credentials, session))
            .ok_or_else(|| crate::error::unexpected("no credentials"))
    }

    /// Forgets credentials that a server has refused: the next connection asks the provider.
    pub(crate) fn refused(&self) {
        if let Some(known) = &mut *self.known() {
            (known.ask_again, known.refused) = (None, true);
        }
    }

    async fn ask(&self) -> Result<()> {
        let answer = timeout(ANSWER, self.provider.credentials()).await;
        let credentials = answer.unwrap_or_else(|_| {
            let why = format!("the provider of credentials gave no answer within {ANSWER:?}");
            Err(Error::new(ErrorKind::Unavailable, why))
        })?;
        let now = Instant::now();
        let left =
            credentials.valid_until.map(|until| until.duration_since(SystemTime::now()).unwrap_or_default());
        // A quarter is for providers that fail, and for requests that block a connection meanwhile.
        let ask_again = left.and_then(|left| now.checked_add(left - left / 4));
        let ends = left.and_then(|left| now.checked_add(left));
        let mut known = self.known();
        let same = |known: &KnownLogin| {
            (&known.credentials.user, &known.credentials.password)
                == (&credentials.user, &credentials.password)
        };
        if !known.as_ref().is_some_and(same) {
            self.version.fetch_add(1, Ordering::AcqRel);
        }
        *known = Some(KnownLogin { credentials, ask_again, ends, refused: false });
        Ok(())
    }
}

/// Asks the provider before the credentials end, as long as connections use them.
async fn renew(login: Weak<Login>) {
    let mut failed: u32 = 0;
    loop {
        let Some(it) = login.upgrade() else { return };
        let Some(KnownLogin { ask_again, ends: Some(_), .. }) = it.known().clone() else { return };
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
        if it.known().as_ref().is_some_and(|known| known.is_fresh(Instant::now())) {
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

/// The credentials with which a connection has logged in. Clones belong to the same connection.
#[derive(Clone)]
pub(crate) struct Session {
    login: Arc<Login>,
    state: Arc<SessionState>,
}

struct SessionState {
    /// Version of the credentials.
    version: AtomicU64,
    /// Whether a server has refused the newest ones.
    refused: AtomicBool,
    /// When the log-in is tried again after a refusal, and the pause after that attempt.
    again: Mutex<(Instant, Duration)>,
}

impl SessionState {
    fn new(version: u64) -> Self {
        let again = Mutex::new((Instant::now(), REFUSED));
        Self { version: AtomicU64::new(version), refused: AtomicBool::new(false), again }
    }

    fn again(&self) -> MutexGuard<'_, (Instant, Duration)> {
        self.again.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Takes the credentials if this connection must log in again: the provider has returned others, or the pause after a
    /// refusal is over. One caller gets them.
    pub(crate) fn take_due(&self) -> Option<Credentials> {
        let SessionState { version, refused, .. } = &*self.state;
        let (seen, now) = (version.load(Ordering::Acquire), self.login.version.load(Ordering::Acquire));
        if seen == now {
            // A server may learn of new credentials after their provider.
            if !refused.load(Ordering::Acquire) || Instant::now() < self.state.again().0 {
                return None;
            }
            refused.compare_exchange(true, false, Ordering::AcqRel, Ordering::Acquire).ok()?;
        } else {
            version.compare_exchange(seen, now, Ordering::AcqRel, Ordering::Acquire).ok()?;
            refused.store(false, Ordering::Release);
            self.state.again().1 = REFUSED;
        }
        self.login.known().as_ref().map(|known| known.credentials.clone())
    }

    /// Reports a refusal to log in again. The connection stays as it was, and logs in later.
    pub(crate) fn refused(&self, error: &impl std::fmt::Display) {
        let pause = {
            let mut again = self.state.again();
            let pause = again.1;
            *again = (Instant::now() + pause, (2 * pause).min(LONGEST));
            pause
        };
        self.state.refused.store(true, Ordering::Release);
        tracing::warn!(%error, ?pause, "the server refuses the renewed credentials on an open connection");
    }
}

/// Returns the words of the command.
pub(crate) fn auth(credentials: &Credentials) -> Vec<&[u8]> {
    let mut words: Vec<&[u8]> = vec![b"AUTH"];
    words.extend(credentials.user.as_ref().map(String::as_bytes));
    words.push(credentials.password.as_bytes());
    words
}

#[cfg(test)]
pub(crate) mod tests {
    use async_trait::async_trait;

    use super::*;
    use crate::conn::terms::Terms;

    /// Returns a source of credentials that are others each time, and what an open connection depends on that has logged in
    /// with the first ones, `p0`.
    pub(crate) async fn changing() -> (Arc<Login>, Terms) {
        let login = Arc::new(Login::new(Arc::new(Counting(AtomicU64::new(0), None))));
        let (_, session) = login.credentials().await.expect("credentials");
        (login, Terms { tenure: None, session: Some(session) })
    }

    /// Takes the whole commands out of what a server has received.
    pub(crate) fn commands(received: &mut Vec<u8>) -> Vec<Vec<String>> {
        let mut commands = Vec::new();
        let mut whole = 0;
        let text = String::from_utf8(received.clone()).expect("no binary words");
        let mut rest = text.split_inclusive("\r\n");
        let mut line = || rest.next().filter(|line| line.ends_with('\n'));
        'all: while let Some(count) = line() {
            let mut taken = count.len();
            let mut words = Vec::new();
            for _ in 0..count[1..].trim().parse().expect("a number of words") {
                let (Some(length), Some(word)) = (line(), line()) else { break 'all };
                taken += length.len() + word.len();
                words.push(word.trim_end().to_owned());
            }
            whole += taken;
            commands.push(words);
        }
        received.drain(..whole);
        commands
    }

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
        assert_eq!((&*first.password, session.take_due()), ("p0", None));
        assert_eq!(login.credentials().await.expect("others").0.password, "p1");
        assert_eq!(session.take_due().expect("others").password, "p1");
        assert_eq!(session.take_due(), None, "once");
    }

    #[tokio::test]
    async fn what_has_an_end_is_renewed_before_that_by_itself() {
        let ttl = Duration::from_secs(2);
        let login = Arc::new(Login::new(Arc::new(Counting(AtomicU64::new(0), Some(ttl)))));
        let begun = Instant::now();
        let (_, session) = login.credentials().await.expect("credentials");
        assert_eq!(
            (&*login.credentials().await.expect("the same").0.password, session.take_due()),
            ("p0", None)
        );
        let renewed = async {
            while session.state.version.load(Ordering::Acquire) == login.version.load(Ordering::Acquire) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), renewed).await.expect("renewed");
        assert!(begun.elapsed() >= ttl / 2, "long before the end");
        assert_eq!(session.take_due().expect("others").password, "p1");
    }

    /// Credentials that are valid for a minute, once. Then it gives no answer.
    struct Hanging(AtomicBool);

    #[async_trait]
    impl CredentialsProvider for Hanging {
        async fn credentials(&self) -> Result<Credentials> {
            if self.0.swap(true, Ordering::AcqRel) {
                std::future::pending::<()>().await;
            }
            Ok(Credentials::password("first").valid_for(Duration::from_secs(60)))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_provider_that_hangs_costs_no_connection_before_the_credentials_end() {
        let login = Arc::new(Login::new(Arc::new(Hanging(AtomicBool::new(false)))));
        let begun = Instant::now();
        login.credentials().await.expect("credentials");
        // The last quarter, in which they are to be renewed.
        tokio::time::sleep(Duration::from_secs(50)).await;
        let (known, _) = login.credentials().await.expect("they are valid");
        assert_eq!((&*known.password, begun.elapsed() < Duration::from_secs(51)), ("first", true));
        login.refused();
        let refused = timeout(3 * ANSWER, login.credentials()).await.expect("it does not hang");
        assert_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::Unavailable));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_refused_logs_in_again_later() {
        let login = Arc::new(Login::new(Arc::new(Counting(AtomicU64::new(0), None))));
        let (_, session) = login.credentials().await.expect("credentials");
        login.credentials().await.expect("others");
        let due = || session.take_due().map(|credentials| credentials.password);
        assert_eq!(due().as_deref(), Some("p1"));
        for pause in [REFUSED, 2 * REFUSED, 4 * REFUSED] {
            session.refused(&"WRONGPASS");
            tokio::time::sleep(pause - Duration::from_millis(1)).await;
            assert_eq!(due(), None, "not at once");
            tokio::time::sleep(Duration::from_millis(2)).await;
            assert_eq!((due().as_deref(), due()), (Some("p1"), None), "once");
        }
        login.credentials().await.expect("others");
        session.refused(&"WRONGPASS");
        assert_eq!(due().as_deref(), Some("p2"), "other credentials are tried at once");
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
