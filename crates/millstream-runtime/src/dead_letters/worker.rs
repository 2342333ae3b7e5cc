//! The loop of a dead-letter consumer: claims a page of letters, handles them, and settles each.
//!
//! A claim covers a whole page, and is renewed while the page is worked on. No letter is started once its claim may have
//! expired.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use millstream_core::dead_letters::{Claim, DeadLetterAction};
use millstream_core::error::Result;
use millstream_core::event::{Event, Observer};
use millstream_core::inspect::Range;
use millstream_core::limits::PermitKey;
use millstream_core::panics::{Panicked, UserCode, discard, error_text};
use millstream_core::sorted::SortedMap;
use millstream_core::{
    Backend, BoxError, DeadLetter, GroupName, Limits, MessageId, Outcome, TopicName, TopicPartition,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::DeadLetterConfig;
use super::report::LetterCounts;
use millstream_engine::DeadLetterOutcome;
use millstream_engine::handler::{Call, Input, Verdict, letter_input};
use millstream_engine::limits::{Permit, PermitAnswer, PermitPool};
use millstream_engine::{Keeper, Kept, LeaseClock, LoopMonitor, Loops, Rights, Scope};

/// The loop that looks for letters: while no letter is handled, its success shows that the server answers.
pub(super) const LOOKS: &str = "consume dead letters";

/// Maximum number of letters per claim.
const PAGE: usize = 20;

/// State of the loop of a dead-letter consumer.
pub(super) struct DeadLetterWorker {
    backend: Backend,
    topic: TopicName,
    group: GroupName,
    config: DeadLetterConfig,
    observer: Arc<dyn Observer>,
    stop: CancellationToken,
    counts: Arc<LetterCounts>,
    /// The handler with its layers, and with and without the guard of operations around it.
    handler: Box<dyn Call>,
    plain: Box<dyn Call>,
    /// What letters need of limits, if there are some.
    permits: Option<Arc<PermitPool>>,
    /// Keys that are short for long, since the last sweep, and how many letters were passed over in this round.
    short: Mutex<Vec<PermitKey>>,
    passed_over: AtomicUsize,
    /// The name that its claims are made under.
    by: String,
    /// Clock that measures the age of claims.
    clock: Arc<LeaseClock>,
    /// The last letter seen in each partition since the last sweep.
    seen: SortedMap<TopicPartition, MessageId>,
    swept: Option<Instant>,
    /// Monitors of renewals of claims, and of settlements. They outlive a page and a letter, which may end while they fail.
    claims: LoopMonitor,
    settles: LoopMonitor,
}

/// Letters of a page that are claimed and not yet settled.
struct HeldLetters {
    /// Each with the token that is cancelled when its claim may have ended.
    ids: Mutex<SortedMap<MessageId, CancellationToken>>,
    /// When the claim that is valid now was requested.
    since: Mutex<Instant>,
}

impl HeldLetters {
    fn ids(&self) -> MutexGuard<'_, SortedMap<MessageId, CancellationToken>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn since(&self) -> MutexGuard<'_, Instant> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The claims of a page while it is worked on. Where they are not renewed no further letter is started; those that have started
/// go on.
struct PageClaims<'a> {
    worker: &'a DeadLetterWorker,
    topic_partition: &'a TopicPartition,
    hand: &'a HeldLetters,
}

#[async_trait]
impl Rights for PageClaims<'_> {
    async fn renew(&self, asked: Instant) -> Result<Kept> {
        let hand = self.hand;
        let ids = Vec::from_iter(hand.ids().keys().copied());
        let kept = self.worker.claim(self.topic_partition, &ids).await?;
        *hand.since() = asked;
        let mut held = hand.ids();
        for id in ids.iter().filter(|id| !kept.contains(id)) {
            if let Some(cancelled) = held.remove(id) {
                cancelled.cancel();
            }
        }
        Ok(Kept::Renewed)
    }

    /// Claims are renewed every third of the hold. If the last one is older than two thirds, a renewal has failed and the claims may
    /// soon expire: handlers that wait for something before they begin do not.
    fn expire(&self) -> Option<Instant> {
        let until = *self.hand.since() + self.worker.config.hold * 2 / 3;
        if self.worker.clock.now() < until {
            return Some(until);
        }
        self.hand.ids().iter().for_each(|(_, cancelled)| cancelled.cancel());
        None
    }
}

