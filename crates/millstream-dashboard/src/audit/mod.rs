//! The audit log: a topic in which the beginning and the end of every action is a message, for all processes that use it.

pub(crate) mod entry;
pub(crate) mod exports;
pub(crate) mod pauses;
pub(crate) mod subject;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use millstream::admin::{Browse, Cursor, Messages, Range};
use millstream::crates::core::Continuity;
use millstream::crates::core::leases::{Acquired, Resource};
use millstream::crates::runtime::OnFull;
use millstream::{Error, ErrorKind, GroupName, Millstream, Result, Retention, Timestamp, Topic, TopicName};
use tokio::time::timeout;
use uuid::Uuid;

use entry::{Entry, Event};
use exports::Exports;

/// Name of the topic unless the host sets another.
pub(crate) const TOPIC: &str = TopicName::AUDIT;
/// Number of messages that are kept, with which the topic is created. An action is two messages.
const KEPT: u64 = 10_000;
/// Time limit of writing one entry: the user waits for the first one.
const LIMIT: Duration = Duration::from_secs(5);
/// Number of entries after which a process drops those that are not kept any more. It begins with its first one: a process
/// that ends before it has written so many would never drop any.
const TRIM_EVERY: u64 = 100;
/// Name of the group under whose lease entries are dropped. It is not created, so nothing waits for it.
const TRIM_GROUP: &str = "millstream-audit-trim";
/// Lifetime of that lease.
const TRIM_TTL: Duration = Duration::from_secs(30);

/// Maximum number of entries that wait for the server. Beyond it no action begins without its entry.
const WAITING: usize = 1_000;
/// Time after which entries that wait are written again.
const AGAIN: Duration = Duration::from_secs(5);

/// Writes and reads the audit log.
#[derive(Debug)]
pub(crate) struct Audit {
    mq: Millstream,
    /// `None`: entries are events of tracing only.
    topic: Option<TopicName>,
    written: AtomicU64,
    exported: AtomicU64,
    /// Entries that the server has not taken, the oldest first.
    waiting: Mutex<VecDeque<Entry>>,
    /// Locked while they are being written.
    writing: tokio::sync::Mutex<()>,
    exports: Exports,
}

impl Audit {
    pub(crate) fn new(mq: &Millstream, topic: Option<TopicName>) -> Self {
        let (written, exported) = (AtomicU64::new(0), AtomicU64::new(0));
        let (waiting, writing, exports) =
            (Mutex::default(), tokio::sync::Mutex::default(), Exports::default());
        Self { mq: mq.clone(), topic, written, exported, waiting, writing, exports }
    }

    pub(crate) fn topic(&self) -> Option<&TopicName> {
        self.topic.as_ref()
    }

