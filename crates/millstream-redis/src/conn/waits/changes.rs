//! Waits of many users on one connection, by key tracking: the server remembers which keys were read over the connection,
//! and tells once when one of them changes, whoever changes it.
//!
//! A wait reads its keys with a plain command, an `XREAD` or a `GET`, which either returns what is there or makes the server remember the
//! keys. So nothing is missed in between, and a wait costs the server nothing while it lasts, however many there are. A
//! blocking command would need a connection for each slot of a cluster.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use redis::{Pipeline, PushInfo, PushKind, Value};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::conn::connection::send_within;
use crate::conn::dial::Dial;
use crate::conn::multiplexed::Multiplexed;
use crate::conn::once::{Opened, Usable};
use crate::conn::replies::reply;
use crate::conn::terms::{during, left, over};
use crate::error::unchanged;

/// Time between two looks at the streams where the server sends no notices: a user without the right to
/// `CLIENT TRACKING`, or a server without it.
const LOOK: Duration = Duration::from_secs(1);

/// Time between two looks for other credentials, where they change.
const LOG_IN_AGAIN: Duration = Duration::from_millis(500);

/// Longest wait, so that its end can be computed.
const LONGEST: Duration = Duration::from_secs(3_600);

/// What ended a wait.
pub(crate) enum Change {
    /// The reply of the look: of `XREAD` the first entry of each stream that has one above its id.
    Found(Value),
    /// A key has changed: there may be something, or nothing.
    Maybe,
    /// The time is over.
    Nothing,
}

/// One connection to one server, on which any number of users wait.
pub(crate) struct Changes {
    dial: Arc<Dial>,
    role: &'static str,
    waiting: Arc<Waiting>,
    live: Opened<LiveWaits>,
}

#[derive(Clone)]
struct LiveWaits {
    connection: Multiplexed,
    gone: Arc<AtomicBool>,
    /// Whether the server sends notices of changes.
    told: bool,
}

impl Usable for LiveWaits {
    fn is_usable(&self) -> bool {
        !self.gone.load(Ordering::Acquire) && !self.connection.is_left()
    }
}

/// Who waits for each key.
#[derive(Default)]
struct Waiting {
    users: Mutex<HashMap<Box<[u8]>, Vec<User>>>,
    number: AtomicU64,
}

struct User {
    number: u64,
    change: Arc<Notify>,
}

/// One wait. Its user is taken out of the lists when it is dropped.
struct Wait<'a> {
    waiting: &'a Waiting,
    keys: &'a [&'a Key],
    number: u64,
    change: Arc<Notify>,
}

impl Changes {
    pub(crate) fn new(dial: Arc<Dial>, role: &'static str) -> Self {
        Self { dial, role, waiting: Arc::default(), live: Opened::default() }
    }

    /// Waits until one of these streams has an entry above its id, or may have one.
    ///
    /// # Errors
    /// The connection was lost, or the server refuses the look.
    pub(crate) async fn wait(&self, streams: &[(&Key, MessageId)], wait: Duration) -> Result<Change> {
        let mut look = Pipeline::with_capacity(1);
        look.cmd("XREAD").arg("COUNT").arg(1).arg("STREAMS");
        streams.iter().for_each(|(key, _)| _ = look.arg(key.as_str()));
        streams.iter().for_each(|(_, above)| _ = look.arg(above.to_string()));
        let keys: Vec<&Key> = streams.iter().map(|(key, _)| *key).collect();
        self.changed(&keys, (&look, &is_there), wait).await
    }

