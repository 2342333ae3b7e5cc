//! Loop of a relay: renew the leases, read a page, append it, delete it.
//!
//! A row is deleted after it was stored. Between the two the relay may die: the next one appends the row again, under the same
//! dedup id, which stores nothing. The deletion compares the lease of the row's shard in its own transaction, so a relay that
//! was paused past its ttl deletes nothing; what it still appends was appended by its successor, or will not be appended by it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::{Event, Observer};
use millstream_core::log::{Append, Appended, DedupIdentity};
use millstream_core::span::Tracing;
use millstream_core::{Backend, Log, TopicName, TopicPartition, wire};
use millstream_engine::{LeaseClock, LoopMonitor, Scope, catch_panic};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

mod fates;

use super::OutboxRelayConfig;
use super::answers::Answers;
use super::batch::{Planned, Verdict, requests, verdict};
use super::pace::Pace;
use super::share;
use super::spans::Spans;
use super::topics::Topics;
use super::trimming::Trims;
use crate::outbox::row::{RowName, StoredRow, before_watermark};
use crate::outbox::store::{Failed, Grant, PageLimits, Sample, Store};

/// Most bytes of keys, headers and payloads in a page, its last row excluded.
const PAGE_BYTES: i64 = 8 << 20;

/// Interval at which rows that are due are looked for.
const PROMOTE_EVERY: Duration = Duration::from_millis(200);

/// Interval at which the state of the table is measured.
const SAMPLE_EVERY: Duration = Duration::from_secs(5);

/// Age of a transaction from which on it is logged that it holds back rows.
const BLOCKED_LONG: Duration = Duration::from_secs(10);

/// Most rows of a page are this many batches: rows that wait stand at its front, and others are behind them.
const MOST_BATCHES: usize = 4;

/// Result of a round.
#[derive(Clone, Debug)]
enum Round {
    /// Rows were sent: there may be more.
    Moved,
    /// There is nothing to send now. `waiting`: there are rows, and they cannot be sent yet.
    Nothing { waiting: bool },
}

/// Rows whose fate is known and not written yet.
#[derive(Debug, Default)]
struct Fates {
    stored: Vec<RowName>,
    failed: Vec<Failed>,
}

/// What was found out about topics while a page is converted: nothing is asked for twice.
#[derive(Debug, Default)]
struct Found {
    missing: HashMap<TopicName, Error>,
    with_room: HashSet<TopicPartition>,
}

/// Messages of a topic or a partition that wait because of an error.
#[derive(Clone, Copy, Debug)]
struct Hold {
    until: Instant,
}

pub(super) struct Run {
    store: Arc<dyn Store>,
    log: Arc<dyn Log>,
    topics: Topics,
    trims: Trims,
    config: OutboxRelayConfig,
    observer: Arc<dyn Observer>,
    /// Whether the observer has a tracer.
    is_traced: bool,
    monitor: LoopMonitor,
    me: String,
    stopped: watch::Receiver<bool>,
    grants: Vec<Grant>,
    /// Until then the leases are valid for certain. Counted from before the renewal, by a clock that counts the time for which the
    /// machine is suspended.
    valid_until: Instant,
    clock: Arc<LeaseClock>,
    /// Time that the runtime's clock had not counted at the last renewal.
    missed: Duration,
    answers: Answers,
    renew_at: Instant,
    promote_at: Instant,
    sample_at: Instant,
    /// What could not be written because the database was away: it must not be appended again.
    fates: Fates,
    /// By topic and partition; a whole topic has no partition.
    holds: HashMap<(TopicName, Option<u32>), Hold>,
    /// Number of rows of the last page that wait.
    held_rows: usize,
    /// Number of shards that had rows in the last page.
    busy_shards: usize,
    pace: Pace,
    blocked_logged: bool,
}

