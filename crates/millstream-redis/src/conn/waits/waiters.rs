//! Connections for blocking waits: one per wait under way, kept afterwards for the next one.
//!
//! The server's own timeouts fire up to 100 ms late. So the local clock ends a wait, by a `CLIENT UNBLOCK` that leaves
//! the connection usable. The reply to the wait then shows whether something arrived in the last moment.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use redis::{Pipeline, Value};
use tokio::time::{Instant, timeout};

use crate::conn::connection::{Shared, complete, is_demoted, send_within};
use crate::conn::dial::Dial;
use crate::conn::multiplexed::Multiplexed;
use crate::conn::replies::reply;
use crate::conn::terms::{left, over};

/// Maximum number of idle connections that are kept.
const MAX_IDLE: usize = 64;
/// Maximum time for the reply of a wait after CLIENT UNBLOCK, before it is sent once more: the server may not have
/// read the wait when the first one arrived.
const AGAIN: Duration = Duration::from_millis(10);

/// Connections for blocking waits on single keys.
pub(crate) struct Waiters {
    dial: Arc<Dial>,
    /// Connection that ends waits.
    messages: Shared,
    idle: Mutex<Vec<Waiter>>,
}

struct Waiter {
    connection: Multiplexed,
    /// Id of the connection on the server.
    id: i64,
    /// Generation of the connection that ends waits, at the time when this one was opened. After a restart of the
    /// server this id may belong to another connection, maybe of another client.
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
        // Read the generation first, so that a restart of the server while this connection is opened is noticed.
        let generation = self.messages.generation().await?;
        let mut connection = self.dial.waiting("wait").await?;
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("CLIENT").arg("ID");
        let answer = send_within(&mut connection, &pipe, self.dial.response_timeout).await?.pop();
        Ok(Waiter { connection, id: reply::int(answer.unwrap_or_default())?, generation })
    }

    /// Sends commands, one of which may block, and waits for their answers. After `wait` the blocking one is ended and
    /// its answer is nil. `commands` receives the blocking time in milliseconds for the server: longer than `wait`, in
    /// case the wait cannot be ended.
    ///
    /// The connection is used by one call at a time. If the future is dropped, the connection is dropped too.
    pub(crate) async fn wait(
        &self,
        wait: Duration,
        commands: impl FnOnce(&mut Pipeline, u64),
    ) -> Result<Vec<Value>> {
        let limit = self.dial.response_timeout;
        let mut pipe = Pipeline::new();
        let block = wait.saturating_add(limit).as_millis();
        commands(&mut pipe, u64::try_from(block).unwrap_or(u64::MAX).max(1));
        let kept = self.idle().pop().filter(|waiter| !waiter.connection.is_left());
        let mut waiter = match kept {
            Some(waiter) => waiter,
            None => self.open().await?,
        };
        let under_way = waiter.connection.log_in().await;
        let answers = self.ended(&mut waiter, &pipe, wait).await;
        drop(under_way);
        let mut idle = self.idle();
        if !answers.as_ref().is_ok_and(|answers| !is_demoted(answers)) {
            // The cause may have broken the idle connections too, and a server that became a replica serves none of them: drop
            // them, so that the next wait opens another one.
            idle.clear();
        } else if idle.len() < MAX_IDLE {
            idle.push(waiter);
        }
        answers
    }

    async fn ended(&self, waiter: &mut Waiter, pipe: &Pipeline, wait: Duration) -> Result<Vec<Value>> {
        let mut tenure = waiter.connection.tenure().cloned();
        let mut answer = pin!(waiter.connection.send_packed_commands(pipe, 0, pipe.len()));
        tokio::select! {
            biased;
            answer = timeout(wait, &mut answer) => {
                if let Ok(answer) = answer {
                    return complete(answer, pipe);
                }
            }
            () = over(&mut tenure) => return Err(left()),
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