    /// Waits until a look at the keys, one command, has a reply that counts, or until one of them changes.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub(crate) async fn changed(
        &self,
        keys: &[&Key],
        (look, counts): (&Pipeline, &(dyn Fn(&Value) -> bool + Sync)),
        wait: Duration,
    ) -> Result<Change> {
        let deadline = Instant::now() + wait.min(LONGEST);
        // Before the look: the notice may come before the reply is read.
        let waiting = self.waiting.enter(keys);
        loop {
            let mut live = self.live.get(|| -> BoxFuture<'_, _> { Box::pin(self.open()) }).await?;
            let mut tenure = live.connection.tenure().cloned();
            let under_way = live.connection.log_in().await;
            let limit = self.dial.response_timeout;
            let asked = during(tenure.as_ref(), send_within(&mut live.connection, look, limit)).await;
            drop(under_way);
            let found = asked.inspect_err(|_| live.gone.store(true, Ordering::Release)).map_err(unchanged)?;
            let found = reply::ok(found.into_iter().next().unwrap_or_default())?;
            if counts(&found) {
                return Ok(Change::Found(found));
            }
            let until = if live.told { deadline } else { deadline.min(Instant::now() + LOOK) };
            loop {
                let renews = live.connection.may_log_in_again();
                tokio::select! {
                    () = waiting.change.notified() => {
                        return if live.gone.load(Ordering::Acquire) { Err(cut()) } else { Ok(Change::Maybe) };
                    }
                    () = over(&mut tenure) => return Err(unchanged(left())),
                    () = sleep_until(until) => {
                        if until == deadline {
                            return Ok(Change::Nothing);
                        }
                        break;
                    }
                    // Nothing else is sent that would bring the other credentials.
                    () = sleep(LOG_IN_AGAIN), if renews => drop(live.connection.log_in().await),
                }
            }
        }
    }

    /// Waits until one of these streams has an entry above its id, and returns the reply of `XREAD` with the first entry of
    /// each that has one; `None` when the time is over.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub(crate) async fn entries(
        &self,
        streams: &[(&Key, MessageId)],
        wait: Duration,
    ) -> Result<Option<Value>> {
        let begun = Instant::now();
        loop {
            match self.wait(streams, wait.saturating_sub(begun.elapsed())).await? {
                Change::Found(found) => return Ok(Some(found)),
                Change::Maybe => {}
                Change::Nothing => return Ok(None),
            }
        }
    }

    async fn open(&self) -> Result<LiveWaits> {
        let waiting = self.waiting.clone();
        let on_push = move |push: Option<&PushInfo>| waiting.receive(push);
        let (mut connection, gone) = self.dial.telling(self.role, on_push).await?;
        let mut track = Pipeline::with_capacity(1);
        track.cmd("CLIENT").arg("TRACKING").arg("ON");
        let answer = send_within(&mut connection, &track, self.dial.response_timeout).await?.pop();
        let told = match reply::ok(answer.unwrap_or_default()) {
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(%error, "the server sends no notices of changed keys: waits check their streams once a second");
                false
            }
        };
        Ok(LiveWaits { connection, gone, told })
    }
}

impl Waiting {
    fn users(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Vec<User>>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter<'a>(&'a self, keys: &'a [&'a Key]) -> Wait<'a> {
        let (number, change) = (self.number.fetch_add(1, Ordering::Relaxed), Arc::new(Notify::new()));
        let mut users = self.users();
        for key in keys {
            let user = User { number, change: change.clone() };
            users.entry(key.as_str().as_bytes().into()).or_default().push(user);
        }
        Wait { waiting: self, keys, number, change }
    }

    /// Takes what the server says without being asked; `None` when the connection is lost.
    fn receive(&self, push: Option<&PushInfo>) {
        let users = self.users();
        let tell = |of: &Vec<User>| of.iter().for_each(|user| user.change.notify_one());
        match push {
            Some(PushInfo { kind: PushKind::Invalidate, data }) => match data.first() {
                Some(Value::Array(keys)) => {
                    let keys = keys.iter().filter_map(|key| match key {
                        Value::BulkString(key) => users.get(&**key),
                        _ => None,
                    });
                    keys.for_each(tell);
                }
                // All keys: the server was emptied.
                _ => users.values().for_each(tell),
            },
            Some(_) => {}
            None => users.values().for_each(tell),
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut users = self.waiting.users();
        for key in self.keys {
            let key = key.as_str().as_bytes();
            if let Some(of) = users.get_mut(key) {
                of.retain(|user| user.number != self.number);
                if of.is_empty() {
                    users.remove(key);
                }
            }
        }
    }
}

/// Whether a look has found something.
pub(crate) fn is_there(found: &Value) -> bool {
    *found != Value::Nil
}

fn cut() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection was lost during a wait")
}
