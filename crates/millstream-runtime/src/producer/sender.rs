//! The task behind a batcher: makes batches, and has them sent in order.
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
use super::spin_wait::SpinWait;

pub(super) struct Sender<C: Outgoing> {
    sink: Box<dyn Sink<C>>,
    topic: TopicName,
    observer: Arc<dyn Observer>,
    inbox: mpsc::UnboundedReceiver<Command<C>>,
    /// Nothing more will come.
    closed: bool,
    max_batch: usize,
    linger: Duration,
    spin_wait: SpinWait,
    /// What comes next.
    next: Batch<C>,
    /// What the sink has begun, the oldest first.
    under_way: VecDeque<UnderWay<C>>,
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
            spin_wait: SpinWait::default(),
            next: Batch::default(),
            under_way: VecDeque::new(),
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
        } else if self.is_due() && self.under_way.len() < self.sink.ahead() {
            if !self.is_full() {
                // Whoever was woken with the answers before, and sends again, is to be in the same batch.
                tokio::task::yield_now().await;
                self.take_what_is_there();
            }
            let batch = std::mem::take(&mut self.next).close();
            let expired = self.expired(&batch);
            if expired.is_none() {
                batch.send(&mut *self.sink);
            }
            self.under_way.push_back(batch);
            if let Some(results) = expired {
                self.tell(results);
            }
        } else {
            self.wait().await;
        }
        true
    }

    fn is_full(&self) -> bool {
        self.next.messages.len() >= self.max_batch
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
        let many = self.under_way.iter().map(|batch| batch.messages.len()).sum::<usize>() >= MANY;
        let mut watch = self.spin_wait.begin(many);
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
            () = watch.keep() => None,
        };
        self.spin_wait.end(&watch);
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
            return self.tell(results);
        }
        self.away = results.iter().find_map(|result| result.as_ref().err()).map(Error::duplicate);
        self.failures = self.failures.saturating_add(1);
        let pause = pauses.delay(self.failures, fastrand::u64(..));
        let mut answers = VecDeque::from([results]);
        for at in 1..self.under_way.len() {
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
            return answers.into_iter().for_each(|results| self.tell(results));
        }
        let again = Instant::now() + pause;
        while self.under_way.front().is_some_and(|batch| again >= batch.deadline)
            && let Some(results) = answers.pop_front()
        {
            self.tell(results);
        }
        sleep(pause).await;
        for batch in &self.under_way {
            batch.send(&mut *self.sink);
        }
    }

    /// What is answered to a batch whose time is over before it could be tried: with a server that is away for long, one
    /// attempt for each of those that wait would take for ever.
    fn expired(&self, batch: &UnderWay<C>) -> Option<Vec<Result<C::Done>>> {
        let away = self.away.as_ref().filter(|_| self.under_way.is_empty())?;
        let over = !batch.messages.is_empty() && Instant::now() >= batch.deadline;
        let error = || Error::new(away.kind(), format!("not sent within its time, the last attempt: {away}"));
        over.then(|| batch.messages.iter().map(|_| Err(error())).collect())
    }

    fn tell(&mut self, results: Vec<Result<C::Done>>) {
        let Some(batch) = self.under_way.pop_front() else { return };
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
                self.next.messages.push(message);
            }
            Command::Many(messages, reply, ticket) => {
                self.next.add(ticket, Reply::Many(messages.len(), reply));
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

/// From so many messages on that wait for an answer, it pays to be awake when it comes.
const MANY: usize = 16;

/// Whether the server would take none of it now: nothing was done.
fn is_away<D>(results: &[Result<D>]) -> bool {
    let away =
        |result: &Result<D>| result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable);
    !results.is_empty() && results.iter().all(away)
}
