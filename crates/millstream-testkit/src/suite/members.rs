//! The members role: who is alive in a group, and who should own what.

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

    /// A start of an instance of this name, not in the group yet.
    fn member(&self, id: &str, ttl: Duration) -> std::result::Result<Member, Violation> {
        Ok(Member::new(MemberId::new(id)?, self.h.unique("incarnation"), ttl))
    }

    /// One that lives as long as the case, and is in the group.
    async fn joined(&self, id: &str) -> std::result::Result<Member, Violation> {
        let member = self.member(id, LONG)?;
        self.join(&member).await?;
        Ok(member)
    }

    async fn join(&self, member: &Member) -> Result<HeartbeatReply> {
        self.h.backend.members.heartbeat(&self.topic, &self.group, member, true).await
    }

    async fn beat(&self, member: &Member) -> Result<HeartbeatReply> {
        self.h.backend.members.heartbeat(&self.topic, &self.group, member, false).await
    }

    async fn leave(&self, member: &Member) -> Result<()> {
        self.h.backend.members.leave(&self.topic, &self.group, member).await
    }

    async fn publish(&self, version: Version, assignment: &Assignment) -> Result<bool> {
        self.h.backend.members.publish(&self.topic, &self.group, version, assignment).await
    }

    /// The whole group, but for what time does to it.
    async fn roster(&self) -> Result<GroupMembers> {
        let mut roster = self.h.backend.members.roster(&self.topic, &self.group).await?;
        roster.heard.clear();
        Ok(roster)
    }

    /// How long ago each member was heard of.
    async fn heard(&self) -> Result<BTreeMap<MemberId, Duration>> {
        Ok(self.h.backend.members.roster(&self.topic, &self.group).await?.heard)
    }

    /// The heartbeat of one that has seen to it that whoever ran out is gone.
    async fn judge(&self, member: &Member) -> Result<HeartbeatReply> {
        self.beat(&member.clone().hearing(Continuity::assured())).await
    }

    /// Those who are not overdue.
    async fn living(&self) -> Result<Vec<Member>> {
        let roster = self.h.backend.members.roster(&self.topic, &self.group).await?;
        Ok(roster.living().cloned().collect())
    }

    /// Waits until one of them is overdue.
    async fn silence_of(&self, member: &Member) -> Verdict {
        let mut patience = self.h.patience("a member to run out");
        while self.living().await?.iter().any(|living| living.id == member.id) {
            patience.pause().await?;
        }
        Ok(())
    }

    /// Waits until nobody is alive any more. Nobody may be heard of meanwhile.
    async fn silence(&self) -> Verdict {
        let mut patience = self.h.patience("all members to run out");
        while !self.living().await?.is_empty() {
            patience.pause().await?;
        }
        Ok(())
    }
}
