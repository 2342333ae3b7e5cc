//! Settings of an inbox.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_core::error::{Problems, Result};
use millstream_core::retention::Remembered;
use millstream_core::{Delivered, Namespace, RetryPolicy, TopicSpec};

use super::handler::IdSource;
use super::{Inbox, Mode};
use crate::database::Database;

/// Namespace if none is set.
const NAMESPACE: &str = "millstream";
/// Longest time between two statements of a transaction if none is set.
const IDLE: Duration = Duration::from_secs(60);

/// Settings of an [`Inbox`].
#[derive(Debug)]
pub struct InboxBuilder {
    database: Database,
    namespace: String,
    mode: Mode,
    remembered: Remembered,
    /// What the retry policy states, if one was named.
    policy: Option<Option<Duration>>,
    topics: Vec<TopicSpec>,
    idle: Duration,
    id: IdSource,
}

impl InboxBuilder {
    pub(super) fn new(database: &Database) -> Self {
        Self {
            database: database.clone(),
            namespace: NAMESPACE.to_owned(),
            mode: Mode::default(),
            remembered: Remembered::default(),
            policy: None,
            topics: Vec::new(),
            idle: IDLE,
            id: IdSource::Message,
        }
    }

    /// Sets the namespace. Default: `millstream`. Two queues that share a database need two: with one, a message of one would
    /// count as a duplicate of another one's with the same topic, group and id, and would be lost. Use the namespace of the
    /// queue, with the name of its server if there are several.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Sets the order of effect and marker. Default: [`Mode::Pessimistic`].
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets for how long markers are kept, by the clock of the database. Default: 7 days. It must cover the longest time in
    /// which the same message can come again, which [`build`](Self::build) checks.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.remembered.retention = retention;
        self
    }

    /// Names the retry policy of the consumer, which states how long a message is retried.
    #[must_use]
    pub fn retries(mut self, policy: &dyn RetryPolicy) -> Self {
        self.policy = Some(policy.longest());
        self
    }

    /// Sets the longest time from the first failure of a message to its last attempt, or to the last call with the same
    /// operation. Default: what the [retry policy](Self::retries) states; one of the two is needed.
    #[must_use]
    pub fn retries_within(mut self, time: Duration) -> Self {
        self.remembered.retries_within = Some(time);
        self
    }

    /// Sets within which time after its death a dead letter is replayed at the latest, as you operate it. Zero if dead letters
    /// are never replayed. Default: the longest age up to which the named [topics](Self::topic) keep dead letters, and at most a
    /// minute until they are dropped; a day where no topic is named, or one keeps them without a limit of time.
    #[must_use]
    pub fn replays_within(mut self, time: Duration) -> Self {
        self.remembered.replays_within = Some(time);
        self
    }

    /// Names a topic that is read: if it keeps its messages for a time, a group that is set back reads them again, and if it
    /// keeps its dead letters for a time, they can be replayed for as long. The retention must cover both. Pass the topic as it
    /// is stored ([`Catalog::topic`](millstream_core::Catalog::topic)), since its settings can be changed.
    #[must_use]
    pub fn topic(mut self, topic: TopicSpec) -> Self {
        self.topics.push(topic);
        self
    }

    /// Sets for how long a transaction may do nothing before PostgreSQL ends it. Default: a minute. A process that is paused in
    /// its work keeps others from the operation for that long; work that does other things for longer between two statements needs
    /// more. SQLite has no such limit.
    #[must_use]
    pub fn max_idle(mut self, time: Duration) -> Self {
        self.idle = time;
        self
    }

    /// Identifies the operation of a message by the value of a header, the first one of this name: messages with the same value, in
    /// any partition of the topic, are one operation. A message without it becomes a dead letter. Default: by the partition and
    /// the id of the first entry.
    ///
    /// Where a fail-over may lose the end of a log, use this: its ids may be given again by a server whose clock is behind.
    #[must_use]
    pub fn by_header(mut self, name: impl Into<String>) -> Self {
        self.id = IdSource::Header(name.into().into());
        self
    }

    /// Identifies the operation of a message by a function. An id that is empty or above 256 bytes makes the message a dead letter.
    #[must_use]
    pub fn by<K: Into<Bytes>>(mut self, id: impl Fn(&dyn Delivered) -> K + Send + Sync + 'static) -> Self {
        self.id = IdSource::Function(Arc::new(move |delivery| id(delivery).into()));
        self
    }

    /// Builds the inbox. It makes no request.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](millstream_core::ErrorKind::InvalidConfig) for a namespace that is no name, a limit of idle time
    /// that is not 1 s to a day, or a retention that does not cover the retries and replays: the error names both times.
    pub fn build(self) -> Result<Inbox> {
        let mut problems = Problems::new("inbox");
        let namespace = problems.take(Namespace::new(&self.namespace));
        let allowed = Duration::from_secs(1)..=Duration::from_secs(86_400);
        problems.require(allowed.contains(&self.idle), || {
            format!("inbox: max_idle is {:?}, 1s to a day are allowed", self.idle)
        });
        if let IdSource::Header(name) = &self.id {
            problems.require(!name.is_empty(), || "inbox: the name of the header is empty".into());
        }
        let stated = self.policy.map(Stated);
        let policy = stated.as_ref().map(|stated| stated as &dyn RetryPolicy);
        self.remembered.check("inbox", policy, self.topics.iter(), &mut problems);
        problems.finish()?;
        Ok(Inbox {
            database: self.database,
            namespace: namespace.expect("a name, or a problem was found"),
            mode: self.mode,
            retention: self.remembered.retention,
            idle: self.idle,
            id: self.id,
            raised: Arc::default(),
        })
    }
}

/// What is kept of a retry policy: its longest time.
#[derive(Debug)]
struct Stated(Option<Duration>);

impl RetryPolicy for Stated {
    fn decide(&self, _: &millstream_core::policy::Failure<'_>) -> millstream_core::policy::Decision {
        millstream_core::policy::Decision::GiveUp
    }

    fn longest(&self) -> Option<Duration> {
        self.0
    }
}
