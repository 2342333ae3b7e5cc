//! Operations that an administrator can do directly on a Redis server, to test how an application reacts to them.

use std::time::Duration;

use bytes::Bytes;
use millstream_core::{
    GroupName, MemberId, MessageId, Place, Resource, ScheduleId, Timestamp, TopicName, TopicPartition,
};

use crate::MemoryBackend;
use crate::state::State;
use crate::stream::Stream;

/// Deletes and changes data that should not be touched. Returned by [`MemoryBackend::operator`].
#[derive(Clone, Debug)]
pub struct Operator(MemoryBackend);

/// Copy of the backend's whole state at one moment. Returned by [`Operator::snapshot`].
#[derive(Clone, Debug)]
pub struct Snapshot(State);

impl MemoryBackend {
    /// Returns a handle for operations of an administrator with a console.
    #[must_use]
    pub fn operator(&self) -> Operator {
        Operator(self.clone())
    }
}

impl Operator {
    /// Deletes one entry of a log (`XDEL`). A pending one becomes a ghost. Returns false if it does not exist.
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

    /// Destroys a group on one partition's log, with its pending entries (`XGROUP DESTROY`). Returns false if it does
    /// not exist.
    pub fn destroy_group(&self, topic_partition: &TopicPartition, group: &GroupName) -> bool {
        let mut state = self.0.lock();
        let partition = state.partition(topic_partition);
        partition.wake.notify_waiters();
        partition.group(group).cursor.take().is_some()
    }

    /// Sets a group's position in one partition's log (`XGROUP SETID`), without regard to pending entries: reading
    /// continues above `id`. Returns false if the group does not exist.
    pub fn set_position(&self, topic_partition: &TopicPartition, group: &GroupName, id: MessageId) -> bool {
        let mut state = self.0.lock();
        let partition = state.partition(topic_partition);
        partition.wake.notify_waiters();
        let cursor = partition.group(group).cursor.as_mut();
        cursor.map(|cursor| cursor.delivered = id).is_some()
    }

    /// Deletes a parked retry except for its id (`HDEL`), so that it becomes an orphan. Returns false if it does not exist.
    pub fn delete_parked(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        origin: MessageId,
    ) -> bool {
        let mut state = self.0.lock();
        state.group(topic_partition, group).is_some_and(|group| group.parked.lose(origin))
    }

    /// Deletes a scheduled message except for its id (`HDEL`), whether it waits or is being worked on, so that it
    /// becomes an orphan. Returns false if it does not exist.
    pub fn delete_scheduled(&self, place: &Place, id: &ScheduleId) -> bool {
        self.0.lock().change(place, |timetable| timetable.lose(id))
    }

    /// Returns the time of the backend's clock.
    #[must_use]
    pub fn clock(&self) -> Timestamp {
        self.0.now().timestamp()
    }

    /// Expires a lease now (`DEL` of the lease key). Returns false if it was never granted.
    pub fn expire_lease(&self, resource: &Resource) -> bool {
        let now = self.0.now();
        let mut state = self.0.lock();
        state.fences.get_mut(resource).map(|fence| fence.expires = now).is_some()
    }

    /// Removes a member without a notification (`ZREM`, `HDEL`): its group gets no new version, and the member's next
    /// heartbeat joins again. Returns false if it does not exist.
    pub fn forget_member(&self, topic: &TopicName, group: &GroupName, member: &MemberId) -> bool {
        self.0.lock().membership(topic, group).forget(member)
    }

    /// Copies the current state, for [`restore`](Self::restore).
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.0.lock().clone())
    }

    /// Fails over to a replica with the state of the snapshot: all later changes are lost. The clock continues, all
    /// readers start over and all waiting callers look again.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.0.lock().replace(snapshot.0.clone(), false);
    }

    /// Same as [`restore`](Self::restore), with a replica whose clock is behind: the ids of lost entries are used again
    /// for the entries that are appended next, log by log in the order of the ids.
    pub fn restore_behind(&self, snapshot: &Snapshot) {
        self.0.lock().replace(snapshot.0.clone(), true);
    }

    /// Restarts the server with all its data: readers start over, and waiting callers look again.
    pub fn restart(&self) {
        let mut state = self.0.lock();
        let same = state.clone();
        state.replace(same, false);
    }

    /// Sets the clock back, as for a new primary whose clock is behind that of the old one. Until the clock has caught
    /// up, new entries of a log get the ids above its last one, including ids that were assigned before a
    /// [`restore`](Self::restore).
    pub fn set_clock_back(&self, by: Duration) {
        self.0.set_clock_back(by);
    }

    /// Adds an entry with arbitrary fields to the dead letters (`XADD`), as another program would.
    pub fn add_dead_letter(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        fields: Vec<(Bytes, Bytes)>,
    ) -> MessageId {
        let now = self.0.now().timestamp();
        self.0.lock().partition(topic_partition).group(group).dead.append(now, fields)
    }
}
