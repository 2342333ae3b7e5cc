//! The members role: the live members of a group, and the assignment of partitions.

mod continuity;
mod identity;
mod living;
mod publishing;
mod watching;

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_core::members::{Assignment, GroupMembers, HeartbeatReply, Member, Version};
use millstream_core::{Continuity, GroupName, MemberId, Result, TopicName};

use super::suite;
use crate::case::{Case, Verdict, Violation};
use crate::harness::{Harness, LONG};

pub(super) fn cases() -> Vec<Case> {
    [living::cases(), continuity::cases(), identity::cases(), publishing::cases(), watching::cases()].concat()
}

/// The group of a case, in a topic of its own.
#[derive(Clone)]
struct Club {
    h: Harness,
    topic: TopicName,
    group: GroupName,
}

impl Club {
    async fn new(h: Harness, partitions: u32) -> std::result::Result<Self, Violation> {
        let topic = h.topic(partitions).await?.name;
        Ok(Self { h, topic, group: GroupName::new("group")? })
    }

    /// Returns a new instance with this name, which is not in the group yet.
    fn member(&self, id: &str, ttl: Duration) -> std::result::Result<Member, Violation> {
        Ok(Member::new(MemberId::new(id)?, self.h.unique("incarnation"), ttl))
    }

    /// Adds a member to the group that stays for the whole case.
    async fn joined(&self, id: &str) -> std::result::Result<Member, Violation> {
        let member = self.member(id, LONG)?;
        self.join(&member).await?;
        Ok(member)
    }

    async fn join(&self, member: &Member) -> Result<HeartbeatReply> {
        self.h.backend.members().heartbeat(&self.topic, &self.group, member, true).await
    }

    async fn beat(&self, member: &Member) -> Result<HeartbeatReply> {
        self.h.backend.members().heartbeat(&self.topic, &self.group, member, false).await
    }

    async fn leave(&self, member: &Member) -> Result<()> {
        self.h.backend.members().leave(&self.topic, &self.group, member).await
    }

    async fn publish(&self, version: Version, assignment: &Assignment) -> Result<bool> {
        self.h.backend.members().publish(&self.topic, &self.group, version, assignment).await
    }

    /// Returns the group's members, without the times of their heartbeats.
    async fn roster(&self) -> Result<GroupMembers> {
        let mut roster = self.h.backend.members().roster(&self.topic, &self.group).await?;
        roster.last_heartbeats.clear();
        Ok(roster)
    }

    /// Returns how long ago each member sent its last heartbeat.
    async fn last_heartbeats(&self) -> Result<BTreeMap<MemberId, Duration>> {
        Ok(self.h.backend.members().roster(&self.topic, &self.group).await?.last_heartbeats)
    }

    /// Sends a heartbeat of a member whose calls were answered without a gap, which removes expired members.
    async fn judge(&self, member: &Member) -> Result<HeartbeatReply> {
        self.beat(&member.clone().with_continuity(Continuity::assured())).await
    }

    /// Returns the members that are not overdue.
    async fn living(&self) -> Result<Vec<Member>> {
        let roster = self.h.backend.members().roster(&self.topic, &self.group).await?;
        Ok(roster.living().cloned().collect())
    }

    /// Waits until this member is overdue.
    async fn silence_of(&self, member: &Member) -> Verdict {
        let mut deadline = self.h.wait_for("a member to run out");
        while self.living().await?.iter().any(|living| living.id == member.id) {
            deadline.pause().await?;
        }
        Ok(())
    }

    /// Waits until no member is alive. There must be no heartbeats in the meantime.
    async fn silence(&self) -> Verdict {
        let mut deadline = self.h.wait_for("all members to run out");
        while !self.living().await?.is_empty() {
            deadline.pause().await?;
        }
        Ok(())
    }
}
