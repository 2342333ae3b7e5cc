//! The membership loop: sends heartbeats, receives the assignment, and decides one if nobody else has.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Event;
use millstream_core::members::{HeartbeatReply, Member, Revision, Version};
use millstream_core::running::{
    MAX_NAMED, MAX_WAITING_NAMED, NAMED_AFTER, Running, RunningMessage, WaitingMessage,
};
use millstream_core::sorted::SortedSet;
use millstream_core::suspension::ServerTime;
use millstream_core::{Partition, Timestamp};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::consumer::Sharing;
use crate::consumer::context::Subscription;
use crate::consumer::group::assignment;
use millstream_engine::LoopMonitor;

/// How long a membership must be quiet before a new assignment: several members that join at once cause one rebalance.
const QUIET: Duration = Duration::from_millis(100);
/// Maximum delay of an assignment while members join and leave all the time.
const RESTLESS: Duration = Duration::from_secs(1);
/// Maximum random delay of members that do the same thing, so that large groups do not send all requests at once.
const WIDEST_SPREAD: Duration = Duration::from_millis(250);
/// Longest wait for a change, after which its connection is looked at again.
const LONGEST_WATCH: Duration = Duration::from_secs(60);
/// Minimum pause between two heartbeats.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
/// Maximum time to keep working after we announced that we leave, until our partitions are assigned to others.
const LONGEST_LEAVE: Duration = Duration::from_secs(1);

/// Returns how long a wait for a change lasts: a connection inside this process is not looked at before the next heartbeat.
fn longest_watch(context: &Subscription) -> Duration {
    LONGEST_WATCH.max(context.period())
}

/// When the next heartbeat follows.
enum Next {
    /// After this time, or when the group changes.
    Beat(Duration),
    /// After this time, whatever happens. A change of the group that no heartbeat has answered yet is there each time that it is
    /// looked for: it would take the place of every pause.
    Retry(Duration),
}

/// The partitions that this instance should own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::consumer) enum Target {
    /// Not known yet.
    Unknown,
    /// These partitions.
    Own(SortedSet<Partition>),
    /// None any more: we have left.
    Left,
}

/// Keeps this instance in the group of one topic.
pub(in crate::consumer) struct Membership {
    context: Arc<Subscription>,
    member: Member,
    target: watch::Sender<Target>,
    /// The last reply to a heartbeat.
    pulse: Option<HeartbeatReply>,
    /// Compares the server's clock with ours.
    time: ServerTime,
    /// A time by the server's clock and by ours. It is kept while both agree, so that the begin of a handler stays the same.
    clocks: Option<(Timestamp, Instant)>,
    /// The largest number of partitions that the topic had.
    partitions: u32,
    unassigned: Option<Unassigned>,
    /// The wait for a change after this one.
    watch: Option<(Revision, AbortOnDropHandle<Result<bool>>)>,
    /// How long the next wait lasts.
    watch_for: Duration,
    beating: LoopMonitor,
    assigning: LoopMonitor,
    watching: LoopMonitor,
}

/// A membership without an assignment.
#[derive(Clone, Copy, Debug)]
struct Unassigned {
    version: Version,
    /// Since when no version has an assignment.
    since: Instant,
    /// When we decide, unless somebody else has by then.
    due: Instant,
    /// How long we wait for the next heartbeat to show what we decide.
    pause: Duration,
}

