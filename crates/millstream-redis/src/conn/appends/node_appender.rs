//! What producers append with to one node: at most two connections for all producers of a process, and one for each
//! durability of more than `Stored` that they ask for.
//!
//! Most producers are idle at most times, and one that sends alone should pay for nobody else. So one connection is for
//! whoever begins to send while it is free: it is kept until everything is answered, and used without a task in between. Those who
//! come meanwhile share the other one, which a task of its own serves. Both are closed when nobody has used them for a
//! while.
//!
//! Where the server waits behind the entries until they are durable, its answer takes as long for one entry as for a
//! thousand, and blocks the connection. So all of these producers share one connection, and what comes while it is blocked
//! is sent as one request.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::keys::Keys;
use millstream_core::log::{Appended, Durability};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use crate::conn::appends::appender::{AppendForm, StreamAppender, size};
use crate::conn::appends::confirm::Confirm;
use crate::conn::appends::during;
use crate::conn::appends::packed::Packings;
use crate::conn::appends::part::Part;
use crate::conn::dial::Dial;
use crate::conn::once::OneTask;
use crate::error::redirect;

/// Time after which a connection that nobody uses is closed.
const IDLE: Duration = Duration::from_secs(60);

type Results = Vec<Result<Appended>>;

/// Requests under way at a time where the server waits behind each: one, and the next, which it has then received.
const CONFIRMED_AHEAD: usize = 2;
/// Number of entries and approximate number of bytes (4 MiB) from which such a request takes no more batches: the server
/// keeps the next request in memory meanwhile.
const CONFIRMED_FULL: (usize, usize) = (4_096, 4 << 20);

/// The connections of all producers to one node.
pub(crate) struct NodeAppenders {
    keys: Keys,
    dial: Arc<Dial>,
    packings: Arc<Packings>,
    /// For entries that have to be stored and no more.
    plain: Arc<AppendPlace>,
    /// For others, and for slots that are moving to the node.
    places: Mutex<HashMap<(bool, Durability), Arc<AppendPlace>>>,
}

struct AppendPlace {
    keys: Keys,
    dial: Arc<Dial>,
    packings: Arc<Packings>,
    form: AppendForm,
    own: Mutex<OwnAppender>,
    /// Closes that one when nobody has used it for a while.
    sweep: OneTask,
    /// To the task of the shared connection, if it runs.
    lane: Mutex<Option<mpsc::UnboundedSender<Work>>>,
    /// Counts the failures of the shared connection.
    failures: AtomicU64,
}

/// The connection that one producer has at a time.
struct OwnAppender {
    state: Slot,
    used: Instant,
}

enum Slot {
    Taken,
    Free(Option<Box<StreamAppender>>),
}

/// A batch for the shared connection.
struct Work {
    part: Part,
    /// Number of failures when its producer began. After another one, an earlier batch of the producer may have failed,
    /// which this one must not overtake.
    failures: u64,
    results: oneshot::Sender<Results>,
}

/// Appends for one producer.
pub(crate) struct NodeAppender {
    place: Arc<AppendPlace>,
    way: AppendWay,
}

enum AppendWay {
    /// Nothing is under way.
    Idle,
    Own(Box<StreamAppender>),
    Shared {
        failures: u64,
        begun: VecDeque<(Part, oneshot::Receiver<Results>)>,
    },
}

impl NodeAppenders {
    pub(crate) fn new(keys: &Keys, dial: &Arc<Dial>, packings: &Arc<Packings>) -> Self {
        let plain = AppendPlace::new(keys, dial, packings, AppendForm { asking: false, confirm: None });
        let packings = packings.clone();
        Self { keys: keys.clone(), dial: dial.clone(), packings, plain, places: Mutex::default() }
    }

    /// Returns an appender for one producer. With `asking`, an `ASKING` precedes each entry.
    pub(crate) fn appender(&self, asking: bool, durability: Durability) -> NodeAppender {
        let confirm = Confirm::new(durability, self.dial.response_timeout);
        let place = if !asking && confirm.is_none() {
            self.plain.clone()
        } else {
            let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
            let place =
                || AppendPlace::new(&self.keys, &self.dial, &self.packings, AppendForm { asking, confirm });
            places.entry((asking, durability)).or_insert_with(place).clone()
        };
        NodeAppender { place, way: AppendWay::Idle }
    }
}

