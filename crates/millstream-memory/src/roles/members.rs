//! The members role in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::members::{
    Assignment, GroupMembers, HeartbeatReply, Member, Members, Revision, Version, Watch,
};
use millstream_core::{
    Continuity, Error, ErrorKind, GroupName, MemberId, MessageId, Partition, Result, TopicName, TopicSpec,
};
use tokio::sync::Notify;

use crate::MemoryBackend;
use crate::backend::breathe;
use crate::clock::Now;

/// Members of one group, and their assignment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Membership {
    members: BTreeMap<MemberId, (Member, Now)>,
    /// Expiry time of each member, earliest first.
    expiries: BTreeSet<(Now, MemberId)>,
    version: Version,
    revision: Revision,
    /// Number of partitions of the topic at the last heartbeat.
    partitions: u32,
    /// Version that `assignment` was published for.
    assigned: Option<Version>,
    assignment: Assignment,
    /// Notifies watchers of every new revision.
    pub(crate) wake: Arc<Notify>,
}

#[async_trait]
impl Members for MemoryBackend {
    async fn heartbeat(
        &self,
        topic: &TopicName,
        group: &GroupName,
        member: &Member,
        joining: bool,
    ) -> Result<HeartbeatReply> {
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        let TopicSpec { partitions, generation, .. } = *state.topic(topic)?;
        if member.generation.is_some_and(|known| known < generation) {
            let why = format!("topic {topic} was deleted, and created again since");
            return Err(Error::new(ErrorKind::Deleted, why));
        }
        state.not_deleted(topic, group, now)?;
        let paused = state.paused_groups.contains_key(&(topic.clone(), group.clone()));
        let server = state.server();
        let membership = state.membership(topic, group);
        let refused =
            |kind, why| Error::new(kind, format!("member {} of {group} on {topic} is {why}", member.id));
        match membership.members.get(&member.id) {
            _ if joining => {}
            None => return Err(refused(ErrorKind::NotMember, "not in the group")),
            Some((known, _)) if known.incarnation != member.incarnation => {
                return Err(refused(ErrorKind::Fenced, "another instance now"));
            }
            Some(_) => {}
        }
        let mut pulse = membership.heartbeat(member, partitions, &server, now);
        pulse.paused = paused;
        Ok(pulse)
    }

    async fn leave(&self, topic: &TopicName, group: &GroupName, member: &Member) -> Result<()> {
        let mut state = self.lock();
        let now = self.now();
        let membership = state.membership(topic, group);
        let mine = |(known, _): &(Member, Now)| known.incarnation == member.incarnation;
        if membership.members.get(&member.id).is_some_and(mine) {
            membership.forget(&member.id);
            membership.changed(true, now);
        }
        Ok(())
    }

    async fn roster(&self, topic: &TopicName, group: &GroupName) -> Result<GroupMembers> {
        let state = self.lock();
        let now = self.now();
        let mut roster = GroupMembers::default();
        roster.partitions = state.topic(topic).map_or(0, |topic| topic.partitions);
        let Some(membership) = state.peek_membership(topic, group) else { return Ok(roster) };
        (roster.version, roster.revision) = (membership.version, membership.revision);
        for (member, expires) in membership.members.values() {
            let heard = (member.ttl + now.since(*expires)).saturating_sub(expires.since(now));
            roster.heard.insert(member.id.clone(), heard);
            roster.members.push(member.clone());
        }
        roster.assigned = membership.assigned;
        roster.assignment.clone_from(&membership.assignment);
        Ok(roster)
    }

    async fn publish(
        &self,
        topic: &TopicName,
        group: &GroupName,
        version: Version,
        assignment: &Assignment,
    ) -> Result<bool> {
        let mut state = self.lock();
        let now = self.now();
        let membership = state.membership(topic, group);
        // A group of version 0 never had a member.
        let current = version == membership.version && version != Version::default();
        if !current || membership.assigned == Some(version) {
            return Ok(false);
        }
        membership.assigned = Some(version);
        membership.assignment.clone_from(assignment);
        membership.assignment.values_mut().for_each(in_order);
        membership.changed(false, now);
        Ok(true)
    }

    async fn watch(&self, topic: &TopicName, group: &GroupName) -> Result<Box<dyn Watch>> {
        let wake = self.lock().membership(topic, group).wake.clone();
        Ok(Box::new(MemoryWatch { backend: self.clone(), topic: topic.clone(), group: group.clone(), wake }))
    }
}

impl Membership {
    /// Processes the heartbeat of `member`.
    fn heartbeat(&mut self, member: &Member, partitions: u32, server: &str, now: Now) -> HeartbeatReply {
        let mut member = member.clone();
        // The generation is only for the check before, and is not stored.
        member.generation = None;
        let heard = std::mem::replace(&mut member.heard, Continuity::new(member.ttl));
        in_order(&mut member.pinned);
        let known = self.members.get(&member.id);
        let mut changed = known.is_none_or(|(known, _)| !same_wishes(known, &member));
        changed |= std::mem::replace(&mut self.partitions, partitions) != partitions;
        let id = member.id.clone();
        self.remember(member, now);
        let left = heard.left(server, now.millis());
        if left.is_zero() {
            changed |= self.drop_dead(now);
        }
        if changed {
            self.changed(true, now);
        }
        let members = u32::try_from(self.members.len()).unwrap_or(u32::MAX);
        let mut pulse = HeartbeatReply::new(self.version, self.revision, members, partitions);
        (pulse.server, pulse.now) = (server.to_owned(), now.millis());
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
    fn changed(&mut self, membership: bool, now: Now) {
        if membership {
            // By the clock, like epochs, so that no version is used again after the newest state was lost.
            self.version.0 = now.millis().max(self.version.0 + 1);
        }
        let Revision(last) = self.revision;
        self.revision = Revision(last.next().max(MessageId::new(now.millis(), 0)));
        self.wake.notify_waiters();
    }
}

/// Returns whether this heartbeat needs no new assignment. A restart alone does not.
fn same_wishes(known: &Member, member: &Member) -> bool {
    let wishes = |member: &Member| (member.ttl, member.max_partitions);
    wishes(known) == wishes(member) && known.pinned == member.pinned
}

/// Sorts a list of partitions and removes duplicates.
fn in_order(partitions: &mut Vec<Partition>) {
    partitions.sort_unstable();
    partitions.dedup();
}

struct MemoryWatch {
    backend: MemoryBackend,
    topic: TopicName,
    group: GroupName,
    wake: Arc<Notify>,
}

#[async_trait]
impl Watch for MemoryWatch {
    async fn changed(&mut self, seen: Revision, wait: Duration) -> Result<()> {
        breathe().await;
        let timeout = tokio::time::sleep(wait);
        tokio::pin!(timeout);
        loop {
            // Created before the look, so that a change right after it wakes this watcher.
            let woken = self.wake.notified();
            let revision = {
                let state = self.backend.lock();
                state.peek_membership(&self.topic, &self.group).map(|membership| membership.revision)
            };
            // Deleted, or changed.
            if revision.is_none_or(|revision| revision > seen) {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = woken => {}
                () = &mut timeout => return Ok(()),
            }
        }
    }
}
