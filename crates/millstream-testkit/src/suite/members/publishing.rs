//! Assignments: one for each version, and none for another version.

use millstream_core::members::{Assignment, Version};
use millstream_core::{MemberId, Partition};

use super::{Club, suite};
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::{Harness, LONG};

suite!("members":
    every_member_is_told_what_it_should_own,
    an_assignment_for_another_version_is_refused,
    lists_of_partitions_are_sets,
    a_version_has_one_assignment,
    of_many_assignments_at_once_one_holds,
    a_new_version_has_no_assignment_yet,
    nobody_publishes_where_nobody_is,
);

fn assignment(of: &[(&str, &[u32])]) -> Result<Assignment, Violation> {
    let entry = |(id, partitions): &(&str, &[u32])| {
        Ok((MemberId::new(id)?, partitions.iter().copied().map(Partition).collect()))
    };
    of.iter().map(entry).collect()
}

async fn every_member_is_told_what_it_should_own(h: Harness) -> Verdict {
    let club = Club::new(h, 12).await?;
    let [ann, bob, cid, dan] = ["ann", "bob", "cid", "dan"];
    let members =
        [club.joined(ann).await?, club.joined(bob).await?, club.joined(cid).await?, club.joined(dan).await?];
    let before = club.beat(&members[0]).await?;
    // One member has no partitions, one is not named, and one is not a member.
    let all = assignment(&[(ann, &[0, 3, 11]), (bob, &[1, 2, 4, 10]), (cid, &[]), ("eve", &[5])])?;
    ensure!(club.publish(before.version, &all).await?, "an assignment for the current version was refused");
    for (member, expected) in members.iter().zip([&[0, 3, 11][..], &[1, 2, 4, 10], &[], &[]]) {
        let pulse = club.beat(member).await?;
        let expected: Vec<_> = expected.iter().copied().map(Partition).collect();
        equal!(pulse.assigned, Some(expected), "what {} is assigned", member.id);
        equal!(pulse.version, before.version, "the version of the membership, once it is assigned");
        ensure!(pulse.revision > before.revision, "the revision is {:?} still", pulse.revision);
    }
    let roster = club.roster().await?;
    equal!((roster.assigned, roster.assignment), (Some(before.version), all), "the assignment of the roster");
    Ok(())
}

async fn an_assignment_for_another_version_is_refused(h: Harness) -> Verdict {
    let club = Club::new(h, 4).await?;
    let old = club.join(&club.member("ann", LONG)?).await?.version;
    let bob = club.member("bob", LONG)?;
    let current = club.join(&bob).await?;
    let both = assignment(&[("ann", &[0, 1]), ("bob", &[2, 3])])?;
    for other in [old, Version(current.version.0 + 1), Version(u64::MAX), Version::default()] {
        ensure!(!club.publish(other, &both).await?, "published for {other:?} in {:?}", current.version);
        let pulse = club.beat(&bob).await?;
        equal!((pulse.assigned, pulse.revision), (None, current.revision), "what a refused publication left");
    }
    let roster = club.roster().await?;
    equal!((roster.assigned, roster.assignment), (None, Assignment::new()), "the assignment of the roster");
    Ok(())
}

async fn lists_of_partitions_are_sets(h: Harness) -> Verdict {
    let club = Club::new(h, 9).await?;
    let partitions = [5, 0, 8, 0, 1].map(Partition);
    let sorted = [0, 1, 5, 8].map(Partition).to_vec();
    let ann = club.member("ann", LONG)?.pinned_to(partitions);
    let version = club.join(&ann).await?.version;
    let known = club.roster().await?.members;
    equal!(known.iter().map(|member| &member.pinned).collect::<Vec<_>>(), [&sorted], "pinned partitions");
    let mut otherwise = ann.clone();
    otherwise.pinned.reverse();
    equal!(club.beat(&otherwise).await?.version, version, "the version after the same pins in another order");
    let all = Assignment::from([(ann.id.clone(), partitions.to_vec())]);
    ensure!(club.publish(version, &all).await?, "an assignment for the current version was refused");
    equal!(club.beat(&ann).await?.assigned, Some(sorted.clone()), "what the member is assigned");
    equal!(club.roster().await?.assignment.into_values().next(), Some(sorted), "what the roster says");
    Ok(())
}

