//! A backend whose schedule counts waits, and whose recurring role fails, does nothing, or is met by a pause.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::recurring::{DueRecurrences, Recurrence, Recurring};
use millstream_core::schedule::{
    Due, OnConflict, Placed, Promoted, Schedule, ScheduleId, Scheduled, Scheduling, Seen, Waiting,
};
use millstream_core::{Backend, Error, ErrorKind, Lease, Place, Result, Timestamp, TopicPartition};

#[derive(Default)]
pub struct Places {
    /// Nothing can be fired: the server is out of memory.
    pub full: AtomicBool,
    /// Firing does nothing, whatever is due.
    pub idle: AtomicBool,
    /// Something is paused by somebody just before it is replaced.
    pub pause: AtomicBool,
    /// Calls to fire.
    pub fires: AtomicUsize,
    /// Promotions panic, so many.
    pub panics: AtomicUsize,
    /// Waits with a timeout, and those of them that were dropped.
    pub waits: AtomicUsize,
    pub dropped: AtomicUsize,
}

impl Places {
    pub fn over(self: &Arc<Self>, backend: &Backend) -> Backend {
        let recurring = Fires {
            places: self.clone(),
            recurring: backend.recurring().expect("recurring schedules").clone(),
        };
        let schedule = Waits { places: self.clone(), schedule: backend.schedule().clone() };
        backend.clone().with_recurring(Arc::new(recurring)).with_schedule(Arc::new(schedule))
    }
}

struct Fires {
    places: Arc<Places>,
    recurring: Arc<dyn Recurring>,
}

#[async_trait]
impl Recurring for Fires {
    async fn put(&self, place: &Place, recurrence: &Recurrence, on_conflict: OnConflict) -> Result<Placed> {
        if on_conflict == OnConflict::Replace && self.places.pause.load(Ordering::Relaxed) {
            self.recurring.pause(place, &recurrence.id, None).await?;
        }
        self.recurring.put(place, recurrence, on_conflict).await
    }

    async fn remove(&self, place: &Place, id: &ScheduleId) -> Result<bool> {
        self.recurring.remove(place, id).await
    }

    async fn pause(&self, place: &Place, id: &ScheduleId, next: Option<Timestamp>) -> Result<bool> {
        self.recurring.pause(place, id, next).await
    }

    async fn get(&self, place: &Place, id: &ScheduleId) -> Result<Option<Recurrence>> {
        self.recurring.get(place, id).await
    }

    async fn recurrences(
        &self,
        place: &Place,
        after: Option<ScheduleId>,
        limit: usize,
    ) -> Result<Vec<Recurrence>> {
        self.recurring.recurrences(place, after, limit).await
    }

    async fn due(&self, place: &Place) -> Result<DueRecurrences> {
        self.recurring.due(place).await
    }

    async fn fire(
        &self,
        place: &Place,
        id: &ScheduleId,
        fires: &[Timestamp],
        expected: Timestamp,
        next: Option<Timestamp>,
    ) -> Result<Option<usize>> {
        self.places.fires.fetch_add(1, Ordering::Relaxed);
        if self.places.full.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Backpressure, "out of memory"));
        }
        if self.places.idle.load(Ordering::Relaxed) {
            return Ok(None);
        }
        self.recurring.fire(place, id, fires, expected, next).await
    }
}

struct Waits {
    places: Arc<Places>,
    schedule: Arc<dyn Schedule>,
}

struct Wait<'a>(&'a Places);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl Schedule for Waits {
    async fn schedule(&self, batch: &[Scheduling]) -> Vec<Result<Placed>> {
        self.schedule.schedule(batch).await
    }

    async fn cancel(&self, place: &Place, ids: &[ScheduleId]) -> Result<Vec<bool>> {
        self.schedule.cancel(place, ids).await
    }

    async fn reschedule(&self, place: &Place, ids: &[ScheduleId], due: Due) -> Result<Vec<bool>> {
        self.schedule.reschedule(place, ids, due).await
    }

    async fn get(&self, place: &Place, id: &ScheduleId) -> Result<Option<Scheduled>> {
        self.schedule.get(place, id).await
    }

    async fn scheduled(
        &self,
        place: &Place,
        after: Option<(Timestamp, ScheduleId)>,
        limit: usize,
    ) -> Result<Vec<Scheduled>> {
        self.schedule.scheduled(place, after, limit).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.schedule.now().await
    }

    async fn now_at(&self, place: &Place) -> Result<Timestamp> {
        self.schedule.now_at(place).await
    }

    async fn waiting(&self, place: &Place) -> Result<Waiting> {
        self.schedule.waiting(place).await
    }

    async fn promote(&self, lease: &Lease, limit: usize) -> Result<Promoted> {
        self.schedule.promote(lease, limit).await
    }

    async fn promote_delayed(&self, topic_partition: &TopicPartition, limit: usize) -> Result<Promoted> {
        let panics = &self.places.panics;
        let panics = panics.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        assert!(panics.is_err(), "a promotion panics");
        self.schedule.promote_delayed(topic_partition, limit).await
    }

    async fn wait(&self, topic_partition: &TopicPartition, seen: &Seen, timeout: Duration) -> Result<Seen> {
        if timeout.is_zero() {
            return self.schedule.wait(topic_partition, seen, timeout).await;
        }
        self.places.waits.fetch_add(1, Ordering::Relaxed);
        let dropped = Wait(&self.places);
        let seen = self.schedule.wait(topic_partition, seen, timeout).await;
        std::mem::forget(dropped);
        seen
    }
}
