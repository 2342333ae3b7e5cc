//! Connections for pages of bodies: an answer may take any time as long as bytes keep arriving.
//!
//! The client's own connections have one timeout for a whole answer. A page over a slow link would exceed it every
//! time, and a retry would not help.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use redis::{Pipeline, Value};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::conn::connection::{Answers, Line, is_demoted};
use crate::conn::dial::Dial;
use crate::conn::replies::wrong_type;
use crate::conn::request::Request;
use crate::conn::socket::Socket;

/// A few connections, opened on demand.
pub(crate) struct Bulk {
    dial: Arc<Dial>,
    idle: Mutex<Vec<Socket>>,
    permits: Semaphore,
    /// Maximum wait for a free connection.
    limit: Duration,
}

/// Replies to a request, their size in bytes, and how long they took to arrive.
pub(crate) struct Weighed {
    pub(crate) values: Vec<Value>,
    pub(crate) bytes: usize,
    pub(crate) took: Duration,
}

impl Bulk {
    /// Creates a set of at most `size` connections.
    pub(crate) fn new(dial: Arc<Dial>, size: usize, limit: Duration) -> Self {
        Self { dial, idle: Mutex::default(), permits: Semaphore::new(size), limit }
    }

    /// Returns an idle connection, or opens one. Idle connections that the server has closed are dropped.
    async fn socket(&self) -> Result<Socket> {
        loop {
            let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match idle {
                Some(socket) if socket.is_over() => {}
                Some(socket) => return Ok(socket),
                None => return self.dial.socket("bulk").await,
            }
        }
    }

    pub(crate) async fn weigh(&self, pipe: &Pipeline) -> Result<Weighed> {
        let Ok(permit) = timeout(self.limit, self.permits.acquire()).await else {
            let why = format!("the server cannot be reached: no connection was free within {:?}", self.limit);
            return Err(Error::new(ErrorKind::Unavailable, why));
        };
        // If this future is dropped, the connection is dropped too: it may still receive replies to this request.
        let mut socket = self.socket().await?;
        let mut request = Request::default();
        request.add_pipeline(pipe);
        socket.ask(&request, Duration::ZERO, self.dial.response_timeout).await?;
        let mut replies = socket.replies();
        let mut values = (0..pipe.len()).map(|_| replies.next()?.value()).collect::<Result<Vec<_>>>()?;
        let (bytes, took) = socket.weight();
        if !is_demoted(&values) {
            socket.shrink();
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
        }
        drop(permit);
        wrong_type::name_keys(&mut values, pipe);
        Ok(Weighed { values, bytes, took })
    }
}

impl Line for Bulk {
    fn send<'a>(&'a self, pipe: &'a Pipeline) -> Answers<'a> {
        Box::pin(async { Ok(self.weigh(pipe).await?.values) })
    }
}
