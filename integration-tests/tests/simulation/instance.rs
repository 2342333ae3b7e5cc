//! One process: a consumer behind a connection of its own, that can die, stop, or leave.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::event::Event as Happened;
use millstream_core::policy::Fixed;
use millstream_core::{GroupName, Observer, Outcome, Topic};
use millstream_delay::{Promoter, PromoterConfig};
use millstream_runtime::{Consumer, ConsumerBuilder, Delivery};
use millstream_testkit::chaos::Client;
use millstream_testkit::history::{Event, History, Origin, Place, Start};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::behaviour::{Behaviour, Say};
use crate::scenario::Scenario;

/// How long a supervisor waits before it starts again what ended.
const RESTART: Duration = Duration::from_millis(300);

/// What all processes have.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) topic: Topic<u64>,
    pub(crate) history: History,
    /// Is told who was killed by a message.
    pub(crate) deaths: mpsc::UnboundedSender<String>,
}

/// A process.
pub(crate) struct Instance {
    pub(crate) name: String,
    pub(crate) member: String,
    pub(crate) group: usize,
    pub(crate) client: Client,
    leave: CancellationToken,
    task: JoinHandle<bool>,
}

pub(crate) fn group(number: usize) -> GroupName {
    GroupName::new(format!("g{number}")).expect("a valid name")
}

impl Instance {
    /// Starts a process. `member` is its name in the group, which it may have from one before it.
    pub(crate) fn start(site: &Site, name: String, member: String, group: usize, client: Client) -> Self {
        let leave = CancellationToken::new();
        let task = tokio::spawn(live(
            site.clone(),
            name.clone(),
            member.clone(),
            group,
            client.clone(),
            leave.clone(),
        ));
        Self { name, member, group, client, leave, task }
    }

    /// Asks it to leave in good order.
    pub(crate) fn leave(&self) {
        self.leave.cancel();
    }

    /// Waits until it has left; `false` if it does not within `patience`.
    pub(crate) async fn has_left(self, patience: Duration) -> bool {
        matches!(timeout(patience, self.task).await, Ok(Ok(true)))
    }
}

/// The main function of a process. True if it came to its end.
async fn live(
    site: Site,
    name: String,
    member: String,
    group: usize,
    client: Client,
    leave: CancellationToken,
) -> bool {
    loop {
        let consumer = tokio::select! {
            biased;
            () = client.killed() => return false,
            () = leave.cancelled() => return true,
            started = start(&site, &name, &member, group, &client) => started,
        };
        let leaves = tokio::select! {
            biased;
            // What is left of it is dropped: its calls do not come back, and its handlers do not go on.
            () = client.killed() => return false,
            () = leave.cancelled() => true,
            () = consumer.ended() => false,
        };
        tokio::select! {
            biased;
            () = client.killed() => return false,
            _ = consumer.shutdown() => {}
        }
        if leaves {
            site.history.record(Event::Fault(format!("{name} has left")));
            return true;
        }
        site.history.record(Event::Fault(format!("{name} ended by itself and is started again")));
        sleep(RESTART).await;
    }
}

/// A consumer needs the server to start; whoever starts it tries again.
async fn start(site: &Site, name: &str, member: &str, in_group: usize, client: &Client) -> Consumer {
    loop {
        let scenario = &site.scenario;
        let backend = client.backend();
        let promoter = Promoter::new(backend.schedule.clone(), PromoterConfig::default());
        let teller = Teller { name: name.to_owned(), client: client.clone(), history: site.history.clone() };
        let group = group(in_group);
        let mut builder = ConsumerBuilder::new(backend, site.topic.clone(), group.as_str(), Arc::new(teller))
            .label(name)
            .lease_ttl(scenario.lease_ttl)
            .prefetch(scenario.prefetch)
            .concurrency(scenario.concurrency)
            .retry_order(scenario.retry_order)
            .shutdown_timeout(scenario.shutdown_timeout)
            .retry(Fixed::new(scenario.retry_delay).attempts(scenario.attempts))
            .upkeep(promoter);
        if scenario.static_members {
            builder = builder.member_id(member).rejoin_timeout(scenario.rejoin_timeout);
        }
        let (site, process, client) = (site.clone(), name.to_owned(), client.clone());
        let handler = move |delivery: Delivery<u64>| {
            let (site, process, client) = (site.clone(), process.clone(), client.clone());
            async move { handle(&site, process, &client, &delivery).await }
        };
        match builder.start(handler).await {
            Ok(consumer) => return consumer,
            Err(error) => assert!(error.is_transient(), "{name} could not start: {error:?}"),
        }
        sleep(RESTART).await;
    }
}

async fn handle(site: &Site, instance: String, client: &Client, delivery: &Delivery<u64>) -> Outcome {
    client.awake().await;
    let place = Place { topic_partition: delivery.topic_partition().clone(), id: delivery.origin() };
    let start = site.history.record(Event::Started(Start {
        instance: instance.clone(),
        origin: Origin { group: delivery.group().clone(), place },
        message: delivery.to_string(),
        key: delivery.key().map(|key| String::from_utf8_lossy(key).into_owned()),
        attempt: delivery.attempt(),
        epoch: delivery.epoch(),
    }));
    let behaviour = Behaviour::of(&site.scenario, **delivery, delivery.attempt());
    if behaviour.say == Say::Die {
        client.kill();
        site.history.record(Event::Fault(format!("{instance} dies of {}", **delivery)));
        let _ = site.deaths.send(instance);
    }
    if !behaviour.takes.is_zero() {
        sleep(behaviour.takes).await;
    }
    client.awake().await;
    let end = behaviour.end(&site.scenario, delivery.attempt());
    site.history.record(Event::Ended { start, end });
    behaviour.outcome()
}

/// Notes what a consumer tells, but for the noise.
struct Teller {
    name: String,
    client: Client,
    history: History,
}

impl Observer for Teller {
    fn observe(&self, event: &Happened<'_>) {
        if self.client.is_killed() {
            return;
        }
        let what = match event {
            Happened::Assigned { topic_partition, epoch, .. } => {
                format!("assigned {topic_partition}, {epoch}")
            }
            Happened::Revoked { topic_partition, epoch, .. } => format!("revoked {topic_partition}, {epoch}"),
            Happened::LeaseLost { topic_partition, epoch, .. } => format!("lost {topic_partition}, {epoch}"),
            Happened::Rebalanced { members, partitions, .. } => {
                format!("rebalanced: {members} members, {partitions} partitions of mine")
            }
            Happened::MemberFenced { member, .. } => format!("fenced as {member}"),
            Happened::TailLost { topic_partition, from, to, .. } => {
                format!("tail lost of {topic_partition}: {from} to {to}")
            }
            Happened::Crashed { topic_partition, origin, crashes, .. } => {
                format!("{crashes} crashes of {origin} in {topic_partition}")
            }
            Happened::GroupRestored { topic_partition, after, .. } => {
                format!("group restored in {topic_partition} after {after}")
            }
            Happened::Ghosts { topic_partition, messages, .. } => {
                format!("{messages} ghosts in {topic_partition}")
            }
            Happened::Failing { operation, error, .. } => format!("{operation} fails: {error}"),
            _ => return,
        };
        self.history.record(Event::Said { instance: self.name.clone(), what });
    }
}
