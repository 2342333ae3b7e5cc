//! Mistakes of the recurring role.

use std::collections::BTreeMap;

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::Timestamp;
use millstream_core::recurring::{DueRecurrences, MAX_DUE, Recurrence, Recurring};
use millstream_core::schedule::{OnConflict, Place, Placed, ScheduleId, Shard};
use millstream_core::{Capability, Result};

use super::{Broken, Mutant};

#[async_trait]
impl Recurring for Broken {
    async fn put(&self, place: &Place, recurrence: &Recurrence, on_conflict: OnConflict) -> Result<Placed> {
        let (mut recurrence, mut how) = (recurrence.clone(), on_conflict);
        match (self.sabotage, on_conflict) {
            (Mutant::AppendMangles, _) => {
                recurrence.fields = BTreeMap::from_iter(recurrence.fields).into_iter().collect();
            }
            (Mutant::KeepReplaces, OnConflict::Keep) => how = OnConflict::Replace,
            (Mutant::ReplaceKeeps, OnConflict::Replace) | (Mutant::RejectKeeps, OnConflict::Reject) => {
                how = OnConflict::Keep;
            }
            _ => {}
        }
        let place = &self.place(place);
        let before = self.inner.recurring()?.get(place, &recurrence.id).await?;
        let placed = self.inner.recurring()?.put(place, &recurrence, how).await?;
        if self.is(Mutant::ReplaceUndoesPause) && placed == Placed::Replaced {
            let next = recurrence.next.filter(|_| before.is_some_and(|before| before.paused));
            if next.is_some() {
                self.inner.recurring()?.pause(place, &recurrence.id, next).await?;
            }
        }
        Ok(match (self.sabotage, placed) {
            (Mutant::KeepReplaces, Placed::Replaced) => Placed::Kept,
            (Mutant::ReplaceKeeps, Placed::Kept) if on_conflict == OnConflict::Replace => Placed::Replaced,
            _ => placed,
        })
    }

    async fn remove(&self, place: &Place, id: &ScheduleId) -> Result<bool> {
        let place = &self.place(place);
        if self.is(Mutant::RemoveForgotten) {
            return Ok(self.recurrence(place, id).await?.is_some());
        }
        self.inner.recurring()?.remove(place, id).await
    }

    async fn pause(&self, place: &Place, id: &ScheduleId, next: Option<Timestamp>) -> Result<bool> {
        let place = &self.place(place);
        match (self.sabotage, next) {
            (Mutant::PauseForgotten, None) | (Mutant::PausedForGood, Some(_)) => {
                Ok(self.recurrence(place, id).await?.is_some())
            }
            _ => self.inner.recurring()?.pause(place, id, next).await,
        }
    }

    async fn get(&self, place: &Place, id: &ScheduleId) -> Result<Option<Recurrence>> {
        let found = self.inner.recurring()?.get(&self.place(place), id).await?;
        Ok(found.filter(|it| !it.paused || !self.is(Mutant::PausedNotFound)))
    }

    async fn recurrences(
        &self,
        place: &Place,
        after: Option<ScheduleId>,
        limit: usize,
    ) -> Result<Vec<Recurrence>> {
        let after = after.filter(|_| !self.is(Mutant::ListUnpaged));
        let mut page = self.inner.recurring()?.recurrences(&self.place(place), after, limit).await?;
        if self.is(Mutant::ListReversed) {
            page.reverse();
        }
        Ok(page)
    }

    async fn due(&self, place: &Place) -> Result<DueRecurrences> {
        let place = &self.place(place);
        let mut due = self.inner.recurring()?.due(place).await?;
        match self.sabotage {
            Mutant::DueAlways => {
                due.recurrences = self.all(place).await?;
                due.recurrences.retain(|it| !it.paused && it.next.is_some());
                due.recurrences.sort_by_key(|it| it.next);
            }
            Mutant::DueReversed => due.recurrences.reverse(),
            Mutant::DueByAnotherClock => due.now = due.now.saturating_add(Duration::from_secs(30)),
            _ => {}
        }
        Ok(due)
    }

    async fn fire(
        &self,
        place: &Place,
        id: &ScheduleId,
        fires: &[Timestamp],
        expected: Timestamp,
        next: Option<Timestamp>,
    ) -> Result<Option<usize>> {
        let place = &self.place(place);
        let inner = self.inner.recurring()?;
        let (mut fires, mut expected) = (fires, expected);
        match self.sabotage {
            Mutant::FireUnchecked => {
                expected = self.recurrence(place, id).await?.and_then(|it| it.next).unwrap_or(expected);
            }
            Mutant::FireForgotten => fires = &[],
            Mutant::FireReplaces => {
                let ids = fires.iter().map(|at| ScheduleId::new(format!("{id}@{}", at.as_millis())));
                self.inner.schedule().cancel(place, &ids.collect::<Result<Vec<_>>>()?).await?;
            }
            Mutant::FireIgnoresPause if self.recurrence(place, id).await?.is_some_and(|it| it.paused) => {
                inner.pause(place, id, Some(expected)).await?;
            }
            Mutant::FireStartsOver if fires.len() > 1 => {
                if inner.fire(place, id, &fires[..1], expected, Some(expected)).await?.is_none() {
                    return Ok(None);
                }
                // What was scheduled may be promoted now.
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
            }
            _ => {}
        }
        let fired = inner.fire(place, id, fires, expected, next).await?;
        if self.is(Mutant::FireForgetsTheOver) && fired.is_some() && next.is_none() {
            inner.remove(place, id).await?;
        }
        Ok(fired)
    }
}

impl Broken {
    async fn all(&self, place: &Place) -> Result<Vec<Recurrence>> {
        let mut all: Vec<Recurrence> = Vec::new();
        loop {
            let after = all.last().map(|it| it.id.clone());
            let page = self.inner.recurring()?.recurrences(place, after, MAX_DUE).await?;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }

    async fn recurrence(&self, place: &Place, id: &ScheduleId) -> Result<Option<Recurrence>> {
        Ok(self.all(place).await?.into_iter().find(|it| it.id == *id))
    }
}

impl Broken {
    /// Pauses or resumes a shard, unless the mistake forgets that.
    pub(super) async fn pauses_shard(&self, shard: &Shard, paused: bool) -> Result<bool> {
        self.supports(Capability::PauseQueue)?;
        let forgotten = if paused { Mutant::QueuePauseForgotten } else { Mutant::QueuePausedForGood };
        if self.is(forgotten) { Ok(true) } else { self.inner.tasks()?.set_paused(shard, paused).await }
    }
}