impl AppendPlace {
    fn new(keys: &Keys, dial: &Arc<Dial>, packings: &Arc<Packings>, form: AppendForm) -> Arc<Self> {
        Arc::new(Self {
            keys: keys.clone(),
            dial: dial.clone(),
            packings: packings.clone(),
            form,
            own: Mutex::new(OwnAppender { state: Slot::Free(None), used: Instant::now() }),
            sweep: OneTask::default(),
            lane: Mutex::default(),
            failures: AtomicU64::new(0),
        })
    }

    fn own(&self) -> MutexGuard<'_, OwnAppender> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn appender(&self) -> StreamAppender {
        StreamAppender::new(self.keys.clone(), self.dial.clone(), self.form)
    }

    /// Takes the connection for one producer, if there is one and no other producer has it.
    fn take(&self) -> Option<Box<StreamAppender>> {
        if self.form.confirm.is_some() {
            return None;
        }
        match std::mem::replace(&mut self.own().state, Slot::Taken) {
            Slot::Taken => None,
            Slot::Free(appender) => Some(appender.unwrap_or_else(|| Box::new(self.appender()))),
        }
    }

    /// Gives it back; `None` if it is of no use any more.
    fn put(self: &Arc<Self>, appender: Option<Box<StreamAppender>>) {
        let mut own = self.own();
        (own.state, own.used) = (Slot::Free(appender), Instant::now());
        drop(own);
        self.sweep.start(|| sweep(Arc::downgrade(self)));
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
        tokio::spawn(serve(self.appender(), Arc::downgrade(self), inbox).boxed());
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

/// The task of the shared connection.
struct Lane {
    appender: StreamAppender,
    place: Weak<AppendPlace>,
    /// Whether batches that wait are sent as one.
    merges: bool,
    /// Number of failures of the appender when a request was last answered.
    failures: u64,
    /// What is not begun, oldest first.
    waiting: VecDeque<Work>,
    /// Requests under way, oldest first: for each batch of one, the number of its entries and who waits for its results.
    begun: VecDeque<Vec<(usize, oneshot::Sender<Results>)>>,
}

/// Serves the shared connection.
async fn serve(appender: StreamAppender, place: Weak<AppendPlace>, mut inbox: mpsc::UnboundedReceiver<Work>) {
    let merges = appender.is_confirmed();
    let (waiting, begun) = (VecDeque::new(), VecDeque::new());
    let mut lane = Lane { appender, place, merges, failures: 0, waiting, begun };
    let mut ended = false;
    loop {
        if !lane.begin() {
            return;
        }
        let busy = !lane.begun.is_empty();
        if ended && !busy {
            return;
        }
        tokio::select! {
            biased;
            results = lane.appender.finish(), if busy => lane.answer(results),
            work = timeout(IDLE, inbox.recv()), if !ended => match work {
                Ok(Some(work)) => {
                    lane.waiting.push_back(work);
                    while let Ok(work) = inbox.try_recv() {
                        lane.waiting.push_back(work);
                    }
                }
                Ok(None) => ended = true,
                Err(_) if busy => {}
                Err(_) => if lane.place.upgrade().is_none_or(|place| place.ends(&inbox)) {
                    return;
                },
            }
        }
    }
}

impl Lane {
    /// Begins what waits, as far as it may be under way. False if there are no producers any more.
    fn begin(&mut self) -> bool {
        if self.waiting.is_empty() {
            return true;
        }
        let Some(place) = self.place.upgrade() else { return false };
        while !self.waiting.is_empty() && (!self.merges || self.begun.len() < CONFIRMED_AHEAD) {
            let mut merged: Vec<Part> = Vec::new();
            let mut request = Vec::new();
            let (mut entries, mut bytes) = (0, 0);
            while let Some(Work { part, failures, results }) = self.waiting.pop_front() {
                if failures != place.failures.load(Ordering::Acquire) {
                    let _ = results.send(not_sent(&part));
                    continue;
                }
                entries += part.len();
                bytes += part.iter().map(size).sum::<usize>();
                request.push((part.len(), results));
                merged.push(part);
                if !self.merges || entries >= CONFIRMED_FULL.0 || bytes >= CONFIRMED_FULL.1 {
                    break;
                }
            }
            let part = match merged.len() {
                0 => return true,
                1 => merged.remove(0),
                _ => Part::merged(&merged, &place.packings),
            };
            self.appender.begin(part);
            self.begun.push_back(request);
        }
        true
    }

    /// Delivers the results of the oldest request.
    fn answer(&mut self, results: Results) {
        let failures = self.appender.failures();
        // An entry that is stored and not confirmed keeps nothing behind it from being stored.
        // What the server cannot do at all is not begun again, so what is behind it overtakes nothing.
        let unsupported = |result: &Result<Appended>| {
            result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unsupported)
        };
        let failed =
            failures != self.failures && !results.iter().all(unsupported) || results.iter().any(is_refusal);
        self.failures = failures;
        if failed && let Some(place) = self.place.upgrade() {
            place.failures.fetch_add(1, Ordering::AcqRel);
        }
        let mut results = results.into_iter();
        for (entries, waiting) in self.begun.pop_front().into_iter().flatten() {
            // Its producer may be gone.
            let _ = waiting.send(results.by_ref().take(entries).collect());
        }
    }
}

