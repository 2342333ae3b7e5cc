//! A connection of the client's: many callers send over it, and a background task of its own gives each its reply.

use std::convert::Infallible;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use millstream_core::error::Result;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, PushInfo, PushKind, RedisConnectionInfo, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::conn::login::auth;
use crate::conn::terms::{Tenure, Terms};
use crate::credentials::Credentials;
use crate::error::{Phase, translate};

/// A connection of the client's. Its background task ends with the last handle.
#[derive(Clone)]
pub(crate) struct Multiplexed {
    connection: MultiplexedConnection,
    terms: Terms,
    /// Maximum time for the answer to a log-in.
    limit: Duration,
    /// Held for reading by requests, and for writing by a log-in: that goes alone.
    requests: Arc<RwLock<()>>,
    driver: Arc<Driver>,
}

impl Multiplexed {
    /// Opens it over a stream. `lost` is called when its background task ends, for whatever reason.
    pub(crate) async fn open(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        settings: &RedisConnectionInfo,
        config: AsyncConnectionConfig,
        (terms, limit): (Terms, Duration),
        lost: Option<Arc<dyn OnLost>>,
    ) -> Result<Self> {
        let opened = MultiplexedConnection::new_with_config(settings, stream, config).await;
        let (connection, driver) = opened.map_err(|error| translate(&error, Phase::Connecting))?;
        let driver = async move {
            // Also if its runtime ends.
            let _ended = Ended(lost);
            driver.await;
        };
        let driver = Arc::new(Driver(tokio::spawn(driver.boxed()).abort_handle()));
        Ok(Self { connection, terms, limit, requests: Arc::default(), driver })
    }

    /// Whether another server has become the primary.
    pub(crate) fn is_left(&self) -> bool {
        self.terms.is_left()
    }

    pub(crate) fn tenure(&self) -> Option<&Tenure> {
        self.terms.tenure.as_ref()
    }

    /// Whether its credentials change.
    pub(crate) fn may_log_in_again(&self) -> bool {
        self.terms.session.is_some()
    }

    /// Logs in again if there are other credentials. To be called before a request, which keeps what is returned until it is
    /// answered.
    pub(crate) async fn log_in(&mut self) -> OwnedRwLockReadGuard<()> {
        if let Some(credentials) = self.terms.take_due() {
            // A task: if the caller goes away, the log-in is still done, and nothing is sent before its answer.
            let task = tokio::spawn(self.clone().log_in_alone(credentials).boxed());
            // It cannot panic, and ends early only with its runtime.
            _ = task.await;
        }
        self.requests.clone().read_owned().await
    }

    async fn log_in_alone(mut self, credentials: Credentials) {
        let _alone = self.requests.clone().write_owned().await;
        let mut command = Cmd::new();
        auth(&credentials).into_iter().for_each(|word| _ = command.arg(word));
        let answer = async {
            // The reply to a request that was dropped may still be under way. This one comes behind it.
            self.connection.send_packed_command(&redis::cmd("PING")).await?;
            self.connection.send_packed_command(&command).await
        };
        match timeout(self.limit, answer).await {
            Ok(Ok(Value::ServerError(error))) => self.terms.refused(&error),
            Ok(Ok(_)) => {}
            // A notice that the server sends without being asked may have taken the place of a refusal. The reply to the next
            // request would count as the missing one, and each later reply for the request before its own. So this is the end of
            // the connection.
            Ok(Err(_)) | Err(_) => self.driver.0.abort(),
        }
    }
}

/// Is called when a connection is lost.
pub(crate) trait OnLost: Send + Sync {
    fn lost(&self);
}

/// Sets a flag when a connection is lost, and passes the push messages of the server to a callback, at last `None`.
pub(crate) struct Lost<F> {
    gone: Arc<AtomicBool>,
    on_push: F,
}

