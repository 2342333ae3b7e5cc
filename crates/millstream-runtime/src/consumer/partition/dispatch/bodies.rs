//! Bodies of messages that wait for long: beyond a bound they are dropped, and read again when it is their turn.
//!
//! With fairness a partition is read far ahead. Of what a tenant floods it with, the ids wait in memory and the bodies on the server.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use millstream_core::MessageId;
use millstream_core::TopicPartition;
use millstream_core::error::Result;
use millstream_core::inspect::{Inspect, Page, Range, Stored, Stream};
use millstream_core::log::Source;
use millstream_core::wire::Fields;
use millstream_engine::LoopMonitor;
use millstream_engine::fairness::TenantId;
use tokio::time::Instant;

use crate::consumer::context::Subscription;
use crate::consumer::partition::dispatch::asks::Asked;
use crate::consumer::partition::dispatch::job::Job;
use crate::consumer::partition::in_flight::Load;
use crate::consumer::partition::slot::Slot;

/// Bytes of payloads that wait in memory before further ones are dropped, by partition: 16 of the largest that the default limits allow.
const MOST_BYTES: usize = 16 << 20;
/// Messages of a tenant that keep their bodies in any case, so that one that sends a few never waits for a body.
const KEPT: usize = 16;
/// Messages that are read again together, for all that are wanted; fewer where they are large.
const PAGE: usize = 256;
/// Bodies that are wanted at the same time. Further ones are asked for when these have come.
const MOST_WANTED: usize = 16;

/// Bytes of payloads that are read again and not used yet. The page that was not used for longest goes first.
const MOST_LOADED: usize = 16 << 20;

/// Longest time of a request that works, for its health: it has no limit of its own but the backend's.
const LONG: Duration = Duration::from_secs(10);

/// What became of the body of a message whose turn it is.
pub(in crate::consumer) enum Body {
    /// It has one.
    There,
    /// It is being read: nothing of its tenant is to start until then.
    Coming,
    /// So many others are being read that nothing is asked for.
    Later,
    /// It is not there: another client deleted the entry, or its pack cannot be read. The reader finds out, which reads it again.
    Gone,
}

/// The bodies of one partition that were dropped and are read again.
pub(in crate::consumer) struct Bodies {
    context: Arc<Subscription>,
    inspect: Arc<dyn Inspect>,
    topic_partition: TopicPartition,
    /// What was read again. The last one was used last.
    pages: Vec<Loaded>,
    /// Ids that are wanted, those that have been so for longest first: one of each tenant.
    wanted: VecDeque<(MessageId, TenantId)>,
    request: Slot<(MessageId, Result<Page<Stored>>)>,
    /// When the next request may be sent, after one that failed.
    not_before: Option<Instant>,
    monitor: LoopMonitor,
}

/// One page. What is missing between its bounds is not there.
struct Loaded {
    first: MessageId,
    last: MessageId,
    bytes: usize,
    /// `None`: it was used. One that is dropped once more is read once more.
    fields: HashMap<MessageId, Option<Fields>>,
}

impl Loaded {
    fn new(first: MessageId, items: Vec<Stored>) -> Self {
        let last = items.last().map_or(first, |last| last.id);
        let bytes = items.iter().flat_map(|it| &it.fields).map(|(_, value)| value.len()).sum();
        Self { first, last, bytes, fields: items.into_iter().map(|it| (it.id, Some(it.fields))).collect() }
    }

    fn covers(&self, id: MessageId) -> bool {
        self.first <= id && id <= self.last
    }
}

impl Bodies {
    /// `None` if the backend cannot read entries again: then all bodies are kept.
    pub(in crate::consumer) fn new(
        context: &Arc<Subscription>,
        topic_partition: &TopicPartition,
    ) -> Option<Self> {
        let inspect = context.backend.inspect().ok()?.clone();
        Some(Self {
            inspect,
            pages: Vec::new(),
            wanted: VecDeque::new(),
            request: Slot::default(),
            not_before: None,
            monitor: context.monitor_of("read bodies", topic_partition),
            context: context.clone(),
            topic_partition: topic_partition.clone(),
        })
    }

