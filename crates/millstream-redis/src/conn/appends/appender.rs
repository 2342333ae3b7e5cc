//! A connection for appends, on which requests follow each other without waiting for answers.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::keys::{Key, Keys};
use millstream_core::log::{Append, Appended};
use millstream_core::policy::Exponential;
use millstream_core::topic::TopicPartition;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::conn::appends::confirm::Confirm;
use crate::conn::appends::during;
use crate::conn::appends::part::Part;
use crate::conn::connection::DEMOTED;
use crate::conn::dial::Dial;
use crate::conn::pipe::Pipe;
use crate::conn::request::Request;
use crate::conn::socket::Socket;
use crate::conn::terms::{Tenure, left, over};
use crate::error::{no_answer, redirect, unchanged};

pub(crate) struct StreamAppender {
    keys: Keys,
    dial: Arc<Dial>,
    form: AppendForm,
    link: Link,
    /// What was begun and is not told of, the oldest first.
    begun: VecDeque<BegunAppend>,
    /// Since when nothing has gone out or come in, although something is under way.
    quiet: Instant,
    /// When the connection was opened.
    opened: Instant,
    /// Since when its server is known not to be the primary any more.
    left_since: Option<Instant>,
    /// The server takes no writes any more: the address may lead to another one by now.
    demoted: bool,
    /// How often in a row no connection could be opened.
    refused: u32,
    /// How many connections have failed.
    failures: u64,
}

/// What a request has beside the entries.
#[derive(Clone, Copy)]
pub(crate) struct AppendForm {
    /// Whether their slots are moving to this node, so that an `ASKING` precedes each entry.
    pub(crate) asking: bool,
    /// What the server is to wait for behind them.
    pub(crate) confirm: Option<Confirm>,
}

enum Link {
    Closed,
    Opening(Pin<Box<dyn Future<Output = Result<Pipe>> + Send>>),
    Open(Box<Pipe>),
}

struct BegunAppend {
    part: Part,
    /// The whole of it has failed.
    failed: Option<Error>,
}

impl StreamAppender {
    pub(crate) fn new(keys: Keys, dial: Arc<Dial>, form: AppendForm) -> Self {
        let now = Instant::now();
        Self {
            keys,
            dial,
            form,
            link: Link::Closed,
            begun: VecDeque::new(),
            quiet: now,
            opened: now,
            left_since: None,
            demoted: false,
            refused: 0,
            failures: 0,
        }
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.begun.is_empty()
    }

    /// Whether the server waits behind its entries.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.form.confirm.is_some()
    }

    /// Returns how many connections have failed so far, each with what was under way on it.
    pub(crate) fn failures(&self) -> u64 {
        self.failures
    }

    /// Takes a step: opens the connection, or sends and receives. Whether the oldest batch is answered.
    async fn advance(&mut self) -> Result<bool> {
        match &mut self.link {
            Link::Closed => {
                let (dial, pause, confirm) = (self.dial.clone(), self.pause(), self.form.confirm);
                self.link = Link::Opening(Box::pin(async move {
                    sleep(pause).await;
                    let mut socket = dial.socket("producer").await?;
                    if let Some(confirm) = confirm {
                        check(confirm, &mut socket, dial.response_timeout).await?;
                    }
                    Ok(Pipe::new(socket))
                }));
                Ok(false)
            }
            Link::Opening(opening) => {
                let opened = opening.await;
                // Of a server that is away its user knows, and pauses.
                let refused = opened.as_ref().is_err_and(|error| error.kind() != ErrorKind::Unavailable);
                self.refused = if refused { self.refused.saturating_add(1) } else { 0 };
                let mut pipe = opened?;
                (self.opened, self.left_since) = (Instant::now(), None);
                for begun in self.begun.iter().filter(|begun| !begun.part.is_empty()) {
                    pipe.put(request(&self.keys, &begun.part, self.form));
                }
                self.quiet = Instant::now();
                self.link = Link::Open(Box::new(pipe));
                Ok(false)
            }
            Link::Open(pipe) => {
                let limit = self.dial.response_timeout;
                let (left, since) = (pipe.tenure().cloned(), &mut self.left_since);
                let rest = limit.saturating_sub(self.quiet.elapsed());
                let step = tokio::select! {
                    biased;
                    step = timeout(rest, pipe.advance()) => step,
                    error = given_up(left, since) => Ok(Err(error)),
                };
                match step {
                    Ok(answered) => {
                        self.quiet = Instant::now();
                        answered
                    }
                    Err(_) => Err(no_answer(limit)),
                }
            }
        }
    }

    /// How long to wait before the next attempt: whoever sends again at once shall not make a storm of them.
    fn pause(&self) -> Duration {
        match self.refused {
            0 => Duration::ZERO,
            times => Exponential::from(Duration::from_millis(20))
                .up_to(Duration::from_secs(1))
                .equal_jitter()
                .delay(times, fastrand::u64(..)),
        }
    }

    /// The connection is of no use any more: tells apart what the server cannot have received.
    fn fail(&mut self, error: &Error) {
        self.failures += 1;
        let received = match std::mem::replace(&mut self.link, Link::Closed) {
            Link::Open(pipe) => {
                let received = pipe.begun();
                // Else what the system still holds could be stored long after it was told to be unconfirmed.
                pipe.abort();
                received
            }
            Link::Closed | Link::Opening(_) => 0,
        };
        let opened = received > 0 || error.kind() == ErrorKind::Unconfirmed;
        let asking = self.begun.iter_mut().filter(|begun| !begun.part.is_empty());
        for (at, begun) in asking.enumerate() {
            begun.failed = Some(if opened && at >= received {
                Error::new(ErrorKind::Unavailable, format!("not sent: {error}"))
            } else if opened {
                // Whatever went wrong, it may be stored.
                Error::new(ErrorKind::Unconfirmed, error.to_string())
            } else {
                error.clone()
            });
        }
    }

    /// The answers to the oldest batch.
    fn results(&mut self, part: &Part) -> Vec<Result<Appended>> {
        let Link::Open(pipe) = &mut self.link else { return Vec::new() };
        let mut replies = pipe.replies();
        let mut results = part.results(&mut replies, self.form.asking);
        for (result, append) in results.iter_mut().zip(part.iter()) {
            if let Err(error) = result {
                self.demoted |= error.kind() == ErrorKind::Unavailable && redirect(error).is_none();
                *result = Err(during(error.clone(), append));
            }
        }
        if let Some(confirm) = self.form.confirm {
            let answer = replies.next().and_then(|mut reply| reply.value());
            if let Some(missing) = confirm.missing(answer) {
                for (result, append) in
                    results.iter_mut().zip(part.iter()).filter(|(result, _)| result.is_ok())
                {
                    *result = Err(during(missing.clone(), append));
                }
            }
        }
        pipe.next();
        results
    }
}