impl Run {
    pub(super) fn new(
        store: Arc<dyn Store>,
        backend: &Backend,
        (topics, trims): (Topics, Trims),
        config: OutboxRelayConfig,
        observer: Arc<dyn Observer>,
        me: String,
        stopped: watch::Receiver<bool>,
    ) -> Self {
        let (now, clock) = (Instant::now(), LeaseClock::of(backend));
        Self {
            store,
            log: backend.log().clone(),
            topics,
            trims,
            config,
            is_traced: Tracing::of(&observer).is_some(),
            observer,
            monitor: LoopMonitor::unlisted("relay", Scope::Queue),
            me,
            stopped,
            grants: Vec::new(),
            valid_until: clock.now(),
            clock,
            missed: Duration::ZERO,
            answers: Answers::default(),
            renew_at: now,
            promote_at: now,
            sample_at: now,
            fates: Fates::default(),
            holds: HashMap::new(),
            held_rows: 0,
            busy_shards: 1,
            pace: Pace::default(),
            blocked_logged: false,
        }
    }

    /// Runs until it is stopped. Errors do not end it.
    pub(super) async fn run(mut self) {
        let wake = Arc::new(Notify::new());
        let _listener = self.config.listen.then(|| self.store.listen(wake.clone()));
        while !*self.stopped.borrow() {
            let round = catch_panic(self.run_once()).await;
            let (pause, is_failing) = match round {
                Ok(Round::Moved) => {
                    self.pace.reset();
                    (Duration::ZERO, false)
                }
                Ok(Round::Nothing { waiting }) => (self.pace.next(waiting), false),
                Err(error) => (self.monitor.failed(&error, &*self.observer), true),
            };
            if pause.is_zero() {
                tokio::task::yield_now().await;
                continue;
            }
            let pause = pause
                .min(self.renew_at.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)));
            tokio::select! {
                _ = self.stopped.changed() => {}
                // While something fails, a commit is no reason to come back earlier.
                () = wake.notified(), if !is_failing => self.pace.reset(),
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.observer.observe(&Event::OutboxUnknown);
        if let Err(error) = self.leave().await {
            // The leases expire.
            tracing::debug!(%error, "the relay left without giving its shards back");
        }
    }

    /// One round: at most one page.
    async fn run_once(&mut self) -> Result<Round> {
        let now = Instant::now();
        // First of all, after an outage too: what was stored is not to be taken by another relay, which would store it again if
        // the window is over. For that the lease only has to be the granted one, and may have expired.
        self.write_fates().await?;
        self.trims.begin().await;
        if now >= self.renew_at {
            self.renew().await?;
        }
        if now >= self.sample_at {
            self.sample().await?;
        }
        if self.grants.is_empty() {
            self.monitor.succeeded(&*self.observer);
            return Ok(Round::Nothing { waiting: false });
        }
        let shards: Vec<i16> = self.grants.iter().map(|grant| grant.shard).collect();
        if now >= self.promote_at {
            self.answers.to(self.store.promote(&shards)).await?;
            self.promote_at = now + PROMOTE_EVERY;
        }
        let limits = self.page_limits(shards.len());
        let rows = self.answers.to(self.store.page(&shards, limits)).await?;
        let (mut ready, is_blocked) = before_watermark(rows);
        let mut busy: Vec<i16> = ready.iter().map(|row| row.shard).collect();
        busy.sort_unstable();
        busy.dedup();
        self.busy_shards = busy.len().max(1);
        if self.clock.now() >= self.valid_until {
            // Another relay may have the shards by now. The same epoch proves that none had a shard since the page was read.
            let before = self.grants.clone();
            self.renew().await?;
            let kept = |shard| before.iter().any(|it| it.shard == shard && self.grants.contains(it));
            ready.retain(|row| kept(row.shard));
        }
        let error = self.send(ready).await;
        let moved = self.fates.stored.len() + self.fates.failed.len();
        self.write_fates().await?;
        match error {
            // Others were sent: the rest of the table is not to wait for those that could not be.
            Some(error) if moved > 0 => {
                tracing::debug!(%error, "some rows of the outbox wait");
                Ok(Round::Moved)
            }
            Some(error) => Err(error),
            None => {
                if self.holds.is_empty() {
                    self.monitor.succeeded(&*self.observer);
                }
                let waiting = is_blocked || self.held_rows > 0;
                Ok(if moved > 0 { Round::Moved } else { Round::Nothing { waiting } })
            }
        }
    }

