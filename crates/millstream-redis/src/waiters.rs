//! Connections that wait: one per wait that is under way, kept for the next one afterwards.
//!
//! The server's own time-outs come up to 100 ms late. So a wait ends by the local clock, with a `CLIENT UNBLOCK` that
//! leaves the connection usable, and its answer shows what came in the last moment.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, Value};
use tokio::time::{Instant, timeout};

use crate::connection::{Dial, Shared, complete, send_within};
use crate::reply;

/// The most connections that are kept while nobody waits on them.
const MAX_IDLE: usize = 64;
/// How long the answer of a wait that was ended may take before it is ended once more: the server may not have read the
/// wait yet.
const AGAIN: Duration = Duration::from_millis(10);

/// Connections of those who wait for one key now and then.
pub(crate) struct Waiters {
    dial: Arc<Dial>,
    /// Ends waits.
    messages: Shared,
    idle: Mutex<Vec<Waiter>>,
}

struct Waiter {
    connection: MultiplexedConnection,
    /// By which the server knows the connection.
    id: i64,
    /// The connection that ends waits, when this one was opened: after a restart another connection, and maybe that of
    /// somebody else, has this id.
    generation: u64,
}

impl Waiters {
    pub(crate) fn new(dial: Arc<Dial>, messages: Shared) -> Self {
        Self { dial, messages, idle: Mutex::default() }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Waiter>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn open(&self) -> Result<Waiter> {
        // First: a server that is another one by the time this one is open is noticed.
        let generation = self.messages.generation().await?;
        let mut connection = self.dial.waiting("wait").await?;
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("CLIENT").arg("ID");
        let answer = send_within(&mut connection, &pipe, self.dial.response_timeout).await?.pop();
        Ok(Waiter { connection, id: reply::int(answer.unwrap_or_default())?, generation })
    }

    /// Sends commands, one of which may block, and waits for their answers; after `wait` the one that blocks is ended, and
    /// answers nil. It is told for how many milliseconds to block: longer than that, in case that nobody can end it.
    ///
    /// While this is under way the connection is nobody else's. If the future is dropped, so is the connection.
    pub(crate) async fn wait(
        &self,
        wait: Duration,
        commands: impl FnOnce(&mut Pipeline, u64),
    ) -> Result<Vec<Value>> {
        let limit = self.dial.response_timeout;
        let mut pipe = Pipeline::new();
        let block = wait.saturating_add(limit).as_millis();
        commands(&mut pipe, u64::try_from(block).unwrap_or(u64::MAX).max(1));
        let kept = self.idle().pop();
        let mut waiter = match kept {
            Some(waiter) => waiter,
            None => self.open().await?,
        };
        let answers = self.ended(&mut waiter, &pipe, wait).await;
        let mut idle = self.idle();
        if answers.is_err() {
            // What broke this one may have broken those that are kept: the next wait opens another.
            idle.clear();
        } else if idle.len() < MAX_IDLE {
            idle.push(waiter);
        }
        answers
    }

    async fn ended(&self, waiter: &mut Waiter, pipe: &Pipeline, wait: Duration) -> Result<Vec<Value>> {
        let mut answer = pin!(waiter.connection.send_packed_commands(pipe, 0, pipe.len()));
        if let Ok(answer) = timeout(wait, &mut answer).await {
            return complete(answer, pipe);
        }
        let limit = self.dial.response_timeout;
        let late = Instant::now() + limit;
        let mut unblock = Pipeline::with_capacity(1);
        unblock.cmd("CLIENT").arg("UNBLOCK").arg(waiter.id);
        loop {
            let Some(mut told) = self.messages.send_over(waiter.generation, &unblock).await? else {
                let why = "the server was out of reach meanwhile, what came in the last moment may be lost";
                return Err(Error::new(ErrorKind::Unconfirmed, why));
            };
            reply::int(told.pop().unwrap_or_default())?;
            match timeout(AGAIN, &mut answer).await {
                Ok(answer) => return complete(answer, pipe),
                Err(_) if Instant::now() < late => {}
                Err(_) => {
                    let why = format!("a wait that was ended gave no answer within {limit:?}");
                    return Err(Error::new(ErrorKind::Unconfirmed, why));
                }
            }
        }
    }
}
