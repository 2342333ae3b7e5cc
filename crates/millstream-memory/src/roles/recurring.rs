//! The recurring role in memory.

use async_trait::async_trait;
use millstream_core::recurring::{DueRecurrences, MAX_DUE, MAX_FIRES, Recurrence, Recurring};
use millstream_core::schedule::{Due, OnConflict, Place, Placed, ScheduleId};
use millstream_core::{Error, ErrorKind, Result, Timestamp};

use crate::MemoryBackend;
use crate::backend::breathe;

#[async_trait]
impl Recurring for MemoryBackend {
    async fn put(&self, place: &Place, recurrence: &Recurrence, on_conflict: OnConflict) -> Result<Placed> {
        breathe().await;
        recurrence.check()?;
        let mut state = self.lock();
        let now = self.now();
        let next = recurrence.next.map(|next| now.due(Due::At(next)));
        let recurrence = Recurrence { next, ..recurrence.clone() };
        state.change(place, |timetable| timetable.put(recurrence, on_conflict))
    }

    async fn remove(&self, place: &Place, id: &ScheduleId) -> Result<bool> {
        Ok(self.lock().change(place, |timetable| timetable.remove(id)))
    }

    async fn pause(&self, place: &Place, id: &ScheduleId, next: Option<Timestamp>) -> Result<bool> {
        let mut state = self.lock();
        let now = self.now();
        let next = next.map(|next| now.due(Due::At(next)));
        Ok(state.change(place, |timetable| timetable.pause(id, next)))
    }

    async fn get(&self, place: &Place, id: &ScheduleId) -> Result<Option<Recurrence>> {
        let state = self.lock();
        Ok(state.peek_timetable(place).and_then(|timetable| timetable.recurrence(id)))
    }

    async fn recurrences(
        &self,
        place: &Place,
        after: Option<ScheduleId>,
        limit: usize,
    ) -> Result<Vec<Recurrence>> {
        let state = self.lock();
        let timetable = state.peek_timetable(place);
        Ok(timetable
            .map(|timetable| timetable.recurrences(after.as_ref(), limit.min(MAX_DUE)))
            .unwrap_or_default())
    }

    async fn due(&self, place: &Place) -> Result<DueRecurrences> {
        breathe().await;
        let state = self.lock();
        let now = self.now().timestamp();
        let timetable = state.peek_timetable(place);
        let recurrences = timetable.map(|timetable| timetable.due(now, MAX_DUE)).unwrap_or_default();
        Ok(DueRecurrences::new(now, recurrences))
    }

    async fn fire(
        &self,
        place: &Place,
        id: &ScheduleId,
        fires: &[Timestamp],
        expected: Timestamp,
        next: Option<Timestamp>,
    ) -> Result<Option<usize>> {
        breathe().await;
        if fires.len() > MAX_FIRES {
            let message = format!("{} occurrences at once, at most {MAX_FIRES} are allowed", fires.len());
            return Err(Error::new(ErrorKind::InvalidConfig, message));
        }
        let mut state = self.lock();
        let now = self.now();
        let mut times = Vec::with_capacity(fires.len());
        for at in fires {
            times.push((ScheduleId::new(format!("{id}@{}", at.as_millis()))?, now.due(Due::At(*at))));
        }
        let next = next.map(|next| now.due(Due::At(next)));
        Ok(state.change(place, |timetable| timetable.fire(id, &times, expected, next)).then_some(fires.len()))
    }
}
