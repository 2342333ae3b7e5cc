//! Actions: what users change, with progress and result. Those of this process are remembered; the audit log has all.

pub(crate) mod shelf;
pub(crate) mod verified;

use std::collections::VecDeque;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use millstream::{Error, ErrorKind, Timestamp, TopicName};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::audit::entry::{Entry, Event};
use crate::audit::subject::Subject;
use crate::audit::{Audit, Recording};
use crate::view::href::Href;

/// Maximum number of actions that are remembered.
const REMEMBERED: usize = 1_000;
/// Maximum number of actions that run at the same time.
const AT_ONCE: usize = 8;
/// Time that a request waits for the end of its action before it shows the progress instead.
const PATIENCE: Duration = Duration::from_millis(800);
/// Maximum number of notes of an action.
const NOTES: usize = 20;

/// What an action does.
type Work = Pin<Box<dyn Future<Output = millstream::Result<()>> + Send>>;

/// Change that a user has asked for.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// The word of the command line: `dlq replay`.
    pub(crate) what: &'static str,
    /// Topic whose rights decide who sees it.
    pub(crate) topic: Option<TopicName>,
    pub(crate) subject: Subject,
    /// Number of messages, if it was counted before.
    pub(crate) expected: Option<u64>,
    /// Page that shows more of the result.
    pub(crate) page: Option<(&'static str, Href)>,
}

impl Order {
    pub(crate) fn new(what: &'static str, subject: Subject) -> Self {
        let topic = subject.topic.as_ref().and_then(|name| TopicName::new(name).ok());
        Self { what, topic, subject, expected: None, page: None }
    }

    pub(crate) fn expecting(self, expected: Option<u64>) -> Self {
        Self { expected, ..self }
    }

    /// Links a page that shows more of the result.
    pub(crate) fn shown_at(self, title: &'static str, page: Href) -> Self {
        Self { page: Some((title, page)), ..self }
    }

    /// Returns the entry of its beginning.
    pub(crate) fn entry(&self, id: &str, user: &str) -> Entry {
        let begin = Entry::now(Event::Begin, id, user, self.what, self.subject.clone());
        Entry { asked: self.expected, ..begin }
    }
}

/// How an action ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Done,
    Cancelled,
    Failed(String),
}

impl Ended {
    /// Returns the word of the audit log, and the error.
    fn words(&self) -> (&'static str, Option<String>) {
        match self {
            Self::Done => ("done", None),
            Self::Cancelled => ("cancelled", None),
            Self::Failed(why) => ("failed", Some(why.clone())),
        }
    }
}

/// State of an action.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    /// Number of messages, groups, or whatever it is about, that were changed.
    pub(crate) done: u64,
    /// Those that were gone, or that others have claimed.
    pub(crate) skipped: u64,
    /// Number of items that were examined, of an action that examines some.
    pub(crate) examined: Option<u64>,
    pub(crate) notes: Vec<String>,
    pub(crate) ended: Option<(Timestamp, Ended)>,
}

/// An action.
#[derive(Debug)]
pub(crate) struct Action {
    /// Random, so that nobody finds the actions of others by counting.
    pub(crate) id: String,
    pub(crate) user: String,
    pub(crate) order: Order,
    pub(crate) began: Timestamp,
    state: Mutex<State>,
    cancel: CancellationToken,
    end: CancellationToken,
}

impl Action {
    pub(crate) fn topic(&self) -> Option<&TopicName> {
        self.order.topic.as_ref()
    }

    pub(crate) fn state(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Asks it to stop. What was changed stays changed.
    pub(crate) fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Adds to the number of changes.
    pub(crate) fn add(&self, done: u64) {
        self.change(|state| state.done += done);
    }

    /// Sets the numbers.
    pub(crate) fn set(&self, done: u64, skipped: u64) {
        self.change(|state| (state.done, state.skipped) = (done, skipped));
    }

    pub(crate) fn examined(&self, items: u64) {
        self.change(|state| state.examined = Some(items));
    }

    pub(crate) fn skip(&self, skipped: u64) {
        self.change(|state| state.skipped += skipped);
    }

    pub(crate) fn note(&self, note: impl Into<String>) {
        self.change(|state| {
            if state.notes.len() < NOTES {
                state.notes.push(note.into());
            }
        });
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Waits, unless it is cancelled meanwhile.
    pub(crate) async fn pause(&self, time: Duration) {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => {}
            () = tokio::time::sleep(time) => {}
        }
    }
}

/// Why an action did not begin.
#[derive(Clone, Debug)]
pub(crate) enum Refused {
    /// So many actions run that no further one may begin.
    TooMany(usize),
    /// Its beginning could not be recorded.
    NotRecorded(Error),
}

/// Actions of this process, the newest last.
#[derive(Clone, Debug)]
pub(crate) struct Actions {
    audit: Arc<Audit>,
    list: Arc<Mutex<VecDeque<Arc<Action>>>>,
}

impl Actions {
    pub(crate) fn new(audit: Arc<Audit>) -> Self {
        Self { audit, list: Arc::default() }
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<Action>> {
        self.all().into_iter().find(|action| action.id == id)
    }

    /// Returns all of them, the newest first.
    pub(crate) fn all(&self) -> Vec<Arc<Action>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }

