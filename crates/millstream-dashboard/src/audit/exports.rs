//! Exports, which change nothing. They are recorded apart from changes, so that they take none of their room, and those of a user
//! from one group within some minutes are one entry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream::{Error, ErrorKind, Result, TopicName};
use uuid::Uuid;

use super::entry::{EXPORT, Entry, Event};
use super::{Audit, Recording};

/// Time for which further exports are added up, after the first one.
const TOGETHER: Duration = Duration::from_secs(600);
/// Maximum number of users and groups whose exports are added up; those of others share one sum.
const KEPT: usize = 10_000;

/// A user, a topic and a group.
type Who = [String; 3];

/// Exports since the first one of a user from a group.
#[derive(Debug, Default)]
struct Sum {
    exports: u64,
    letters: u64,
}

/// The exports of this process that are added up.
#[derive(Debug, Default)]
pub(crate) struct Exports(Mutex<HashMap<Who, Sum>>);

impl Exports {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Who, Sum>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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
    audit: Arc<Audit>,
    who: Who,
    /// Record of the first one of the user.
    recording: Option<Recording>,
    letters: u64,
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
        let is_first = {
            let mut sums = audit.exports.lock();
            if sums.len() >= KEPT && !sums.contains_key(&who) {
                who = Who::default();
            }
            let is_first = !sums.contains_key(&who);
            sums.entry(who.clone()).or_default().exports += u64::from(!is_first);
            is_first
        };
        let recording = if is_first {
            let (audit, who) = (audit.clone(), who.clone());
            // A task of its own: a client that hangs up meanwhile must not leave a sum that nobody writes.
            let begun = tokio::spawn(async move {
                let recording = Recording::begin(&audit, entry.clone()).await;
                match &recording {
                    Ok(_) => _ = tokio::spawn(sum_up(audit.clone(), who, entry)),
                    Err(_) => _ = audit.exports.lock().remove(&who),
                }
                recording
            });
            let ended =
                |error| Error::new(ErrorKind::Unconfirmed, "the task that records ended").with_source(error);
            Some(begun.await.map_err(ended)??)
        } else {
            entry.trace();
            None
        };
        Ok(Self { audit: audit.clone(), who, recording, letters: 0 })
    }

    /// Notes how many letters are sent.
    pub(crate) fn progress(&mut self, letters: u64) {
        self.letters = letters;
        if let Some(recording) = &mut self.recording {
            recording.progress(letters);
        }
    }

    /// Records the end.
    pub(crate) async fn end(mut self, result: &str, error: Option<String>) {
        if let Some(recording) = self.recording.take() {
            recording.end(result, error, (self.letters, 0)).await;
            self.letters = 0;
        }
    }
}

impl Drop for Exporting {
    fn drop(&mut self) {
        // The record of the first one has its own.
        if self.recording.is_none()
            && let Some(sum) = self.audit.exports.lock().get_mut(&self.who)
        {
            sum.letters += self.letters;
        }
    }
}

/// Records the exports that followed the first one, once their time is over.
async fn sum_up(audit: Arc<Audit>, who: Who, first: Entry) {
    tokio::time::sleep(TOGETHER).await;
    let Some(Sum { exports, letters }) = audit.exports.lock().remove(&who) else { return };
    if exports > 0 {
        let id = Uuid::new_v4().simple().to_string();
        let mut subject = first.subject;
        subject.select.clear();
        let sum = Entry::now(Event::End, &id, &first.user, EXPORT, subject);
        let (done, result) = (Some(letters), Some("done".to_owned()));
        audit
            .write_or_keep(&Entry { asked: Some(exports), began: Some(first.time), done, result, ..sum })
            .await;
    }
}
