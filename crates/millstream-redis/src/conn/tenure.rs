//! How long a server is the primary: connections to one that is not any more are left at once.
//!
//! A demoted server may accept writes for seconds before it learns of that, and loses them. A frozen one does not answer.

use std::future::pending;

use millstream_core::error::{Error, ErrorKind, Result};
use tokio::sync::watch;

/// The time for which the server of a connection is the primary.
#[derive(Clone)]
pub(crate) struct Tenure {
    /// Number of the primary when the connection was opened, and now.
    number: u64,
    now: watch::Receiver<u64>,
}

impl Tenure {
    /// Begins with the primary of now.
    pub(crate) fn new(now: watch::Receiver<u64>) -> Self {
        let number = *now.borrow();
        Self { number, now }
    }

    pub(crate) fn is_over(&self) -> bool {
        *self.now.borrow() != self.number
    }

    /// Waits until another server is the primary.
    pub(crate) async fn end(&mut self) {
        if self.now.wait_for(|now| *now != self.number).await.is_err() {
            // Nobody watches any more.
            pending::<()>().await;
        }
    }
}

/// Awaits the answer to a request, as long as its server is the primary.
pub(crate) async fn during<T>(tenure: Option<&Tenure>, answer: impl Future<Output = Result<T>>) -> Result<T> {
    match tenure.cloned() {
        None => answer.await,
        Some(mut tenure) => tokio::select! {
            biased;
            answer = answer => answer,
            () = tenure.end() => Err(left()),
        },
    }
}

/// Returns the error of a request whose connection was left.
pub(crate) fn left() -> Error {
    let why = "another server has become the primary, the request may or may not have been done";
    Error::new(ErrorKind::Unconfirmed, why)
}
