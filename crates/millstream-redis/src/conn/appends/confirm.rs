//! The command that waits until what a connection has written is durable: `WAIT` and `WAITAOF`.
//!
//! Both concern the writes of their own connection and block it, so appends that are to be confirmed have connections of
//! their own. The server answers with what it has reached when the time is over, and so it is no error that something is
//! missing.

use std::time::Duration;

use millstream_core::Durability;
use millstream_core::error::{Error, ErrorKind, Result};
use redis::Value;

use crate::conn::request::{Digits, Request};
use crate::error::{answered, unexpected};

/// What a connection waits for behind its entries.
#[derive(Clone, Copy)]
pub(crate) struct Confirm {
    pub(crate) durability: Durability,
    /// Time that the server waits at most.
    limit: Duration,
}

impl Confirm {
    /// Returns what to wait for; `None` if an entry only has to be stored. The server answers well within the
    /// `response_timeout` of the connection: what is not durable by then is unconfirmed, and the connection is kept.
    pub(crate) fn new(durability: Durability, response_timeout: Duration) -> Option<Self> {
        let limit = (response_timeout / 2).max(Duration::from_millis(1));
        (durability != Durability::Stored).then_some(Self { durability, limit })
    }

    /// Adds the command behind the entries.
    pub(crate) fn add(self, request: &mut Request) {
        let limit = u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX);
        self.add_with(request, Digits::number(limit).as_bytes());
    }

    /// Adds the same to a connection that has written nothing: it is answered at once, and shows whether the server knows
    /// the command, allows it, and has what it waits for.
    pub(crate) fn add_check(self, request: &mut Request) {
        self.add_with(request, b"1");
    }

    fn add_with(self, request: &mut Request, limit: &[u8]) {
        match self.durability {
            Durability::Replicated(replicas) => {
                request.add(&[b"WAIT", Digits::number(replicas.into()).as_bytes(), limit]);
            }
            // The own file of the server, and that of no replica.
            _ => request.add(&[b"WAITAOF", b"1", b"0", limit]),
        }
    }

    /// Returns the error of a server that cannot confirm at all, by its answer to the check.
    pub(crate) fn check(self, answer: Value) -> Result<()> {
        let Value::ServerError(refusal) = answer else { return self.reached(answer).map(drop) };
        let error = answered(refusal);
        let says = |text: &str| error.to_string().contains(text);
        Err(if says("appendonly is disabled") {
            Error::new(ErrorKind::Unsupported, "the server has no append-only file (appendonly is no)")
        } else if says("replica instances") {
            // In a fail-over: the same as the READONLY that an entry would get.
            Error::new(ErrorKind::Unavailable, "the server is a replica")
        } else {
            error
        })
    }

    /// Returns why entries that are stored are not confirmed, by the answer to the command behind them.
    pub(crate) fn missing(self, answer: Result<Value>) -> Option<Error> {
        let reached = answer.and_then(|answer| match answer {
            Value::ServerError(refusal) => Err(answered(refusal)),
            answer => self.reached(answer),
        });
        let why = match (reached, self.durability) {
            (Ok(replicas), Durability::Replicated(wanted)) if replicas >= i64::from(wanted) => return None,
            (Ok(replicas), Durability::Replicated(wanted)) => {
                format!("{replicas} of {wanted} replicas have confirmed it within {:?}", self.limit)
            }
            (Ok(1..), _) => return None,
            // With `appendfsync no` the file is synced only when a rewrite replaces it, or by the system, without notice.
            (Ok(_), _) => format!(
                "the server has not synced it to its disk within {:?} (appendfsync should be everysec or always)",
                self.limit
            ),
            (Err(error), _) => format!("the server did not say whether it is {}: {error}", self.durability),
        };
        Some(Error::new(ErrorKind::Unconfirmed, format!("stored, but {why}")))
    }

    /// Returns how many replicas, or files of the server, have what was written.
    fn reached(self, answer: Value) -> Result<i64> {
        match (self.durability, answer) {
            (Durability::Replicated(_), Value::Int(replicas)) => Ok(replicas),
            (Durability::Fsynced, Value::Array(counts)) => match counts.first() {
                Some(Value::Int(local)) => Ok(*local),
                _ => Err(unexpected("WAITAOF without counts")),
            },
            _ => Err(unexpected("no count behind appends")),
        }
    }
}
