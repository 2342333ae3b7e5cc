//! What producers append with to one node: at most two connections for all producers of a process.
//!
//! Most producers are idle at most times, and one that sends alone should pay for nobody else. So one connection is for
//! whoever begins to send while it is free: it is kept until everything is answered, and used without a task in between. Those who
//! come meanwhile share the other one, which a task of its own serves. Both are closed when nobody has used them for a
//! while.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::Keys;
use millstream_core::log::{Append, Appender};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use crate::conn::appends::appender::StreamAppender;
use crate::conn::dial::Dial;
use crate::error::redirect;

/// Time after which a connection that nobody uses is closed.
const IDLE: Duration = Duration::from_secs(60);

type Batch = Arc<Vec<Append>>;
type Results = Vec<Result<MessageId>>;

/// The connections of all producers to one node.
pub(crate) struct NodeAppenders {
    plain: Arc<Place>,
    /// For slots that are moving to the node.
    asking: Arc<Place>,
}

struct Place {
    keys: Keys,
    dial: Arc<Dial>,
    asking: bool,
    own: Mutex<Own>,
    /// To the task of the shared connection, if it runs.
    lane: Mutex<Option<mpsc::UnboundedSender<Work>>>,
    /// Counts the failures of the shared connection.
    failures: AtomicU64,
}

/// The connection that one producer has at a time.
struct Own {
    state: Slot,
    used: Instant,
    /// Whether a task closes it when it is idle.
    swept: bool,
}

enum Slot {
    Taken,
    Free(Option<Box<StreamAppender>>),
}

/// A batch for the shared connection.
struct Work {
    batch: Batch,
    /// Number of failures when its producer began. After another one, an earlier batch of the producer may have failed,
    /// which this one must not overtake.
    failures: u64,
    results: oneshot::Sender<Results>,
}

/// Appends for one producer.
pub(crate) struct NodeAppender {
    place: Arc<Place>,
    way: Way,
}

enum Way {
    /// Nothing is under way.
    Idle,
    Own(Box<StreamAppender>),
    Shared {
        failures: u64,
        begun: VecDeque<(Batch, oneshot::Receiver<Results>)>,
    },
}

impl NodeAppenders {
    pub(crate) fn new(keys: &Keys, dial: &Arc<Dial>) -> Self {
        let place = |asking| {
            let own = Own { state: Slot::Free(None), used: Instant::now(), swept: false };
            Arc::new(Place {
                keys: keys.clone(),
                dial: dial.clone(),
                asking,
                own: Mutex::new(own),
                lane: Mutex::default(),
                failures: AtomicU64::new(0),
            })
        };
        Self { plain: place(false), asking: place(true) }
    }

    /// Returns an appender for one producer. With `asking`, an `ASKING` precedes each entry.
    pub(crate) fn appender(&self, asking: bool) -> NodeAppender {
        let place = if asking { &self.asking } else { &self.plain };
        NodeAppender { place: place.clone(), way: Way::Idle }
    }
}

impl Place {
    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn appender(&self) -> StreamAppender {
        StreamAppender::new(self.keys.clone(), self.dial.clone(), self.asking)
    }

    /// Takes the connection for one producer, if no other one has it.
    fn take(&self) -> Option<Box<StreamAppender>> {
        match std::mem::replace(&mut self.own().state, Slot::Taken) {
            Slot::Taken => None,
            Slot::Free(appender) => Some(appender.unwrap_or_else(|| Box::new(self.appender()))),
        }
    }

