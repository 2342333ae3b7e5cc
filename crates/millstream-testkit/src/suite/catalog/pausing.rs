//! The catalog role: groups that are paused as a whole.

use millstream_core::catalog::Start;
use millstream_core::members::Member;
use millstream_core::{ErrorKind, GroupName, MemberId, Timestamp, TopicName, TopicSpec};

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{Harness, LONG, QUIET};

suite!("catalog":
    a_paused_group_tells_all_its_members needs [Pause],
    a_pause_ends_with_a_word_and_with_nothing_else needs [Pause],
    what_is_not_there_is_not_paused needs [Pause],
    a_deleted_group_is_not_paused_any_more needs [Pause],
    who_waits_in_a_paused_group_is_woken needs [Pause],
);

/// Creates a group in a new topic.
async fn group(h: &Harness) -> Result<(TopicSpec, GroupName), Violation> {
    let (topic, group) = (h.topic(2).await?, GroupName::new("group")?);
    h.backend.catalog().create_group(&topic, &group, Start::Earliest).await?;
    Ok((topic, group))
}

/// Whether the heartbeat reply to a member with this name reports that its group is paused.
async fn is_paused(h: &Harness, topic: &TopicSpec, group: &GroupName, id: &str) -> Result<bool, Violation> {
    let member = Member::new(MemberId::new(id)?, "first", LONG);
    Ok(h.backend.members().heartbeat(&topic.name, group, &member, true).await?.paused)
}

async fn a_paused_group_tells_all_its_members(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let (topic, group) = group(&h).await?;
    let other = GroupName::new("other")?;
    catalog.create_group(&topic, &other, Start::Earliest).await?;
    ensure!(!is_paused(&h, &topic, &group, "ann").await?, "a group is paused that nobody paused");
    equal!(catalog.group_state(&topic.name, &group).await?.paused, None, "since when it is paused");
    ensure!(catalog.set_paused(&topic.name, &group, true).await?, "a pause changes nothing");
    ensure!(!catalog.set_paused(&topic.name, &group, true).await?, "the same pause changes something");
    for id in ["ann", "bob", "ann"] {
        ensure!(is_paused(&h, &topic, &group, id).await?, "{id} does not learn of the pause");
    }
    let state = catalog.group_state(&topic.name, &group).await?;
    ensure!(
        state.paused.is_some_and(|since| since > Timestamp::default()),
        "nobody knows since when it is paused: {state:?}"
    );
    ensure!(!state.deleting, "a paused group is said to be deleted");
    ensure!(!is_paused(&h, &topic, &other, "ann").await?, "another group is paused as well");
    Ok(())
}

async fn a_pause_ends_with_a_word_and_with_nothing_else(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let (topic, group) = group(&h).await?;
    is_paused(&h, &topic, &group, "ann").await?;
    catalog.set_paused(&topic.name, &group, true).await?;
    // A consumer that starts creates the group again.
    catalog.create_group(&topic, &group, Start::Earliest).await?;
    ensure!(is_paused(&h, &topic, &group, "bob").await?, "who starts ends the pause");
    ensure!(catalog.set_paused(&topic.name, &group, false).await?, "the end of a pause changes nothing");
    ensure!(!catalog.set_paused(&topic.name, &group, false).await?, "the same end changes something");
    ensure!(!is_paused(&h, &topic, &group, "ann").await?, "the pause does not end");
    equal!(catalog.group_state(&topic.name, &group).await?.paused, None, "since when it is paused");
    Ok(())
}

async fn what_is_not_there_is_not_paused(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let (topic, group) = group(&h).await?;
    let unknown = TopicName::new(h.unique("topic"))?;
    for paused in [true, false] {
        let answer = catalog.set_paused(&unknown, &group, paused).await;
        refused(answer, ErrorKind::NotFound, "pausing a group of an unknown topic")?;
        let answer = catalog.set_paused(&topic.name, &GroupName::new("other")?, paused).await;
        refused(answer, ErrorKind::NotFound, "pausing an unknown group")?;
    }
    Ok(())
}

async fn a_deleted_group_is_not_paused_any_more(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let (topic, group) = group(&h).await?;
    catalog.set_paused(&topic.name, &group, true).await?;
    catalog.delete_group(&topic.name, &group).await?;
    refused(
        catalog.set_paused(&topic.name, &group, true).await,
        ErrorKind::NotFound,
        "pausing what is deleted",
    )?;
    catalog.create_group(&topic, &group, Start::Earliest).await?;
    ensure!(!is_paused(&h, &topic, &group, "ann").await?, "a new group is paused as the old one was");
    catalog.set_paused(&topic.name, &group, true).await?;
    catalog.delete_topic(&topic.name).await?;
    catalog.create_topic(&topic).await?;
    catalog.create_group(&topic, &group, Start::Earliest).await?;
    ensure!(!is_paused(&h, &topic, &group, "ann").await?, "a new topic's group is paused as the old one was");
    Ok(())
}

async fn who_waits_in_a_paused_group_is_woken(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let (topic, group) = group(&h).await?;
    let member = Member::new(MemberId::new("member")?, "first", LONG);
    let pulse = h.backend.members().heartbeat(&topic.name, &group, &member, true).await?;
    let mut watch = h.backend.members().watch(&topic.name, &group).await?;
    let started = tokio::time::Instant::now();
    let pause = async {
        tokio::time::sleep(QUIET).await;
        catalog.set_paused(&topic.name, &group, true).await
    };
    let notified = async {
        let mut deadline = h.wait_for("a pause");
        let mut seen = pulse.revision;
        loop {
            watch.changed(seen, h.deadline()).await?;
            let pulse = h.backend.members().heartbeat(&topic.name, &group, &member, false).await?;
            if pulse.paused {
                return Ok(());
            }
            seen = pulse.revision;
            deadline.pause().await?;
        }
    };
    let (paused, notified): (_, Verdict) = tokio::join!(pause, notified);
    notified?;
    ensure!(paused?, "the pause changed nothing");
    let took = started.elapsed();
    ensure!(took < h.deadline() / 2, "it took {took:?} to learn of a pause");
    Ok(())
}
