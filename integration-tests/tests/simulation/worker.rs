//! What a process works with: a consumer whose handlers get one message or a batch, or one that it pulls from.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::Outcome;
use millstream_core::policy::Fixed;
use millstream_delay::{Promoter, PromoterConfig};
use millstream_runtime::{
    Answer, Batch, Consumer, ConsumerBuilder, Delivery, Layer, Next, Puller, Timeout, Trace,
};
use millstream_testkit::chaos::Client;
use millstream_testkit::history::{Event, Origin, Place, Start};
use tokio::time::sleep;

use super::behaviour::{Behaviour, Say};
use super::event_recorder::EventRecorder;
use super::instance::{Site, group};
use super::scenario::{Scenario, Style};

/// Shorter than any time of a scenario.
const A_MOMENT: Duration = Duration::from_millis(1);
/// Longer than any handler takes.
const LONG: Duration = Duration::from_secs(3_600);

/// A consumer, in one of its styles.
pub(crate) enum Worker {
    Hears(Consumer),
    Pulls(Box<Puller<u64>>, Box<Handler>),
}

/// What handlers have.
#[derive(Clone)]
pub(crate) struct Handler {
    site: Site,
    process: String,
    client: Client,
}

impl Worker {
    /// Starts one for a member of a group.
    pub(crate) async fn start(
        site: &Site,
        process: &str,
        member: &str,
        in_group: usize,
        client: &Client,
    ) -> millstream_core::Result<Self> {
        let handler = Handler { site: site.clone(), process: process.to_owned(), client: client.clone() };
        let builder = builder(&handler, member, in_group);
        Ok(match site.scenario.style {
            Style::Each => Self::Hears(
                layered(builder, site.scenario.layers, client)
                    .start(move |delivery: Delivery<u64>| {
                        let handler = handler.clone();
                        async move { handler.handle(&delivery).await.outcome() }
                    })
                    .await?,
            ),
            Style::Batches(size, wait) => Self::Hears(
                builder
                    .start_batch((size, wait), move |batch: Batch<u64>| {
                        let handler = handler.clone();
                        async move { handler.handle_all(batch).await }
                    })
                    .await?,
            ),
            Style::Pulls => Self::Pulls(Box::new(builder.pull().await?), Box::new(handler)),
        })
    }

    /// Works until it ends by itself.
    pub(crate) async fn work(&self) {
        match self {
            Self::Hears(consumer) => consumer.ended().await,
            Self::Pulls(puller, handler) => {
                while let Some(pulled) = puller.next().await {
                    let handler = handler.clone();
                    tokio::spawn(async move {
                        let behaviour = handler.handle(&pulled).await;
                        // One that panics drops it.
                        if behaviour.say != Say::Panic {
                            pulled.settle(behaviour.outcome());
                        }
                    });
                }
            }
        }
    }

    pub(crate) async fn shutdown(self) {
        match self {
            Self::Hears(consumer) => consumer.shutdown().await,
            Self::Pulls(puller, _) => puller.shutdown().await,
        };
    }
}

fn builder(handler: &Handler, member: &str, in_group: usize) -> ConsumerBuilder<u64> {
    let Handler { site, process, client } = handler;
    let scenario: &Scenario = &site.scenario;
    let backend = client.backend();
    let promoter = Promoter::new(&backend, PromoterConfig::default());
    let event_recorder =
        EventRecorder { name: process.clone(), client: client.clone(), history: site.history.clone() };
    let group = group(in_group);
    let mut builder =
        ConsumerBuilder::new(backend, site.topic.clone(), group.as_str(), Arc::new(event_recorder))
            .label(process)
            .lease_ttl(scenario.lease_ttl)
            .prefetch(scenario.prefetch)
            .concurrency(scenario.concurrency)
            .retry_order(scenario.retry_order)
            .sharing(scenario.sharing)
            .shutdown_timeout(scenario.shutdown_timeout)
            .crash_limit(scenario.crash_limit)
            .retry(Fixed::new(scenario.retry_delay).attempts(scenario.attempts))
            .upkeep(promoter);
    if let Some(handlers) = scenario.max_handlers {
        builder = builder.max_handlers(handlers);
    }
    if scenario.static_members {
        builder = builder.member_id(member).rejoin_timeout(scenario.rejoin_timeout);
    }
    builder
}

/// Waits behind what is inside of it, as a layer does that tells others. Not before it: the runtime starts an attempt under its lease, and
/// how long layers take until the handler is called is theirs.
struct Waits(Client);

#[async_trait]
impl Layer for Waits {
    async fn handle(&self, delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        let answer = next.run(delivery).await;
        sleep(A_MOMENT).await;
        self.0.awake().await;
        answer
    }
}

/// Puts so many layers around the handler.
fn layered(builder: ConsumerBuilder<u64>, count: usize, client: &Client) -> ConsumerBuilder<u64> {
    (0..count).fold(builder, |builder, nth| match nth {
        0 => builder.layer(Waits(client.clone())),
        1 => builder.layer(Trace::new()),
        _ => builder.layer(Timeout::new(LONG)),
    })
}

impl Handler {
    /// Handles one message, and gives back how it behaved.
    async fn handle(&self, delivery: &Delivery<u64>) -> Behaviour {
        self.client.awake().await;
        let start = self.begin(delivery);
        let behaviour = self.behave(delivery).await;
        self.client.awake().await;
        self.end(start, delivery, behaviour);
        behaviour
    }

    /// Handles a batch, one message after the other. What would panic fails, or the others would fail with it.
    async fn handle_all(&self, batch: Batch<u64>) -> Vec<Outcome> {
        self.client.awake().await;
        let starts: Vec<_> = batch.iter().map(|delivery| self.begin(delivery)).collect();
        let mut behaviours = Vec::with_capacity(batch.len());
        for delivery in &batch {
            behaviours.push(self.behave(delivery).await);
        }
        self.client.awake().await;
        let ends = starts.into_iter().zip(&batch).zip(behaviours);
        ends.map(|((start, delivery), behaviour)| {
            self.end(start, delivery, behaviour);
            let say = if behaviour.say == Say::Panic { Say::Error } else { behaviour.say };
            Behaviour { say, ..behaviour }.outcome()
        })
        .collect()
    }

    fn begin(&self, delivery: &Delivery<u64>) -> usize {
        let place = Place::new(delivery.topic_partition().clone(), delivery.origin());
        self.site.history.record(Event::Started(Start {
            instance: self.process.clone(),
            origin: Origin { group: delivery.group().clone(), place },
            message: delivery.payload.to_string(),
            key: delivery.key().map(|key| String::from_utf8_lossy(key).into_owned()),
            attempt: delivery.attempt(),
            epoch: delivery.epoch(),
        }))
    }

    async fn behave(&self, delivery: &Delivery<u64>) -> Behaviour {
        let Self { site, process, client } = self;
        let behaviour =
            Behaviour::of(&site.scenario, delivery.payload, delivery.attempt(), delivery.origin());
        if behaviour.say == Say::Die && !client.is_killed() {
            client.kill();
            site.history.record(Event::Killed(process.clone()));
            let _ = site.deaths.send(process.clone());
        }
        if behaviour.takes > Duration::ZERO {
            sleep(behaviour.takes).await;
        }
        behaviour
    }

    fn end(&self, start: usize, delivery: &Delivery<u64>, behaviour: Behaviour) {
        let end = behaviour.end(&self.site.scenario, delivery.attempt());
        self.site.history.record(Event::Ended { start, end });
    }
}