impl Membership {
    pub(in crate::consumer) fn new(context: Arc<Subscription>, target: watch::Sender<Target>) -> Self {
        let config = &context.config;
        // In shared mode partitions are not kept for a member that is away, so the rejoin timeout does not apply.
        let returns = config.member_id.is_some() && config.sharing == Sharing::Exclusive;
        let ttl = if returns { config.rejoin_timeout } else { context.lease_ttl };
        let member = Member::new(context.member.clone(), context.incarnation.clone(), ttl);
        // Refers to this topic: one that is created in its place may have another number of partitions, and we must not
        // expand it.
        let mut member = member.of(&context.topic);
        member.max_partitions = config.max_partitions;
        member.pinned.clone_from(&config.pinned);
        Self {
            member,
            target,
            pulse: None,
            time: ServerTime::default(),
            clocks: None,
            partitions: context.topic.partitions,
            unassigned: None,
            watch: None,
            watch_for: longest_watch(&context),
            beating: context.monitor("heartbeat"),
            assigning: context.monitor("assign"),
            watching: context.monitor("watch"),
            context,
        }
    }

    /// Stays in the group until the consumer stops, another process takes our member id, or the topic or group is
    /// deleted; then leaves.
    pub(in crate::consumer) async fn run(mut self) {
        let stop = self.context.stop.clone();
        let stay = async {
            self.beating.begin_round(Duration::ZERO);
            while let Some(next) = self.run_once().await {
                let (Next::Beat(pause) | Next::Retry(pause)) = next;
                self.beating.begin_round(pause);
                match next {
                    Next::Beat(pause) => self.rest(pause).await,
                    Next::Retry(pause) => sleep(pause).await,
                }
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = stay => {}
        }
        self.leave().await;
        self.target.send_replace(Target::Left);
    }

    /// Sends one heartbeat and acts on the reply. Returns when the next one follows; `None` if another process has taken our
    /// member id, or the topic or group was deleted.
    async fn run_once(&mut self) -> Option<Next> {
        let pulse = match self.beat().await {
            Ok(pulse) => pulse,
            Err(error) if error.kind() == ErrorKind::Fenced => {
                self.fenced(&error);
                return None;
            }
            Err(error) if error.kind() == ErrorKind::Deleted => {
                self.context.deleted(&self.context.topic.name, &error);
                return None;
            }
            Err(error) => {
                // Nobody looks at its end meanwhile: what it met in the outage would count as a failure afterwards.
                self.watch = None;
                let pause = self.beating.failed(&error, &*self.context.observer);
                return Some(Next::Retry(self.context.keeper().pause(&error, pause)));
            }
        };
        self.beating.succeeded(&*self.context.observer);
        let regular = self.regular(&pulse);
        let Some(due) = self.take_in(pulse) else { return Some(Next::Beat(regular)) };
        let early = due.saturating_duration_since(Instant::now());
        if !early.is_zero() {
            return Some(Next::Beat(regular.min(early)));
        }
        Some(Next::Beat(match self.assign().await {
            Ok(()) => {
                self.assigning.succeeded(&*self.context.observer);
                self.decided(regular)
            }
            Err(error) => self.assigning.failed(&error, &*self.context.observer).min(regular),
        }))
    }

    async fn beat(&mut self) -> Result<HeartbeatReply> {
        let (limit, catalog) = (self.context.request_timeout(), self.context.backend.catalog().clone());
        match self.heartbeat().await {
            // The server lost the topic: create it again, as the readers do. Fails if it was deleted on
            // purpose.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                within(limit, catalog.restore_topic(&self.context.topic)).await?;
                tracing::warn!(topic = %self.context.topic.name, "the topic was missing and has been created again");
            }
            Ok(pulse) if pulse.partitions < self.partitions => {
                within(limit, catalog.expand(&self.context.topic.name, self.partitions)).await?;
            }
            answer => return answer,
        }
        self.heartbeat().await
    }

    async fn heartbeat(&mut self) -> Result<HeartbeatReply> {
        match self.ask(self.pulse.is_none()).await {
            Err(error) if error.kind() == ErrorKind::NotMember => {
                let (topic, group, member) = (&self.context.topic.name, &self.context.group, &self.member.id);
                tracing::warn!(%topic, %group, %member, "no longer in the group: joining again");
                // If this fails, the next heartbeat does not join at once: another process may use our member id by then.
                self.ask(true).await
            }
            answer => answer,
        }
    }