    /// Returns the number of entries that this process has written: what was read before one of them is out of date.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed) + self.exported.load(Ordering::Relaxed)
    }

    fn queue(&self) -> std::sync::MutexGuard<'_, VecDeque<Entry>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the entries that wait until the server takes them, the oldest first.
    pub(crate) fn waiting(&self) -> Vec<Entry> {
        self.queue().iter().cloned().collect()
    }

    /// Writes an entry, also as an event of tracing.
    ///
    /// # Errors
    /// Those of creating the topic and of a send; [`ErrorKind::Backpressure`] for a topic with a bound that is reached.
    pub(crate) async fn write(&self, entry: &Entry) -> Result<()> {
        entry.trace();
        if !entry.is_export() && !self.queue().is_empty() {
            // It comes behind those of other changes. Exports have a topic of their own, and hold up none.
            self.write_waiting(false).await?;
        }
        self.store(entry).await
    }

    /// Writes the entries that wait, those of exports too or not, until one is not taken.
    async fn write_waiting(&self, exports: bool) -> Result<()> {
        // One at a time, or each would write the same entry.
        let _writing = self.writing.lock().await;
        loop {
            let is_meant = |entry: &&Entry| exports || !entry.is_export();
            let Some(first) = self.queue().iter().find(is_meant).cloned() else { return Ok(()) };
            self.store(&first).await?;
            let mut waiting = self.queue();
            if let Some(at) = waiting.iter().position(|entry| *entry == first) {
                waiting.remove(at);
            }
        }
    }

    /// Keeps an entry until the server takes it. Returns `false` if too many wait.
    fn keep(self: &Arc<Self>, entry: &Entry, error: &Error) -> bool {
        let mut waiting = self.queue();
        if waiting.len() >= WAITING {
            return false;
        }
        waiting.push_back(entry.clone());
        let first = waiting.len() == 1;
        drop(waiting);
        let Entry { id, user, action, .. } = entry;
        let event = entry.event.as_str();
        tracing::warn!(
            target: "millstream_dashboard::audit", id, user, action, event, %error, "waits until the topic can be written"
        );
        if first && let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let audit = self.clone();
            runtime.spawn(async move {
                while !audit.queue().is_empty() {
                    tokio::time::sleep(AGAIN).await;
                    // Somebody else may have written them, or it is tried again.
                    let _ = audit.write_waiting(true).await;
                }
            });
        }
        true
    }

    async fn store(&self, entry: &Entry) -> Result<()> {
        let name = match (&self.topic, entry.is_export()) {
            (None, _) => return Ok(()),
            (Some(name), false) => name.clone(),
            (Some(name), true) => exports::topic(name)?,
        };
        let name = &name;
        let slow =
            |_| Error::new(ErrorKind::Unavailable, format!("topic {name} was not written in {LIMIT:?}"));
        timeout(LIMIT, self.append(name, entry)).await.map_err(slow)??;
        let written = if entry.is_export() { &self.exported } else { &self.written };
        if written.fetch_add(1, Ordering::Relaxed).is_multiple_of(TRIM_EVERY) {
            self.trim(name).await.unwrap_or_else(|error| {
                tracing::warn!(topic = %name, %error, "old entries of the audit log were not dropped");
            });
        }
        Ok(())
    }

    /// Writes an entry about what has been done already. One that the server does not take is kept until it does.
    pub(crate) async fn write_or_keep(self: &Arc<Self>, entry: &Entry) {
        if let Err(error) = self.write(entry).await
            && !self.keep(entry, &error)
        {
            let Entry { id, user, action, .. } = entry;
            let event = entry.event.as_str();
            tracing::error!(
                target: "millstream_dashboard::audit", id, user, action, event, %error, "not written to the topic"
            );
        }
    }

    /// Appends an entry with a producer of its own: actions are rare, and the topic may have been deleted since the last one.
    async fn append(&self, name: &TopicName, entry: &Entry) -> Result<()> {
        let mut topic = Topic::<Entry>::new(TOPIC).named(name.as_str()).retention(Retention::Length(KEPT));
        match self.mq.backend().catalog().topic(name).await {
            Ok(stored) => {
                topic = topic.partitions(stored.partitions).retention(stored.retention);
                topic = topic.dead_letter_retention(stored.dead_letter_retention);
                topic = stored.max_length.into_iter().fold(topic, Topic::max_length);
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let producer =
            self.mq.producer(topic).to_our_own_topic().refresh(None).on_full(OnFull::Reject).await?;
        let sent = producer.send(entry).key(entry.id.as_str()).await;
        producer.close().await;
        sent.map(drop)
    }

    /// Drops what the topic's retention does not keep. Consumers of a topic do this, and this one usually has none.
    async fn trim(&self, name: &TopicName) -> Result<()> {
        let (backend, group) = (self.mq.backend(), GroupName::new(TRIM_GROUP)?);
        let spec = backend.catalog().topic(name).await?;
        if !spec.retention.is_lossy() {
            return Ok(());
        }
        for partition in spec.iter() {
            let resource = Resource::partition(partition, group.clone());
            let nonce = Uuid::new_v4().simple().to_string();
            // Nobody works under this lease: whoever had it before has stopped, or drops the same entries.
            let continuity = Continuity::assured();
            let acquired =
                backend.leases().acquire(&resource, "dashboard", &nonce, TRIM_TTL, &continuity).await?;
            // Another process is at it.
            let Acquired::Granted(lease) = acquired else { continue };
            let trimmed = backend.log().trim(&lease, spec.retention).await;
            backend.leases().release(&lease).await?;
            trimmed?;
        }
        Ok(())
    }

    /// Reads entries, the newest first. `None` if there is no topic yet.
    ///
    /// # Errors
    /// Those of `Admin::messages`.
    pub(crate) async fn read(
        &self,
        name: &TopicName,
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<Option<Messages>> {
        let range = Range { newest_first: true, ..Range::ALL };
        let browse = Browse { range, after, limit, ..Browse::default() };
        match self.mq.admin().messages(name, &browse).await {
            Ok(messages) => Ok(Some(messages)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Something that is recorded from its beginning to its end. If it is dropped before, it has been cancelled.
#[derive(Debug)]
pub(crate) struct Recording {
    audit: Arc<Audit>,
    /// `None` once the end is recorded.
    entry: Option<Entry>,
    /// What is done and what was skipped so far.
    figures: (u64, u64),
}

impl Recording {
    /// Records a beginning. Of what makes room or stops something the entry is kept where the server does not take it: at a server
    /// that is full nothing else would help.
    ///
    /// # Errors
    /// Those of [`Audit::write`]: nothing may be done then.
    pub(crate) async fn begin(audit: &Arc<Audit>, entry: Entry) -> Result<Self> {
        match audit.write(&entry).await {
            Err(error) if entry.relieves() && audit.keep(&entry, &error) => {}
            written => written?,
        }
        Ok(Self { audit: audit.clone(), entry: Some(entry), figures: (0, 0) })
    }

    /// Notes how many are done, for the case that it is dropped.
    pub(crate) fn progress(&mut self, done: u64) {
        self.figures.0 = done;
    }

    fn entry_of_end(
        &mut self,
        result: &str,
        error: Option<String>,
        (done, skipped): (u64, u64),
    ) -> Option<Entry> {
        let began = self.entry.take()?;
        Some(Entry {
            event: Event::End,
            time: Timestamp::from(SystemTime::now()).to_string(),
            began: Some(began.time),
            done: Some(done),
            skipped: Some(skipped),
            result: Some(result.to_owned()),
            error,
            ..began
        })
    }

    /// Records the end.
    pub(crate) async fn end(mut self, result: &str, error: Option<String>, figures: (u64, u64)) {
        if let Some(entry) = self.entry_of_end(result, error, figures) {
            self.audit.write_or_keep(&entry).await;
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let Some(entry) = self.entry_of_end("cancelled", None, self.figures) else { return };
        let audit = self.audit.clone();
        // Without a runtime the process is about to end.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { audit.write_or_keep(&entry).await });
        }
    }
}
