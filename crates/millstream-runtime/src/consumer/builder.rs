//! Builder of a consumer: checks all settings at once, registers topics and groups, and starts the loops.

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use millstream_core::error::{Error, ErrorKind, Problems, Result};
use millstream_core::event::Observer;
use millstream_core::retention::Remembered;
use millstream_core::{
    Assignor, Backend, Capability, Codec, DeadLetterPolicy, GroupName, IntoCheck, IntoOutcome, MemberId,
    Partition, RebalanceListener, RetryPolicy, Start, Topic, TopicSpec, Upkeep,
};

use crate::consumer::config::check_stored;
use crate::consumer::context::{Context, Subscription, unique_name};
use crate::consumer::group::restore::join;
use crate::consumer::maintenance::{
    instances::InstanceSweeper, notes::NoteLook, settings::TopicSettings, trim::Trimmer,
    trim_dead::DeadLetterTrimmer,
};
use crate::consumer::{Concurrency, Consumer, ConsumerConfig, RetryOrder, Sharing};
use crate::panics::CarefulUpkeep;
use crate::producer::{Producer, warn_if_other};
use crate::report::Report;
use millstream_engine::delivery::Delivery;
use millstream_engine::handler::check::{self, CheckCall};
use millstream_engine::handler::{self, ErasedHandler, Layer};
use millstream_engine::markers::{self, MarkerTable};
use millstream_engine::{Fairness, Idempotent, Limit, Priorities};

/// Builder of a [`Consumer`]. All settings are checked at once when it starts.
#[must_use = "a builder does nothing until it is started"]
pub struct ConsumerBuilder<T: 'static> {
    backend: Backend,
    topic: Topic<T>,
    group: String,
    config: ConsumerConfig,
    /// Puts the check around a handler. Code for it is made only where there is one.
    check: Option<Box<dyn FnOnce(ErasedHandler) -> ErasedHandler + Send + Sync>>,
    observer: Arc<dyn Observer>,
    upkeep: Vec<Arc<dyn Upkeep>>,
    /// Further topics, each with its handler.
    also: Vec<(TopicSpec, ErasedHandler)>,
    /// The outermost first.
    layers: Vec<Arc<dyn Layer>>,
    /// Topics to which the handlers send, and how long what they send is recognised there.
    sends: Vec<(String, Remembered)>,
    /// Errors of the parts that were passed in. They are reported when the consumer starts.
    problems: Vec<Error>,
}

