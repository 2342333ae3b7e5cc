//! A topic that is trimmed by hand: what the preview says is what is dropped.

use std::time::Duration;

use bytes::Bytes;
use millstream_core::log::Append;
use millstream_core::{
    Envelope, ErrorKind, GroupName, MessageId, Partition, Result, Retention, Start, TopicPartition,
    TopicSpec, wire,
};

use super::{PARTITIONS, Stage};

/// 30 messages, one per millisecond: `billing` has read and not settled 4 of each partition, `shipping` none.
async fn stage() -> (Stage, Vec<(TopicPartition, MessageId)>) {
    let stage = Stage::new().await;
    let appended = stage.append(30).await;
    let shipping: GroupName = "shipping".parse().expect("a name");
    stage.backend.catalog().create_group(&stage.topic, &shipping, Start::Earliest).await.expect("created");
    stage.read(4).await;
    (stage, appended)
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
        (Retention::Length(7), 9, 2),
        (Retention::Length(10), 0, 0),
        (Retention::Keep, 0, 0),
    ] {
        let (stage, _) = stage().await;
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
            for (would, did) in would.lost.iter().zip(&did.lost) {
                assert_eq!((&would.group, would.unread), (&did.group, Some(did.unread)), "{retention}");
                assert_eq!(would.pending, Some(did.pending), "{retention}: {would:?}");
            }
            assert_eq!(would.lost.len(), did.lost.len(), "{retention}");
        }
        let again = admin.trim_topic_preview(topic, retention).await.expect("a preview");
        assert_eq!(again.iter().map(|it| it.dropped).sum::<u64>(), 0, "{retention}: all is done");
    }
}

#[tokio::test(start_paused = true)]
async fn a_trim_up_to_an_id_drops_what_its_preview_says() {
    let (stage, appended) = stage().await;
    let (admin, topic) = (&stage.admin, &stage.topic.name);
    let one = Some(Partition(1));
    let (_, id) = appended.iter().filter(|(tp, _)| tp.partition == Partition(1)).nth(6).expect("ten of each");
    let preview = admin.trim_topic_below_preview(topic, one, *id).await.expect("a preview");
    let trimmed = admin.trim_topic_below(topic, one, *id).await.expect("trimmed");
    assert_eq!((preview.len(), trimmed.len()), (1, 1), "one partition alone");
    assert_eq!((preview[0].dropped, trimmed[0].dropped), (6, 6));
    // `billing` had read four of them, `shipping` none.
    let lost: Vec<_> = trimmed[0].lost.iter().map(|it| (it.unread, it.pending)).collect();
    assert_eq!(lost, [(2, 4), (6, 0)]);
    let would: Vec<_> = preview[0].lost.iter().map(|it| (it.unread, it.pending)).collect();
    assert_eq!(would, [(Some(2), Some(4)), (Some(6), Some(0))]);
    let missing = admin.trim_topic_below(topic, Some(Partition(PARTITIONS)), *id).await;
    assert_eq!(missing.expect_err("no partition").kind(), ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_topic_without_groups_is_trimmed() {
    let stage = Stage::new().await;
    let lonely = TopicSpec::new("lonely".parse().expect("a name"), 1).expect("a topic");
    let lonely = stage.backend.catalog().create_topic(&lonely).await.expect("created");
    let fields = wire::encode(&Envelope::new(Bytes::from_static(b"hello")));
    let append = Append::new(TopicPartition::new(lonely.name.clone(), 0), fields);
    let stored = stage.backend.log().append(&vec![append; 5]).await;
    assert!(stored.iter().all(Result::is_ok), "{stored:?}");
    let preview =
        stage.admin.trim_topic_preview(&lonely.name, Retention::Length(2)).await.expect("a preview");
    let trimmed = stage.admin.trim_topic(&lonely.name, Retention::Length(2)).await.expect("trimmed");
    assert_eq!((preview[0].dropped, trimmed[0].dropped, trimmed[0].lost.len()), (3, 3, 0));
    let missing = stage.admin.trim_topic_preview(&"nope".parse().expect("a name"), Retention::Consumed).await;
    assert_eq!(missing.expect_err("no topic").kind(), ErrorKind::NotFound);
}
