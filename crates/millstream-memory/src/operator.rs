//! What an operator can do to a Redis server behind everybody's back, for tests of how you take it.

use std::time::Duration;

use bytes::Bytes;
use millstream_core::{
    GroupName, MemberId, MessageId, Place, Resource, ScheduleId, TopicName, TopicPartition,
};

use crate::MemoryBackend;
use crate::state::State;
use crate::stream::Stream;

/// Deletes things that nobody should delete. From [`MemoryBackend::operator`].
#[derive(Clone, Debug)]
pub struct Operator(MemoryBackend);

/// Everything that the backend held at one moment. From [`Operator::snapshot`].
#[derive(Clone, Debug)]
pub struct Snapshot(State);

impl MemoryBackend {
    /// Somebody with a console.
    #[must_use]
    pub fn operator(&self) -> Operator {
        Operator(self.clone())
    }
}

impl Operator {
    /// Deletes one entry of a log (`XDEL`). Where it is pending it becomes a ghost. `false` if it is not there.
    pub fn delete_entry(&self, topic_partition: &TopicPartition, id: MessageId) -> bool {
        self.0.lock().partition(topic_partition).log.remove(id).is_some()
    }

    /// Deletes a log with all its groups (`DEL`). Retry logs, schedules and dead letters stay.
    pub fn delete_log(&self, topic_partition: &TopicPartition) {
        let mut state = self.0.lock();
        let partition = state.partition(topic_partition);
        partition.log = Stream::default();
        for group in partition.groups.values_mut() {
            group.cursor = None;
        }
        partition.wake.notify_waiters();
    }

    /// Destroys a group on one partition's log, with what is pending there (`XGROUP DESTROY`). `false` if it is
    /// not there.
    pub fn destroy_group(&self, topic_partition: &TopicPartition, group: &GroupName) -> bool {
        let mut state = self.0.lock();
        let partition = state.partition(topic_partition);
        partition.wake.notify_waiters();
        partition.group(group).cursor.take().is_some()
    }

    /// Sets a group's position in one partition's log (`XGROUP SETID`), with no regard for what is pending: reading goes on
    /// above `id`. `false` if the group is not there.
    pub fn set_position(&self, topic_partition: &TopicPartition, group: &GroupName, id: MessageId) -> bool {
        let mut state = self.0.lock();
        let partition = state.partition(topic_partition);
        partition.wake.notify_waiters();
        let cursor = partition.group(group).cursor.as_mut();
        cursor.map(|cursor| cursor.delivered = id).is_some()
    }

    /// Deletes a parked retry but for its id (`HDEL`), so that it becomes an orphan. `false` if it is not there.
    pub fn delete_parked(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        origin: MessageId,
    ) -> bool {
        let mut state = self.0.lock();
        state.group(topic_partition, group).is_some_and(|group| group.parked.lose(origin))
    }

    /// Deletes a scheduled message but for its id (`HDEL`), whether it waits or is worked on, so that it becomes an
    /// orphan. `false` if it is not there.
    pub fn delete_scheduled(&self, place: &Place, id: &ScheduleId) -> bool {
        self.0.lock().change(place, |timetable| timetable.lose(id))
    }

    /// The backend's clock: milliseconds since 1970.
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.0.now().millis()
    }

    /// Lets a lease run out now (`DEL` of the lease key). `false` if nobody was ever granted it.
    pub fn expire_lease(&self, resource: &Resource) -> bool {
        let now = self.0.now();
        let mut state = self.0.lock();
        state.fences.get_mut(resource).map(|fence| fence.expires = now).is_some()
    }

    /// Removes a member without telling anybody (`ZREM`, `HDEL`): its group makes no new version of that, and its
    /// next heartbeat joins. `false` if it is not there.
    pub fn forget_member(&self, topic: &TopicName, group: &GroupName, member: &MemberId) -> bool {
        self.0.lock().membership(topic, group).forget(member)
    }

    /// Keeps everything as it is now, for [`restore`](Self::restore).
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.0.lock().clone())
    }

    /// Fails over to a replica that had got so far: everything since is lost. The clock goes on, all readers start
    /// over and all who wait look again.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.0.lock().replace(snapshot.0.clone(), false);
    }

    /// As [`restore`](Self::restore), to a replica whose clock is behind: the ids of the entries that are lost are given
    /// once more, to other entries: to those that are appended next, log by log in the order of the ids.
    pub fn restore_behind(&self, snapshot: &Snapshot) {
        self.0.lock().replace(snapshot.0.clone(), true);
    }

    /// Restarts the server with all its data: readers start over, and who waits looks again.
    pub fn restart(&self) {
        let mut state = self.0.lock();
        let same = state.clone();
        state.replace(same, false);
    }

    /// Sets the clock back, as a new primary's may stand behind the old one's. New entries of a log get the ids above
    /// its last one until the clock has caught up, also ids that were given before a [`restore`](Self::restore).
    pub fn set_clock_back(&self, by: Duration) {
        self.0.set_clock_back(by);
    }

    /// Puts an entry of somebody else's among the dead letters (`XADD`).
    pub fn add_dead_letter(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        fields: Vec<(Bytes, Bytes)>,
    ) -> MessageId {
        let now = self.0.now().millis();
        self.0.lock().partition(topic_partition).group(group).dead.append(now, fields)
    }
}
