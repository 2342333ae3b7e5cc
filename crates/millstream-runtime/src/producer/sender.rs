//! The task behind a batcher: forms batches and has them sent in order.
//!
//! A batch forms from what waits, and nothing waits for a batch to form: as soon as there is a message, it is sent. Many small
//! batches are under way at a time, each answered by itself. With few large ones, senders would go in convoys: all that share
//! a batch wait until the last of it is stored, send again together, and the server is idle in between.
//!
//! Order survives a server that is away for a while: what was refused is begun again only if nothing behind it was stored
//! meanwhile, and then all of it, as it stood. Else it has failed, and says so.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::TopicName;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::{Event, Observer};
use millstream_core::policy::Exponential;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use super::ProducerConfig;
use super::batch::{Batch, Reply, UnderWay};
use super::batcher::Command;
use super::sink::{Outgoing, Sink};

pub(super) struct Sender<C: Outgoing> {
    sink: Box<dyn Sink<C>>,
    topic: TopicName,
    observer: Arc<dyn Observer>,
    inbox: mpsc::UnboundedReceiver<Command<C>>,
    /// Nothing more will come.
    closed: bool,
    max_batch: usize,
    linger: Duration,
    /// Whether several tasks were waiting when a batch was answered last: then it pays to let them send again before the next
    /// batch is closed. A task that is alone would only wait for the scheduler to look at the sockets first.
    crowded: bool,
    /// What comes next.
    next: Batch<C>,
    /// Closed batches that are not answered, the oldest first.
    under_way: VecDeque<UnderWay<C>>,
    /// How many of these the sink has begun. Fewer than all only while the server is away.
    begun: usize,
    /// How often in a row the server was away.
    failures: u32,
    /// What it said the last time.
    away: Option<Error>,
    closing: Vec<oneshot::Sender<()>>,
}

impl<C: Outgoing> Sender<C> {
    pub(super) fn new(
        sink: Box<dyn Sink<C>>,
        topic: TopicName,
        observer: Arc<dyn Observer>,
        inbox: mpsc::UnboundedReceiver<Command<C>>,
        config: &ProducerConfig,
    ) -> Self {
        Self {
            sink,
            topic,
            observer,
            inbox,
            closed: false,
            max_batch: config.max_batch,
            linger: config.linger,
            crowded: false,
            next: Batch::default(),
            under_way: VecDeque::new(),
            begun: 0,
            failures: 0,
            away: None,
            closing: Vec::new(),
        }
    }

    pub(super) async fn run(mut self) {
        while self.run_once().await {}
        for reply in self.closing {
            let _ = reply.send(());
        }
    }

    /// Begins a batch, or waits for one to be answered or for messages. False when closed and nothing is left.
    async fn run_once(&mut self) -> bool {
        if self.closed && self.next.is_empty() && self.under_way.is_empty() {
            return false;
        }
        if self.under_way.front().is_some_and(|batch| batch.messages.is_empty()) {
            // Only flushes.
            self.tell(Vec::new());
            return true;
        }
        if self.begun == 0
            && let Some(oldest) = self.under_way.front()
        {
            oldest.send(&mut *self.sink);
            self.begun = 1;
        }
        // While the server is away the oldest batch goes alone: an attempt for each that waits behind it would only be load.
        let probing = self.failures > 0 && !self.under_way.is_empty();
        let ahead = if self.is_full() { self.sink.ahead() } else { self.sink.ahead().min(PARTIAL_AHEAD) };
        if self.is_due() && !probing && self.under_way.len() < ahead {
            if !self.is_full() {
                if self.crowded {
                    tokio::task::yield_now().await;
                }
                self.take_what_is_there();
            }
            let batch = std::mem::take(&mut self.next).close();
            let expired = self.expired(&batch);
            self.under_way.push_back(batch);
            match expired {
                Some(results) => self.tell(results),
                None => self.begin_all(),
            }
        } else {
            self.wait().await;
        }
        true
    }

    fn is_full(&self) -> bool {
        self.next.messages.len() >= self.max_batch || self.next.bytes >= self.sink.full_at()
    }

    /// When the next batch need not wait for more messages any longer.
    fn due(&self) -> Option<Instant> {
        self.next.begun.map(|begun| begun + self.linger)
    }

    /// Whether the next batch is to be sent as soon as it can.
    fn is_due(&self) -> bool {
        let wanted = self.closed || self.is_full() || self.linger.is_zero() || self.next.is_flushed();
        !self.next.is_empty() && (wanted || self.due().is_none_or(|due| due <= Instant::now()))
    }

    /// Waits for the oldest batch to be answered, for messages, or for the next batch to be due.
    async fn wait(&mut self) {
        let due = self.due().filter(|_| !self.is_due());
        let more = !self.is_full() && !self.closed;
        let results = tokio::select! {
            biased;
            results = self.sink.finish(), if !self.under_way.is_empty() => Some(results),
            command = self.inbox.recv(), if more => {
                match command {
                    Some(command) => self.take(command),
                    None => self.closed = true,
                }
                self.take_what_is_there();
                None
            }
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => None,
        };
        if let Some(results) = results {
            self.answer(results).await;
        }
    }

