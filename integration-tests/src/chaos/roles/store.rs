//! The store of effects: a process of its own, so that what a handler did is known although its process was killed.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader as AsyncBufReader};

use super::{Setup, Sink, What};
use crate::chaos::record::{Handling, Place};

/// A write to the store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Request {
    /// The effect of a handler.
    Effect(Handling),
    /// A write under a lock.
    Write {
        /// The lock.
        lock: String,
        /// The fence of its holder.
        fence: u64,
        /// The process of its holder.
        writer: u32,
    },
}

/// The highest number that was accepted of each guarded thing.
#[derive(Default)]
struct Guard {
    epochs: HashMap<(Place, u32), u64>,
    fences: HashMap<String, u64>,
}

impl Guard {
    /// Records a request, and returns whether it is accepted. Under the lock of the store, so that the history has the
    /// requests in their order.
    fn accept(&mut self, request: Request, sink: &Sink) -> bool {
        match request {
            Request::Effect(handling) => {
                let of = (handling.place.clone(), handling.partition);
                let accepted = raise(self.epochs.entry(of).or_default(), handling.epoch);
                sink.write(What::Effect { handling, accepted });
                accepted
            }
            Request::Write { lock, fence, writer } => {
                let accepted = raise(self.fences.entry(lock.clone()).or_default(), fence);
                sink.write(What::Write { lock, fence, writer, accepted });
                accepted
            }
        }
    }
}

/// Raises a number to another that is not lower, and returns whether it was not.
fn raise(highest: &mut u64, number: u64) -> bool {
    let accepted = number >= *highest;
    if accepted {
        *highest = number;
    }
    accepted
}

/// Serves requests, a thread for each client.
pub(super) fn run(setup: &Setup, sink: &Sink) -> Result<()> {
    let guard = Mutex::new(Guard::default());
    let listener = UnixListener::bind(&setup.store).context("the socket of the store")?;
    std::thread::scope(|scope| {
        for client in listener.incoming() {
            let (client, guard) = (client?, &guard);
            scope.spawn(move || serve(client, guard, sink));
        }
        Ok(())
    })
}

fn serve(client: UnixStream, guard: &Mutex<Guard>, sink: &Sink) {
    let Ok(mut replies) = client.try_clone() else { return };
    for line in BufReader::new(client).lines().map_while(Result::ok) {
        // A client that was killed may leave half of a line.
        let Ok(request) = serde_json::from_str(&line) else { return };
        let accepted = guard.lock().unwrap_or_else(PoisonError::into_inner).accept(request, sink);
        if replies.write_all(if accepted { b"1\n" } else { b"0\n" }).is_err() {
            return;
        }
    }
}

/// A connection to the store.
#[derive(Debug)]
pub struct Client(tokio::sync::Mutex<AsyncBufReader<tokio::net::UnixStream>>);

impl Client {
    /// Connects to the store.
    ///
    /// # Errors
    /// If it does not run.
    pub async fn connect(path: &Path) -> Result<Self> {
        let stream = tokio::net::UnixStream::connect(path).await.context("the store")?;
        Ok(Self(tokio::sync::Mutex::new(AsyncBufReader::new(stream))))
    }

    /// Writes, and returns whether the store took it.
    ///
    /// # Errors
    /// If the store has gone.
    pub async fn write(&self, request: &Request) -> Result<bool> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        let mut stream = self.0.lock().await;
        stream.get_mut().write_all(&line).await?;
        let mut reply = String::new();
        stream.read_line(&mut reply).await?;
        anyhow::ensure!(!reply.is_empty(), "the store has gone");
        Ok(reply.starts_with('1'))
    }
}