/// Closes the connection of one producer when nobody has used it for a while. Ends with the place.
async fn sweep(place: Weak<AppendPlace>) {
    loop {
        sleep(IDLE).await;
        let Some(place) = place.upgrade() else { return };
        let mut own = place.own();
        if matches!(own.state, Slot::Free(_)) && own.used.elapsed() >= IDLE {
            own.state = Slot::Free(None);
        }
    }
}

/// Whether an append was refused by a server that takes none.
fn is_refusal(result: &Result<Appended>) -> bool {
    // A redirection concerns one slot.
    let refused = |error: &Error| error.kind() == ErrorKind::Unavailable && redirect(error).is_none();
    result.as_ref().is_err_and(refused)
}

fn not_sent(part: &Part) -> Results {
    failed(part, ErrorKind::Unavailable, "not sent, the connection failed meanwhile")
}

fn given_up(part: &Part) -> Results {
    let why = "the runtime of the shared connection has ended, the message may or may not be stored";
    failed(part, ErrorKind::Unconfirmed, why)
}

fn failed(part: &Part, kind: ErrorKind, why: &str) -> Results {
    part.iter().map(|append| Err(during(Error::new(kind, why), append))).collect()
}

impl NodeAppender {
    /// Begins a request behind the earlier ones: see [`Appender`](millstream_core::log::Appender).
    pub(crate) fn begin_part(&mut self, part: Part) {
        if let AppendWay::Idle = self.way {
            self.way = match self.place.take() {
                Some(appender) => AppendWay::Own(appender),
                None => {
                    let failures = self.place.failures.load(Ordering::Acquire);
                    AppendWay::Shared { failures, begun: VecDeque::new() }
                }
            };
        }
        match &mut self.way {
            AppendWay::Own(appender) => appender.begin(part),
            AppendWay::Shared { failures, begun } => {
                let (results, answer) = oneshot::channel();
                if part.is_empty() {
                    let _ = results.send(Results::new());
                } else {
                    self.place.share(Work { part: part.clone(), failures: *failures, results });
                }
                begun.push_back((part, answer));
            }
            AppendWay::Idle => {}
        }
    }

    /// Waits for the results of the oldest request.
    pub(crate) async fn finish(&mut self) -> Results {
        match &mut self.way {
            AppendWay::Idle => Results::new(),
            AppendWay::Own(appender) => {
                let results = appender.finish().await;
                if appender.is_idle()
                    && let AppendWay::Own(appender) = std::mem::replace(&mut self.way, AppendWay::Idle)
                {
                    self.place.put(Some(appender));
                }
                results
            }
            AppendWay::Shared { begun, .. } => {
                let Some((part, answer)) = begun.front_mut() else { return Results::new() };
                let results = answer.await.unwrap_or_else(|_| given_up(part));
                begun.pop_front();
                if begun.is_empty() {
                    self.way = AppendWay::Idle;
                }
                results
            }
        }
    }
}

impl Drop for NodeAppender {
    fn drop(&mut self) {
        if let AppendWay::Own(_) = self.way {
            // What is under way on it is nobody's any more: the connection ends with it.
            self.place.put(None);
        }
    }
}
