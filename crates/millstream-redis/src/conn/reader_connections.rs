//! Connections of the readers of partitions: up to a number of them for each node, and two that all other readers share.
//!
//! A reader with a connection of its own waits and reads in one request. The others wait for notices of changed keys, and
//! read over another one: a round trip more for each message that comes alone, and smaller pages. A reader that has more to read than that takes the next
//! connection that is free; one that waits, or has had its turn, gives its connection back if another one wants it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use millstream_core::error::{Error, ErrorKind, Result};
use redis::{Pipeline, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::conn::connection::Shared;
use crate::conn::dial::Dial;
use crate::conn::socket::Socket;

/// Time for which a reader that has more to read keeps its connection while others want one. To change costs a round trip
/// or two, which does not count in this time.
const TURN: Duration = Duration::from_secs(2);
/// Longest wait of a reader with a connection of its own while there are readers without one: then it looks whether one
/// of them wants it. The shorter one counts while one of them has wanted it lately.
const SHORT_WAITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// How long a wish is a reason for short waits.
const LATELY: Duration = Duration::from_secs(10);
/// Time for which a wish counts. A reader that still has more to read repeats it with each page.
const WISH: Duration = Duration::from_secs(2);

/// The connections of readers to one server.
pub(crate) struct ReaderConnections {
    dial: Arc<Dial>,
    permits: Arc<Semaphore>,
    /// Open connections that were given back for others.
    free: Mutex<Vec<Socket>>,
    /// Number of readers without a connection of their own.
    sharing: AtomicUsize,
    /// When a reader last wanted a connection and got none, in milliseconds since `begun`, and one more; 0 for never.
    wanted: AtomicU64,
    begun: Instant,
    /// What readers without a connection share, as long as there are any.
    common: Mutex<Weak<Common>>,
}

/// What readers without a connection of their own share, beside the connection on which they wait.
struct Common {
    pages: Shared,
    /// Large pages under way: many at once would come too late.
    large: Semaphore,
}

/// Maximum number of large pages under way.
const LARGE_PAGES: usize = 4;

/// A connection of one reader.
pub(crate) struct Own {
    pub(crate) socket: Socket,
    node: Arc<ReaderConnections>,
    since: Instant,
    _permit: OwnedSemaphorePermit,
}

/// The place of a reader without a connection of its own.
pub(crate) struct Sharing {
    node: Arc<ReaderConnections>,
    common: Arc<Common>,
    /// Number of the connection on which it has begun.
    begun: Option<u64>,
    /// When it gave its connection back: others come first.
    had_turn: Option<Instant>,
}

impl ReaderConnections {
    /// Allows this number of connections.
    pub(crate) fn new(dial: Arc<Dial>, max: usize) -> Self {
        Self {
            dial,
            permits: Arc::new(Semaphore::new(max.min(Semaphore::MAX_PERMITS))),
            free: Mutex::default(),
            sharing: AtomicUsize::new(0),
            wanted: AtomicU64::new(0),
            begun: Instant::now(),
            common: Mutex::default(),
        }
    }

    /// Returns a connection, if the limit allows one more.
    pub(crate) async fn own(self: &Arc<Self>) -> Result<Option<Own>> {
        let Ok(permit) = self.permits.clone().try_acquire_owned() else { return Ok(None) };
        let free = loop {
            let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
            if free.as_ref().is_none_or(|socket| !socket.is_over()) {
                break free;
            }
        };
        let socket = match free {
            Some(socket) => socket,
            None => self.dial.socket("reader").await?,
        };
        Ok(Some(Own { socket, node: self.clone(), since: Instant::now(), _permit: permit }))
    }

    /// Returns a place among those that share one.
    pub(crate) fn share(self: &Arc<Self>) -> Sharing {
        let mut common = self.common.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = common.upgrade().unwrap_or_else(|| {
            let new = Arc::new(Common {
                pages: Shared::new(self.dial.clone(), "pages"),
                large: Semaphore::new(LARGE_PAGES),
            });
            *common = Arc::downgrade(&new);
            new
        });
        self.sharing.fetch_add(1, Ordering::Relaxed);
        Sharing { node: self.clone(), common: shared, begun: None, had_turn: None }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    fn is_wanted(&self) -> bool {
        self.was_wanted_within(WISH)
    }

    fn was_wanted_within(&self, time: Duration) -> bool {
        let wanted = self.wanted.load(Ordering::Relaxed);
        wanted > 0 && u128::from(self.now() - wanted.min(self.now())) < time.as_millis()
    }
}

impl Own {
    /// Whether there are readers without a connection.
    fn is_crowded(&self) -> bool {
        self.node.sharing.load(Ordering::Relaxed) > 0
    }

    /// Returns how long a wait may last, if it is shorter than others since there are readers without a connection.
    pub(crate) fn short_wait(&self) -> Option<Duration> {
        let (wanted, otherwise) = SHORT_WAITS;
        self.is_crowded().then(|| if self.node.was_wanted_within(LATELY) { wanted } else { otherwise })
    }

    /// Whether another reader should have the connection now. `busy` tells whether its reader has more to read.
    pub(crate) fn is_due(&self, busy: bool) -> bool {
        is_due(busy, self.since.elapsed(), self.is_crowded() && self.node.is_wanted())
    }

    /// Gives the connection to the next reader that wants one. To be called between two requests.
    ///
    /// The place has to [`begin`](Sharing::begin).
    pub(crate) fn give_back(self) -> Sharing {
        let Self { mut socket, node, .. } = self;
        socket.shrink();
        node.free.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        let mut place = node.share();
        place.had_turn = Some(Instant::now());
        place
    }
}

impl Sharing {
    /// Begins on the connection of now.
    pub(crate) async fn begin(&mut self) -> Result<()> {
        self.begun = Some(self.common.pages.generation().await?);
        Ok(())
    }

    /// Sends over the connection on which it has begun. Once that one is lost, the server may have lost its latest writes, and
    /// the reader has to begin anew.
    pub(crate) async fn send(&self, pipe: &Pipeline, large: bool) -> Result<Vec<Value>> {
        let lost = || Error::new(ErrorKind::Unavailable, "the connection was lost since the last request");
        let _turn = if large { self.common.large.acquire().await.ok() } else { None };
        self.common.pages.send_over(self.begun.ok_or_else(lost)?, pipe).await?.ok_or_else(lost)
    }

    /// Takes a connection for a reader that has more to read, if one is free.
    pub(crate) async fn own(&self) -> Result<Option<Own>> {
        if self.had_turn.is_some_and(|since| since.elapsed() < TURN) && self.node.is_wanted() {
            return Ok(None);
        }
        let own = self.node.own().await?;
        if own.is_none() {
            self.node.wanted.store(self.node.now(), Ordering::Relaxed);
        }
        Ok(own)
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        self.node.sharing.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Decides whether a reader gives its connection back.
fn is_due(busy: bool, had: Duration, wanted: bool) -> bool {
    wanted && (!busy || had >= TURN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_given_back_only_to_somebody() {
        let long = TURN * 100;
        assert!(!is_due(false, long, false) && !is_due(true, long, false), "nobody wants it");
        assert!(is_due(false, Duration::ZERO, true), "it waits");
        assert!(!is_due(true, TURN / 2, true) && is_due(true, TURN, true), "it has its turn");
    }
}
