//! Exports, which change nothing. They are recorded apart from changes, so that they take none of their room, and those of a user
//! from one group within some minutes are one entry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream::{Error, ErrorKind, Result, TopicName};
use tokio::sync::Notify;
use uuid::Uuid;

use super::entry::{EXPORT, Entry, Event};
use super::{Audit, Recording};

/// Time for which further exports are added up, after the first one.
const TOGETHER: Duration = Duration::from_secs(600);
/// Maximum number of users and groups whose exports are added up; those of others share one sum.
const KEPT: usize = 10_000;

/// Result of one that failed.
const FAILED: &str = "failed";

/// A user, a topic and a group.
type Who = [String; 3];

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Exports since the first one of a user from a group.
#[derive(Debug, Default)]
struct Figures {
    exports: u64,
    letters: u64,
    running: u64,
    cancelled: u64,
    failed: u64,
    /// Error of the first that failed.
    error: Option<String>,
}

#[derive(Debug, Default)]
struct Sum {
    figures: Mutex<Figures>,
    /// Notified when one ends.
    ended: Notify,
}

/// The exports of this process that are added up.
#[derive(Debug, Default)]
pub(crate) struct Exports(Mutex<HashMap<Who, Arc<Sum>>>);

/// Returns the topic in which exports are recorded.
///
/// # Errors
/// A name that is too long.
pub(crate) fn topic(audit: &TopicName) -> Result<TopicName> {
    TopicName::new(format!("{audit}-exports"))
}

/// An export that runs. If it is dropped before its end, it has been cancelled.
#[derive(Debug)]
pub(crate) struct Exporting {
    how: How,
    letters: u64,
}

#[derive(Debug)]
enum How {
    /// The first one of the user has a record of its own.
    First(Option<Box<Recording>>),
    /// The others are added up. How this one ended, and its error, if it has.
    Further(Arc<Sum>, Option<(String, Option<String>)>),
}

impl Exporting {
    /// Records that an export begins.
    ///
    /// # Errors
    /// Those of [`Recording::begin`]: nothing may be sent then.
    pub(crate) async fn begin(audit: &Arc<Audit>, entry: Entry) -> Result<Self> {
        let subject = &entry.subject;
        let name = |name: &Option<String>| name.clone().unwrap_or_default();
        let mut who = [entry.user.clone(), name(&subject.topic), name(&subject.group)];
        let (sum, is_first) = {
            let mut sums = lock(&audit.exports.0);
            if sums.len() >= KEPT && !sums.contains_key(&who) {
                who = Who::default();
            }
            let is_first = !sums.contains_key(&who);
            let sum = sums.entry(who.clone()).or_default().clone();
            if !is_first {
                let mut figures = lock(&sum.figures);
                (figures.exports, figures.running) = (figures.exports + 1, figures.running + 1);
            }
            (sum, is_first)
        };
        if !is_first {
            entry.trace();
            return Ok(Self { how: How::Further(sum, None), letters: 0 });
        }
        let audit = audit.clone();
        // A task of its own: a client that hangs up meanwhile must not leave a sum that nobody writes.
        let begun = tokio::spawn(async move {
            let recording = Recording::begin(&audit, entry.clone()).await;
            match &recording {
                Ok(_) => _ = tokio::spawn(sum_up(audit.clone(), who, entry)),
                Err(_) => _ = lock(&audit.exports.0).remove(&who),
            }
            recording
        });
        let ended =
            |error| Error::new(ErrorKind::Unconfirmed, "the task that records ended").with_source(error);
        Ok(Self { how: How::First(Some(Box::new(begun.await.map_err(ended)??))), letters: 0 })
    }

    /// Notes how many letters are sent.
    pub(crate) fn progress(&mut self, letters: u64) {
        self.letters = letters;
        if let How::First(Some(recording)) = &mut self.how {
            recording.progress(letters);
        }
    }

    /// Records the end.
    pub(crate) async fn end(mut self, result: &str, error: Option<String>) {
        match &mut self.how {
            How::First(recording) => {
                if let Some(recording) = recording.take() {
                    recording.end(result, error, (self.letters, 0)).await;
                }
            }
            How::Further(_, end) => *end = Some((result.to_owned(), error)),
        }
    }
}

impl Drop for Exporting {
    fn drop(&mut self) {
        // The record of the first one does this itself.
        let How::Further(sum, end) = &mut self.how else { return };
        let mut figures = lock(&sum.figures);
        figures.letters += self.letters;
        figures.running -= 1;
        match end.take() {
            None => figures.cancelled += 1,
            Some((result, error)) if result == FAILED || error.is_some() => {
                figures.failed += 1;
                figures.error = figures.error.take().or(error);
            }
            Some(_) => {}
        }
        drop(figures);
        sum.ended.notify_one();
    }
}

/// Records the exports that followed the first one, once their time is over and the last of them has ended.
async fn sum_up(audit: Arc<Audit>, who: Who, first: Entry) {
    tokio::time::sleep(TOGETHER).await;
    // Who comes from now on is the first one again.
    let Some(sum) = lock(&audit.exports.0).remove(&who) else { return };
    while lock(&sum.figures).running > 0 {
        sum.ended.notified().await;
    }
    let Figures { exports, letters, cancelled, failed, error, .. } = std::mem::take(&mut *lock(&sum.figures));
    if exports > 0 {
        let id = Uuid::new_v4().simple().to_string();
        let mut subject = first.subject;
        subject.select.clear();
        let entry = Entry::now(Event::End, &id, &first.user, EXPORT, subject);
        let result = match (failed, cancelled) {
            (0, 0) => "done",
            (0, _) => "cancelled",
            _ => FAILED,
        };
        let error = (failed + cancelled > 0).then(|| {
            let why = error.map(|error| format!(": {error}")).unwrap_or_default();
            format!("{failed} failed and {cancelled} were cancelled{why}")
        });
        let (done, result) = (Some(letters), Some(result.to_owned()));
        let entry = Entry { asked: Some(exports), began: Some(first.time), done, result, error, ..entry };
        audit.write_or_keep(&entry).await;
    }
}