    async fn ask(&mut self, joining: bool) -> Result<HeartbeatReply> {
        let (topic, group) = (&self.context.topic.name, &self.context.group);
        let limit = self.context.keeper().limit();
        self.member.continuity = self.context.continuity();
        self.member.running = self.running();
        let (clock, asked) = (&self.context.lease_clock, self.context.lease_clock.elapsed());
        let request = self.context.backend.members().heartbeat(topic, group, &self.member, joining);
        let sent = Instant::now();
        let pulse = within(limit, request).await?;
        self.context.answered(sent, &pulse.server, pulse.now);
        let agree = |at: &(Timestamp, Instant)| {
            let ours = at.0.saturating_add(sent.saturating_duration_since(at.1));
            ours.saturating_duration_since(pulse.now).max(pulse.now.saturating_duration_since(ours))
                < NAMED_AFTER
        };
        self.clocks = self.clocks.filter(agree).or(Some((pulse.now, sent)));
        // A machine may have been suspended without any of its clocks showing it. The lease has a margin of a fifth. Up
        // to four heartbeats fall into the time of a deadline, and each may use up a part of the margin without being
        // noticed.
        let margin = self.context.config.lease_ttl / 20;
        if let Some(away) = self.time.record_answer(asked, clock.elapsed(), pulse.now, margin) {
            tracing::warn!(%topic, %group, ?away, "the server's clock jumped ahead of ours: deadlines are computed again");
            clock.add_missed(away);
        }
        Ok(pulse)
    }

    /// Returns the messages whose handlers run long, and those that wait long for limits, for people who look. Their times are the server's.
    fn running(&self) -> Running {
        let (Some((now, at)), Some(before)) = (self.clocks, Instant::now().checked_sub(NAMED_AFTER)) else {
            return Running::default();
        };
        let mut running = Running::default();
        for (since, partition, it, key) in self.context.running.begun_before(before) {
            let since = now
                .saturating_add(since.saturating_duration_since(at))
                .saturating_sub(at.saturating_duration_since(since));
            let (source, entry) = (it.receipt.source, it.receipt.entry());
            let (origin, attempt) = (it.origin, it.attempt);
            let message = RunningMessage { partition, source, entry, origin, attempt, since };
            match key {
                None if running.messages.len() < MAX_NAMED => running.messages.push(message),
                None => running.more += 1,
                Some(key) if running.waiting.len() < MAX_WAITING_NAMED => {
                    running.waiting.push(WaitingMessage { message, key });
                }
                Some(_) => running.more_waiting += 1,
            }
        }
        running
    }

    /// Records a reply. Returns when we have to decide an assignment, if there is none.
    fn take_in(&mut self, pulse: HeartbeatReply) -> Option<Instant> {
        self.partitions = self.partitions.max(pulse.partitions);
        // Before partitions are taken: a member that joins a paused group starts paused.
        self.context.record_group_pause(&self.context.topic.name, pulse.paused);
        let due = match &pulse.assigned {
            Some(assigned) => {
                self.unassigned = None;
                let exist = |partition: &Partition| partition.0 < pulse.partitions;
                let own: SortedSet<_> = assigned.iter().copied().filter(exist).collect();
                self.context.status.heartbeat(&self.context.topic.name, pulse.members, Some(&own));
                self.aim(own, pulse.members);
                None
            }
            None => {
                self.context.status.heartbeat(&self.context.topic.name, pulse.members, None);
                Some(self.due(&pulse))
            }
        };
        let told = |pulse: &HeartbeatReply| (pulse.version, pulse.assigned.is_some());
        if self.pulse.as_ref().map(told) != Some(told(&pulse)) {
            self.context.changed.notify_one();
        }
        self.pulse = Some(pulse);
        due
    }

