//! Idempotent calls: work that is done once for a key, and whose result later calls with the key return.

mod error;
mod task;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_core::codec::Json;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Ignore;
use millstream_core::idempotency::{Begun, MAX_RESULT_LEN, Marker, Operation, check_begin, check_complete};
use millstream_core::panics::{Careful, decode, encode};
use millstream_core::{Backend, GroupName, Observer, TopicName};
use millstream_engine::{ControlThread, LeaseClock, Loops, Scope};
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

pub use error::CallError;
use task::Running;

/// Group of the operations of calls. Their topic is the name of the calls.
const GROUP: &str = "_calls";

/// First byte of a result that was kept; the rest is its JSON. Without a result nothing is stored.
const KEPT: u8 = 1;

/// Calls that are done once for each key, as far as a marker on the server can tell: the first call with a key runs its work and
/// keeps the result, later ones return that result. Other systems call such keys *idempotency keys*.
///
/// Use it where no consumer has done it already: in the handler of a web request, around a payment inside of a message's handler.
/// [`Idempotent`](crate::Idempotent) does the same for whole handlers of messages, without results.
///
/// While the work runs its marker is extended, however long that takes. When the work fails, panics or is dropped, the marker is
/// deleted, and the next call runs. When it succeeds, its result is kept for the [retention](Self::retention).
///
/// What stays open: the work has had its effect, and the process ends before the result is kept. Then the next call runs the work
/// again, after at most one [`lease_ttl`](Self::lease_ttl). The same if the server loses the marker.
///
/// Cloning is cheap.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # use millstream_core::Backend;
/// # use millstream_memory::MemoryBackend;
/// use millstream_runtime::IdempotentCalls;
///
/// # let backend = Backend::from(MemoryBackend::new());
/// let charges = IdempotentCalls::new(&backend, "charges");
/// let first = charges.run("key-7", || charge(500)).await.unwrap();
/// let again = charges.run("key-7", || charge(500)).await.unwrap();
/// assert_eq!((first.value, first.is_duplicate), ("charge-500".to_owned(), false));
/// assert_eq!((again.value, again.is_duplicate), ("charge-500".to_owned(), true));
/// # async fn charge(cents: u64) -> Result<String, std::io::Error> { Ok(format!("charge-{cents}")) }
/// # });
/// ```
#[derive(Clone)]
#[must_use = "calls do nothing until one is run"]
pub struct IdempotentCalls {
    backend: Backend,
    control: ControlThread,
    clock: Arc<LeaseClock>,
    observer: Arc<dyn Observer>,
    /// What is known of markers that are extended: a call may end while its extensions fail.
    loops: Loops,
    name: String,
    times: Times,
}

/// Times of a call.
#[derive(Clone, Copy, Debug)]
struct Times {
    lease_ttl: Duration,
    retention: Duration,
    wait: Duration,
}

/// Result of [`IdempotentCalls::run`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Called<R> {
    /// Result of the work, of this call or of the one that did it.
    pub value: R,
    /// Whether it was done by an earlier call with the key.
    pub is_duplicate: bool,
    /// Reason why later calls with the key may not get this value, although the work is done. It is logged as a warning, too.
    ///
    /// - [`ErrorKind::TooLarge`], [`ErrorKind::Encode`]: the work is recorded as done, without its result. Later calls fail with
    ///   [`CallError::Unreadable`].
    /// - [`ErrorKind::Fenced`]: another call has begun the work, since this process was suspended or cut off for longer than the
    ///   marker lasted. The effect has happened twice, or will.
    /// - Others: the server did not confirm the end within a `lease_ttl`. It is repeated in the background while the process lives.
    pub not_kept: Option<Error>,
}

impl IdempotentCalls {
    /// Creates the calls of this name: 1 to 128 characters of `A-Z a-z 0-9 . _ -`, checked by each call. Keys count within a name.
    /// Users of a server with rights need those of a consumer of a topic with this name.
    pub fn new(backend: &Backend, name: impl Into<String>) -> Self {
        let day = Duration::from_secs(86_400);
        Self {
            backend: backend.clone(),
            control: ControlThread::of(backend),
            clock: LeaseClock::of(backend),
            observer: Arc::new(Ignore),
            loops: Loops::default(),
            name: name.into(),
            times: Times {
                lease_ttl: Duration::from_secs(30),
                retention: 7 * day,
                wait: Duration::from_secs(30),
            },
        }
    }

    /// Sets how long a marker lasts unless it is extended, three times in this time: when a process dies, its key is blocked for at
    /// most this long. Default: 30 s.
    pub fn lease_ttl(mut self, ttl: Duration) -> Self {
        self.times.lease_ttl = ttl;
        self
    }

