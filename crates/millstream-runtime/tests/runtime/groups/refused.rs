//! A server that answers, and refuses heartbeats: it is full, or its disk is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::*;
use async_trait::async_trait;
use millstream_core::members::{Assignment, GroupMembers, HeartbeatReply, Member, Version, Watch};
use millstream_core::{Error, ErrorKind, GroupName, Members, Result, TopicName};
use millstream_runtime::{ConsumerBuilder, Delivery};

/// A server that refuses heartbeats for a while, and counts them.
struct Full {
    inner: Arc<dyn Members>,
    is_full: AtomicBool,
    refused: AtomicUsize,
}

#[async_trait]
impl Members for Full {
    async fn heartbeat(
        &self,
        topic: &TopicName,
        group: &GroupName,
        member: &Member,
        joining: bool,
    ) -> Result<HeartbeatReply> {
        if self.is_full.load(Ordering::Relaxed) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(Error::new(ErrorKind::Unavailable, "no space left on device"));
        }
        self.inner.heartbeat(topic, group, member, joining).await
    }

    async fn leave(&self, topic: &TopicName, group: &GroupName, member: &Member) -> Result<()> {
        self.inner.leave(topic, group, member).await
    }

    async fn roster(&self, topic: &TopicName, group: &GroupName) -> Result<GroupMembers> {
        self.inner.roster(topic, group).await
    }

    async fn publish(&self, t: &TopicName, g: &GroupName, v: Version, own: &Assignment) -> Result<bool> {
        self.inner.publish(t, g, v, own).await
    }

    async fn watch(&self, topic: &TopicName, group: &GroupName) -> Result<Box<dyn Watch>> {
        self.inner.watch(topic, group).await
    }
}

/// The change of the group is there for as long as no heartbeat is answered: it must not take the place of the pause.
#[tokio::test(start_paused = true)]
async fn heartbeats_that_are_refused_keep_their_pauses_also_when_the_group_changes() {
    let bench = bench();
    let members = bench.backend.members().clone();
    let full =
        Arc::new(Full { inner: members, is_full: AtomicBool::new(false), refused: AtomicUsize::new(0) });
    let handler = async |_: Delivery<u64>| {};
    let backend = bench.backend.clone().with_members(full.clone());
    let first = ConsumerBuilder::new(backend, NUMBERS, "g", Arc::new(bench.told.clone()));
    let first = first.lease_ttl(Duration::from_secs(30)).start(handler).await.expect("started");
    tokio::time::sleep(Duration::from_secs(5)).await;

    full.is_full.store(true, Ordering::Relaxed);
    let second = bench.consumer(NUMBERS, "g").start(handler).await.expect("started");
    tokio::time::sleep(Duration::from_secs(20)).await;
    // Pauses of up to a thirtieth of the ttl.
    let refused = full.refused.load(Ordering::Relaxed);
    assert!((5..100).contains(&refused), "{refused} heartbeats in 20 s");

    full.is_full.store(false, Ordering::Relaxed);
    bench.told.wait_for("Recovered").await;
    first.shutdown().await;
    second.shutdown().await;
}