    fn due(&mut self, pulse: &HeartbeatReply) -> Instant {
        let now = Instant::now();
        let since = match self.unassigned {
            Some(known) if known.version == pulse.version => return known.due,
            Some(known) => known.since,
            None => now,
        };
        let due = match pulse.members {
            // There is nobody to wait for.
            0 | 1 => now,
            members => (now + QUIET).min(since + RESTLESS) + spread(members, 5),
        };
        self.unassigned = Some(Unassigned { version: pulse.version, since, due, pause: SHORTEST_PAUSE });
        due
    }

    /// Returns the pause between a decision and the heartbeat that shows it. It doubles while the server says that it has
    /// the assignment and does not show it: deciding again at once would fill the server with requests.
    fn decided(&mut self, regular: Duration) -> Duration {
        let Some(unassigned) = &mut self.unassigned else { return SHORTEST_PAUSE };
        let pause = unassigned.pause.min(regular);
        unassigned.due = Instant::now() + pause;
        unassigned.pause = pause * 2;
        pause
    }

    fn aim(&self, own: SortedSet<Partition>, members: u32) {
        let partitions = own.len();
        let target = Target::Own(own);
        let changed = self.target.send_if_modified(|before| {
            let changed = *before != target;
            *before = target;
            changed
        });
        if changed {
            let (topic, group) = (&self.context.topic.name, &self.context.group);
            tracing::info!(%topic, %group, members, partitions, "rebalanced");
            self.context.observer.observe(&Event::Rebalanced { topic, group, members, partitions });
        }
    }

    /// Returns the pause to the next heartbeat if nothing happens: a third of the ttl, or when the first member may be
    /// dropped.
    fn regular(&self, pulse: &HeartbeatReply) -> Duration {
        // A tenth is jitter, so that members that joined together do not stay in step. Those of this process may.
        let (now, period) = (Instant::now(), self.context.period());
        let due = self.context.lease_clock.aligned(now + period.mul_f64(0.9 + 0.1 * fastrand::f64()), period);
        let regular = due.saturating_duration_since(now);
        let death = pulse
            .next_expiry
            .saturating_add(Duration::from_millis(1))
            .saturating_add(spread(pulse.members, 1));
        regular.min(death)
    }

    /// Decides an assignment and publishes it, unless there is one. The next heartbeat returns the result.
    async fn assign(&mut self) -> Result<()> {
        let (topic, group) = (&self.context.topic.name, &self.context.group);
        let (members, limit) = (self.context.backend.members(), self.context.request_timeout());
        let roster = within(limit, members.roster(topic, group)).await?;
        let current = self.pulse.as_ref().is_some_and(|pulse| pulse.version == roster.version);
        if !current || roster.assigned == Some(roster.version) || roster.members.is_empty() {
            return Ok(());
        }
        let (assignment, refused) =
            assignment::decide(&*self.context.config.assignor, &roster, &*self.context.observer);
        let published = within(limit, members.publish(topic, group, roster.version, &assignment)).await?;
        tracing::debug!(%topic, %group, version = roster.version.0, published, "computed the assignment");
        refused.map_or(Ok(()), Err)
    }

    /// Waits for `pause`, or until the group changes.
    async fn rest(&mut self, pause: Duration) {
        let until = Instant::now() + pause.max(SHORTEST_PAUSE);
        tokio::select! {
            biased;
            () = sleep_until(until) => {}
            () = self.changed() => {}
        }
    }

    /// Waits until the group changes. What is dropped before goes on at the next call.
    async fn changed(&mut self) {
        let Some((seen, members)) = self.pulse.as_ref().map(|pulse| (pulse.revision, pulse.members)) else {
            return std::future::pending().await;
        };
        loop {
            match self.watched(seen).await {
                Ok(changed) => {
                    self.watch_for = longest_watch(&self.context);
                    self.watching.succeeded(&*self.context.observer);
                    if changed {
                        break;
                    }
                }
                Err(error) => {
                    // A short one shows soon that the next connection works.
                    self.watch_for = self.context.period();
                    sleep(self.watching.failed(&error, &*self.context.observer)).await;
                }
            }
        }
        sleep(SHORTEST_PAUSE + spread(members, 1)).await;
    }

