//! Mistakes of the members role.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::members::{
    Assignment, GroupMembers, HeartbeatReply, Member, Members, Revision, Version, Watch,
};
use millstream_core::{Continuity, Error, ErrorKind, GroupName, Result, TopicName, TopicSpec};
use tokio::time::{Instant, sleep};

use super::{Broken, Mutant};

const DAY: Duration = Duration::from_secs(86_400);

#[async_trait]
impl Members for Broken {
    async fn heartbeat(
        &self,
        topic: &TopicName,
        group: &GroupName,
        member: &Member,
        joining: bool,
    ) -> Result<HeartbeatReply> {
        let group = &self.club(group);
        let key = (topic.clone(), group.clone(), member.id.clone());
        let first =
            self.memo().members.entry(key).or_insert_with(|| (member.clone(), Instant::now())).clone();
        let mut told = member.clone();
        let mut joining = joining;
        match self.sabotage {
            Mutant::UnknownTopicInvented => {
                self.inner.catalog().create_topic(&TopicSpec::new(topic.clone(), 1)?).await?;
            }
            Mutant::HeartbeatsForgotten if first.1.elapsed() > member.ttl => {
                self.inner.members().leave(topic, group, member).await?;
            }
            Mutant::MembersNeverDie => told.ttl = DAY,
            Mutant::WishesIgnored => {
                told = first.0.clone();
                told.incarnation.clone_from(&member.incarnation);
            }
            Mutant::JoiningIgnored => joining = false,
            Mutant::OldIncarnationAccepted => joining = true,
            Mutant::GenerationUnchecked => told.generation = None,
            Mutant::DroppedForGood if first.0.incarnation == member.incarnation => {
                self.look_for(topic, group, member).await?;
            }
            Mutant::JudgesAtOnce => told.continuity = Continuity::assured(),
            Mutant::NeverJudges => told.continuity = Continuity::new(member.ttl),
            _ => {}
        }
        let pulse = match self.inner.members().heartbeat(topic, group, &told, joining).await {
            Err(error) if error.kind() == ErrorKind::Deleted && self.is(Mutant::DeletionUntold) => {
                return Ok(HeartbeatReply::new(Version(1), Revision::default(), 1, 1));
            }
            Err(error) if error.kind() == ErrorKind::NotMember && self.is(Mutant::LateHeartbeatJoins) => {
                self.inner.members().heartbeat(topic, group, &told, true).await?
            }
            other => other?,
        };
        self.spoil_pulse(topic, group, member, pulse).await
    }

    async fn leave(&self, topic: &TopicName, group: &GroupName, member: &Member) -> Result<()> {
        let group = &self.club(group);
        self.memo().members.remove(&(topic.clone(), group.clone(), member.id.clone()));
        let mut leaves = member.clone();
        match self.sabotage {
            Mutant::LeaveForgotten => return Ok(()),
            Mutant::LeaveIgnoresIncarnation => {
                let members = self.inner.members().roster(topic, group).await?.members;
                leaves = members.into_iter().find(|known| known.id == member.id).unwrap_or(leaves);
            }
            _ => {}
        }
        self.inner.members().leave(topic, group, &leaves).await
    }

    async fn roster(&self, topic: &TopicName, group: &GroupName) -> Result<GroupMembers> {
        let group = &self.club(group);
        let mut roster = self.inner.members().roster(topic, group).await?;
        let memo = self.memo();
        let key = (topic.clone(), group.clone());
        match self.sabotage {
            Mutant::RosterUnsorted => roster.members.reverse(),
            // All members report the time of the first one's last heartbeat.
            Mutant::HeartbeatsTogether => {
                let longest = roster.last_heartbeats.values().max().copied().unwrap_or_default();
                roster.last_heartbeats.values_mut().for_each(|ago| *ago = longest);
            }
            Mutant::RosterHidesTheOverdue => roster.members = roster.living().cloned().collect(),
            Mutant::MembersNeverDie => {
                for member in &mut roster.members {
                    let key = (topic.clone(), group.clone(), member.id.clone());
                    member.ttl = memo.members.get(&key).map_or(member.ttl, |(first, _)| first.ttl);
                }
            }
            Mutant::PublishTwice => {
                if let Some(last) = memo.published.get(&key) {
                    roster.assignment.clone_from(last);
                }
            }
            _ => {}
        }
        Ok(roster)
    }

