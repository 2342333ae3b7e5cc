//! Members of a group: versions, revisions, expiries.

use std::sync::Arc;

use millstream_core::members::{Assignment, HeartbeatReply, Member, Revision, Version};
use millstream_core::sorted::{SortedMap, SortedSet, sort};
use millstream_core::{Continuity, MemberId, MessageId, Partition};
use tokio::sync::Notify;

use crate::clock::Now;

/// Members of one group, and their assignment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Membership {
    pub(crate) members: SortedMap<MemberId, (Member, Now)>,
    /// Expiry time of each member, earliest first.
    expiries: SortedSet<(Now, MemberId)>,
    pub(crate) version: Version,
    pub(crate) revision: Revision,
    /// Number of partitions of the topic at the last heartbeat.
    partitions: u32,
    /// Version that `assignment` was published for.
    pub(crate) assigned: Option<Version>,
    pub(crate) assignment: Assignment,
    /// Notifies watchers of every new revision.
    pub(crate) wake: Arc<Notify>,
}

impl Membership {
    /// Processes the heartbeat of `member`.
    pub(crate) fn heartbeat(
        &mut self,
        member: &Member,
        partitions: u32,
        server: &str,
        now: Now,
    ) -> HeartbeatReply {
        let mut member = member.clone();
        // The generation is only for the check before, and is not stored.
        member.generation = None;
        let continuity = std::mem::replace(&mut member.continuity, Continuity::new(member.ttl));
        in_order(&mut member.pinned);
        let known = self.members.get(&member.id);
        let mut changed = known.is_none_or(|(known, _)| !same_wishes(known, &member));
        changed |= std::mem::replace(&mut self.partitions, partitions) != partitions;
        let id = member.id.clone();
        self.remember(member, now);
        let left = continuity.left(server, now.timestamp());
        if left.is_zero() {
            changed |= self.drop_dead(now);
        }
        if changed {
            self.changed(true, now);
        }
        let members = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        let mut pulse = HeartbeatReply::new(self.version, self.revision, members, partitions);
        (pulse.server, pulse.now) = (server.to_owned(), now.timestamp());
        if self.assigned == Some(self.version) {
            pulse.assigned = Some(self.assignment.get(&id).cloned().unwrap_or_default());
        }
        if let Some((expires, _)) = self.expiries.iter().find(|(expires, _)| *expires > now) {
            pulse.next_expiry = expires.since(now);
        }
        if self.expiries.first().is_some_and(|(expires, _)| *expires <= now) {
            // Not before the sender may drop expired members.
            pulse.next_expiry = pulse.next_expiry.min(left);
        }
        pulse
    }

    fn remember(&mut self, member: Member, now: Now) {
        let expires = now.plus(member.ttl);
        self.forget(&member.id);
        self.expiries.insert((expires, member.id.clone()));
        self.members.insert(member.id.clone(), (member, expires));
    }

    /// Removes a member without a notification. Returns false if it does not exist.
    pub(crate) fn forget(&mut self, id: &MemberId) -> bool {
        let Some((_, expires)) = self.members.remove(id) else { return false };
        self.expiries.remove(&(expires, id.clone()))
    }

    /// Drops all members whose ttl has passed. Returns false if there are none.
    fn drop_dead(&mut self, now: Now) -> bool {
        let mut dropped = false;
        while self.expiries.first().is_some_and(|(expires, _)| *expires <= now) {
            let Some((_, id)) = self.expiries.pop_first() else { break };
            self.members.remove(&id);
            dropped = true;
        }
        dropped
    }

    /// Notifies the members of a change outside the membership.
    pub(crate) fn told(&mut self, now: Now) {
        self.changed(false, now);
    }

    /// Creates a new revision, and a new version if the membership itself has changed.
    pub(crate) fn changed(&mut self, membership: bool, now: Now) {
        if membership {
            // By the clock, like epochs, so that no version is used again after the newest state was lost.
            self.version.0 = now.timestamp().as_millis().max(self.version.0 + 1);
        }
        let Revision(last) = self.revision;
        self.revision = Revision(last.next().max(MessageId::new(now.timestamp().as_millis(), 0)));
        self.wake.notify_waiters();
    }
}

/// Returns whether this heartbeat needs no new assignment. A restart alone does not.
fn same_wishes(known: &Member, member: &Member) -> bool {
    let wishes = |member: &Member| (member.ttl, member.max_partitions);
    wishes(known) == wishes(member) && known.pinned == member.pinned
}

/// Sorts a list of partitions and removes duplicates.
pub(crate) fn in_order(partitions: &mut Vec<Partition>) {
    sort(partitions);
    partitions.dedup();
}
