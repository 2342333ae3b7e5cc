//! Membership of a group, and how long it lasts.

use std::time::Duration;

use millstream_core::log::Source;
use millstream_core::members::{GroupMembers, Version};
use millstream_core::running::{MAX_NAMED, Running, RunningMessage, WaitingMessage};
use millstream_core::{Continuity, ErrorKind, GroupName, MessageId, Partition, TopicName};
use tokio::time::Instant;

use super::{Club, suite};
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{BRIEF, Harness, LONG};

suite!("members":
    a_member_joins_with_its_first_heartbeat,
    everybody_who_joins_is_in_the_roster_in_order,
    a_heartbeat_alone_makes_no_version,
    a_heartbeat_keeps_a_member_alive,
    who_leaves_is_gone_at_once,
    who_sends_no_heartbeat_is_dropped,
    the_time_since_the_last_heartbeat_is_returned,
    who_was_dropped_joins_again,
    a_heartbeat_that_comes_after_a_leave_brings_nobody_back,
    the_next_expiry_is_the_earliest_of_all,
    wishes_that_change_make_a_version,
    what_a_member_runs_is_in_the_roster_and_makes_no_version,
    a_topic_that_grows_makes_a_version needs [Expand],
    an_unknown_topic_has_no_members,
    groups_have_members_of_their_own,
);

async fn a_member_joins_with_its_first_heartbeat(h: Harness) -> Verdict {
    let club = Club::new(h, 3).await?;
    let empty = club.roster().await?;
    equal!((empty.version, empty.partitions), (Version::default(), 3), "version and size of an empty group");
    ensure!(empty.members.is_empty() && empty.assigned.is_none(), "an empty group has {empty:?}");
    let ann = club.member("ann", LONG)?;
    let pulse = club.join(&ann).await?;
    equal!((pulse.members, pulse.partitions), (1, 3), "members and partitions after the first heartbeat");
    equal!(pulse.assigned, None, "what a new member is assigned before anybody published anything");
    ensure!(pulse.version > empty.version, "version {:?} after one joined", pulse.version);
    ensure!(pulse.revision > empty.revision, "revision {:?} after one joined", pulse.revision);
    let roster = club.roster().await?;
    equal!(roster.members, [ann], "members");
    equal!((roster.version, roster.revision), (pulse.version, pulse.revision), "what the roster says");
    Ok(())
}

async fn everybody_who_joins_is_in_the_roster_in_order(h: Harness) -> Verdict {
    let club = Club::new(h, 3).await?;
    let mut all = [
        club.member("cid", LONG)?.at_most(7),
        club.member("ann", LONG)?,
        club.member("Bob", LONG * 2)?.pinned_to([Partition(0), Partition(2)]),
        club.member("ann-2", LONG)?.at_most(0).pinned_to([Partition(9)]),
        club.member("an.n_10", LONG)?,
    ];
    let (mut version, mut revision) = Default::default();
    for (before, member) in all.iter().enumerate() {
        let pulse = club.join(member).await?;
        equal!(pulse.members as usize, before + 1, "members after {} joined", member.id);
        ensure!(pulse.version > version, "version {:?} after {version:?}", pulse.version);
        ensure!(pulse.revision > revision, "revision {:?} after {revision:?}", pulse.revision);
        (version, revision) = (pulse.version, pulse.revision);
    }
    all.sort_by(|a, b| a.id.cmp(&b.id));
    equal!(club.roster().await?.members, all, "members");
    Ok(())
}

async fn a_heartbeat_alone_makes_no_version(h: Harness) -> Verdict {
    let club = Club::new(h, 3).await?;
    let (ann, bob) = (club.joined("ann").await?, club.joined("bob").await?);
    let first = club.beat(&ann).await?;
    for member in [&bob, &ann, &ann, &bob] {
        let pulse = club.beat(member).await?;
        equal!((pulse.version, pulse.revision), (first.version, first.revision), "version and revision");
        equal!(pulse.members, 2, "members");
    }
    Ok(())
}

