//! Ownership: takes the leases of partitions that nobody has, and keeps a worker for each.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_core::error::Result;
use millstream_core::leases::Acquired;
use millstream_core::{Resource, TopicPartition};
use tokio::task::{self, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use super::context::Context;
use super::guard::Guard;
use super::worker;
use crate::trouble::Trouble;

/// The longest pause between two looks at partitions that others own.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The shortest one, so that a lease that is about to end is not asked for in a busy loop.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
/// What workers get to end when handlers were given up.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// The leases that are held now.
#[derive(Clone, Default)]
pub(super) struct Guards(Arc<Mutex<BTreeMap<TopicPartition, Arc<Guard>>>>);

impl Guards {
    pub(super) fn all(&self) -> Vec<Arc<Guard>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn has(&self, topic_partition: &TopicPartition) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(topic_partition)
    }

    fn insert(&self, topic_partition: TopicPartition, guard: Arc<Guard>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(topic_partition, guard);
    }

    fn remove(&self, topic_partition: &TopicPartition) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(topic_partition);
    }
}

/// Takes what is free of one topic for one group.
///
/// So far one instance takes all partitions, and others stand by until a lease ends.
pub(super) struct Ownership {
    context: Arc<Context>,
    guards: Guards,
    workers: JoinSet<()>,
    /// Which partition a worker works on, also if it panics.
    partitions: HashMap<task::Id, TopicPartition>,
}

impl Ownership {
    pub(super) fn new(context: Arc<Context>, guards: Guards) -> Self {
        Self { context, guards, workers: JoinSet::new(), partitions: HashMap::new() }
    }

    /// Acquires until the consumer stops; then waits for the workers, up to the shutdown timeout.
    pub(super) async fn run(mut self) {
        let mut trouble = Trouble::new("acquire");
        let context = self.context.clone();
        while !context.stop.is_cancelled() {
            let pause = match self.run_once().await {
                Ok(pause) => {
                    trouble.over(&*context.observer, None);
                    pause
                }
                Err(error) => trouble.met(&error, &*context.observer, None),
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = context.stop.cancelled() => {}
                Some(ended) = self.workers.join_next_with_id() => {
                    self.forget(ended);
                    // Whatever ended it may end the next one too: no hurry.
                    sleep(SHORTEST_PAUSE).await;
                }
            }
        }
        let patience = context.config.shutdown_timeout;
        if timeout(patience, self.wait()).await.is_err() {
            tracing::warn!(?patience, "handlers did not end in time and are given up");
            context.kill.cancel();
            if timeout(KILL_TIMEOUT, self.wait()).await.is_err() {
                tracing::error!("a handler blocks its thread and cannot be given up: left behind");
            }
        }
    }

    /// Asks for every partition that is not ours. Gives back how long nothing can change.
    async fn run_once(&mut self) -> Result<Duration> {
        let mut pause = LONGEST_PAUSE;
        let context = self.context.clone();
        for topic_partition in context.topic.iter() {
            if context.stop.is_cancelled() {
                break;
            }
            if self.guards.has(&topic_partition) {
                continue;
            }
            let resource = Resource::partition(topic_partition.clone(), context.group.clone());
            let nonce = Uuid::new_v4().simple().to_string();
            let asked = Instant::now();
            let ttl = context.config.lease_ttl;
            match context.backend.leases.acquire(&resource, &context.owner, &nonce, ttl).await? {
                Acquired::Granted(lease) => self.work(topic_partition, Guard::new(lease, asked)),
                Acquired::Held(holder) => pause = pause.min(holder.expires_in),
            }
        }
        Ok(pause.max(SHORTEST_PAUSE))
    }

    fn work(&mut self, topic_partition: TopicPartition, guard: Guard) {
        let guard = Arc::new(guard);
        self.guards.insert(topic_partition.clone(), guard.clone());
        let task = self.workers.spawn(worker::run(self.context.clone(), guard));
        self.partitions.insert(task.id(), topic_partition);
    }

    async fn wait(&mut self) {
        while let Some(ended) = self.workers.join_next_with_id().await {
            self.forget(ended);
        }
    }

    fn forget(&mut self, ended: std::result::Result<(task::Id, ()), task::JoinError>) {
        let id = match &ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        if let Some(topic_partition) = self.partitions.remove(&id) {
            self.guards.remove(&topic_partition);
            if let Err(error) = ended {
                tracing::error!(%topic_partition, %error, "a worker ended abnormally and will be started again");
            }
        }
    }
}