    /// Waits for a change after `seen`. Returns whether there may be one, or the time of the watch is over.
    ///
    /// A wait lasts over many heartbeats: each new one costs a request. It is a task, since what it waits with may be a lock or
    /// a place in a queue of others, who must not wait while this loop does something else.
    async fn watched(&mut self, seen: Revision) -> Result<bool> {
        if self.watch.as_ref().is_none_or(|(since, _)| *since != seen) {
            let (members, began, wait) =
                (self.context.backend.members().clone(), Instant::now(), self.watch_for);
            let (topic, group) = (self.context.topic.name.clone(), self.context.group.clone());
            let waiting = async move {
                members.watch(&topic, &group).await?.changed(seen, wait).await?;
                Ok(began.elapsed() < wait)
            };
            self.watch = Some((seen, AbortOnDropHandle::new(tokio::spawn(waiting.boxed()))));
        }
        let Some((_, waiting)) = &mut self.watch else { return Ok(true) };
        let ended = waiting.await;
        self.watch = None;
        ended.unwrap_or_else(|error| {
            Err(Error::new(ErrorKind::Unavailable, "the wait for a change ended abnormally")
                .with_source(error))
        })
    }

    fn fenced(&self, error: &Error) {
        let (topic, group) = (&self.context.topic.name, &self.context.group);
        let member = &self.context.member;
        tracing::error!(%topic, %group, %member, %error, "another process has our member id: this one stops");
        self.context.observer.observe(&Event::MemberFenced { topic, group, member });
        self.context.fence();
    }

    /// Announces that we leave, and waits until our partitions are assigned to others; until then we keep working on
    /// them. A member with a member id does not leave: its partitions are kept for it.
    async fn leave(&mut self) {
        if self.context.config.member_id.is_some() && self.context.config.sharing == Sharing::Exclusive {
            return;
        }
        if self.context.cause().is_some_and(|cause| cause.kind() == ErrorKind::Deleted) {
            // Topic or group are gone, so there is nobody to notify.
            return;
        }
        let limit = LONGEST_LEAVE.min(self.context.handlers_timeout() / 2);
        let (topic, group) = (self.context.topic.name.clone(), self.context.group.clone());
        match timeout(limit, self.handed_over()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%topic, %group, %error, "leaving failed; it expires by itself"),
            Err(_) => tracing::warn!(%topic, %group, "left before our partitions were reassigned"),
        }
    }

    async fn handed_over(&mut self) -> Result<()> {
        let (topic, group) = (self.context.topic.name.clone(), self.context.group.clone());
        let members = self.context.backend.members().clone();
        members.leave(&topic, &group, &self.member).await?;
        if !matches!(&*self.target.borrow(), Target::Own(own) if !own.is_empty()) {
            return Ok(());
        }
        loop {
            let roster = members.roster(&topic, &group).await?;
            if roster.living().next().is_none() || roster.assigned == Some(roster.version) {
                return Ok(());
            }
            self.watched(roster.revision).await?;
        }
    }
}

/// Returns a random part of `each` milliseconds per member, up to 250 ms.
fn spread(members: u32, each: u64) -> Duration {
    let widest = Duration::from_millis(each).saturating_mul(members).min(WIDEST_SPREAD);
    widest.mul_f64(fastrand::f64())
}

/// Bounds a request in time: without a limit, a reply that never comes would block its loop.
pub(in crate::consumer) async fn within<T>(
    limit: Duration,
    request: impl Future<Output = Result<T>>,
) -> Result<T> {
    let late = |_| Error::new(ErrorKind::Unconfirmed, format!("no answer within {limit:?}"));
    timeout(limit, request).await.map_err(late)?
}
