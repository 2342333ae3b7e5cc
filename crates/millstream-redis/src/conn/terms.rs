//! For how long a connection is of use: as long as its server is the primary, and with credentials that are valid.
//!
//! A connection to a server that is not the primary any more is left at once.
//!
//! A demoted server may accept writes for seconds before it learns of that, and loses them. A frozen one does not answer.

use std::future::pending;

use millstream_core::error::{Error, ErrorKind, Result};
use tokio::sync::watch;

use crate::conn::login::Session;
use crate::credentials::Credentials;

/// What a connection depends on.
#[derive(Clone, Default)]
pub(crate) struct Terms {
    /// `None` if its server is the primary for good.
    pub(crate) tenure: Option<Tenure>,
    /// `None` if its credentials do not change.
    pub(crate) session: Option<Session>,
}

impl Terms {
    /// Whether another server has become the primary.
    pub(crate) fn is_left(&self) -> bool {
        self.tenure.as_ref().is_some_and(Tenure::is_over)
    }

    /// Takes the credentials to log in with again before the next request, if there are others.
    pub(crate) fn take_due(&self) -> Option<Credentials> {
        self.session.as_ref()?.take_due()
    }

    /// Reports that the server has refused them.
    pub(crate) fn refused(&self, error: &impl std::fmt::Display) {
        if let Some(session) = &self.session {
            session.refused(error);
        }
    }
}

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

/// Waits until a tenure ends; for ever where a server is the primary for good.
pub(crate) async fn over(tenure: &mut Option<Tenure>) {
    match tenure {
        Some(tenure) => tenure.end().await,
        None => pending().await,
    }
}

/// Awaits the answer to a request, as long as its server is the primary.
pub(crate) async fn during<T>(tenure: Option<&Tenure>, answer: impl Future<Output = Result<T>>) -> Result<T> {
    let mut tenure = tenure.cloned();
    tokio::select! {
        biased;
        answer = answer => answer,
        () = over(&mut tenure) => Err(left()),
    }
}

/// Returns the error of a request whose connection was left.
pub(crate) fn left() -> Error {
    let why = "another server has become the primary, the request may or may not have been done";
    Error::new(ErrorKind::Unconfirmed, why)
}