    fn add(&self, user: &str, order: Order) -> Result<Arc<Action>, Refused> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let running = list.iter().filter(|action| action.state().ended.is_none()).count();
        if running >= AT_ONCE {
            return Err(Refused::TooMany(running));
        }
        let action = Arc::new(Action {
            id: Uuid::new_v4().simple().to_string(),
            user: user.to_owned(),
            order,
            began: Timestamp::from(SystemTime::now()),
            state: Mutex::default(),
            cancel: CancellationToken::new(),
            end: CancellationToken::new(),
        });
        list.push_back(action.clone());
        if list.len() > REMEMBERED
            && let Some(at) = list.iter().position(|action| action.state().ended.is_some())
        {
            list.remove(at);
        }
        Ok(action)
    }

    fn remove(&self, id: &str) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).retain(|action| action.id != id);
    }

    /// Records the beginning of an action, runs it in the background, so that it ends whatever becomes of the request, and
    /// waits a moment for its end.
    ///
    /// # Errors
    /// Too many actions at a time, or a beginning that cannot be recorded: nothing was changed then.
    pub(crate) async fn run<F, Fut>(&self, user: &str, order: Order, work: F) -> Result<Arc<Action>, Refused>
    where
        F: FnOnce(Arc<Action>) -> Fut + Send,
        Fut: Future<Output = millstream::Result<()>> + Send + 'static,
    {
        self.run_boxed(user, order, Box::new(|action| Box::pin(work(action)))).await
    }

    /// Apart from [`run`](Self::run), which is made anew for each kind of action.
    async fn run_boxed(
        &self,
        user: &str,
        order: Order,
        work: Box<dyn FnOnce(Arc<Action>) -> Work + Send + '_>,
    ) -> Result<Arc<Action>, Refused> {
        let action = self.add(user, order)?;
        let (running, work, actions) = (action.clone(), work(action.clone()), self.clone());
        let (recorded, is_recorded) = oneshot::channel();
        tokio::spawn(async move {
            let entry = running.order.entry(&running.id, &running.user);
            let recording = match Recording::begin(&actions.audit, entry).await {
                Ok(recording) => recording,
                Err(error) => {
                    actions.remove(&running.id);
                    // The client may have left.
                    let _ = recorded.send(Err(error));
                    return;
                }
            };
            let _ = recorded.send(Ok(()));
            // An action that panics has an end too: otherwise it would count as a running one for ever.
            let ended = match AssertUnwindSafe(work).catch_unwind().await {
                Err(_) => Ended::Failed("it panicked".to_owned()),
                Ok(Err(error)) => Ended::Failed(error.to_string()),
                Ok(Ok(())) if running.is_cancelled() => Ended::Cancelled,
                Ok(Ok(())) => Ended::Done,
            };
            let State { done, skipped, .. } = running.state();
            let (result, error) = ended.words();
            recording.end(result, error, (done, skipped)).await;
            running.change(|state| state.ended = Some((Timestamp::from(SystemTime::now()), ended)));
            running.end.cancel();
        });
        let gone = || Error::new(ErrorKind::Unavailable, "the server of the dashboard ends");
        is_recorded.await.unwrap_or_else(|_| Err(gone())).map_err(Refused::NotRecorded)?;
        // An action that takes longer is shown while it runs.
        let _ = tokio::time::timeout(PATIENCE, action.end.cancelled()).await;
        Ok(action)
    }

    /// Stops an action. That is recorded too, but nothing prevents it.
    pub(crate) async fn stop(&self, action: &Action, user: &str) {
        action.note(format!("stopped by {user}"));
        action.cancel();
        let entry =
            Entry::now(Event::Stop, &action.id, user, action.order.what, action.order.subject.clone());
        self.audit.write_or_keep(&entry).await;
    }
}
