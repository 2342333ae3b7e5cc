//! The catalog role: settings of a topic, and changes to them.

use std::time::Duration;

use millstream_core::{
    DeadLetterRetention, ErrorKind, PackCompression, Packing, Retention, TopicChange, TopicName, TopicSpec,
};

use super::suite;
use crate::case::{Verdict, equal, refused};
use crate::harness::Harness;

suite!("catalog":
    every_setting_is_kept needs [Expand],
    what_is_not_named_stays needs [AlterTopic],
    what_makes_no_sense_is_refused needs [AlterTopic],
    what_is_not_there_cannot_be_changed needs [AlterTopic],
    the_retention_of_dead_letters_is_kept needs [Expand],
    the_retention_of_dead_letters_changes_by_itself needs [AlterTopic],
    the_packing_changes_by_itself_where_there_is_one needs [AlterTopic],
);

const RETENTIONS: [Retention; 5] = [
    Retention::ConsumedAfter(Duration::from_secs(86_400)),
    Retention::Age(Duration::from_millis(1_500)),
    Retention::Length(7),
    Retention::Consumed,
    Retention::Keep,
];

async fn every_setting_is_kept(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    for retention in RETENTIONS {
        let name = TopicName::new(h.unique("topic"))?;
        // A topic that keeps all entries cannot have a bound.
        let bound = Some(1_000).filter(|_| retention != Retention::Keep);
        let spec = TopicSpec::new(name.clone(), 2)?.with_retention(retention).with_max_length(bound);
        equal!(catalog.create_topic(&spec).await?, spec, "the topic as created");
        equal!(catalog.topic(&name).await?, spec, "the topic as stored");
        let without = spec.clone().with_max_length(None);
        equal!(catalog.create_topic(&without).await?, spec, "the topic as created again, without a bound");
        let endless = without.with_retention(Retention::Keep).with_max_length(9);
        refused(
            catalog.create_topic(&endless).await,
            ErrorKind::InvalidConfig,
            "a bound that nothing undercuts",
        )?;
        let mut grown = spec.with_earlier(vec![2]);
        grown.partitions = 3;
        equal!(catalog.expand(&name, 3).await?, grown, "the topic as grown");
        equal!(catalog.topic(&name).await?, grown, "the topic as stored, grown");
    }
    // The first spec decides, also if it has no bound.
    let unbounded = h.topic(1).await?;
    let bounded = unbounded.clone().with_max_length(5);
    equal!(catalog.create_topic(&bounded).await?, unbounded, "a topic without a bound, created with one");
    Ok(())
}

async fn what_is_not_named_stays(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let mut expected = h.topic(3).await?;
    let name = expected.name.clone();
    for (nth, retention) in RETENTIONS.into_iter().enumerate() {
        expected.retention = retention;
        if retention == Retention::Keep {
            expected.max_length = None;
            catalog.alter_topic(&name, &TopicChange::new().max_length(None)).await?;
        }
        let changed = catalog.alter_topic(&name, &TopicChange::new().retention(retention)).await?;
        equal!(changed, expected, "the topic with another retention");
        equal!(catalog.topic(&name).await?, expected, "the topic as stored");
        expected.max_length = Some(10 + nth as u64).filter(|_| retention != Retention::Keep);
        let changed = catalog.alter_topic(&name, &TopicChange::new().max_length(expected.max_length)).await?;
        equal!(changed, expected, "the topic with another bound");
    }
    equal!(
        catalog.alter_topic(&name, &TopicChange::new()).await?,
        expected,
        "a topic of which nothing changes"
    );
    (expected.retention, expected.max_length) = (Retention::Consumed, Some(9));
    let both = TopicChange::new().retention(Retention::Consumed).max_length(9);
    equal!(catalog.alter_topic(&name, &both).await?, expected, "the topic with another retention and bound");
    expected.max_length = None;
    let changed = catalog.alter_topic(&name, &TopicChange::new().max_length(None)).await?;
    equal!(changed, expected, "the topic without a bound");
    equal!(catalog.topic(&name).await?, expected, "the topic as stored");
    Ok(())
}

async fn what_makes_no_sense_is_refused(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let topic = h.topic(1).await?;
    let changes = [
        TopicChange::new().retention(Retention::Age(Duration::ZERO)),
        TopicChange::new().retention(Retention::Length(0)),
        TopicChange::new().retention(Retention::Keep).max_length(0),
        TopicChange::new().retention(Retention::Keep).max_length(9),
        TopicChange::new().retention(Retention::Length(9)).max_length(9),
        TopicChange::new().dead_letter_retention(DeadLetterRetention::length(0)),
    ];
    for change in changes {
        let altered = catalog.alter_topic(&topic.name, &change).await;
        refused(altered, ErrorKind::InvalidConfig, "a change that makes no sense")?;
        equal!(catalog.topic(&topic.name).await?, topic, "the topic after a change that was refused");
    }
    // Settings that are not changed are validated too.
    let bounded = catalog.alter_topic(&topic.name, &TopicChange::new().max_length(9)).await?;
    let altered = catalog.alter_topic(&topic.name, &TopicChange::new().retention(Retention::Keep)).await;
    refused(altered, ErrorKind::InvalidConfig, "keeping all of a topic with a bound")?;
    equal!(catalog.topic(&topic.name).await?, bounded, "the topic after a change that was refused");
    Ok(())
}

