//! A topic that is trimmed by hand: what the preview says is what is dropped.

use std::time::Duration;

use millstream_core::members::Member;
use millstream_core::{ErrorKind, GroupName, MemberId, Retention, Start, TopicSpec};

use super::{PARTITIONS, Stage};

/// 30 messages, one per millisecond: `billing` has read and not settled 4 of each partition, `shipping` none.
async fn stage() -> Stage {
    let stage = Stage::new().await;
    stage.append(30).await;
    let shipping: GroupName = "shipping".parse().expect("a name");
    stage.backend.catalog().create_group(&stage.topic, &shipping, Start::Earliest).await.expect("created");
    stage.read(4).await;
    stage
}

#[tokio::test(start_paused = true)]
async fn the_preview_is_what_a_trim_does() {
    let ms = Duration::from_millis;
    for (retention, dropped, lost) in [
        (Retention::Consumed, 0, 0),
        (Retention::ConsumedAfter(ms(1)), 0, 0),
        (Retention::Age(ms(15)), 15, 2),
        (Retention::Age(ms(1_000)), 0, 0),
        (Retention::Length(3), 21, 2),
        (Retention::Length(10), 0, 0),
        (Retention::Keep, 0, 0),
    ] {
        let stage = stage().await;
        let (admin, topic) = (&stage.admin, &stage.topic.name);
        let preview = admin.trim_topic_preview(topic, retention).await.expect("a preview");
        assert_eq!(preview.iter().map(|it| it.dropped).sum::<u64>(), dropped, "{retention}: {preview:?}");
        assert!(
            preview.iter().all(|it| it.length == 10 && it.lost.len() == lost),
            "{retention}: {preview:?}"
        );
        let trimmed = admin.trim_topic(topic, retention).await.expect("trimmed");
        for (would, did) in preview.iter().zip(&trimmed) {
            assert_eq!((would.partition, would.dropped), (did.partition, did.dropped), "{retention}");
            assert_eq!(did.in_use_by, None);
            for (would, did) in would.lost.iter().zip(&did.lost) {
                assert_eq!((&would.group, would.unread), (&did.group, Some(did.unread)), "{retention}");
                assert!(would.pending.is_none_or(|pending| pending == did.pending), "{retention}: {would:?}");
            }
            assert_eq!(would.lost.len(), did.lost.len(), "{retention}");
        }
        let again = admin.trim_topic_preview(topic, retention).await.expect("a preview");
        assert_eq!(again.iter().map(|it| it.dropped).sum::<u64>(), 0, "{retention}: all is done");
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_runs_is_left_alone() {
    let stage = stage().await;
    let topic = &stage.topic.name;
    for group in ["billing", "shipping"] {
        let group: GroupName = group.parse().expect("a name");
        let id = MemberId::new(format!("member-of-{group}")).expect("a name");
        let member = Member::new(id, "first", Duration::from_secs(60));
        stage.backend.members().heartbeat(topic, &group, &member, true).await.expect("it joins");
    }
    let trimmed = stage.admin.trim_topic(topic, Retention::Length(1)).await.expect("asked");
    assert_eq!(trimmed.len(), PARTITIONS as usize);
    assert!(trimmed.iter().all(|it| it.dropped == 0 && it.in_use_by.is_some()), "{trimmed:?}");

    let lonely = TopicSpec::new("lonely".parse().expect("a name"), 1).expect("a topic");
    let lonely = stage.backend.catalog().create_topic(&lonely).await.expect("created");
    let refused = stage.admin.trim_topic(&lonely.name, Retention::Length(1)).await.expect_err("no group");
    assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    let missing = stage.admin.trim_topic_preview(&"nope".parse().expect("a name"), Retention::Consumed).await;
    assert_eq!(missing.expect_err("no topic").kind(), ErrorKind::NotFound);
}