async fn a_version_has_one_assignment(h: Harness) -> Verdict {
    let club = Club::new(h, 4).await?;
    let ann = club.joined("ann").await?;
    let version = club.beat(&ann).await?.version;
    let (first, second) = (assignment(&[("ann", &[0, 1])])?, assignment(&[("ann", &[2, 3])])?);
    ensure!(club.publish(version, &first).await?, "an assignment for the current version was refused");
    let revision = club.beat(&ann).await?.revision;
    for again in [&second, &first] {
        ensure!(!club.publish(version, again).await?, "an assignment was published twice for {version:?}");
    }
    let pulse = club.beat(&ann).await?;
    equal!(pulse.assigned, Some(vec![Partition(0), Partition(1)]), "what the member is assigned");
    equal!(pulse.revision, revision, "the revision after a refused publication");
    equal!(club.roster().await?.assignment, first, "the assignment of the roster");
    Ok(())
}

async fn of_many_assignments_at_once_one_holds(h: Harness) -> Verdict {
    let club = Club::new(h, 16).await?;
    let ann = club.joined("ann").await?;
    let version = club.beat(&ann).await?.version;
    let publications: Vec<_> = (0..16)
        .map(|n| {
            let club = club.clone();
            tokio::spawn(async move {
                let all = assignment(&[("ann", &[n])])?;
                let first = club.publish(version, &all).await?;
                Ok::<_, Violation>(first.then_some(n))
            })
        })
        .collect();
    let mut won = Vec::new();
    for publication in publications {
        won.extend(publication.await.map_err(|error| Violation::new(error.to_string()))??);
    }
    equal!(won.len(), 1, "assignments of 16 at once that are said to hold");
    let pulse = club.beat(&ann).await?;
    equal!(pulse.assigned, Some(vec![Partition(won[0])]), "what the member is assigned");
    Ok(())
}

async fn a_new_version_has_no_assignment_yet(h: Harness) -> Verdict {
    let club = Club::new(h, 4).await?;
    let (ann, bob) = (club.joined("ann").await?, club.joined("bob").await?);
    let old = club.beat(&ann).await?.version;
    let first = assignment(&[("ann", &[0, 1]), ("bob", &[2, 3])])?;
    club.publish(old, &first).await?;
    club.leave(&bob).await?;
    let pulse = club.beat(&ann).await?;
    equal!(pulse.assigned, None, "what the member is assigned in the next version");
    // The next assignment starts from this one.
    let roster = club.roster().await?;
    equal!((roster.assigned, roster.assignment), (Some(old), first), "the assignment of the roster");
    let second = assignment(&[("ann", &[0, 1, 2, 3])])?;
    ensure!(club.publish(pulse.version, &second).await?, "an assignment for the next version was refused");
    let all = [0, 1, 2, 3].map(Partition).to_vec();
    equal!(club.beat(&ann).await?.assigned, Some(all), "what the member is assigned");
    let roster = club.roster().await?;
    equal!(
        (roster.assigned, roster.assignment),
        (Some(pulse.version), second),
        "the assignment of the roster"
    );
    Ok(())
}

async fn nobody_publishes_where_nobody_is(h: Harness) -> Verdict {
    let club = Club::new(h, 4).await?;
    let all = assignment(&[("ann", &[0])])?;
    for version in [0, 1] {
        ensure!(!club.publish(Version(version), &all).await?, "published in a group that never had a member");
    }
    let roster = club.roster().await?;
    equal!((roster.assigned, roster.assignment), (None, Assignment::new()), "the assignment of the roster");
    Ok(())
}