impl<F: Fn(Option<&PushInfo>) + Send + Sync + 'static> Lost<F> {
    pub(crate) fn new(on_push: F) -> Arc<Self> {
        Arc::new(Self { gone: Arc::default(), on_push })
    }

    /// Returns what receives the push messages of the server.
    pub(crate) fn push_messages(self: &Arc<Self>) -> impl Fn(PushInfo) -> Received + Send + Sync + use<F> {
        let lost = self.clone();
        move |push| {
            if push.kind == PushKind::Disconnection {
                lost.lost();
            } else {
                (lost.on_push)(Some(&push));
            }
            Ok(())
        }
    }

    /// Returns the flag.
    pub(crate) fn gone(&self) -> Arc<AtomicBool> {
        self.gone.clone()
    }
}

/// A push message is always taken.
type Received = std::result::Result<(), Infallible>;

impl<F: Fn(Option<&PushInfo>) + Send + Sync> OnLost for Lost<F> {
    fn lost(&self) {
        self.gone.store(true, Ordering::Release);
        (self.on_push)(None);
    }
}

/// Reports when the background task of a connection ends.
struct Ended(Option<Arc<dyn OnLost>>);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(lost) = &self.0 {
            lost.lost();
        }
    }
}

struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Deref for Multiplexed {
    type Target = MultiplexedConnection;

    fn deref(&self) -> &MultiplexedConnection {
        &self.connection
    }
}

impl DerefMut for Multiplexed {
    fn deref_mut(&mut self) -> &mut MultiplexedConnection {
        &mut self.connection
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use redis::{ProtocolVersion, RedisResult};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::Notify;
    use tokio::task::JoinHandle;
    use tokio::time::sleep;

    use super::*;
    use crate::conn::login::tests::{changing, commands};

    const LIMIT: Duration = Duration::from_secs(5);
    /// How late a reply is, so that there may be others to send when a request arrives.
    const LATE: Duration = Duration::from_millis(1);

    /// A server that refuses each log-in, and does not even answer one that arrives while it has other replies to send, as
    /// Redis 8.0 and 8.6 and Valkey 8.0.
    #[derive(Default)]
    struct Server {
        /// Whether it keeps the replies back until it is released.
        keeps: AtomicBool,
        released: Notify,
        /// Whether it never answers a log-in.
        is_silent: AtomicBool,
        /// The passwords that arrived.
        passwords: Mutex<Vec<String>>,
    }

    impl Server {
        async fn run(self: Arc<Self>, mut stream: DuplexStream) {
            let (mut received, mut replies) = (Vec::new(), Vec::new());
            loop {
                let keeps = self.keeps.load(Ordering::Relaxed);
                tokio::select! {
                    biased;
                    read = stream.read_buf(&mut received) => if read.is_ok_and(|read| read == 0) { return },
                    () = self.released.notified() => self.keeps.store(false, Ordering::Relaxed),
                    () = sleep(LATE), if !keeps && !replies.is_empty() => {
                        let sent = stream.write_all(&std::mem::take(&mut replies)).await;
                        if sent.is_err() {
                            return;
                        }
                    }
                }
                for words in commands(&mut received) {
                    let reply = match (&*words[0], self.is_silent.load(Ordering::Relaxed)) {
                        ("HELLO", _) => "%1\r\n$5\r\nproto\r\n:3\r\n".to_owned(),
                        ("PING", _) => "+PONG\r\n".to_owned(),
                        ("ECHO", _) => format!("+{}\r\n", words[1]),
                        ("AUTH", silent) => {
                            self.passwords.lock().expect("no panic").push(words[1].clone());
                            let lost = silent || !replies.is_empty();
                            if lost { String::new() } else { "-WRONGPASS no\r\n".to_owned() }
                        }
                        _ => "+OK\r\n".to_owned(),
                    };
                    replies.extend(reply.into_bytes());
                }
            }
        }

        fn passwords(&self) -> Vec<String> {
            self.passwords.lock().expect("no panic").clone()
        }
    }

    /// Opens a connection to a new server. Returns with it the flag that it is lost.
    async fn open(terms: Terms) -> (Multiplexed, Arc<Server>, Arc<AtomicBool>) {
        let (ours, theirs) = duplex(64 << 10);
        let server = Arc::new(Server::default());
        tokio::spawn(server.clone().run(theirs));
        let lost = Lost::new(|_| {});
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(LIMIT))
            .set_push_sender(lost.push_messages());
        let settings = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
        let gone = lost.gone();
        let opened = Multiplexed::open(ours, &settings, config, (terms, LIMIT), Some(lost)).await;
        (opened.expect("open"), server, gone)
    }