    /// Gives the oldest batch its results, or has it begun again.
    async fn answer(&mut self, results: Vec<Result<C::Done>>) {
        let pauses =
            Exponential::from(Duration::from_millis(20)).up_to(Duration::from_secs(1)).equal_jitter();
        if !is_away(&results) {
            (self.failures, self.away) = (0, None);
            self.tell(results);
            return self.begin_all();
        }
        self.away = results.iter().find_map(|result| result.as_ref().err()).map(Error::duplicate);
        self.failures = self.failures.saturating_add(1);
        let pause = pauses.delay(self.failures, fastrand::u64(..));
        let mut answers = VecDeque::from([results]);
        for at in 1..self.begun {
            let nothing = self.under_way[at].messages.is_empty();
            answers.push_back(if nothing { Vec::new() } else { self.sink.finish().await });
        }
        // Stored, or who knows.
        let stored = |result: &Result<C::Done>| match result {
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::Unconfirmed,
        };
        let overtaken = answers.iter().flatten().any(stored);
        if overtaken {
            answers.into_iter().for_each(|results| self.tell(results));
            return self.begin_all();
        }
        self.begun = 0;
        let again = Instant::now() + pause;
        while let Some(oldest) = self.under_way.front().filter(|batch| again >= batch.deadline) {
            let results = answers.pop_front().or_else(|| self.not_tried(oldest));
            self.tell(results.unwrap_or_default());
        }
        sleep(pause).await;
    }

    /// Has the sink begin all that is not begun yet, in order.
    fn begin_all(&mut self) {
        for batch in self.under_way.iter().skip(self.begun) {
            batch.send(&mut *self.sink);
        }
        self.begun = self.under_way.len();
    }

    /// Results for a batch whose time is over before it could be tried, while the server is away: with a server that is away for
    /// long, one attempt for each of those that wait would take for ever.
    fn expired(&self, batch: &UnderWay<C>) -> Option<Vec<Result<C::Done>>> {
        let over = self.under_way.is_empty() && Instant::now() >= batch.deadline;
        if over && !batch.messages.is_empty() { self.not_tried(batch) } else { None }
    }

    /// Results for a batch that is given up without an attempt of its own; `None` if the server is not away.
    fn not_tried(&self, batch: &UnderWay<C>) -> Option<Vec<Result<C::Done>>> {
        let away = self.away.as_ref()?;
        let error = || Error::new(away.kind(), format!("not sent within its time, the last attempt: {away}"));
        Some(batch.messages.iter().map(|_| Err(error())).collect())
    }

    fn tell(&mut self, results: Vec<Result<C::Done>>) {
        let Some(batch) = self.under_way.pop_front() else { return };
        self.begun = self.begun.saturating_sub(1);
        self.crowded = results.len() > 1 || !self.under_way.is_empty();
        let stored = results.iter().filter(|result| result.is_ok()).count();
        if stored > 0 {
            self.sink.stored(&self.topic, stored, &*self.observer);
        }
        if let Some(error) = results.iter().find_map(|result| result.as_ref().err()) {
            let (topic, messages) = (&self.topic, results.len() - stored);
            self.observer.observe(&Event::ProduceFailed { topic, messages, error });
        }
        batch.answer(results);
    }

    fn take_what_is_there(&mut self) {
        while !self.is_full()
            && let Ok(command) = self.inbox.try_recv()
        {
            self.take(command);
        }
    }

    fn take(&mut self, command: Command<C>) {
        match command {
            Command::One(message, reply, ticket) => {
                self.next.add(ticket, Reply::One(reply));
                self.next.bytes += message.charge();
                self.next.messages.push(message);
            }
            Command::Many(messages, reply, ticket) => {
                self.next.add(ticket, Reply::Many(messages.len(), reply));
                self.next.bytes += messages.iter().map(Outgoing::charge).sum::<usize>();
                self.next.messages.extend(messages);
            }
            Command::Flush(reply) => self.next.replies.push(Reply::Flush(reply)),
            Command::Close(reply) => {
                // What is in the channel already is still sent; the next send fails.
                self.inbox.close();
                self.closing.push(reply);
            }
        }
    }
}

/// Requests under way from which on a batch waits until it is full or one of them is answered. More small requests would only
/// make each of them smaller: 64 tasks that send 128 bytes each had 0.97 to 1.03 of the rate of bare `XADD` without this bound,
/// and 1.03 to 1.23 with it.
const PARTIAL_AHEAD: usize = 8;

/// Whether the server would take none of it now: nothing was done.
fn is_away<D>(results: &[Result<D>]) -> bool {
    let away =
        |result: &Result<D>| result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable);
    !results.is_empty() && results.iter().all(away)
}