    async fn publish(
        &self,
        topic: &TopicName,
        group: &GroupName,
        version: Version,
        assignment: &Assignment,
    ) -> Result<bool> {
        let group = &self.club(group);
        let inner = self.inner.members();
        match self.sabotage {
            Mutant::PublishForgotten => Ok(true),
            Mutant::PublishIgnoresVersion => {
                let version = inner.roster(topic, group).await?.version;
                inner.publish(topic, group, version, assignment).await
            }
            Mutant::PublishTwice => {
                let first = inner.publish(topic, group, version, assignment).await?;
                let current = first || inner.roster(topic, group).await?.assigned == Some(version);
                if current {
                    self.memo().published.insert((topic.clone(), group.clone()), assignment.clone());
                }
                Ok(current)
            }
            _ => inner.publish(topic, group, version, assignment).await,
        }
    }

    async fn watch(&self, topic: &TopicName, group: &GroupName) -> Result<Box<dyn Watch>> {
        let group = self.club(group);
        let inner = self.inner.members().watch(topic, &group).await?;
        Ok(Box::new(BrokenWatch { broken: self.clone(), topic: topic.clone(), group, inner }))
    }
}

impl Broken {
    /// Returns the group that the backend is called with instead.
    fn club(&self, group: &GroupName) -> GroupName {
        if self.is(Mutant::MembershipsShared) {
            return GroupName::new("everybody").unwrap_or_else(|_| group.clone());
        }
        group.clone()
    }

    /// Fails if the member was in the group and was dropped after its ttl.
    async fn look_for(&self, topic: &TopicName, group: &GroupName, member: &Member) -> Result<()> {
        let alive = self.inner.members().roster(topic, group).await?.members;
        let known = self.memo().members.clone();
        let (_, since) = known.get(&(topic.clone(), group.clone(), member.id.clone())).cloned().unzip();
        let dead = |id| !alive.iter().any(|alive| alive.id == id);
        if !dead(member.id.clone()) || since.is_none_or(|since| since.elapsed() < member.ttl) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Fenced, "dropped for good"))
    }

    async fn spoil_pulse(
        &self,
        topic: &TopicName,
        group: &GroupName,
        member: &Member,
        mut pulse: HeartbeatReply,
    ) -> Result<HeartbeatReply> {
        let assignment = self.inner.members().roster(topic, group).await?.assignment;
        let mut memo = self.memo();
        memo.count += 1;
        let count = memo.count;
        let key = (topic.clone(), group.clone());
        let first = memo.pulses.entry(key.clone()).or_insert_with(|| pulse.clone()).clone();
        match self.sabotage {
            Mutant::MembersMiscounted => pulse.members = 1,
            Mutant::PauseUntold => pulse.paused = false,
            Mutant::VersionStuck => pulse.version = first.version,
            Mutant::VersionEveryHeartbeat => pulse.version.0 += count,
            Mutant::RevisionStuck => pulse.revision = first.revision,
            Mutant::GrowthUnseen => pulse.partitions = first.partitions,
            Mutant::ServerRenamed => pulse.server = count.to_string(),
            Mutant::ServerTimeStuck => pulse.now = first.now,
            Mutant::NextExpiryOwn => pulse.next_expiry = member.ttl,
            Mutant::AssignedEverything => {
                let all = |_| assignment.values().flatten().copied().collect();
                pulse.assigned = pulse.assigned.map(all);
            }
            Mutant::AssignmentOutlivesVersion => {
                pulse.assigned = pulse.assigned.or_else(|| assignment.get(&member.id).cloned());
            }
            Mutant::PublishTwice => {
                let last = memo.published.get(&key).and_then(|last| last.get(&member.id));
                pulse.assigned = pulse.assigned.map(|first| last.cloned().unwrap_or(first));
            }
            _ => {}
        }
        Ok(pulse)
    }
}

struct BrokenWatch {
    broken: Broken,
    topic: TopicName,
    group: GroupName,
    inner: Box<dyn Watch>,
}

#[async_trait]
impl Watch for BrokenWatch {
    async fn changed(&mut self, seen: Revision, wait: Duration) -> Result<()> {
        let mut seen = seen;
        match self.broken.sabotage {
            Mutant::WatchImpatient => return Ok(()),
            Mutant::WatchDeaf => sleep(wait).await,
            Mutant::WatchEndless => sleep(wait * 20).await,
            Mutant::WatchForgetsThePast => {
                let now = self.broken.inner.members().roster(&self.topic, &self.group).await?;
                seen = seen.max(now.revision);
            }
            _ => {}
        }
        self.inner.changed(seen, wait).await
    }
}