    /// Gives it back; `None` if it is of no use any more.
    fn put(self: &Arc<Self>, appender: Option<Box<StreamAppender>>) {
        let mut own = self.own();
        (own.state, own.used) = (Slot::Free(appender), Instant::now());
        if !own.swept && tokio::runtime::Handle::try_current().is_ok() {
            own.swept = true;
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Passes a batch to the shared connection.
    fn share(self: &Arc<Self>, mut work: Work) {
        let mut lane = self.lane.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = &*lane {
            match lane.send(work) {
                Ok(()) => return,
                // Its runtime has ended.
                Err(mpsc::error::SendError(back)) => work = back,
            }
        }
        let (sender, inbox) = mpsc::unbounded_channel();
        // The receiver is here.
        let _ = sender.send(work);
        *lane = Some(sender);
        tokio::spawn(serve(self.appender(), Arc::downgrade(self), inbox));
    }

    /// Ends the task of the shared connection, unless something was passed to it.
    fn ends(&self, inbox: &mpsc::UnboundedReceiver<Work>) -> bool {
        let mut lane = self.lane.lock().unwrap_or_else(PoisonError::into_inner);
        if inbox.is_empty() {
            *lane = None;
        }
        lane.is_none()
    }
}

/// Serves the shared connection.
async fn serve(mut appender: StreamAppender, place: Weak<Place>, mut inbox: mpsc::UnboundedReceiver<Work>) {
    let mut waiting: VecDeque<oneshot::Sender<Results>> = VecDeque::new();
    loop {
        let busy = !waiting.is_empty();
        tokio::select! {
            biased;
            results = appender.finish(), if busy => {
                if results.iter().any(is_failure) && let Some(place) = place.upgrade() {
                    place.failures.fetch_add(1, Ordering::AcqRel);
                }
                if let Some(waiting) = waiting.pop_front() {
                    // Its producer may be gone.
                    let _ = waiting.send(results);
                }
            }
            work = timeout(IDLE, inbox.recv()) => match work {
                Ok(Some(work)) => {
                    let Some(place) = place.upgrade() else { return };
                    let mut next = Some(work);
                    while let Some(Work { batch, failures, results }) = next {
                        if failures == place.failures.load(Ordering::Acquire) {
                            appender.begin(batch);
                            waiting.push_back(results);
                        } else {
                            let _ = results.send(not_sent(&batch));
                        }
                        next = inbox.try_recv().ok();
                    }
                }
                Ok(None) if busy => while let Some(waiting) = waiting.pop_front() {
                    let _ = waiting.send(appender.finish().await);
                },
                Ok(None) => return,
                Err(_) if busy => {}
                Err(_) => if place.upgrade().is_none_or(|place| place.ends(&inbox)) {
                    return;
                },
            }
        }
    }
}

/// Closes the connection of one producer when nobody has used it for a while.
async fn sweep(place: Weak<Place>) {
    loop {
        sleep(IDLE).await;
        let Some(place) = place.upgrade() else { return };
        let mut own = place.own();
        if matches!(own.state, Slot::Free(_)) && own.used.elapsed() >= IDLE {
            (own.state, own.swept) = (Slot::Free(None), false);
            return;
        }
    }
}

/// Whether an append failed with its connection, and so did those behind it.
fn is_failure(result: &Result<MessageId>) -> bool {
    let failed = |error: &Error| matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unconfirmed);
    // A redirection concerns one slot.
    result.as_ref().is_err_and(|error| failed(error) && redirect(error).is_none())
}

fn not_sent(batch: &[Append]) -> Results {
    let error = |append: &Append| {
        let error = Error::new(ErrorKind::Unavailable, "not sent, the connection failed meanwhile");
        error.during(format_args!("append to {}", append.topic_partition)).at(&append.topic_partition)
    };
    batch.iter().map(|append| Err(error(append))).collect()
}

fn given_up(batch: &[Append]) -> Results {
    let error = |append: &Append| {
        let why = "the runtime of the shared connection has ended, the message may or may not be stored";
        let error = Error::new(ErrorKind::Unconfirmed, why);
        error.during(format_args!("append to {}", append.topic_partition)).at(&append.topic_partition)
    };
    batch.iter().map(|append| Err(error(append))).collect()
}

#[async_trait]
impl Appender for NodeAppender {
    fn begin(&mut self, batch: Batch) {
        if let Way::Idle = self.way {
            self.way = match self.place.take() {
                Some(appender) => Way::Own(appender),
                None => {
                    let failures = self.place.failures.load(Ordering::Acquire);
                    Way::Shared { failures, begun: VecDeque::new() }
                }
            };
        }
        match &mut self.way {
            Way::Own(appender) => appender.begin(batch),
            Way::Shared { failures, begun } => {
                let (results, answer) = oneshot::channel();
                if batch.is_empty() {
                    let _ = results.send(Results::new());
                } else {
                    self.place.share(Work { batch: batch.clone(), failures: *failures, results });
                }
                begun.push_back((batch, answer));
            }
            Way::Idle => {}
        }
    }

    async fn finish(&mut self) -> Results {
        match &mut self.way {
            Way::Idle => Results::new(),
            Way::Own(appender) => {
                let results = appender.finish().await;
                if appender.is_idle()
                    && let Way::Own(appender) = std::mem::replace(&mut self.way, Way::Idle)
                {
                    self.place.put(Some(appender));
                }
                results
            }
            Way::Shared { begun, .. } => {
                let Some((batch, answer)) = begun.front_mut() else { return Results::new() };
                let results = answer.await.unwrap_or_else(|_| given_up(batch));
                begun.pop_front();
                if begun.is_empty() {
                    self.way = Way::Idle;
                }
                results
            }
        }
    }
}

impl Drop for NodeAppender {
    fn drop(&mut self) {
        if let Way::Own(_) = self.way {
            // What is under way on it is nobody's any more: the connection ends with it.
            self.place.put(None);
        }
    }
}
