//! Members that are dropped after an outage, and the members that drop them.

use std::time::Duration;

use millstream_core::members::{Assignment, HeartbeatReply, Member};
use millstream_core::{Continuity, ErrorKind};
use tokio::time::Instant;

use super::{Club, suite};
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::continuity::{answered, not_whole};
use crate::harness::{BRIEF, Harness, LONG};

suite!("members":
    who_is_overdue_is_shown_until_it_is_dropped,
    who_was_not_answered_without_a_gap_drops_nobody,
    who_was_answered_for_a_ttl_drops_the_overdue,
    who_may_not_drop_yet_is_told_when_it_may,
    who_joins_drops_nobody,
);

async fn who_is_overdue_is_shown_until_it_is_dropped(h: Harness) -> Verdict {
    let club = Club::new(h, 3).await?;
    let (ann, bob) = (club.joined("ann").await?, club.member("bob", BRIEF)?);
    let before = club.join(&bob).await?;
    let mut deadline = club.h.wait_for("a member to run out");
    while club.living().await? != [ann.clone()] {
        deadline.pause().await?;
    }
    let roster = club.roster().await?;
    equal!(roster.members, vec![ann.clone(), bob.clone()], "members while nobody is continuity of");
    equal!(roster.version, before.version, "the version while nobody is continuity of");
    let ago = club.last_heartbeats().await?[&bob.id];
    ensure!(
        ago >= BRIEF && ago < BRIEF + LONG,
        "it was continuity of {ago:?} ago, and has run out after {BRIEF:?}"
    );
    club.judge(&ann).await?;
    equal!(club.roster().await?.members, [ann], "members after one was dropped");
    Ok(())
}

async fn who_was_not_answered_without_a_gap_drops_nobody(h: Harness) -> Verdict {
    let club = Club::new(h, 3).await?;
    let [ann, bob, cid] = ["ann", "bob", "cid"].map(|id| club.member(id, BRIEF));
    let (ann, bob, cid) = (ann?, bob?, cid?);
    let mut plan = Assignment::new();
    for member in [&ann, &bob, &cid] {
        club.join(member).await?;
        plan.insert(member.id.clone(), Vec::new());
    }
    let version = club.roster().await?.version;
    ensure!(club.publish(version, &plan).await?, "an assignment for {version:?} was refused");
    club.silence().await?;
    // An outage has ended, and the members come back one by one.
    for member in [&ann, &bob] {
        let pulse = club.beat(member).await?;
        equal!((pulse.members, pulse.version), (3, version), "members and version after an outage");
        equal!(pulse.assigned, Some(Vec::new()), "what it is to own, as before the outage");
    }
    // A record of another server, or one that ended too long ago, does not permit to drop members either.
    let pulse = club.beat(&ann).await?;
    for (continuity, why) in not_whole(&pulse.server, pulse.now, BRIEF) {
        equal!(club.beat(&ann.clone().with_continuity(continuity)).await?.members, 3, "members, asked {why}");
    }
    // The same record without a fault. A slow machine may need more than one attempt before it becomes old.
    let mut deadline = club.h.wait_for("a member to be dropped by who was answered for a ttl");
    loop {
        let continuity = answered(&pulse.server, club.h.now().await?, BRIEF, BRIEF * 3);
        if club.beat(&ann.clone().with_continuity(continuity)).await?.members < 3 {
            break;
        }
        deadline.pause().await?;
    }
    refused(club.beat(&cid).await, ErrorKind::NotMember, "the heartbeat of who was dropped")?;
    Ok(())
}

/// Sends a heartbeat with the record of replies so far.
async fn beat(
    club: &Club,
    member: &Member,
    continuity: &mut Continuity,
) -> Result<HeartbeatReply, Violation> {
    let pulse = club.beat(&member.clone().with_continuity(continuity.clone())).await?;
    continuity.advance(&pulse.server, pulse.now);
    Ok(pulse)
}

async fn who_was_answered_for_a_ttl_drops_the_overdue(h: Harness) -> Verdict {
    let club = Club::new(h, 3).await?;
    let ttl = Duration::from_millis(200);
    let (ann, bob) = (club.joined("ann").await?, club.member("bob", BRIEF)?);
    let before = club.join(&bob).await?;
    club.silence_of(&bob).await?;
    let (started, mut continuity) = (Instant::now(), Continuity::new(ttl));
    let mut deadline = club.h.wait_for("a member to be dropped by who was answered for a ttl");
    loop {
        let pulse = beat(&club, &ann, &mut continuity).await?;
        if pulse.members == 1 {
            ensure!(pulse.version > before.version, "version {:?} after {:?}", pulse.version, before.version);
            break;
        }
        deadline.pause().await?;
    }
    let took = started.elapsed();
    ensure!(took >= ttl - Duration::from_millis(5), "dropped after {took:?} of {ttl:?}");
    Ok(())
}

async fn who_may_not_drop_yet_is_told_when_it_may(h: Harness) -> Verdict {
    let club = Club::new(h, 3).await?;
    let (ann, bob) = (club.joined("ann").await?, club.member("bob", BRIEF)?);
    club.join(&bob).await?;
    club.silence_of(&bob).await?;
    let mut continuity = Continuity::new(LONG / 4);
    let first = beat(&club, &ann, &mut continuity).await?;
    equal!(first.next_expiry, LONG / 4, "how long until who was just answered may drop somebody");
    let mut deadline = club.h.wait_for("time to pass");
    let later = loop {
        deadline.pause().await?;
        let later = beat(&club, &ann, &mut continuity).await?;
        if later.now > first.now {
            break later;
        }
    };
    let left = LONG / 4 - later.now.saturating_duration_since(first.now);
    equal!(later.next_expiry, left, "how long until it may");
    equal!(later.members, 2, "members");
    Ok(())
}

async fn who_joins_drops_nobody(h: Harness) -> Verdict {
    let club = Club::new(h, 3).await?;
    let ann = club.member("ann", BRIEF)?;
    club.join(&ann).await?;
    club.silence().await?;
    let bob = club.member("bob", LONG)?;
    equal!(club.join(&bob).await?.members, 2, "members after one joined while the other was overdue");
    equal!(club.roster().await?.members, vec![ann.clone(), bob], "who is to be planned for");
    equal!(club.beat(&ann).await?.members, 2, "members after the other came back");
    Ok(())
}
