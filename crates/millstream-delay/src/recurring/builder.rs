//! One thing that recurs: set up, or told what to do.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use millstream_core::Envelope;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::schedule::{Placed, ScheduleId};

use super::Home;
use crate::queue::encode;
use crate::rule::{GRACE, Missed, Rule};

/// Something that recurs in a [queue](crate::DelayQueue::recurring) or [topic](crate::RecurringMessages), under one id:
/// set it up and await it, or tell what to do with what is there.
///
/// After an error everything here may be done again.
#[must_use = "nothing recurs until this is awaited"]
pub struct Recur<'a, T: 'static> {
    home: Home<'a, T>,
    id: String,
    when: Vec<When>,
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
    pub(crate) fn new(home: Home<'a, T>, id: String) -> Self {
        let (missed, grace) = (Missed::default(), GRACE);
        Self { home, id, when: Vec::new(), missed, grace, payload: None, envelope: Envelope::default() }
    }

    /// By a cron pattern in a time zone: see [`Rule::cron`].
    pub fn cron(mut self, pattern: impl Into<String>, zone: impl Into<String>) -> Self {
        self.when.push(When::Cron(pattern.into(), zone.into()));
        self
    }

    /// At a fixed rate (at least every 100 ms), counted from when this is first put there.
    pub fn every(mut self, period: Duration) -> Self {
        self.when.push(When::Every(period));
        self
    }

    /// What of times at which nobody was there to fire it. Default: [`Missed::Once`].
    pub fn missed(self, missed: Missed) -> Self {
        Self { missed, ..self }
    }

    /// How late a time may be found before it counts as missed. Default: 60 s.
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// The task or message that is scheduled each time.
    pub fn payload(self, payload: &'a T) -> Self {
        Self { payload: Some(payload), ..self }
    }

    /// The key of what is scheduled: in a queue for the handler alone; in a topic it chooses the partition. Put under
    /// another key than before it moves there: with the same rule it keeps its next time, and a pause stays in any case.
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.envelope.key = Some(Bytes::copy_from_slice(key.as_ref()));
        self
    }

    /// One more header of what is scheduled.
    pub fn header(mut self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Self {
        self.envelope.headers.append(name, Bytes::copy_from_slice(value.as_ref()));
        self
    }

    /// Lets it no longer recur. What it has scheduled stays. False if it is not there.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for a bad id; [`ErrorKind::NotFound`] if the topic is not there any more; those of
    /// [`Recurring::remove`](millstream_core::Recurring::remove).
    pub async fn remove(self) -> Result<bool> {
        self.home.remove(&ScheduleId::new(&self.id)?).await
    }

    /// Pauses it: times that pass meanwhile are not missed, and not made up for. False if it is not there.
    ///
    /// # Errors
    /// As [`remove`](Self::remove).
    pub async fn pause(self) -> Result<bool> {
        self.home.pause(&ScheduleId::new(&self.id)?).await
    }

    /// Ends a pause: it goes on with the next time from now. False if it is not there.
    ///
    /// # Errors
    /// As [`remove`](Self::remove); [`ErrorKind::InvalidConfig`] for a rule that this version cannot read.
    pub async fn resume(self) -> Result<bool> {
        self.home.resume(&ScheduleId::new(&self.id)?).await
    }

    /// Schedules its task or message now, beside its times, also while it is paused. False if it is not there.
    ///
    /// # Errors
    /// As [`remove`](Self::remove), and those of [`Schedule::schedule`](millstream_core::Schedule::schedule).
    pub async fn run_now(self) -> Result<bool> {
        self.home.run_now(&ScheduleId::new(&self.id)?).await
    }

    async fn put(self) -> Result<Placed> {
        let Self { home, envelope, .. } = self;
        let id = ScheduleId::new(&self.id)?;
        let missing = |what| Error::new(ErrorKind::InvalidConfig, format!("{id} recurs without {what}"));
        let payload = self.payload.ok_or_else(|| missing("a payload"))?;
        let key = envelope.key.clone();
        let rule = match &self.when[..] {
            [] => return Err(missing("a rule: `cron` or `every`")),
            [When::Cron(pattern, zone)] => Rule::cron(pattern, zone)?,
            [When::Every(period)] => Rule::every(*period, home.now(&id, key.as_deref()).await?)?,
            [..] => {
                let why = format!("{id} has several rules: one `cron` or one `every` is allowed");
                return Err(Error::new(ErrorKind::InvalidConfig, why));
            }
        };
        let rule = rule.missed(self.missed)?.grace(self.grace)?;
        let fields = encode(home.codec, home.limits, payload, envelope)?;
        home.put(&id, key.as_deref(), &rule, fields).await
    }
}

impl<'a, T: Sync> IntoFuture for Recur<'a, T> {
    type Output = Result<Placed>;
    type IntoFuture = BoxFuture<'a, Result<Placed>>;

    /// Keeps it. One that is there with the same rule and content is left alone.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.put())
    }
}

impl<T> fmt::Debug for Recur<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recur").field("id", &self.id).finish_non_exhaustive()
    }
}
