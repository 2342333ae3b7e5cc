//! A worker of the delay queue.

use std::sync::Arc;

use anyhow::Result;
use millstream::Fixed;
use millstream::delay::{DelayQueue, Task};

use super::owner::handle;
use super::store::Client;
use super::{Setup, Sink, observer, retried};
use crate::chaos::record::Handling;
use crate::chaos::setup::{ATTEMPTS, BACK_OFF, Job, PER_PROCESS, SHARDS, TASKS, place_of};

pub(super) async fn run(setup: &Setup, sink: &Arc<Sink>, ended: impl Future<Output = ()>) -> Result<()> {
    let place = place_of(TASKS, "");
    let store = Arc::new(Client::connect(&setup.store).await?);
    let mq = retried(|| setup.connect(observer(place.clone(), sink.clone()))).await;
    let queue = retried(async || {
        let queue = DelayQueue::<Job>::new(TASKS).shards(SHARDS);
        queue.observer(observer(place.clone(), sink.clone())).open(mq.backend()).await
    })
    .await;
    let handler = {
        let (setup, sink) = (Arc::new(setup.clone()), sink.clone());
        move |task: Task<Job>| {
            let handling = Handling {
                place: place.clone(),
                number: task.payload.number,
                partition: task.shard().shard,
                origin: task.id().to_string(),
                attempt: task.attempt(),
                crashes: task.crashes(),
                epoch: 0,
            };
            let (setup, sink, store) = (setup.clone(), sink.clone(), store.clone());
            async move { handle(&setup, handling, &task.payload, &sink, &store).await }
        }
    };
    let worker = retried(async || {
        let worker = queue.worker().label(&setup.name).concurrency(PER_PROCESS).hold(setup.ttl());
        worker.retry(Fixed::new(BACK_OFF).attempts(ATTEMPTS)).start(handler.clone()).await
    })
    .await;
    ended.await;
    worker.shutdown().await;
    Ok(())
}
