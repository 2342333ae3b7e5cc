//! Storage of recurring entries: over the shards of a queue, or the partitions of a topic.

use futures_util::future::join_all;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::partitioner::by_hash;
use millstream_core::recurring::{MAX_DUE, Recurrence, Recurring};
use millstream_core::schedule::{Due, OnConflict, Placed, ScheduleId, Scheduling};
use millstream_core::wire::Fields;
use millstream_core::{Backend, Codec, Limits, Place, QueueSpec, Timestamp, TopicPartition, TopicSpec};

use super::{RecurringEntry, keep};
use crate::rule::Rule;

/// Maximum rounds of [`Home::put`] while other callers store the same id under other keys at the same time.
const ROUNDS: usize = 8;

/// Storage of recurring entries, with the codec of their tasks or messages.
pub(crate) struct Home<'a, T: 'static> {
    pub(crate) backend: &'a Backend,
    pub(crate) codec: &'static dyn Codec<T>,
    pub(crate) limits: &'a Limits,
    pub(crate) spread: Spread<'a>,
}

/// Places over which entries are spread.
#[derive(Clone, Copy)]
pub(crate) enum Spread<'a> {
    /// Each entry is in the shard of its id.
    Shards(&'a QueueSpec),
    /// Each entry is in the partition of its key, or of its id if it has no key. A caller that knows only the id
    /// queries all partitions. The number of partitions is read each time, since it may grow.
    Partitions(&'a TopicSpec),
}

impl Spread<'_> {
    /// Returns the place where an entry belongs, and the other places where it may be.
    async fn places(
        self,
        backend: &Backend,
        id: &ScheduleId,
        key: Option<&[u8]>,
    ) -> Result<(Place, Vec<Place>)> {
        let topic = match self {
            Self::Shards(queue) => return Ok((queue.shard_of(id).into(), Vec::new())),
            Self::Partitions(topic) => backend.catalog().topic(&topic.name).await?,
        };
        let partition = by_hash(key.unwrap_or(id.as_str().as_bytes()), topic.partitions);
        let home = TopicPartition::new(topic.name.clone(), partition);
        let others = topic.iter().filter(|other| *other != home).map(Place::from).collect();
        Ok((home.into(), others))
    }

    async fn all(self, backend: &Backend) -> Result<Vec<Place>> {
        match self {
            Self::Shards(queue) => Ok(queue.iter().map(Place::from).collect()),
            Self::Partitions(topic) => {
                Ok(backend.catalog().topic(&topic.name).await?.iter().map(Place::from).collect())
            }
        }
    }
}

