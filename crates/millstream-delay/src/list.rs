//! Lists waiting tasks: pages over all shards, by due time.

use std::fmt;
use std::sync::Arc;

use futures_util::future::try_join_all;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::schedule::{MAX_PAGE, ScheduleId, Scheduled};
use millstream_core::sorted::sort_by;
use millstream_core::{Envelope, Place, Timestamp, wire};

use crate::inner::Inner;

/// Task that waits.
#[non_exhaustive]
pub struct WaitingTask<T: 'static> {
    /// Id of the task.
    pub id: ScheduleId,
    /// Due time, by the server's clock.
    pub due: Timestamp,
    fields: wire::Fields,
    queue: Arc<Inner<T>>,
}

impl<T> WaitingTask<T> {
    pub(crate) fn new(found: Scheduled, queue: &Arc<Inner<T>>) -> Self {
        let Scheduled { id, due, fields, .. } = found;
        Self { id, due, fields, queue: queue.clone() }
    }

    /// Decodes key, headers and payload, the payload as bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Decode`] if the body is not a message; [`ErrorKind::NotFound`] if the body was deleted.
    pub fn envelope(&self) -> Result<Envelope> {
        if self.fields.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, format!("task {} no longer has a body", self.id)));
        }
        let envelope = wire::decode_body(&self.fields, &self.queue.limits);
        envelope
            .map_err(|why| Error::new(ErrorKind::Decode, format!("task {} cannot be read: {why}", self.id)))
    }

    /// Decodes the payload.
    ///
    /// # Errors
    /// Those of [`envelope`](Self::envelope), and [`ErrorKind::Decode`] of the codec.
    pub fn payload(&self) -> Result<T> {
        self.queue.decode(&self.envelope()?.payload)
    }
}

/// Leaves out the payload, which may be a secret.
impl<T> fmt::Debug for WaitingTask<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingTask").field("id", &self.id).field("due", &self.due).finish_non_exhaustive()
    }
}

/// Returns a page over all shards, by due time, then by id.
pub(crate) async fn page<T>(
    queue: &Arc<Inner<T>>,
    after: Option<&WaitingTask<T>>,
    limit: usize,
) -> Result<Vec<WaitingTask<T>>> {
    let limit = limit.min(MAX_PAGE);
    let after = after.map(|after| (after.due, after.id.clone()));
    let places: Vec<Place> = queue.spec.iter().map(Place::from).collect();
    let read = places.iter().map(|place| queue.backend.schedule().scheduled(place, after.clone(), limit));
    let mut found: Vec<_> = try_join_all(read).await?.into_iter().flatten().collect();
    sort_by(&mut found, |one, other| (one.due, &one.id).cmp(&(other.due, &other.id)));
    found.truncate(limit);
    Ok(found.into_iter().map(|task| WaitingTask::new(task, queue)).collect())
}
