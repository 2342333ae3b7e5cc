//! What recurs in a delay queue: putting it there, looking at it, pausing it.

use std::fmt;
use std::future::IntoFuture;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::recurring::{MAX_DUE, Recurrence, Recurring};
use millstream_core::schedule::{Due, OnConflict, Placed, ScheduleId, Scheduling};
use millstream_core::wire::Fields;
use millstream_core::{Envelope, Place};

use crate::queue::{DelayQueue, time_of};
use crate::rule::{Missed, Rule};

/// Keeps something that recurs at a place, as `rule` says. If it is there already with the same rule and message,
/// nothing changes, not even an occurrence that is due; else it is replaced, and a pause stays. So every instance of a
/// program may do this when it starts.
///
/// # Errors
/// Those of [`Recurring::put`].
pub async fn recur(
    recurring: &dyn Recurring,
    place: &Place,
    id: &ScheduleId,
    rule: &Rule,
    fields: Fields,
) -> Result<Placed> {
    let now = recurring.due(place).await?.now;
    let next = rule.next_after(now);
    let mut recurrence = Recurrence { id: id.clone(), rule: rule.to_string(), fields, next, paused: false };
    let placed = recurring.put(place, &recurrence, OnConflict::Keep).await?;
    if placed != Placed::Kept {
        return Ok(placed);
    }
    if let Some(there) = find(recurring, place, id).await? {
        let same = there.rule.parse::<Rule>().is_ok_and(|there| there.is_but_for_anchor(rule));
        if same && there.fields == recurrence.fields {
            return Ok(Placed::Kept);
        }
        recurrence.paused = there.paused;
    }
    recurring.put(place, &recurrence, OnConflict::Replace).await
}

async fn find(recurring: &dyn Recurring, place: &Place, id: &ScheduleId) -> Result<Option<Recurrence>> {
    let mut after = None;
    loop {
        let page = recurring.recurrences(place, after, MAX_DUE).await?;
        let Some(last) = page.last().map(|last| last.id.clone()) else { return Ok(None) };
        if let Some(found) = page.into_iter().find(|found| found.id == *id) {
            return Ok(Some(found));
        }
        after = Some(last);
    }
}

/// Something that recurs in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecurringTask {
    /// Its id. The tasks that it schedules are called `<id>@<milliseconds since 1970>`.
    pub id: ScheduleId,
    /// When it recurs: the text of a [`Rule`], or of a later version's.
    pub rule: String,
    /// When it is due next; `None` if never again, or paused.
    pub next: Option<SystemTime>,
    /// Whether it is paused.
    pub paused: bool,
}

impl<T: 'static> DelayQueue<T> {
    /// All that recurs, shard by shard, by id.
    ///
    /// # Errors
    /// Those of [`Recurring::recurrences`].
    pub async fn recurring_list(&self) -> Result<Vec<RecurringTask>> {
        let mut all = Vec::new();
        for shard in self.inner.spec.iter() {
            let place = Place::from(shard);
            let mut after = None;
            loop {
                let page = self.inner.backend.recurring.recurrences(&place, after, MAX_DUE).await?;
                let Some(last) = page.last() else { break };
                after = Some(last.id.clone());
                all.extend(page.into_iter().map(|found| RecurringTask {
                    id: found.id,
                    rule: found.rule,
                    next: found.next.filter(|_| !found.paused).map(time_of),
                    paused: found.paused,
                }));
            }
        }
        Ok(all)
    }
}

/// Something that recurs in a queue, under one id: set it up and await it, or tell what to do with what is there.
#[must_use = "nothing recurs until this is awaited"]
pub struct Recur<'a, T: 'static> {
    queue: &'a DelayQueue<T>,
    id: String,
    when: Option<When>,
    missed: Missed,
    grace: Duration,
    payload: Option<&'a T>,
    envelope: Envelope,
}

enum When {
    Cron(String, String),
    Every(Duration),
}

impl<'a, T> Recur<'a, T> {
    pub(crate) fn new(queue: &'a DelayQueue<T>, id: String) -> Self {
        let (missed, grace) = (Missed::default(), crate::rule::GRACE);
        Self { queue, id, when: None, missed, grace, payload: None, envelope: Envelope::default() }
    }

    /// By a cron pattern in a time zone: see [`Rule::cron`].
    pub fn cron(self, pattern: impl Into<String>, zone: impl Into<String>) -> Self {
        Self { when: Some(When::Cron(pattern.into(), zone.into())), ..self }
    }