async fn a_heartbeat_keeps_a_member_alive(h: Harness) -> Verdict {
    let club = Club::new(h, 3).await?;
    let ttl = Duration::from_secs(1);
    let ann = club.joined("ann").await?;
    let bob = club.member("bob", ttl)?;
    let first = club.join(&bob).await?;
    let (version, mut last) = (first.version, first.now);
    let started = Instant::now();
    let mut beaten = Duration::ZERO;
    // After twice the ttl, only the heartbeats keep the member.
    while started.elapsed() < ttl * 5 / 2 {
        for member in [&bob, &ann] {
            beaten = started.elapsed();
            let pulse = club.beat(member).await?;
            equal!((pulse.members, pulse.version), (2, version), "members and version while both live");
            last = pulse.now;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A member can detect its own suspension by the server's time. Two clocks may differ slightly.
    let passed = last.saturating_duration_since(first.now);
    ensure!(passed + Duration::from_millis(20) >= beaten, "{passed:?} of the server's time in {beaten:?}");
    Ok(())
}

async fn who_leaves_is_gone_at_once(h: Harness) -> Verdict {
    let club = Club::new(h, 3).await?;
    let (ann, bob) = (club.joined("ann").await?, club.joined("bob").await?);
    let before = club.beat(&ann).await?;
    club.leave(&bob).await?;
    let roster = club.roster().await?;
    equal!(roster.members, vec![ann.clone()], "members after one left");
    let after = club.beat(&ann).await?;
    equal!(after.members, 1, "members after one left");
    ensure!(after.version > before.version, "version {:?} after {:?}", after.version, before.version);
    ensure!(after.revision > before.revision, "revision {:?} after {:?}", after.revision, before.revision);
    for nobody in [&bob, &club.member("cid", LONG)?] {
        club.leave(nobody).await?;
    }
    equal!(
        club.beat(&ann).await?.version,
        after.version,
        "the version after somebody left who was not there"
    );
    club.leave(&ann).await?;
    let roster = club.roster().await?;
    equal!(roster.members, [], "members after all left");
    ensure!(roster.version > after.version, "version {:?} after all left", roster.version);
    Ok(())
}

async fn who_sends_no_heartbeat_is_dropped(h: Harness) -> Verdict {
    let club = Club::new(h, 3).await?;
    let ann = club.joined("ann").await?;
    let started = Instant::now();
    let before = club.join(&club.member("bob", BRIEF)?).await?;
    let mut deadline = club.h.wait_for("a member to be dropped");
    let after = loop {
        let pulse = club.judge(&ann).await?;
        if pulse.members == 1 {
            break pulse;
        }
        equal!(pulse.version, before.version, "the version while nobody was dropped");
        deadline.pause().await?;
    };
    let took = started.elapsed();
    ensure!(took >= BRIEF - Duration::from_millis(5), "dropped after {took:?} of {BRIEF:?}");
    ensure!(after.version > before.version, "version {:?} after {:?}", after.version, before.version);
    ensure!(after.revision > before.revision, "revision {:?} after {:?}", after.revision, before.revision);
    equal!(club.roster().await?.members, [ann], "members");
    Ok(())
}

async fn the_time_since_the_last_heartbeat_is_returned(h: Harness) -> Verdict {
    let club = Club::new(h, 1).await?;
    let (ann, bob) = (club.joined("ann").await?, club.joined("bob").await?);
    let least = Duration::from_millis(20);
    let mut deadline = club.h.wait_for("time to pass");
    while club.last_heartbeats().await?.values().any(|ago| *ago < least) {
        deadline.pause().await?;
    }
    let before = Instant::now();
    club.beat(&bob).await?;
    let last = club.last_heartbeats().await?;
    // A server counts in milliseconds.
    let most = before.elapsed() + Duration::from_millis(1);
    equal!(last.len(), 2, "members with a last heartbeat");
    ensure!(
        last[&ann.id] >= least,
        "ann sent a heartbeat {:?} ago, expected {least:?} at least",
        last[&ann.id]
    );
    ensure!(last[&bob.id] <= most, "bob sent a heartbeat {:?} ago, expected {most:?} at most", last[&bob.id]);
    Ok(())
}

async fn who_was_dropped_joins_again(h: Harness) -> Verdict {
    let club = Club::new(h, 3).await?;
    let ann = club.joined("ann").await?;
    let bob = club.member("bob", BRIEF)?;
    club.join(&bob).await?;
    let mut deadline = club.h.wait_for("a member to be dropped");
    let mut dropped = club.judge(&ann).await?;
    while dropped.members == 2 {
        deadline.pause().await?;
        dropped = club.judge(&ann).await?;
    }
    refused(club.beat(&bob).await, ErrorKind::NotMember, "the heartbeat of who was dropped")?;
    let again = club.join(&bob).await?;
    equal!(again.members, 2, "members after one came back");
    ensure!(again.version > dropped.version, "version {:?} after {:?}", again.version, dropped.version);
    Ok(())
}

/// The heartbeat was in transit when its sender left.
async fn a_heartbeat_that_comes_after_a_leave_brings_nobody_back(h: Harness) -> Verdict {
    let club = Club::new(h, 3).await?;
    let (ann, bob) = (club.joined("ann").await?, club.joined("bob").await?);
    club.leave(&bob).await?;
    let before = club.roster().await?;
    refused(club.beat(&bob).await, ErrorKind::NotMember, "a heartbeat that comes late")?;
    equal!(club.roster().await?, before, "the group after a heartbeat that came late");
    equal!(before.members, vec![ann], "members");
    equal!(club.join(&bob).await?.members, 2, "members after it joined again");
    Ok(())
}

async fn the_next_expiry_is_the_earliest_of_all(h: Harness) -> Verdict {
    let club = Club::new(h, 3).await?;
    let ann = club.member("ann", LONG)?;
    let left = club.join(&ann).await?.next_expiry;
    ensure!(left > LONG / 2 && left <= LONG, "{left:?} are left of {LONG:?} just now");
    let half = LONG / 2;
    let bob = club.member("bob", half)?;
    club.join(&bob).await?;
    let left = club.beat(&ann).await?.next_expiry;
    ensure!(left > half / 2 && left <= half, "{left:?} are left of the other's {half:?} just now");
    club.leave(&bob).await?;
    let left = club.beat(&ann).await?.next_expiry;
    ensure!(left > half && left <= LONG, "{left:?} are left of {LONG:?} after the other left");
    Ok(())
}

async fn wishes_that_change_make_a_version(h: Harness) -> Verdict {
    let club = Club::new(h, 8).await?;
    let mut member = club.joined("ann").await?;
    let mut last = club.beat(&member).await?.version;
    let mut shorter = member.clone().at_most(3).pinned_to([Partition(1)]);
    (shorter.ttl, shorter.continuity) = (LONG / 2, Continuity::new(LONG / 2));
    let wishes = [
        member.clone().at_most(3),
        member.clone().at_most(4),
        member.clone().at_most(3).pinned_to([Partition(0)]),
        member.clone().at_most(3).pinned_to([Partition(1)]),
        shorter,
        member.clone(),
    ];
    for wish in wishes {
        member = wish;
        let pulse = club.beat(&member).await?;
        ensure!(pulse.version > last, "version {:?} after {last:?} and {member:?}", pulse.version);
        equal!(club.beat(&member).await?.version, pulse.version, "the version after the same wishes again");
        equal!(club.roster().await?.members, [member.clone()], "members");
        last = pulse.version;
    }
    Ok(())
}

async fn what_a_member_runs_is_in_the_roster_and_makes_no_version(h: Harness) -> Verdict {
    let club = Club::new(h, 3).await?;
    let (ann, bob) = (club.joined("ann").await?, club.joined("bob").await?);
    let first = club.beat(&ann).await?;
    let message = |partition, source, attempt| RunningMessage {
        partition: Partition(partition),
        source,
        entry: MessageId::new(u64::MAX - 1, u64::MAX),
        origin: MessageId::new(1_700_000_000_000, 7),
        attempt,
        since: first.now,
    };
    let few = vec![message(2, Source::Log, 1), message(0, Source::Retry, u32::MAX)];
    let full = vec![message(u32::MAX, Source::Retry, 3); MAX_NAMED];
    let waits = |key: &str| Ok::<_, Violation>(WaitingMessage { message: few[0], key: key.parse()? });
    let waiting = vec![waits("tenant:eu/a,b%20c")?, waits("api:all")?];
    let said = [(few.clone(), 0, waiting, 5), (full, 12, Vec::new(), 0), (Vec::new(), 0, Vec::new(), 0)];
    for (messages, more, waiting, more_waiting) in said {
        let busy = ann.clone().running(Running { messages, more, waiting, more_waiting });
        for _ in 0..2 {
            let pulse = club.beat(&busy).await?;
            equal!((pulse.version, pulse.revision), (first.version, first.revision), "version and revision");
        }
        let seen = club.roster().await?;
        equal!(seen.members, [busy, bob.clone()], "members, with what they run");
        equal!((seen.version, seen.revision), (first.version, first.revision), "version and revision");
    }
    // A restart runs nothing of what ran before.
    let runs = Running { messages: vec![message(1, Source::Log, 1)], ..Running::default() };
    club.beat(&ann.clone().running(runs)).await?;
    let again = club.joined("ann").await?;
    equal!(club.roster().await?.members, [again, bob], "members after a restart");
    Ok(())
}

async fn a_topic_that_grows_makes_a_version(h: Harness) -> Verdict {
    let club = Club::new(h, 2).await?;
    let (ann, bob) = (club.joined("ann").await?, club.joined("bob").await?);
    let before = club.beat(&ann).await?;
    club.h.backend.catalog().expand(&club.topic, 5).await?;
    let after = club.beat(&bob).await?;
    equal!((after.partitions, after.members), (5, 2), "partitions and members of a topic that has grown");
    ensure!(after.version > before.version, "version {:?} after {:?}", after.version, before.version);
    let again = club.beat(&ann).await?;
    equal!((again.partitions, again.version), (5, after.version), "what the other member is told");
    equal!(club.roster().await?.partitions, 5, "partitions of the roster");
    Ok(())
}

async fn an_unknown_topic_has_no_members(h: Harness) -> Verdict {
    let topic = TopicName::new(h.unique("topic"))?;
    let club = Club { h, topic, group: GroupName::new("group")? };
    let ann = club.member("ann", LONG)?;
    for joining in [true, false] {
        let pulse = club.h.backend.members().heartbeat(&club.topic, &club.group, &ann, joining).await;
        refused(pulse, ErrorKind::NotFound, "a heartbeat in an unknown topic")?;
    }
    equal!(club.roster().await?, GroupMembers::default(), "the roster of an unknown topic");
    club.leave(&ann).await?;
    equal!(club.roster().await?, GroupMembers::default(), "the roster of an unknown topic after a leave");
    Ok(())
}

async fn groups_have_members_of_their_own(h: Harness) -> Verdict {
    let club = Club::new(h.clone(), 2).await?;
    let other_group = Club { group: GroupName::new("other")?, ..club.clone() };
    let other_topic = Club::new(h, 2).await?;
    let ann = club.joined("ann").await?;
    let there = [other_group.joined("ann").await?, other_topic.joined("ann").await?];
    let versions = [other_group.roster().await?.version, other_topic.roster().await?.version];
    club.joined("bob").await?;
    club.leave(&ann).await?;
    for ((other, ann), version) in [other_group, other_topic].iter().zip(there).zip(versions) {
        let roster = other.roster().await?;
        equal!(roster.members, [ann], "members of another group");
        equal!(roster.version, version, "the version of another group");
    }
    Ok(())
}