impl StreamAppender {
    /// Begins a request behind the earlier ones: see [`Appender`](millstream_core::log::Appender).
    pub(crate) fn begin(&mut self, part: Part) {
        if self.begun.is_empty() {
            self.quiet = Instant::now();
        }
        // It must not overtake what has failed and may be begun again.
        let failed = self.begun.back().and_then(|before| before.failed.as_ref());
        let failed = failed.map(|error| match error.kind() {
            ErrorKind::Unsupported => error.clone(),
            _ => Error::new(ErrorKind::Unavailable, format!("not sent, an earlier append failed: {error}")),
        });
        // Begun again once what is under way is answered, over a connection to the new primary.
        let left = matches!(&self.link, Link::Open(pipe) if pipe.is_left()) && !self.begun.is_empty();
        let failed = failed.or_else(|| {
            left.then(|| {
                Error::new(ErrorKind::Unavailable, "not sent, another server has become the primary")
            })
        });
        if let (Link::Open(pipe), None, false) = (&mut self.link, &failed, part.is_empty()) {
            // Gone since the last answer, or of no use any more: nothing is lost yet.
            let over = || pipe.is_over() || (self.demoted && self.opened.elapsed() >= DEMOTED);
            if self.begun.is_empty() && over() {
                (self.link, self.demoted) = (Link::Closed, false);
            } else {
                pipe.put(request(&self.keys, &part, self.form));
            }
        }
        self.begun.push_back(BegunAppend { part, failed });
    }

    /// Waits for the results of the oldest request.
    pub(crate) async fn finish(&mut self) -> Vec<Result<Appended>> {
        loop {
            let Some(oldest) = self.begun.front() else { return Vec::new() };
            if oldest.part.is_empty() {
                self.begun.pop_front();
                return Vec::new();
            }
            if let Some(error) = &oldest.failed {
                let failed = oldest.part.iter().map(|append| Err(during(error.clone(), append))).collect();
                self.begun.pop_front();
                return failed;
            }
            match self.advance().await {
                Ok(false) => {}
                Ok(true) => {
                    if let Some(BegunAppend { part, .. }) = self.begun.pop_front() {
                        return self.results(&part);
                    }
                }
                Err(error) => self.fail(&error),
            }
        }
    }
}

/// Maximum time for answers of a server that is not the primary any more.
const LAST: Duration = Duration::from_millis(200);

/// Waits until another server has become the primary and this one has had [`LAST`] to answer.
///
/// `since` keeps the beginning of that time over calls: each step waits anew.
async fn given_up(mut tenure: Option<Tenure>, since: &mut Option<Instant>) -> Error {
    over(&mut tenure).await;
    sleep_until(*since.get_or_insert_with(Instant::now) + LAST).await;
    left()
}

/// Checks on a new connection that its server can confirm, so that nothing is stored if it cannot.
async fn check(confirm: Confirm, socket: &mut Socket, limit: Duration) -> Result<()> {
    let mut request = Request::default();
    confirm.add_check(&mut request);
    // Nothing of a producer is sent yet.
    socket.ask(&request, Duration::ZERO, limit).await.map_err(unchanged)?;
    confirm.check(socket.replies().next()?.value()?)
}

fn request(keys: &Keys, part: &Part, form: AppendForm) -> Request {
    let mut request = Request::with_capacity(part.iter().map(size).sum());
    let called = part.add_calls(&mut request, keys, form.asking);
    // Neighbours often go to one partition.
    let mut key: Option<(&TopicPartition, Key)> = None;
    for append in part.iter().filter(|_| !called) {
        let tp = &append.topic_partition;
        let (_, key) = match key.take() {
            Some(known) if known.0 == tp => key.insert(known),
            _ => key.insert((tp, keys.log(tp))),
        };
        if form.asking {
            request.add(&[b"ASKING"]);
        }
        request.begin(3 + 2 * append.fields.len());
        request.arg(b"XADD");
        request.arg(key.as_str().as_bytes());
        request.arg(b"*");
        for (name, value) in &append.fields {
            request.arg(name);
            request.arg(value);
        }
    }
    if let Some(confirm) = form.confirm {
        confirm.add(&mut request);
    }
    request
}

/// About what an entry takes in a request: its bytes, the words around them, and the key.
pub(crate) fn size(append: &Append) -> usize {
    let fields = append.fields.iter().map(|(name, value)| 24 + name.len() + value.len());
    96 + fields.sum::<usize>()
}