    /// Sets how long a result is kept. Default: 7 days. It has to cover the time within which a key is repeated: later, its work
    /// runs again.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.times.retention = retention;
        self
    }

    /// Sets how long a call waits while another one runs the work of its key, and while the server is away before the work begins.
    /// Default: 30 s. Zero: it does not wait.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.times.wait = wait;
        self
    }

    /// Returns the same calls with an observer, which receives [`CallMarkerLost`](millstream_core::Event::CallMarkerLost). Default: none; calls of
    /// a `Millstream` have its observer.
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        Self { observer: Careful::over(Arc::new(observer)), ..self }
    }

    /// Runs `work`, unless a call with this key has done it: then returns the result of that one. A key has 1 to 256 bytes.
    ///
    /// The result is kept as JSON, of up to 64 KiB less one byte. `work` is dropped with this future, as one that failed: spawn the
    /// call on a task if it has to end although its caller goes away.
    ///
    /// # Errors
    /// [`CallError::Work`] with the error of `work`; [`CallError::Running`] if another call runs it for longer than
    /// [`wait`](Self::wait); [`CallError::Unreadable`] if it was done and its result cannot be read;
    /// [`CallError::Store`] if it was not begun: [`ErrorKind::InvalidName`] or [`ErrorKind::TooLarge`] for a bad name or key,
    /// [`ErrorKind::InvalidConfig`] for a time of less than a millisecond or above ten years, [`ErrorKind::Unsupported`] for a backend without
    /// markers, [`ErrorKind::WrongType`], [`ErrorKind::Denied`], and transient ones that lasted for longer than `wait`.
    pub async fn run<R, E, W, F>(&self, key: impl Into<Bytes>, work: W) -> Result<Called<R>, CallError<E>>
    where
        R: Serialize + DeserializeOwned,
        W: FnOnce() -> F,
        F: Future<Output = Result<R, E>>,
    {
        let running = match self.begin(key.into()).await? {
            Ok(running) => running,
            Err(Begun::Done(stored)) => {
                let value = replayed(&stored).map_err(CallError::Unreadable)?;
                return Ok(Called { value, is_duplicate: true, not_kept: None });
            }
            Err(Begun::Running { holder, expires_in }) => {
                return Err(CallError::Running { holder, expires_in });
            }
            Err(Begun::Started(marker)) => return Err(CallError::Store(marker.fenced())),
        };
        // If it panics or is dropped, `running` is dropped too, which abandons the operation.
        match work().await {
            Ok(value) => {
                let (result, too_large) = match kept(&value) {
                    Ok(result) => (result, None),
                    Err(error) => (Bytes::new(), Some(error)),
                };
                let name = &self.name;
                let ended = running.complete(result, self.times.lease_ttl).await;
                let not_kept = ended.err().or(too_large);
                if let Some(error) = &not_kept {
                    tracing::warn!(calls = name, %error, "the work is done, and its result may not be kept");
                }
                Ok(Called { value, is_duplicate: false, not_kept })
            }
            Err(error) => {
                running.abandon(self.times.lease_ttl).await;
                Err(CallError::Work(error))
            }
        }
    }

    /// Begins the operation of a key. The inner error is the state that keeps this call from running it.
    async fn begin(&self, key: Bytes) -> Result<std::result::Result<Running, Begun>> {
        let operation = Operation::new(TopicName::new(&self.name)?, GroupName::new(GROUP)?, key)?;
        // The name of an instance, for people to read.
        let holder = format!("pid-{}", std::process::id());
        // With a backend in this process nobody else makes names, and simulations repeat themselves with the same seed.
        let in_process = self.backend.is_in_process();
        let token = if in_process { Uuid::from_u128(fastrand::u128(..)) } else { Uuid::new_v4() };
        let token = token.simple().to_string();
        check_begin(&holder, &token, self.times.lease_ttl)?;
        // Before the work: a completion that is refused would come too late.
        check_complete(b"", self.times.retention)?;
        let role = self.backend.idempotency()?.clone();
        let marker = Marker::new(operation, &holder, &token, self.times.lease_ttl);
        let monitor = self.loops.monitor("extend marker", Scope::Topic(marker.operation.topic().clone()));
        let watched = (monitor, self.observer.clone());
        task::begin(role, marker, self.times, &self.control, self.clock.clone(), watched).await
    }
}

impl fmt::Debug for IdempotentCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotentCalls").field("name", &self.name).field("times", &self.times).finish()
    }
}

/// Returns the bytes that are kept of a result.
fn kept<R: Serialize + DeserializeOwned>(value: &R) -> Result<Bytes> {
    let json = encode(&Json, value)?;
    if json.len() >= MAX_RESULT_LEN {
        let why = format!("the result has {} bytes, {} are kept at most", json.len(), MAX_RESULT_LEN - 1);
        return Err(Error::new(ErrorKind::TooLarge, why));
    }
    Ok([&[KEPT], &json[..]].concat().into())
}

/// Returns the result that was kept.
fn replayed<R: Serialize + DeserializeOwned>(stored: &Bytes) -> Result<R> {
    match stored.first() {
        Some(&KEPT) => decode(&Json, &stored.slice(1..)).map_err(|error| {
            let why = "the work of this key is done, and its result is of another type";
            Error::new(ErrorKind::Decode, why).with_source(error)
        }),
        Some(other) => {
            let why = format!("the work of this key is done, and its result has the unknown form {other}");
            Err(Error::new(ErrorKind::Decode, why))
        }
        None => {
            let why = "the work of this key is done, and its result was not kept: it was too large, or could not be encoded";
            Err(Error::new(ErrorKind::Decode, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_read_as_it_was_kept() {
        let stored = kept(&("a".to_owned(), 7_u64)).expect("a result");
        assert_eq!(&stored[..], b"\x01[\"a\",7]");
        assert_eq!(replayed::<(String, u64)>(&stored).expect("a result"), ("a".to_owned(), 7));
        // The limit is that of a marker, with the first byte.
        let fits = kept(&"x".repeat(MAX_RESULT_LEN - 3)).expect("a result");
        assert_eq!(fits.len(), MAX_RESULT_LEN);
        let large = kept(&"x".repeat(MAX_RESULT_LEN - 2)).expect_err("a refusal");
        assert_eq!(large.kind(), ErrorKind::TooLarge);
        for unreadable in [&b""[..], b"\x01", b"\x017", b"\x02\"a\"", b"\"a\""] {
            let refused = replayed::<String>(&Bytes::copy_from_slice(unreadable)).expect_err("a refusal");
            assert_eq!(refused.kind(), ErrorKind::Decode, "{unreadable:?}");
        }
    }
}