    /// Drops the body of a message that will wait for long: its tenant has so many that wait, and all together these bytes.
    /// What it needs of limits is kept, so that it need not come for a message that only waits on.
    pub(in crate::consumer) fn drop_one(
        job: &mut Job,
        of_tenant: usize,
        waiting: Load,
        asks: impl FnOnce(&Job) -> Option<Box<[Asked]>>,
    ) {
        if Self::is_too_much(job, of_tenant, waiting) {
            job.asks = asks(job);
            job.drop_body();
        }
    }

    /// Whether the body of this message is to be dropped while it waits beside so many of its tenant, and of all.
    pub(in crate::consumer) fn is_too_much(job: &Job, of_tenant: usize, waiting: Load) -> bool {
        waiting.bytes + job.size() > MOST_BYTES && of_tenant > KEPT && job.receipt.source == Source::Log
    }

    /// Gives a message its body back, or asks for it.
    pub(in crate::consumer) fn restore(&mut self, job: &mut Job, tenant: TenantId) -> Body {
        if !job.is_bare() {
            return Body::There;
        }
        let id = job.receipt.id;
        if let Some(at) = self.pages.iter().position(|page| page.covers(id)) {
            let mut page = self.pages.remove(at);
            match page.fields.get_mut(&id).map(Option::take) {
                Some(Some(fields)) => {
                    if job.restore(fields, &self.context.config.limits) {
                        self.pages.push(page);
                        return Body::There;
                    }
                    return Body::Gone;
                }
                // The page is dropped: if it comes up once more, the server is asked.
                None => return Body::Gone,
                Some(None) => {}
            }
        }
        if self.wanted.len() >= MOST_WANTED {
            return Body::Later;
        }
        self.wanted.push_back((id, tenant));
        self.advance(Instant::now());
        Body::Coming
    }

    /// Sends the next request, if something is wanted and it is time.
    pub(in crate::consumer) fn advance(&mut self, now: Instant) {
        self.not_before = self.not_before.filter(|not_before| now < *not_before);
        if !self.request.is_empty() || self.not_before.is_some() {
            return;
        }
        let Some((first, _)) = self.wanted.front().copied() else { return };
        let limit = (PAGE / self.wanted.len()).max(1);
        self.monitor.begin_round(LONG);
        let (inspect, topic_partition) = (self.inspect.clone(), self.topic_partition.clone());
        self.request.start(Box::pin(async move {
            let range = Range { after: first.previous(), ..Range::ALL };
            (first, inspect.entries(&topic_partition, &Stream::Log, range, limit).await)
        }));
    }

    /// Returns when the next request is to be sent although nothing else happens.
    pub(in crate::consumer) fn wakes(&self) -> Option<Instant> {
        self.not_before.filter(|_| !self.wanted.is_empty() && self.request.is_empty())
    }

    /// Whether the last request failed, and the next one is to come.
    pub(in crate::consumer) fn is_failing(&self) -> bool {
        self.not_before.is_some()
    }

    /// Waits until a page was read. Returns the tenants whose messages it has: they ask again. Cancel safe.
    pub(in crate::consumer) async fn read(&mut self) -> Vec<TenantId> {
        let (first, read) = self.request.ended().await;
        match read {
            Ok(page) => {
                self.monitor.succeeded(&*self.context.observer);
                let page = Loaded::new(first, page.items);
                let (covered, others) = self.wanted.drain(..).partition(|(id, _)| page.covers(*id));
                self.wanted = others;
                let mut bytes: usize = page.bytes + self.pages.iter().map(|page| page.bytes).sum::<usize>();
                while bytes > MOST_LOADED && !self.pages.is_empty() {
                    bytes -= self.pages.remove(0).bytes;
                }
                self.pages.push(page);
                Vec::from(covered).into_iter().map(|(_, tenant)| tenant).collect()
            }
            Err(error) => {
                let pause = self.monitor.failed(&error, &*self.context.observer);
                self.not_before = Some(Instant::now() + pause);
                // One page that cannot be read keeps no others from being read.
                self.wanted.rotate_left(1);
                Vec::new()
            }
        }
    }
}