async fn what_is_not_there_cannot_be_changed(h: Harness) -> Verdict {
    let name = TopicName::new(h.unique("topic"))?;
    let change = TopicChange::new().retention(Retention::Keep);
    let altered = h.backend.catalog().alter_topic(&name, &change).await;
    refused(altered, ErrorKind::NotFound, "a change of an unknown topic")?;
    refused(h.backend.catalog().topic(&name).await, ErrorKind::NotFound, "a look at it")
}

const DEAD: [DeadLetterRetention; 4] = [
    DeadLetterRetention::age(Duration::from_millis(1_500)),
    DeadLetterRetention::length(7),
    DeadLetterRetention::age(Duration::from_secs(86_400)).and_length(1_000),
    DeadLetterRetention::KEEP,
];

async fn the_retention_of_dead_letters_is_kept(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    for retention in DEAD {
        let name = TopicName::new(h.unique("topic"))?;
        let spec = TopicSpec::new(name.clone(), 2)?.with_dead_letter_retention(retention);
        equal!(catalog.create_topic(&spec).await?, spec, "the topic as created");
        equal!(catalog.topic(&name).await?, spec, "the topic as stored");
        let other = spec.clone().with_dead_letter_retention(DeadLetterRetention::length(99));
        equal!(catalog.create_topic(&other).await?, spec, "the topic as created again, otherwise");
        let mut grown = spec.with_earlier(vec![2]);
        grown.partitions = 3;
        equal!(catalog.expand(&name, 3).await?, grown, "the topic as grown");
        equal!(catalog.topic(&name).await?, grown, "the topic as stored, grown");
    }
    let none = TopicSpec::new(TopicName::new(h.unique("topic"))?, 1)?
        .with_dead_letter_retention(DeadLetterRetention::age(Duration::ZERO));
    refused(catalog.create_topic(&none).await, ErrorKind::InvalidConfig, "a retention that keeps nothing")
}

async fn the_retention_of_dead_letters_changes_by_itself(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let name = h.topic(1).await?.name;
    let settings = TopicChange::new().retention(Retention::Length(5)).max_length(9);
    let mut expected = catalog.alter_topic(&name, &settings).await?;
    for retention in DEAD {
        expected.dead_letter_retention = retention;
        let change = TopicChange::new().dead_letter_retention(retention);
        equal!(catalog.alter_topic(&name, &change).await?, expected, "the topic with another one");
        equal!(catalog.topic(&name).await?, expected, "the topic as stored");
        expected.max_length = expected.max_length.map(|bound| bound + 1);
        let change = TopicChange::new().max_length(expected.max_length);
        equal!(catalog.alter_topic(&name, &change).await?, expected, "the topic with another bound");
    }
    Ok(())
}

async fn the_packing_changes_by_itself_where_there_is_one(h: Harness) -> Verdict {
    let catalog = h.backend.catalog();
    let plain = TopicSpec::new(TopicName::new(h.unique("topic"))?, 1)?;
    let plain = catalog.create_topic(&plain).await?;
    let none = Packing::new().compression(PackCompression::None);
    let altered = catalog.alter_topic(&plain.name, &TopicChange::new().packing(none)).await;
    refused(altered, ErrorKind::InvalidConfig, "packs in a topic that has none")?;
    equal!(catalog.topic(&plain.name).await?, plain, "the topic after a change that was refused");

    let spec = TopicSpec::new(TopicName::new(h.unique("topic"))?, 1)?.with_packing(none);
    let mut expected = match catalog.create_topic(&spec).await {
        // A backend may know no packs.
        Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(()),
        created => created?,
    };
    for packing in [none.min_messages(2).max_messages(7), none.max_bytes(1_000), none] {
        expected.packing = Some(packing);
        let changed = catalog.alter_topic(&expected.name, &TopicChange::new().packing(packing)).await?;
        equal!(changed, expected, "the topic with another packing");
        equal!(catalog.topic(&expected.name).await?, expected, "the topic as stored");
    }
    let nothing = TopicChange::new().packing(none.max_bytes(0));
    refused(
        catalog.alter_topic(&expected.name, &nothing).await,
        ErrorKind::InvalidConfig,
        "packs of no bytes",
    )?;
    expected.retention = Retention::Length(5);
    let change = TopicChange::new().retention(expected.retention);
    equal!(catalog.alter_topic(&expected.name, &change).await?, expected, "the packing stays");
    Ok(())
}
