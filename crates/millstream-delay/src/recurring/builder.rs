//! A recurring task or message: creating, changing and removing it.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use millstream_core::Envelope;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::schedule::{Placed, ScheduleId};

use super::Home;
use crate::inner::encode;
use crate::rule::{GRACE, Missed, Rule};

/// Recurring task of a [queue](crate::DelayQueue::recurring) or recurring message of a
/// [topic](crate::RecurringMessages), under one id. Configure and await it to store it, or call an operation on the
/// stored one.
///
/// After an error all operations can be repeated.
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
    #[cfg(feature = "cron")]
    Cron(String, String),
    Every(Duration),
}

impl<'a, T> Recur<'a, T> {
    pub(crate) fn new(home: Home<'a, T>, id: String) -> Self {
        let (missed, grace) = (Missed::default(), GRACE);
        Self { home, id, when: Vec::new(), missed, grace, payload: None, envelope: Envelope::default() }
    }

    /// Recurs by a cron pattern in a time zone: see [`Rule::cron`]. Needs the feature `cron`.
    #[cfg(feature = "cron")]
    pub fn cron(mut self, pattern: impl Into<String>, zone: impl Into<String>) -> Self {
        self.when.push(When::Cron(pattern.into(), zone.into()));
        self
    }

    /// Recurs at a fixed rate (at least every 100 ms), counted from the time it is first stored.
    pub fn every(mut self, period: Duration) -> Self {
        self.when.push(When::Every(period));
        self
    }

    /// Sets the policy for missed occurrences. Default: [`Missed::Once`].
    pub fn missed(self, missed: Missed) -> Self {
        Self { missed, ..self }
    }

    /// Sets how late an occurrence may be before it counts as missed. Default: 60 s.
    pub fn grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }

    /// Sets the payload of the task or message that is scheduled each time.
    pub fn payload(self, payload: &'a T) -> Self {
        Self { payload: Some(payload), ..self }
    }

    /// Sets the key of the scheduled tasks or messages. In a queue it is only passed to the handler; in a topic it
    /// chooses the partition. Stored again under another key, the entry moves to that key's partition: it keeps its
    /// next time if the rule is the same, and a pause is kept in any case.
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.envelope.key = Some(Bytes::copy_from_slice(key.as_ref()));
        self
    }

    /// Appends a header to the scheduled tasks or messages.
    pub fn header(mut self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Self {
        self.envelope.headers.append(name, Bytes::copy_from_slice(value.as_ref()));
        self
    }

    /// Removes it, so that it no longer recurs. Occurrences that are already scheduled stay. Returns false if it does
    /// not exist.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for an invalid id; [`ErrorKind::NotFound`] if the topic no longer exists; those of
    /// [`Recurring::remove`](millstream_core::Recurring::remove).
    pub async fn remove(self) -> Result<bool> {
        self.home.remove(&ScheduleId::new(&self.id)?).await
    }

    /// Pauses it: occurrences during the pause do not count as missed, and are not made up for. Returns false if it
    /// does not exist.
    ///
    /// # Errors
    /// Same as [`remove`](Self::remove).
    pub async fn pause(self) -> Result<bool> {
        self.home.pause(&ScheduleId::new(&self.id)?).await
    }

    /// Ends a pause: it continues with the next occurrence from now. Returns false if it does not exist.
    ///
    /// # Errors
    /// Same as [`remove`](Self::remove); [`ErrorKind::InvalidConfig`] for a rule that this version cannot read.
    pub async fn resume(self) -> Result<bool> {
        self.home.resume(&ScheduleId::new(&self.id)?).await
    }

    /// Schedules its task or message now, in addition to its rule, also while it is paused. Returns false if it does
    /// not exist.
    ///
    /// # Errors
    /// Same as [`remove`](Self::remove), and those of [`Schedule::schedule`](millstream_core::Schedule::schedule).
    pub async fn run_now(self) -> Result<bool> {
        self.home.run_now(&ScheduleId::new(&self.id)?).await
    }

    async fn put(self) -> Result<Placed> {
        let Self { home, envelope, .. } = self;
        let id = ScheduleId::new(&self.id)?;
        let missing =
            |what| Error::new(ErrorKind::InvalidConfig, format!("recurring rule {id} lacks {what}"));
        let payload = self.payload.ok_or_else(|| missing("a payload"))?;
        let key = envelope.key.clone();
        let rule = match &self.when[..] {
            [] => return Err(missing("a rule: `cron` or `every`")),
            #[cfg(feature = "cron")]
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

    /// Stores it. An existing one with the same rule and content is not changed.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.put())
    }
}

impl<T> fmt::Debug for Recur<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recur").field("id", &self.id).finish_non_exhaustive()
    }
}
