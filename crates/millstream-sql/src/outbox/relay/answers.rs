//! Answers of the database to a relay.

use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use tokio::time::{Instant, timeout};

/// Time limit of a request to the database. The client has none of its own.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(30);

/// Answers of the database: whether they have come without a break.
///
/// After an outage all leases have expired, and who comes back first is chance. A relay may have stored rows that it could not
/// delete, and only it knows which. So another one takes its shards only if it has had the time of a lease to come back.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The first answer after the last failure.
    since: Option<Instant>,
}

impl Answers {
    /// Limits the time of a request to the database, and notes whether it was answered.
    pub(super) async fn to<T>(&mut self, request: impl Future<Output = Result<T>>) -> Result<T> {
        let answer = timeout(DATABASE_TIMEOUT, request).await.unwrap_or_else(|_| {
            let why = format!("the database did not answer within {DATABASE_TIMEOUT:?}");
            Err(Error::new(ErrorKind::Unavailable, why))
        });
        match &answer {
            Ok(_) => _ = self.since.get_or_insert_with(Instant::now),
            Err(_) => self.since = None,
        }
        answer
    }

    /// Begins anew, after an answer that was late.
    pub(super) fn restart(&mut self) {
        self.since = Some(Instant::now());
    }

    /// Returns whether all answers of this time have come.
    pub(super) fn last_for(&self, time: Duration) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= time)
    }
}