impl<T: Send + 'static> ConsumerBuilder<T> {
    /// Creates a builder of a consumer of `topic` in `group` that sends its events to `observer`.
    pub fn new(
        backend: Backend,
        topic: Topic<T>,
        group: impl Into<String>,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let group = group.into();
        let config = ConsumerConfig::default();
        let (upkeep, also, layers, problems) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (check, sends) = (None, Vec::new());
        Self { backend, topic, group, config, check, observer, upkeep, also, layers, sends, problems }
    }

    /// Adds a topic with a handler of its own to the same consumer. Group, settings and limits are shared.
    pub fn also<U, F, Fut>(mut self, topic: impl Borrow<Topic<U>>, handler: F) -> Self
    where
        U: Send + 'static,
        F: Fn(Delivery<U>) -> Fut + Send + Sync + 'static, // other arguments: with_state(state, f), handler(f)
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        let topic = topic.borrow();
        self.add(topic.spec(), Ok(handler::erase(topic.codec(), handler)));
        self
    }

    /// Adds a topic with its handler, or what is wrong with either.
    pub(in crate::consumer) fn add(&mut self, topic: Result<TopicSpec>, handler: Result<ErasedHandler>) {
        match (topic, handler) {
            (Ok(spec), _) if self.has(&spec) => {
                let message = format!("topic {} is there twice: its messages go to one handler", spec.name);
                self.problem(Error::new(ErrorKind::InvalidConfig, message));
            }
            (Ok(spec), Ok(handler)) => self.also.push((spec, handler)),
            (Err(error), _) | (_, Err(error)) => self.problem(error),
        }
    }

    /// Keeps an error that is reported when the consumer starts.
    pub(in crate::consumer) fn problem(&mut self, error: Error) {
        self.problems.push(error);
    }

    fn has(&self, other: &TopicSpec) -> bool {
        let first = self.topic.spec().is_ok_and(|spec| spec.name == other.name);
        first || self.also.iter().any(|(spec, _)| spec.name == other.name)
    }

    /// Replaces all settings.
    pub fn config(self, config: ConsumerConfig) -> Self {
        Self { config, ..self }
    }

    /// Adds a limit on how many messages of a key are handled at once, or begin in a time, by all consumers that state a limit of this name.
    /// Up to eight.
    ///
    /// A message needs units or tokens of each limit that it comes under: it gets all of them, or waits with none. What waits is no attempt, does
    /// not count towards [`prefetch`](ConsumerConfig::prefetch), and keeps its place where order is promised. Once
    /// [`max_blocked`](ConsumerConfig::max_blocked) messages of a partition wait, nothing more of it is read. With
    /// [`Concurrency::Serial`], the default, one message over the limit stops its partition. If the units are lost, the handler's [`cancelled`](Delivery::cancelled) says so, and the message is handled again.
    pub fn limit(mut self, limit: Limit) -> Self {
        self.config.across.push(limit);
        self
    }

    /// Serves tenants fairly: of those whose messages wait in a partition, the one is next that has had the least handler time for its
    /// [weight](Fairness::weight). With [`Sharing::Shared`] that counts among the messages that this consumer has read.
    ///
    /// To find the messages of others, a partition is read [further ahead](Fairness::read_ahead) than [`prefetch`](ConsumerConfig::prefetch). Not
    /// with [`Concurrency::Serial`], which keeps the order of the partition, unless [`RetryOrder::BlockKey`] keeps that of keys alone.
    pub fn fair_by(mut self, fairness: Fairness) -> Self {
        self.config.fairness = Some(fairness);
        self
    }

    /// Starts messages by lane: those of a higher one before those of a lower one, by weight or strictly. With [`fair_by`](Self::fair_by) turns
    /// go to tenants first, and the lanes are those of each tenant. A send [names its lane](crate::Record::priority).
    ///
    /// A partition is read [further ahead](Priorities::read_ahead), and the same settings are refused, as with [`fair_by`](Self::fair_by).
    pub fn priorities(mut self, priorities: Priorities) -> Self {
        self.config.priorities = Some(priorities);
        self
    }

    /// Sets the policy that decides when a failed message comes back. Default:
    /// [`Exponential`](millstream_core::policy::Exponential).
    pub fn retry(mut self, policy: impl RetryPolicy + 'static) -> Self {
        self.config.retry = Arc::new(policy);
        self
    }

    /// Sets the policy that decides whether a message that is given up is kept. Default:
    /// [`Keep`](millstream_core::policy::Keep).
    pub fn dead_letters(mut self, policy: impl DeadLetterPolicy + 'static) -> Self {
        self.config.dead_letters = Arc::new(policy);
        self
    }

    /// Calls the handler once for each operation, as far as a marker on the server can tell: see [`Idempotent`]. Its retention
    /// is checked when the consumer starts. Default: each message that comes is handled.
    pub fn idempotent(mut self, settings: Idempotent) -> Self {
        self.config.idempotent = Some(settings);
        self
    }

    /// Sets a check that runs before a message is handled *again*: on a retry, after a replay, or if it was handed out
    /// before and not settled ([`Delivery::deliveries`]), because an owner died that may have handled it. The check should
    /// look into the application's own records whether the effect is there. With [`Check::Complete`](millstream_core::Check)
    /// the message is acknowledged without the handler, and counted as
    /// [`Handled::Checked`](millstream_core::event::Handled). Default: no check.
    ///
    /// The check counts as part of the handler: an error or a panic is a failed attempt, and the
    /// [`handler_timeout`](Self::handler_timeout) covers both. It runs once for each message of a batch, at most 16 at the
    /// same time. With [`idempotent`](Self::idempotent) it runs under the marker of its operation, which is then done. It
    /// concerns the first topic, not those of [`also`](Self::also). Messages that a group reads anew because it was set back
    /// come as for the first time, so they are not checked.
    ///
    /// ```
    /// # use millstream_core::{Check, Result};
    /// # use millstream_runtime::{Consumer, ConsumerBuilder, Delivery};
    /// # async fn was_sent(_: u64) -> std::result::Result<bool, String> { Ok(true) }
    /// # async fn send(_: u64) -> std::result::Result<(), String> { Ok(()) }
    /// # async fn example(mails: ConsumerBuilder<u64>) -> Result<Consumer> {
    /// mails
    ///     .check(|mail: Delivery<u64>| async move {
    ///         Ok::<_, String>(if was_sent(mail.payload).await? { Check::Complete } else { Check::Run })
    ///     })
    ///     .start(async |mail: Delivery<u64>| send(mail.payload).await)
    ///     .await
    /// # }
    /// ```
    pub fn check<F, Fut>(mut self, check: F) -> Self
    where
        F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoCheck,
    {
        let codec = self.topic.codec();
        let check: Arc<CheckCall<T>> =
            Arc::new(move |delivery| check(delivery).map(IntoCheck::into_check).boxed());
        self.check = Some(Box::new(move |handler| check::wrap(handler, codec, check)));
        self
    }

    /// Checks, when the consumer starts, that what its handlers send with this producer [once for a
    /// delivery](crate::SendFuture::once_for) is recognised for as long as the delivery can come again: by the retry policy, and
    /// as a dead letter that is replayed. The producer's [window](crate::ProducerBuilder::dedup_window), 5 minutes by default,
    /// is refused if it is shorter.
    ///
    /// `replays_within` is the time after its death within which a dead letter is replayed at the latest, as you operate it.
    /// `None`: the age up to which the topic keeps dead letters; where that is unlimited, a day is assumed and a warning is logged.
    pub fn sends_to<U>(
        mut self,
        producer: &Producer<U>,
        replays_within: impl Into<Option<Duration>>,
    ) -> Self {
        let (topic, retention) = producer.dedup_window();
        let remembered =
            Remembered { retention, retries_within: None, replays_within: replays_within.into() };
        self.sends.push((format!("dedup_window of the producer for {topic}"), remembered));
        self
    }

    /// Adds a [`Layer`] inside of those that were added before, for the handlers of all topics. Not for handlers of batches.
    pub fn layer(mut self, layer: impl Layer) -> Self {
        self.layers.push(Arc::new(layer));
        self
    }

    /// Sets whether the group also stores the [results](millstream_core::results) of messages that failed, or were handled without a reply, for
    /// whoever [asked](crate::SendFuture::reply). Default: only if the return type of the handler is a [`Reply`](millstream_core::Reply), or a
    /// `Result` of one. Of several groups of a topic, one should answer.
    pub fn replies(mut self, replies: bool) -> Self {
        self.config.replies = replies;
        self
    }

    /// Sets where a new group starts reading. Default: [`Start::Earliest`]. A group that exists but was lost on a
    /// partition starts there with the oldest entry, regardless of this setting.
    pub fn start_from(mut self, start: Start) -> Self {
        self.config.start = start;
        self
    }

    /// Sets how long a partition stays owned without a renewal. Default: 10 s.
    pub fn lease_ttl(mut self, ttl: Duration) -> Self {
        self.config.lease_ttl = ttl;
        self
    }

    /// Sets the maximum number of messages of one partition that are read and not yet settled. Default: 512.
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.config.prefetch = messages;
        self
    }

    /// Sets how long handlers may take to end when the consumer is shut down. Default: 25 s, with the time for settling their messages.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.config.shutdown_timeout = timeout;
        self
    }

    /// Sets how many messages of one partition are handled at once. Default: [`Concurrency::Serial`].
    pub fn concurrency(mut self, concurrency: Concurrency) -> Self {
        self.config.concurrency = concurrency;
        self
    }

    /// Sets whether each partition has one owner in its group, or all members work on all partitions. Default:
    /// [`Sharing::Exclusive`].
    pub fn sharing(mut self, sharing: Sharing) -> Self {
        self.config.sharing = sharing;
        self
    }

    /// Sets the maximum number of handlers that run at once in this consumer. Default: only the limits of the partitions.
    pub fn max_handlers(mut self, handlers: usize) -> Self {
        self.config.max_handlers = Some(handlers);
        self
    }

    /// Sets how later messages are treated while a failed one waits for its next attempt. Default: [`RetryOrder::Skip`].
    pub fn retry_order(mut self, order: RetryOrder) -> Self {
        self.config.retry_order = order;
        self
    }

    /// Sets how many processes may die while handling one message before it is given up. Default: 3.
    pub fn crash_limit(mut self, crashes: u32) -> Self {
        self.config.crash_limit = crashes;
        self
    }

    /// Sets a name for this instance that stays the same after a restart. The instance keeps its partitions over a
    /// restart that is shorter than [`rejoin_timeout`](ConsumerConfig::rejoin_timeout). No two running instances may
    /// share a name.
    pub fn member_id(mut self, id: impl AsRef<str>) -> Self {
        match MemberId::new(id) {
            Ok(id) => self.config.member_id = Some(id),
            Err(error) => self.problems.push(error),
        }
        self
    }

    /// Has every instance get every message, for caches and the like: each is a [group of its own](GroupName::of_instance),
    /// `cache~pod-7` of the group `cache`, with the [member id](Self::member_id) or else a new name for each start. It begins with the
    /// newest message, unless [`start_from`](Self::start_from) follows.
    ///
    /// Such a group keeps no message from being dropped. What the retention drops before the instance has handled it is lost to it,
    /// and [counted](millstream_core::Event::Lost). Where instances alone read a topic, give it a retention by age or length:
    /// they settle nothing for good. An instance of the same `group` removes the group once its instance has been gone for `expiry`,
    /// at most twice that time later; its retries and dead letters go with it. An instance that comes back
    /// after that, or was suspended for so long, ends with [`ErrorKind::Deleted`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use millstream_runtime::{ConsumerBuilder, Delivery};
    /// # async fn forget(_: u64) {}
    /// # async fn example(changes: ConsumerBuilder<u64>) -> millstream_core::Result<()> {
    /// let consumer = changes
    ///     .every_instance(Duration::from_secs(600))
    ///     .start(|change: Delivery<u64>| async move { forget(change.payload).await })
    ///     .await?;
    /// # consumer.shutdown().await; Ok(()) }
    /// ```
    pub fn every_instance(mut self, expiry: Duration) -> Self {
        self.config.instance_expiry = Some(expiry);
        self.config.start = Start::Latest;
        self
    }

    /// Sets how long the partitions of an instance with a member id are kept for it while it is away. Default: 45 s.
    pub fn rejoin_timeout(mut self, timeout: Duration) -> Self {
        self.config.rejoin_timeout = timeout;
        self
    }

    /// Sets the maximum number of partitions of a topic that this instance takes. Default: no limit.
    pub fn max_partitions(mut self, partitions: u32) -> Self {
        self.config.max_partitions = Some(partitions);
        self
    }

    /// Sets the partitions that this instance takes in any case. Default: none.
    pub fn pin(mut self, partitions: impl IntoIterator<Item = u32>) -> Self {
        self.config.pinned = partitions.into_iter().map(Partition).collect();
        self
    }

    /// Sets the strategy that assigns partitions to members. Default:
    /// [`Balanced`](millstream_core::assignment::Balanced).
    pub fn assignor(mut self, assignor: impl Assignor + 'static) -> Self {
        self.config.assignor = Arc::new(assignor);
        self
    }

    /// Sets hooks that are awaited when partitions come and go. Default: none.
    pub fn on_rebalance(mut self, listener: impl RebalanceListener + 'static) -> Self {
        self.config.on_rebalance = Some(Arc::new(listener));
        self
    }

    /// Sets the name that is displayed as the owner of a partition. Default: `consumer`.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.config.label = label.into();
        self
    }

    /// Adds one kind of background work, which runs for every owned partition. An `Err` is reported together with all
    /// other problems when the consumer starts.
    pub fn upkeep(mut self, upkeep: Result<impl Upkeep + 'static>) -> Self {
        match upkeep {
            Ok(upkeep) => self.upkeep.push(Arc::new(upkeep)),
            Err(error) => self.problems.push(error),
        }
        self
    }

    /// Sets the maximum number of messages of one partition that wait in place: behind failed ones, or for limits. Default: 10,000.
    pub fn max_blocked(mut self, messages: usize) -> Self {
        self.config.max_blocked = messages;
        self
    }

    /// Sets how long a handler may take. One that takes longer is dropped, which is a failed attempt. Default: no limit.
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.config.handler_timeout = Some(timeout);
        self
    }

    /// Returns the codec of this topic's payloads.
    pub(in crate::consumer) fn codec(&self) -> &'static dyn Codec<T> {
        self.topic.codec()
    }

    /// Starts the consumer in the background.
    ///
    /// The handler gets one message of a partition after the other, or several at once: see
    /// [`concurrency`](Self::concurrency). Partitions run concurrently.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`], which lists every problem; [`ErrorKind::Unsupported`] if the backend has no shared
    /// mode and [`sharing`](Self::sharing) asks for it; those of
    /// [`Catalog::create_topic`](millstream_core::Catalog::create_topic) and
    /// [`Catalog::create_group`](millstream_core::Catalog::create_group).
    pub async fn start<F, Fut>(self, handler: F) -> Result<Consumer>
    where
        F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static, // other arguments: with_state(state, f), handler(f)
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        let handler = handler::erase(self.topic.codec(), handler);
        self.launch(handler).await
    }

    /// Starts the consumer with a handler of any kind.
    pub(in crate::consumer) fn launch(self, handler: ErasedHandler) -> BoxFuture<'static, Result<Consumer>> {
        self.launch_as(handler, false)
    }

    /// Starts the consumer. `pulls`: the handler of its first topic only offers messages.
    pub(in crate::consumer) fn launch_as(
        self,
        handler: ErasedHandler,
        pulls: bool,
    ) -> BoxFuture<'static, Result<Consumer>> {
        let Self { backend, topic, group, config, check, observer, upkeep, also, layers, sends, problems } =
            self;
        let parts = ConsumerParts {
            backend,
            group,
            config,
            check,
            observer,
            upkeep,
            also,
            layers,
            sends,
            problems,
            pulls,
        };
        parts.start(topic.spec(), handler)
    }

    /// Runs the consumer until `shutdown` is ready, then shuts it down.
    ///
    /// ```no_run
    /// # use millstream_runtime::{ConsumerBuilder, Delivery};
    /// # async fn example(consumer: ConsumerBuilder<u64>, sigterm: impl Future<Output = ()>)
    /// # -> millstream_core::Result<()> {
    /// let report = consumer
    ///     .run_until(sigterm, async |number: Delivery<u64>| println!("{}", number.payload))
    ///     .await?;
    /// println!("{} handled", report.acked);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`start`](Self::start); [`ErrorKind::Fenced`] if another process consumes under the same [member
    /// id](Self::member_id); [`ErrorKind::Deleted`] if a topic, or the group on it, was deleted meanwhile.
    pub async fn run_until<F, Fut>(self, shutdown: impl Future<Output = ()>, handler: F) -> Result<Report>
    where
        F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static, // other arguments: with_state(state, f), handler(f)
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        self.start(handler).await?.until(shutdown).await
    }

    /// Runs the consumer until this future is dropped; it then stops in the background.
    ///
    /// # Errors
    /// Those of [`run_until`](Self::run_until).
    pub async fn run<F, Fut>(self, handler: F) -> Result<Report>
    where
        F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static, // other arguments: with_state(state, f), handler(f)
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        self.run_until(std::future::pending(), handler).await
    }
}

