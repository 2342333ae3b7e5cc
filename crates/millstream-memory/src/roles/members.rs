//! The members role in memory.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::members::{
    Assignment, GroupMembers, HeartbeatReply, Member, Members, Revision, Version, Watch,
};
use millstream_core::{Error, ErrorKind, GroupName, Result, TopicName, TopicSpec};
use tokio::sync::Notify;

use crate::MemoryBackend;
use crate::backend::breathe;
use crate::clock::Now;
use crate::membership::in_order;

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
            return Err(Error::new(ErrorKind::Deleted, why).at(topic));
        }
        state.not_deleted(topic, group, now)?;
        let paused = state.paused_groups.contains_key(&(topic.clone(), group.clone()));
        let server = state.server();
        let membership = state.membership(topic, group);
        let refused = |kind, why| {
            Error::new(kind, format!("member {} of {group} on {topic} is {why}", member.id)).at(topic)
        };
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
            let last = (member.ttl + now.since(*expires)).saturating_sub(expires.since(now));
            roster.last_heartbeats.insert(member.id.clone(), last);
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