    /// Sends a word as requests are sent, and returns what comes back.
    async fn say(mut connection: Multiplexed, word: &'static str) -> RedisResult<String> {
        let _under_way = connection.log_in().await;
        match connection.send_packed_command(redis::cmd("ECHO").arg(word)).await? {
            Value::SimpleString(word) => Ok(word),
            other => panic!("{other:?}"),
        }
    }

    /// The same in a task.
    fn echo(connection: &Multiplexed, word: &'static str) -> JoinHandle<RedisResult<String>> {
        tokio::spawn(say(connection.clone(), word))
    }

    async fn came_back(echo: JoinHandle<RedisResult<String>>) -> String {
        echo.await.expect("no panic").expect("a reply")
    }

    /// Lets everything run until it waits: the clock of these tests stands still before.
    async fn quiet() {
        sleep(Duration::from_millis(1)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_log_in_between_requests_of_many_shifts_no_reply() {
        let (login, terms) = changing().await;
        let (connection, server, _) = open(terms).await;
        server.keeps.store(true, Ordering::Relaxed);
        // Each sends its next word as soon as the last one is back: without waiting for the log-in it would go before that.
        let chain = |words: [&'static str; 3]| {
            let connection = connection.clone();
            tokio::spawn(async move {
                for word in words {
                    assert_eq!(say(connection.clone(), word).await.expect("a reply"), word);
                }
            })
        };
        let before = [chain(["a", "b", "c"]), chain(["d", "e", "f"])];
        quiet().await;
        login.credentials().await.expect("others");
        let behind = [chain(["g", "h", "i"]), chain(["j", "k", "l"])];
        quiet().await;
        assert!(server.passwords().is_empty(), "it waits for the replies to the others");
        server.released.notify_one();
        for chain in before.into_iter().chain(behind) {
            chain.await.expect("each word came back to its sender");
        }
        assert_eq!(server.passwords(), ["p1"]);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(came_back(echo(&connection, "m")).await, "m");
        assert_eq!(server.passwords(), ["p1", "p1"], "a refused one is sent again later");
    }

    #[tokio::test(start_paused = true)]
    async fn a_log_in_without_an_answer_ends_the_connection() {
        let (login, terms) = changing().await;
        let (connection, server, gone) = open(terms).await;
        server.is_silent.store(true, Ordering::Relaxed);
        login.credentials().await.expect("others");
        for word in ["a", "b"] {
            let answer = echo(&connection, word).await.expect("no panic");
            assert!(answer.is_err(), "{answer:?} would be that of another request");
        }
        assert!(gone.load(Ordering::Acquire), "so that its users open another one");
        assert_eq!(server.passwords(), ["p1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_goes_away_leaves_its_log_in_to_the_connection() {
        let (login, terms) = changing().await;
        let (connection, server, gone) = open(terms).await;
        server.keeps.store(true, Ordering::Relaxed);
        // A request of before, so that the log-in has to wait when its caller goes away.
        let first = echo(&connection, "a");
        quiet().await;
        login.credentials().await.expect("others");
        let dropped = echo(&connection, "b");
        quiet().await;
        dropped.abort();
        let next = echo(&connection, "c");
        quiet().await;
        assert!(server.passwords().is_empty());
        server.released.notify_one();
        assert_eq!((came_back(first).await, came_back(next).await), ("a".to_owned(), "c".to_owned()));
        assert_eq!((server.passwords(), gone.load(Ordering::Acquire)), (vec!["p1".to_owned()], false));
    }
}