impl DeadLetterWorker {
    pub(super) fn new(
        backend: Backend,
        topic: TopicName,
        (group, by): (GroupName, String),
        config: DeadLetterConfig,
        observer: Arc<dyn Observer>,
        (stop, counts, permits): (CancellationToken, Arc<LetterCounts>, Option<Arc<PermitPool>>),
        (handler, plain): (Box<dyn Call>, Box<dyn Call>),
    ) -> Self {
        let (clock, seen, swept) = (LeaseClock::of(&backend), SortedMap::new(), None);
        let monitor = |operation| LoopMonitor::unlisted(operation, Scope::Topic(topic.clone()));
        let (claims, settles) = (monitor("claim dead letters"), monitor("settle dead letters"));
        Self {
            backend,
            topic,
            group,
            config,
            observer,
            stop,
            counts,
            handler,
            plain,
            permits,
            short: Mutex::default(),
            passed_over: AtomicUsize::new(0),
            by,
            clock,
            seen,
            swept,
            claims,
            settles,
        }
    }

    /// Repeats [`run_once`](Self::run_once) until the consumer is stopped.
    pub(super) async fn run(mut self, loops: Loops) {
        let monitor = loops.monitor(LOOKS, Scope::Topic(self.topic.clone()));
        loops.announce(Some(&self.group), &*self.observer);
        while !self.stop.is_cancelled() {
            let pause = match self.run_once().await {
                Ok(()) => {
                    monitor.succeeded(&*self.observer);
                    // No page is worked on, so no claim is renewed, and the server answers.
                    self.claims.succeeded(&*self.observer);
                    self.config.poll
                }
                Err(error) => monitor.failed(&error, &*self.observer),
            };
            tokio::select! {
                biased;
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Handles new letters, and all letters again when it is time for a sweep.
    async fn run_once(&mut self) -> Result<()> {
        if self.swept.is_none_or(|at| at.elapsed() >= self.config.sweep) {
            self.seen.clear();
            self.short().clear();
            self.swept = Some(Instant::now());
        }
        let topic = self.backend.catalog().topic(&self.topic).await?;
        let begun = self.counts.begun.load(Ordering::Relaxed);
        self.passed_over.store(0, Ordering::Relaxed);
        // The error of one partition must not delay the others.
        let (mut failed, mut lasting, mut all) = (None, 0, 0);
        for topic_partition in topic.iter() {
            if let Err(error) = self.partition(&topic_partition).await {
                all += 1;
                lasting += u64::from(!error.is_transient());
                failed.get_or_insert(error);
            }
        }
        self.counts.unreadable.store(lasting, Ordering::Relaxed);
        // A fault that lasts must not hide that the other partitions have nothing.
        let passed_over = self.passed_over.load(Ordering::Relaxed) > 0;
        let is_whole = all == lasting && !passed_over && !self.stop.is_cancelled();
        if is_whole && self.counts.begun.load(Ordering::Relaxed) == begun {
            LetterCounts::add(&self.counts.idle);
        }
        failed.map_or(Ok(()), Err)
    }

    async fn partition(&mut self, topic_partition: &TopicPartition) -> Result<()> {
        let mut more = true;
        while more && !self.stop.is_cancelled() {
            let after = self.seen.get(topic_partition).copied().unwrap_or(MessageId::ZERO);
            let range = Range { after, ..Range::ALL };
            let role = self.backend.dead_letters()?;
            let page = role.list(topic_partition, &self.group, range, PAGE).await?;
            more = page.more;
            let Some(last) = page.items.last().map(|letter| letter.id) else { break };
            self.work(topic_partition, page.items).await?;
            if !self.stop.is_cancelled() {
                self.seen.insert(topic_partition.clone(), last);
            }
        }
        Ok(())
    }

    /// Claims letters and handles those whose claim succeeded.
    async fn work(&self, topic_partition: &TopicPartition, letters: Vec<DeadLetter>) -> Result<()> {
        let ids: Vec<MessageId> = letters.iter().map(|letter| letter.id).collect();
        let hand = HeldLetters { ids: Mutex::default(), since: Mutex::new(self.clock.now()) };
        let claimed = self.claim(topic_partition, &ids).await?;
        self.claims.succeeded(&*self.observer);
        claimed.into_iter().for_each(|id| drop(hand.ids().insert(id, CancellationToken::new())));
        let handled = stream::iter(letters).for_each_concurrent(self.config.concurrency, async |letter| {
            let id = letter.id;
            let Some(cancelled) = hand.ids().get(&id).cloned() else { return };
            let Some(units) = self.units(&letter, &cancelled).await else { return };
            // Claims are renewed every third of the hold. If the last one is older than two thirds, a renewal has failed
            // and the claim may soon expire, so nothing more is started.
            let held = self.clock.now().saturating_duration_since(*hand.since());
            if held < self.config.hold * 2 / 3 && !self.stop.is_cancelled() && (self.permits.is_none() || !cancelled.is_cancelled())
            {
                LetterCounts::add(&self.counts.begun);
                let outcome = match units {
                    Ok(units) => self.ask(letter, cancelled, units).await,
                    Err(key) => {
                        tracing::debug!(%topic_partition, %id, %key, "a dead letter is over a limit, and does not wait: it is left");
                        DeadLetterOutcome::Leave
                    }
                };
                self.settle(topic_partition, id, &outcome).await;
                hand.ids().remove(&id);
            }
        });
        let keeper = Keeper::new(self.config.hold, self.clock.clone());
        let claims = PageClaims { worker: self, topic_partition, hand: &hand };
        tokio::select! {
            biased;
            () = handled => {}
            () = keeper.run(*hand.since(), &claims, &self.claims, &*self.observer) => {}
        }
        let rest: Vec<_> =
            hand.ids().keys().map(|id| (*id, DeadLetterAction::Leave(Duration::ZERO))).collect();
        if !rest.is_empty() {
            let role = self.backend.dead_letters()?;
            role.settle(topic_partition, &self.group, Some(&self.by), &rest).await?;
        }
        Ok(())
    }

    async fn claim(&self, topic_partition: &TopicPartition, ids: &[MessageId]) -> Result<Vec<MessageId>> {
        let claim = Claim { by: self.by.clone(), hold: self.config.hold, left_too: false };
        self.backend.dead_letters()?.claim(topic_partition, &self.group, ids, &claim).await
    }

    fn short(&self) -> MutexGuard<'_, Vec<PermitKey>> {
        self.short.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the letter has what it needs of limits; an error is the key that is short, if it does not wait. `None` if it is not to
    /// begin: the worker ends, its claim is lost, or it has waited for a hold. Then it is looked at again with the next sweep, and until then
    /// no letter waits for the same key.
    async fn units(
        &self,
        dead: &DeadLetter,
        cancelled: &CancellationToken,
    ) -> Option<std::result::Result<Option<Permit>, PermitKey>> {
        let Some(pool) = &self.permits else { return Some(Ok(None)) };
        // One that is no message has neither key nor headers, and comes under limits for all.
        let needs = pool.needs(&dead.envelope(&Limits::NONE).unwrap_or_default(), &*self.observer);
        let patience = tokio::time::sleep(self.config.hold);
        tokio::pin!(patience);
        let mut waits_for = None;
        loop {
            let mut request = match pool.request(needs.clone()) {
                Ok(units) => return Some(Ok(Some(units))),
                Err(request) => request,
            };
            let answer = loop {
                let answer = tokio::select! {
                    biased;
                    () = self.stop.cancelled() => return None,
                    () = cancelled.cancelled() => return None,
                    answer = request.answer() => Some(answer),
                    () = &mut patience => None,
                };
                match answer {
                    Some(PermitAnswer::Parked(key)) if !self.short().contains(&key) => waits_for = Some(key),
                    // Others have waited for this one for long enough.
                    None | Some(PermitAnswer::Parked(_)) => {
                        self.short().extend(waits_for);
                        self.passed_over.fetch_add(1, Ordering::Relaxed);
                        return None;
                    }
                    Some(answer) => break answer,
                }
            };
            match answer {
                PermitAnswer::Granted(units) if units.is_live() => return Some(Ok(Some(units))),
                PermitAnswer::Refused(key) => return Some(Err(key)),
                // They were lost before it could begin: it asks again.
                PermitAnswer::Granted(_) | PermitAnswer::Parked(_) => {}
            }
        }
    }

    /// Calls the handler and returns its outcome. A letter whose handler fails is left.
    async fn ask(
        &self,
        dead: DeadLetter,
        cancelled: CancellationToken,
        units: Option<Permit>,
    ) -> DeadLetterOutcome {
        let (id, topic_partition) = (dead.id, dead.topic_partition.clone());
        let said = match self.outcome(dead, cancelled, units).await {
            Ok(DeadLetterOutcome::ReplayAs(envelope)) => match envelope.check(&Limits::NONE) {
                Ok(()) => Ok(DeadLetterOutcome::ReplayAs(envelope)),
                Err(error) => Err(error.into()),
            },
            said => said,
        };
        said.unwrap_or_else(|failure| {
            LetterCounts::add(&self.counts.failed);
            let (error, unreadable) = error_text(&*failure);
            for panicked in unreadable.iter().chain(Panicked::within(&*failure)) {
                self.observer.observe(&panicked.event());
            }
            discard(failure, &*self.observer);
            tracing::warn!(%topic_partition, %id, error, "the handler of a dead letter failed: it is left");
            DeadLetterOutcome::Leave
        })
    }

    async fn outcome(
        &self,
        dead: DeadLetter,
        cancelled: CancellationToken,
        mut units: Option<Permit>,
    ) -> std::result::Result<DeadLetterOutcome, BoxError> {
        let timeout = self.config.handler_timeout;
        let (mut input, facts) = letter_input(dead, cancelled, self.stop.clone());
        if let Some(units) = &mut units {
            let scope = input.about.scope.with_units(units.right().clone());
            input.about.scope = Arc::new(scope.with_begun(units.begin()));
        }
        let again = Input { about: input.about.clone(), payload: input.payload.clone() };
        let verdict = match self.handler.one(input, timeout).await.into_verdict() {
            // It names no operation: the handler decides about it, and nothing says that it was done.
            Some(Verdict::Said(Outcome::DeadLetter(_))) if !facts.is_called() => {
                self.plain.one(again, timeout).await.into_verdict()
            }
            verdict => verdict,
        };
        if let (Some(pool), Some(units)) = (&self.permits, &units)
            && !pool.counts(units).await
        {
            // Others may have been handled in its place: it is handled again.
            discard(verdict, &*self.observer);
            return Ok(DeadLetterOutcome::LeaveFor(Duration::ZERO));
        }
        let judged = units
            .zip(verdict.as_ref())
            .and_then(|(mut units, verdict)| verdict.replaced(&mut units, &*self.observer));
        let verdict = match judged {
            Some(judged) => {
                discard(verdict, &*self.observer);
                Some(judged)
            }
            None => verdict,
        };
        match verdict {
            Some(Verdict::Letter(outcome)) => Ok(*outcome),
            // Its operation is done.
            Some(Verdict::Duplicate(_)) => Ok(DeadLetterOutcome::Delete),
            Some(Verdict::Said(Outcome::Snooze(time))) => Ok(DeadLetterOutcome::LeaveFor(time)),
            Some(
                Verdict::Said(
                    Outcome::Retry(error)
                    | Outcome::RetryAfter(_, error)
                    | Outcome::RetryAt(_, error)
                    | Outcome::DeadLetter(error),
                )
                | Verdict::Undecodable(error),
            ) => Err(error),
            Some(Verdict::TimedOut(limit)) => Err(format!("handler timed out after {limit:?}").into()),
            Some(Verdict::Panicked(text)) => {
                self.observer.observe(&Event::Panicked { code: UserCode::Handler, text: &text });
                Err(format!("handler panicked: {text}").into())
            }
            // It was not handled, or by an outcome of a later version of core.
            _ => Ok(DeadLetterOutcome::Leave),
        }
    }

    /// Settles a letter. Retries after transient errors; a letter that is not settled is handled again when its claim
    /// expires.
    async fn settle(&self, topic_partition: &TopicPartition, id: MessageId, outcome: &DeadLetterOutcome) {
        let deeds = [(id, outcome.deed(self.config.leave_for))];
        loop {
            let settled = async {
                let role = self.backend.dead_letters()?;
                role.settle(topic_partition, &self.group, Some(&self.by), &deeds).await
            };
            match settled.await {
                Ok(done) => {
                    let counter = match outcome {
                        _ if done.is_empty() => &self.counts.lost,
                        DeadLetterOutcome::Delete => &self.counts.deleted,
                        DeadLetterOutcome::Replay | DeadLetterOutcome::ReplayAs(_) => &self.counts.replayed,
                        _ => &self.counts.left,
                    };
                    LetterCounts::add(counter);
                    if let Some(work) = outcome.work() {
                        self.observer.observe(&Event::DeadLetters {
                            topic_partition,
                            group: &self.group,
                            work,
                            done: done.len(),
                            passed_over: 1 - done.len().min(1),
                            refused: 0,
                        });
                    }
                    return self.settles.succeeded(&*self.observer);
                }
                Err(error) => {
                    let pause = self.settles.failed(&error, &*self.observer);
                    if !error.is_transient() || self.stop.is_cancelled() {
                        return;
                    }
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }
}