    fn page_limits(&self, shards: usize) -> PageLimits {
        let batch = self.config.batch;
        let rows = (batch + self.held_rows).min(batch * MOST_BATCHES);
        let per_shard = if shards == 1 { rows } else { (rows / self.busy_shards).max(16).min(rows) };
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        let payload = number(self.config.limits.payload);
        PageLimits { per_shard: number(per_shard), rows: number(rows), bytes: PAGE_BYTES, payload }
    }

    /// Renews the leases and moves towards an even share.
    async fn renew(&mut self) -> Result<()> {
        let (ttl, asked, began) = (self.config.ttl, self.clock.now(), Instant::now());
        // That answers came without a break is not known of the time for which the machine was suspended.
        let missed = asked.saturating_duration_since(began);
        let is_gap = missed.saturating_sub(std::mem::replace(&mut self.missed, missed)) > ttl / 2;
        let shares = self.answers.to(self.store.renew(&self.me, ttl)).await?;
        let mine = shares.leases.iter().filter(|it| it.holder.as_deref() == Some(&*self.me));
        self.grants = mine.map(|it| Grant { shard: it.shard, epoch: it.epoch }).collect();
        self.valid_until = asked + ttl;
        if is_gap || self.clock.now() > self.valid_until {
            self.answers.restart();
        }
        let change = share::change(&self.me, &shares, self.answers.last_for(ttl));
        if !change.release.is_empty() {
            self.grants.retain(|grant| !change.release.contains(&grant.shard));
            self.answers.to(self.store.release(&self.me, &change.release)).await?;
        }
        if !change.acquire.is_empty() {
            self.grants.extend(self.answers.to(self.store.acquire(&self.me, ttl, &change.acquire)).await?);
        }
        // At the moment when a lease of another relay ends, unless it is renewed until then, which it is three times.
        let others =
            shares.leases.iter().filter(|it| it.holder.is_some() && it.holder.as_deref() != Some(&*self.me));
        let next_end = others.map(|it| it.expires_in + Duration::from_millis(2)).min();
        let soon = next_end.map_or(ttl / 3, |end| end.min(ttl / 3)).max(Duration::from_millis(20));
        self.renew_at = began + soon;
        Ok(())
    }

    async fn sample(&mut self) -> Result<()> {
        let sample = self.answers.to(self.store.sample()).await;
        let sample: Sample = sample.inspect_err(|_| self.observer.observe(&Event::OutboxUnknown))?;
        self.sample_at = Instant::now() + SAMPLE_EVERY;
        let Sample { oldest, blocked, dead, ref blocker } = sample;
        self.observer.observe(&Event::OutboxSampled { oldest, blocked, dead });
        let is_long = blocked.is_some_and(|age| age >= BLOCKED_LONG);
        if is_long && !self.blocked_logged {
            tracing::warn!(%blocker, age = ?blocked, "a transaction holds back rows of the outbox");
        } else if self.blocked_logged && blocked.is_none() {
            tracing::info!("no transaction holds back rows of the outbox any more");
        }
        self.blocked_logged = is_long || (self.blocked_logged && blocked.is_some());
        Ok(())
    }

    /// Sends rows. Their fates are in `fates` afterwards; rows that wait have none. Returns an error of rows that wait now.
    async fn send(&mut self, rows: Vec<StoredRow>) -> Option<Error> {
        let now = Instant::now();
        self.holds.retain(|_, hold| hold.until > now);
        self.held_rows = 0;
        let mut waits: Option<Error> = None;
        let mut planned = Vec::with_capacity(rows.len());
        let mut found = Found::default();
        for row in rows {
            let name = row.name();
            match self.plan(row, &mut found).await {
                Ok(Some(message)) => planned.push(message),
                Ok(None) => self.held_rows += 1,
                Err((topic, error)) => match verdict(error.kind()) {
                    Verdict::Dead => self.fail(name, topic.as_ref(), &error),
                    Verdict::Wait | Verdict::Away => {
                        self.held_rows += 1;
                        let topic = topic.map(|topic| (topic, None));
                        topic.into_iter().for_each(|place| self.hold(place, &error));
                        waits.get_or_insert(error);
                    }
                },
            }
        }
        for request in requests(&planned) {
            let some: Vec<&Planned> =
                planned[request].iter().filter(|it| !self.is_held(it.topic_partition())).collect();
            if some.is_empty() {
                continue;
            }
            let (error, is_away) = self.append(&some).await;
            waits = waits.or(error);
            if is_away {
                break;
            }
        }
        waits
    }

