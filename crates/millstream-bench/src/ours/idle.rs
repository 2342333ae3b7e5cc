//! Waiting without messages.

use anyhow::Result;
use bytes::Bytes;
use millstream::{Consumer, Delivery};

use super::{groups, owned, topic, until};
use crate::args::Idle;
use crate::measure::{Measured, Stage};

/// Waits, and counts the requests in the meantime.
pub(crate) async fn idle(stage: &Stage, of: &Idle) -> Result<Measured> {
    let topic = topic(of.spread, false);
    let mut clients = Vec::new();
    for _ in 0..of.groups * of.members {
        clients.push(stage.connect().await?);
    }
    let mut all = Vec::new();
    for number in 0..of.topics {
        let topic = topic.named(format!("bench-{number}"));
        let mut clients = clients.iter();
        for group in groups(of.groups) {
            let mut members = Vec::new();
            for mq in clients.by_ref().take(of.members as usize) {
                members.push(mq.consumer(topic.clone(), &group).start(|_: Delivery<Bytes>| async {}).await?);
            }
            all.push(members);
        }
    }
    for members in &all {
        // Each member has partitions, so no member has too many any more.
        let shared = || members.iter().all(|member| owned(member) > 0);
        let total = || members.iter().map(owned).sum::<usize>();
        let last = members.last().ok_or_else(|| anyhow::anyhow!("a group without members"))?;
        until(last, |_| shared() && total() == of.spread.partitions as usize).await?;
    }
    let measured = stage.idle(of.settle, of.seconds, of.waits()).await?;
    futures_util::future::join_all(all.into_iter().flatten().map(Consumer::shutdown)).await;
    Ok(measured)
}
