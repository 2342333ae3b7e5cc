//! Waiting without messages.

use anyhow::Result;
use bytes::Bytes;
use millstream::Delivery;

use super::{groups, owned, topic, until};
use crate::args::Idle;
use crate::measure::{Measured, Stage};

/// Waits, and counts the requests in the meantime.
pub(crate) async fn idle(stage: &Stage, of: &Idle) -> Result<Measured> {
    let topic = topic(of.spread, false);
    let mut all = Vec::new();
    for group in groups(of.groups) {
        let mut members = Vec::new();
        for _ in 0..of.members {
            let mq = stage.connect().await?;
            let member = mq.consumer(topic.clone(), &group).start(|_: Delivery<Bytes>| async {}).await?;
            members.push((mq, member));
        }
        all.push(members);
    }
    for members in &all {
        // Each member has partitions, so no member has too many any more.
        let shared = || members.iter().all(|(_, member)| owned(member) > 0);
        let total = || members.iter().map(|(_, member)| owned(member)).sum::<usize>();
        let (_, last) = members.last().ok_or_else(|| anyhow::anyhow!("a group without members"))?;
        until(last, |_| shared() && total() == of.spread.partitions as usize).await?;
    }
    let measured = stage.idle(of.settle, of.seconds, of.spread.partitions * of.groups).await?;
    for (_, member) in all.into_iter().flatten() {
        member.shutdown().await;
    }
    Ok(measured)
}
