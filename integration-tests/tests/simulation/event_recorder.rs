//! Records the events of a consumer, except the frequent ones.

use millstream_core::Observer;
use millstream_core::event::Event as Happened;
use millstream_testkit::chaos::Client;
use millstream_testkit::history::{Event, History};

/// Records the events of a live consumer.
pub(crate) struct EventRecorder {
    pub(crate) name: String,
    pub(crate) client: Client,
    pub(crate) history: History,
}

impl Observer for EventRecorder {
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
            Happened::Ghosts { topic_partition, entries, .. } => {
                format!("{entries} ghosts in {topic_partition}")
            }
            Happened::Failing { operation, error, .. } => format!("{operation} fails: {error}"),
            _ => return,
        };
        self.history.record(Event::Said { instance: self.name.clone(), what });
    }
}