impl<T> Home<'_, T> {
    fn recurring(&self) -> Result<&dyn Recurring> {
        Ok(&**self.backend.recurring()?)
    }

    /// Returns the server's time at the place of an entry.
    pub(super) async fn now(&self, id: &ScheduleId, key: Option<&[u8]>) -> Result<Timestamp> {
        let (home, _) = self.spread.places(self.backend, id, key).await?;
        Ok(self.recurring()?.due(&home).await?.now)
    }

    /// Stores an entry at its place, and removes it from all others.
    pub(super) async fn put(
        &self,
        id: &ScheduleId,
        key: Option<&[u8]>,
        rule: &Rule,
        fields: Fields,
    ) -> Result<Placed> {
        if let Spread::Partitions(topic) = self.spread {
            topic.name.check_target()?;
        }
        let (home, others) = self.spread.places(self.backend, id, key).await?;
        let moved = self.found(&others, id).await?.into_iter().next().map(|(_, moved)| moved);
        for _ in 0..ROUNDS {
            let placed = keep(self.recurring()?, &home, id, rule, fields.clone(), moved.as_ref()).await?;
            // Store first, then remove the others: the entry may exist at two places for a moment, but never at none.
            let removed = any(&others, |place| self.remove_at(place, id)).await?;
            // A concurrent put under another key removes this entry. Each put that removed something checks that its
            // own entry still exists, so the last one to remove leaves exactly one.
            if !removed || self.recurring()?.get(&home, id).await?.is_some() {
                let moved = moved.is_some() && placed == Placed::New;
                return Ok(if moved { Placed::Replaced } else { placed });
            }
        }
        let message = format!("{id} is put under several keys at the same time");
        Err(Error::new(ErrorKind::Unconfirmed, message))
    }

    pub(super) async fn remove(&self, id: &ScheduleId) -> Result<bool> {
        any(&self.wherever(id).await?, |place| self.remove_at(place, id)).await
    }

    async fn remove_at(&self, place: &Place, id: &ScheduleId) -> Result<bool> {
        self.recurring()?.remove(place, id).await
    }

    pub(super) async fn pause(&self, id: &ScheduleId) -> Result<bool> {
        let places = self.wherever(id).await?;
        any(&places, |place| async move { self.recurring()?.pause(place, id, None).await }).await
    }

    pub(super) async fn resume(&self, id: &ScheduleId) -> Result<bool> {
        let found = self.found(&self.wherever(id).await?, id).await?;
        any(&found, |(place, there)| async move {
            if !there.paused {
                // So that it has a due time even if that was lost.
                self.recurring()?.put(place, there, OnConflict::Keep).await?;
                return Ok(true);
            }
            let now = self.recurring()?.due(place).await?.now;
            match there.rule.parse::<Rule>()?.next_after(now) {
                Some(next) => self.recurring()?.pause(place, id, Some(next)).await,
                // The rule has no further occurrence: paused or not, it never fires again.
                None => Ok(true),
            }
        })
        .await
    }

    pub(super) async fn run_now(&self, id: &ScheduleId) -> Result<bool> {
        let found = self.found(&self.wherever(id).await?, id).await?;
        // After an interrupted move the entry exists at two places: one run is enough.
        let Some((place, there)) = found.into_iter().next() else { return Ok(false) };
        let now = self.recurring()?.due(&place).await?.now;
        let id = ScheduleId::new(format!("{id}@{}", now.as_millis()))?;
        let (due, on_conflict) = (Due::NOW, OnConflict::Keep);
        let scheduling = Scheduling { place, id, due, fields: there.fields, on_conflict };
        let results = self.backend.schedule().schedule(&[scheduling]).await;
        results.into_iter().next().transpose().map(|placed| placed.is_some())
    }

    /// Lists all entries, place by place, by id within each.
    pub(crate) async fn list(&self) -> Result<Vec<RecurringEntry>> {
        let mut all = Vec::new();
        for (_, list) in self.list_by_place().await? {
            all.extend(list?);
        }
        Ok(all)
    }

    /// Lists the entries of each place by id, or returns why the place cannot be read.
    pub(crate) async fn list_by_place(&self) -> Result<Vec<(Place, Result<Vec<RecurringEntry>>)>> {
        let places = self.spread.all(self.backend).await?;
        let lists = join_all(places.iter().map(|place| self.list_at(place))).await;
        Ok(places.into_iter().zip(lists).collect())
    }

    async fn list_at(&self, place: &Place) -> Result<Vec<RecurringEntry>> {
        let (mut list, mut after) = (Vec::new(), None);
        loop {
            let page = self.recurring()?.recurrences(place, after, MAX_DUE).await?;
            let Some(last) = page.last() else { return Ok(list) };
            after = Some(last.id.clone());
            list.extend(page.into_iter().map(|found| RecurringEntry::new(place.clone(), found)));
        }
    }

    /// Returns all places where an entry with this id may be.
    async fn wherever(&self, id: &ScheduleId) -> Result<Vec<Place>> {
        let (home, mut places) = self.spread.places(self.backend, id, None).await?;
        places.insert(0, home);
        Ok(places)
    }

    async fn found(&self, places: &[Place], id: &ScheduleId) -> Result<Vec<(Place, Recurrence)>> {
        let found = each(places, |place| async move {
            let there = self.recurring()?.get(place, id).await?;
            Ok(there.map(|there| (place.clone(), there)))
        });
        Ok(found.await?.into_iter().flatten().collect())
    }
}

/// Queries all places concurrently. A failed query does not prevent the others.
async fn each<'p, P, R, F>(places: &'p [P], ask: impl Fn(&'p P) -> F) -> Result<Vec<R>>
where
    F: Future<Output = Result<R>>,
{
    join_all(places.iter().map(ask)).await.into_iter().collect()
}

async fn any<'p, P, F>(places: &'p [P], ask: impl Fn(&'p P) -> F) -> Result<bool>
where
    F: Future<Output = Result<bool>>,
{
    Ok(each(places, ask).await?.contains(&true))
}