    /// Converts a row. `None` if it has to wait behind others.
    async fn plan(
        &mut self,
        row: StoredRow,
        found: &mut Found,
    ) -> Result<Option<Planned>, (Option<TopicName>, Error)> {
        let row_name = row.name();
        let message = row.into_message(&self.config.limits).map_err(|error| (None, error))?;
        let name = message.topic.clone();
        let named = |error: Error| (Some(name.clone()), error);
        if self.holds.contains_key(&(name.clone(), None)) {
            return Ok(None);
        }
        if let Some(error) = found.missing.get(&name) {
            return Err(named(error.clone()));
        }
        let topic = match self.topics.get(&name).await {
            Ok(topic) => topic,
            Err(error) => {
                let error = error.during(format_args!("find topic {name}"));
                found.missing.insert(name.clone(), error.clone());
                return Err(named(error));
            }
        };
        let (partition, earlier) = self.topics.place(&topic, &message, &*self.observer).map_err(named)?;
        let topic_partition = TopicPartition { topic: name.clone(), partition };
        if self.is_held(&topic_partition) {
            return Ok(None);
        }
        if let Some(bound) = topic.spec.max_length
            && found.with_room.insert(topic_partition.clone())
            && let Err(error) = self.has_room(&topic_partition, bound).await
        {
            self.hold((name.clone(), Some(partition.0)), &error);
            return Err((None, error));
        }
        let identity = DedupIdentity { id: message.id, window: self.config.window, earlier };
        let append = Append::new(topic_partition, wire::encode(&message.envelope)).with(identity);
        Ok(Some(Planned { row: row_name, append, headers: message.envelope.headers }))
    }

    /// Appends messages. Returns an error of those that wait, and whether the servers are away.
    async fn append(&mut self, messages: &[&Planned]) -> (Option<Error>, bool) {
        if self.clock.now() >= self.valid_until + self.config.window {
            // The machine was suspended since the page was read: another relay may have stored these rows, and the server remembers
            // them no more. They are read again, if they are there.
            self.held_rows += messages.len();
            return (None, true);
        }
        let batch: Vec<Append> = messages.iter().map(|it| it.append.clone()).collect();
        let began = Instant::now();
        let mut results = self.log.append(&batch).await.into_iter();
        let mut spans = self.is_traced.then(|| Spans::since(began));
        let mut counts: BTreeMap<&TopicPartition, (usize, usize)> = BTreeMap::new();
        let (mut waits, mut is_away) = (None, false);
        for message in messages {
            let missing = || Err(Error::new(ErrorKind::Protocol, "the backend returned too few results"));
            let place = message.topic_partition();
            let result = results.next().unwrap_or_else(missing);
            if let Some(spans) = &mut spans {
                spans.add(message, result.as_ref().err());
            }
            match result {
                Ok(Appended { is_duplicate, .. }) => {
                    let (stored, duplicates) = counts.entry(place).or_default();
                    *(if is_duplicate { duplicates } else { stored }) += 1;
                    self.fates.stored.push(message.row.clone());
                }
                Err(error) => match verdict(error.kind()) {
                    Verdict::Dead => self.fail(message.row.clone(), Some(&place.topic), &error),
                    its => {
                        is_away = is_away || its == Verdict::Away;
                        self.held_rows += 1;
                        self.topics.expire(&place.topic);
                        self.hold((place.topic.clone(), Some(place.partition.0)), &error);
                        waits.get_or_insert(error);
                    }
                },
            }
        }
        if let Some(spans) = spans {
            spans.end(&*self.observer);
        }
        for (topic_partition, (stored, duplicates)) in counts {
            if stored > 0 {
                if self.topics.is_lossy(&topic_partition.topic) {
                    self.trims.stored(topic_partition);
                }
                self.observer.observe(&Event::Produced { topic_partition, messages: stored });
            }
            if duplicates > 0 {
                let topic = &topic_partition.topic;
                self.observer.observe(&Event::Deduplicated { topic, messages: duplicates });
            }
        }
        (waits, is_away)
    }
}
