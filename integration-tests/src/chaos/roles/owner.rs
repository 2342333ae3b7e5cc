//! A consumer of the topic, which owns partitions or shares them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use millstream::{Concurrency, Delivery, Fixed, Outcome, Sharing};

use super::store::{Client, Request};
use super::{Setup, Sink, What, observer, retried};
use crate::chaos::record::{End, Fate, Handling};
use crate::chaos::setup::{
    ATTEMPTS, BACK_OFF, Job, ORDERS, OWNERS, PER_PARTITION, PER_PROCESS, SHARERS, orders, place_of,
};

pub(super) async fn run(
    setup: &Setup,
    shares: bool,
    sink: &Arc<Sink>,
    ended: impl Future<Output = ()>,
) -> Result<()> {
    let group = if shares { SHARERS } else { OWNERS };
    let place = place_of(ORDERS, group);
    let store = Arc::new(Client::connect(&setup.store).await?);
    let mq = retried(|| setup.connect(observer(place.clone(), sink.clone()))).await;
    let handler = {
        let (setup, sink) = (Arc::new(setup.clone()), sink.clone());
        move |delivery: Delivery<Job>| {
            let handling = Handling {
                place: place.clone(),
                number: delivery.payload.number,
                partition: delivery.topic_partition().partition.0,
                origin: delivery.origin().to_string(),
                attempt: delivery.attempt(),
                crashes: delivery.deliveries().saturating_sub(1),
                // Nothing is fenced where partitions are shared.
                epoch: if shares { 0 } else { delivery.epoch() },
            };
            let (setup, sink, store) = (setup.clone(), sink.clone(), store.clone());
            async move { handle(&setup, handling, &delivery.payload, &sink, &store).await }
        }
    };
    let consumer = retried(async || {
        let consumer = mq
            .consumer(orders(setup.packed), group)
            .label(&setup.name)
            .lease_ttl(setup.ttl())
            .retry(Fixed::new(BACK_OFF).attempts(ATTEMPTS))
            .prefetch(64);
        let consumer = if shares {
            consumer.sharing(Sharing::Shared).concurrency(Concurrency::Unordered(PER_PROCESS))
        } else {
            consumer.concurrency(Concurrency::PerKey(PER_PARTITION))
        };
        consumer.start(handler.clone()).await
    })
    .await;
    ended.await;
    consumer.shutdown().await;
    Ok(())
}

/// Executes the instructions of a message or task.
pub(super) async fn handle(
    setup: &Setup,
    handling: Handling,
    job: &Job,
    sink: &Sink,
    store: &Client,
) -> Outcome {
    sink.write(What::Begun {
        handling: handling.clone(),
        intact: job.is_intact(),
        early_ms: if job.due_ms == 0 { 0 } else { job.due_ms.cast_signed() - setup.true_ms() },
    });
    if job.work_ms > 0 {
        tokio::time::sleep(Duration::from_millis(job.work_ms)).await;
    }
    let end = match job.fate {
        Fate::Flaky if handling.attempt == 1 && fails_here(setup, handling.number) => End::Failed,
        Fate::Fail(times) if handling.attempt <= times => End::Failed,
        Fate::Ack | Fate::Flaky | Fate::Fail(_) => End::Acked,
        Fate::Reject => End::Rejected,
        Fate::Hopeless => End::Failed,
    };
    // What the store refuses belongs to another owner: whatever this handler says, its settlement must be refused too.
    let taken = end != End::Acked
        || store.write(&Request::Effect(handling.clone())).await.expect("the store answers");
    let end = if taken { end } else { End::Failed };
    sink.write(What::Ended { handling, end });
    match end {
        End::Acked => Outcome::Ack,
        End::Failed => Outcome::retry("as planned"),
        End::Rejected => Outcome::dead_letter("hopeless"),
    }
}

/// Whether the first attempt of a flaky message fails in this process: half of them do, in each process another half.
fn fails_here(setup: &Setup, number: u64) -> bool {
    fastrand::Rng::with_seed(setup.seed ^ number.rotate_left(32)).bool()
}