    /// At a fixed rate (at least every 100 ms), counted from when this is first put there.
    pub fn every(self, period: Duration) -> Self {
        Self { when: Some(When::Every(period)), ..self }
    }

    /// What of times at which no worker was there. Default: [`Missed::Once`].
    pub fn missed(self, missed: Missed) -> Self {
        Self { missed, ..self }
    }

    /// How late a time may be found before it counts as missed. Default: 60 s.
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// The task that is scheduled each time.
    pub fn payload(self, payload: &'a T) -> Self {
        Self { payload: Some(payload), ..self }
    }

    /// The key of these tasks, for the handler.
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.envelope.key = Some(Bytes::copy_from_slice(key.as_ref()));
        self
    }

    /// One more header of these tasks.
    pub fn header(mut self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Self {
        self.envelope.headers.append(name, Bytes::copy_from_slice(value.as_ref()));
        self
    }

    /// Lets it no longer recur. What it has scheduled stays. False if it is not there.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for a bad id; those of [`Recurring::remove`].
    pub async fn remove(self) -> Result<bool> {
        let (place, id) = self.place()?;
        self.queue.inner.backend.recurring.remove(&place, &id).await
    }

    /// Pauses it: times that pass meanwhile are not missed, and not made up for. False if it is not there.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    pub async fn pause(self) -> Result<bool> {
        let (place, id) = self.place()?;
        self.queue.inner.backend.recurring.pause(&place, &id, None).await
    }

    /// Ends a pause: it goes on with the next time from now. False if it is not there.
    ///
    /// # Errors
    /// As [`remove`](Self::remove); [`ErrorKind::InvalidConfig`] for a rule that this version cannot read.
    pub async fn resume(self) -> Result<bool> {
        let (place, id) = self.place()?;
        let recurring = &self.queue.inner.backend.recurring;
        let Some(there) = find(&**recurring, &place, &id).await? else { return Ok(false) };
        if !there.paused {
            return Ok(true);
        }
        let now = recurring.due(&place).await?.now;
        match there.rule.parse::<Rule>()?.next_after(now) {
            Some(next) => recurring.pause(&place, &id, Some(next)).await,
            // It is over: paused or not, it never fires again.
            None => Ok(true),
        }
    }

    /// Schedules its task now, beside its times, also while it is paused. False if it is not there.
    ///
    /// # Errors
    /// As [`remove`](Self::remove), and those of [`DelayQueue::schedule`].
    pub async fn run_now(self) -> Result<bool> {
        let (place, id) = self.place()?;
        let backend = &self.queue.inner.backend;
        let Some(there) = find(&*backend.recurring, &place, &id).await? else { return Ok(false) };
        let now = backend.recurring.due(&place).await?.now;
        let task = ScheduleId::new(format!("{id}@{now}"))?;
        let (due, on_conflict) = (Due::NOW, OnConflict::Keep);
        let scheduling = Scheduling { place, id: task, due, fields: there.fields, on_conflict };
        let results = backend.schedule.schedule(&[scheduling]).await;
        results.into_iter().next().transpose().map(|placed| placed.is_some())
    }

    fn place(&self) -> Result<(Place, ScheduleId)> {
        let id = ScheduleId::new(&self.id)?;
        Ok((self.queue.place_of(&id), id))
    }

    async fn put(self) -> Result<Placed> {
        let (place, id) = self.place()?;
        let missing = |what| Error::new(ErrorKind::InvalidConfig, format!("{id} recurs without {what}"));
        let payload = self.payload.ok_or_else(|| missing("a payload"))?;
        let recurring = self.queue.inner.backend.recurring.clone();
        let rule = match self.when.as_ref().ok_or_else(|| missing("a rule: `cron` or `every`"))? {
            When::Cron(pattern, zone) => Rule::cron(pattern, zone)?,
            When::Every(period) => Rule::every(*period, recurring.due(&place).await?.now)?,
        };
        let rule = rule.missed(self.missed)?.grace(self.grace)?;
        let fields = self.queue.inner.encode(payload, self.envelope)?;
        recur(&*recurring, &place, &id, &rule, fields).await
    }
}

impl<'a, T: Sync> IntoFuture for Recur<'a, T> {
    type Output = Result<Placed>;
    type IntoFuture = BoxFuture<'a, Result<Placed>>;

    /// Keeps it. One that is there with the same rule and task is left alone.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.put())
    }
}

impl<T> fmt::Debug for Recur<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recur").field("id", &self.id).finish_non_exhaustive()
    }
}