/// What a builder has, without the type of the payload: starting is compiled once, here, and not in the crates of users.
struct ConsumerParts {
    backend: Backend,
    group: String,
    config: ConsumerConfig,
    check: Option<Box<dyn FnOnce(ErasedHandler) -> ErasedHandler + Send + Sync>>,
    observer: Arc<dyn Observer>,
    upkeep: Vec<Arc<dyn Upkeep>>,
    also: Vec<(TopicSpec, ErasedHandler)>,
    layers: Vec<Arc<dyn Layer>>,
    sends: Vec<(String, Remembered)>,
    problems: Vec<Error>,
    /// Whether the handler of the first topic only offers messages: a span begins when one is pulled.
    pulls: bool,
}

impl ConsumerParts {
    fn start(self, spec: Result<TopicSpec>, handler: ErasedHandler) -> BoxFuture<'static, Result<Consumer>> {
        Box::pin(self.started(spec, handler))
    }

    async fn started(mut self, spec: Result<TopicSpec>, handler: ErasedHandler) -> Result<Consumer> {
        let mut problems = Problems::new("consumer");
        if let ErasedHandler::Batch(config, _) = &handler {
            config.check(&mut problems);
            if !self.layers.is_empty() {
                let why = "layers are for handlers of single messages, not of batches";
                let _: Option<()> = problems.take(Err(Error::new(ErrorKind::InvalidConfig, why)));
            }
        }
        let spec = problems.take(spec);
        let group = problems.take(self.group_name());
        self.config.check(&mut problems);
        if let Some(idempotent) = &self.config.idempotent {
            let topics = spec.iter().chain(self.also.iter().map(|(spec, _)| spec));
            idempotent.check(&*self.config.retry, topics, &mut problems);
        }
        for (what, remembered) in &self.sends {
            let topics = spec.iter().chain(self.also.iter().map(|(spec, _)| spec));
            remembered.check(what, Some(&*self.config.retry), topics, &mut problems);
        }
        for problem in std::mem::take(&mut self.problems) {
            let _: Option<()> = problems.take(Err(problem));
        }
        problems.finish()?;
        let (Some(spec), Some(group)) = (spec, group) else {
            return Err(Error::new(ErrorKind::InvalidConfig, "invalid consumer"));
        };

        let handler = match self.check.take() {
            Some(wrap) => wrap(handler),
            None => handler,
        };
        let mut routes = vec![(spec, handler)];
        routes.append(&mut self.also);
        let layers = std::mem::take(&mut self.layers);
        let routes = routes.into_iter().map(|(spec, handler)| (spec, handler.within(&layers))).collect();
        self.subscribe(group, routes).await
    }

    fn group_name(&self) -> Result<GroupName> {
        let group = GroupName::new(&self.group)?;
        match (self.config.instance_expiry, &self.config.member_id) {
            (None, _) => Ok(group),
            (Some(_), Some(id)) => group.of_instance(id.as_str()),
            (Some(_), None) => group.of_instance(&unique_name(&self.backend)),
        }
    }

    async fn subscribe(self, group: GroupName, routes: Vec<(TopicSpec, ErasedHandler)>) -> Result<Consumer> {
        if self.config.sharing == Sharing::Shared {
            self.backend.require(Capability::Shared)?;
        }
        if self.config.idempotent.is_some() {
            self.backend.require(Capability::Idempotency)?;
        }
        let context = Arc::new(Context::new(self.backend, group, self.config, self.observer)?);
        let mut subscriptions = Vec::with_capacity(routes.len());
        for (at, (spec, handler)) in routes.into_iter().enumerate() {
            let handler = handler.traced(context.tracing.as_ref().filter(|_| at > 0 || !self.pulls));
            let topic = context.backend.catalog().create_topic(&spec).await?;
            warn_if_other(&spec, &topic);
            check_stored(&context.backend, &context.config, &topic, &self.sends)?;
            join(&context, &topic).await?;
            let careful = |upkeep| CarefulUpkeep::over(upkeep, &context.observer);
            let mut upkeep: Vec<_> = self.upkeep.iter().cloned().map(careful).collect();
            let settings = Arc::new(TopicSettings::new(context.backend.clone(), &topic));
            upkeep.push(Arc::new(Trimmer::new(settings.clone())));
            upkeep.push(Arc::new(DeadLetterTrimmer::new(settings)));
            if context.notes.is_some() {
                upkeep.push(Arc::new(NoteLook(context.clone())));
            }
            if let Some(expiry) = context.config.instance_expiry {
                let backend = context.backend.clone();
                upkeep.push(Arc::new(InstanceSweeper::new(backend, &self.group, expiry)));
            }
            let (handler, markers) = match &context.config.idempotent {
                Some(settings) => {
                    let markers = MarkerTable::default();
                    let guarding = context.guarding(&topic.name, markers.clone());
                    (markers::wrap(handler, settings, guarding)?, Some(markers))
                }
                None => (handler, None),
            };
            subscriptions.push((Subscription::new(context.clone(), topic, handler, upkeep), markers));
        }
        Ok(Consumer::spawn(context, subscriptions))
    }
}

impl<T> std::fmt::Debug for ConsumerBuilder<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConsumerBuilder")
            .field("topic", &self.topic)
            .field("group", &self.group)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
