//! Claims: an optional operation works where it is claimed, and fails as unsupported where it is not.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::catalog::Start;
use millstream_core::dead_letters::TrimBy;
use millstream_core::leases::Resource;
use millstream_core::log::{
    Append, DedupId, DedupIdentity, Identity, Numbering, UniqueIdentity, UnleasedTrim,
};
use millstream_core::packing::DictionaryName;
use millstream_core::results::ResultId;
use millstream_core::schedule::{Due, OnConflict, Place, RetryAction, ScheduleId, Scheduling, Seen, Shard};
use millstream_core::tasks::TrimTasksBy;
use millstream_core::{
    Capability, DeadLetterRetention, Durability, ErrorKind, GroupName, MessageId, PackCompression, Packing,
    QueueChange, QueueName, Result, Retention, TopicChange, TopicName, TopicPartition, TopicSpec,
};

use super::schedule::{body, id};
use super::suite;
use crate::case::{Verdict, Violation, ensure};
use crate::harness::{BRIEF, Harness};

suite!("claims":
    seeking_is_as_claimed,
    lengths_are_as_claimed,
    durability_is_as_claimed,
    deduplication_is_as_claimed,
    unique_ids_are_as_claimed,
    results_are_as_claimed,
    trimming_without_a_lease_is_as_claimed,
    ends_are_as_claimed,
    trimming_dead_letters_is_as_claimed needs [DeadLetters],
    trimming_dead_tasks_is_as_claimed needs [Tasks],
    deleting_queues_is_as_claimed needs [Tasks],
    pausing_queues_is_as_claimed needs [Tasks],
    finding_tasks_is_as_claimed needs [Tasks],
    rescheduling_is_as_claimed,
    listing_what_is_scheduled_is_as_claimed,
    promoting_without_a_lease_is_as_claimed,
    changing_retries_is_as_claimed,
    restoring_is_as_claimed,
    expanding_is_as_claimed,
    altering_is_as_claimed,
    dictionaries_are_as_claimed,
    counting_is_as_claimed,
    pausing_is_as_claimed,
    stats_are_as_claimed,
    pins_are_as_claimed,
    shards_are_as_claimed,
);

/// Compares the result of an operation with the claim. A claimed operation may fail for another reason here: its own cases
/// say what it has to do.
fn as_claimed<T>(h: &Harness, capability: Capability, operation: &str, result: Result<T>) -> Verdict {
    let kind = result.err().map(|error| error.kind());
    let is_unsupported = kind == Some(ErrorKind::Unsupported);
    if h.backend.supports(capability) {
        ensure!(!is_unsupported, "{operation} is claimed ({capability:?}), and fails as unsupported");
    } else {
        let happens = kind.map_or("succeeds".to_owned(), |kind| format!("fails as {kind}"));
        ensure!(
            is_unsupported,
            "{operation} is not claimed ({capability:?}), and {happens} instead of {}",
            ErrorKind::Unsupported
        );
    }
    Ok(())
}

/// A topic with one partition, and a group of it.
struct Scene {
    topic: TopicSpec,
    tp: TopicPartition,
    group: GroupName,
}

async fn scene(h: &Harness) -> std::result::Result<Scene, Violation> {
    let (topic, group) = (h.topic(1).await?, GroupName::new("group")?);
    h.backend.catalog().create_group(&topic, &group, Start::Earliest).await?;
    Ok(Scene { tp: TopicPartition::new(topic.name.clone(), 0), topic, group })
}

async fn seeking_is_as_claimed(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let owner = h.owner(&tp, "group").await?;
    let sought = h.backend.log().seek(&owner.lease, Start::Earliest).await;
    as_claimed(&h, Capability::Seek, "Log::seek", sought)
}

async fn lengths_are_as_claimed(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let lengths = h.backend.log().lengths(&[tp]).await;
    as_claimed(&h, Capability::Lengths, "Log::lengths", lengths)
}

async fn durability_is_as_claimed(h: Harness) -> Verdict {
    let appender = h.backend.log().appender(Durability::Fsynced);
    let appender = appender.ok_or_else(|| Capability::Durability.missing());
    as_claimed(&h, Capability::Durability, "Log::appender", appender)
}

async fn deduplication_is_as_claimed(h: Harness) -> Verdict {
    let append = Append::new(h.partition().await?, body("a"));
    let (id, window, earlier) = (DedupId::new("a")?, Duration::from_secs(1), Vec::new());
    let by_id = append.clone().with(DedupIdentity { id, window, earlier });
    let by_number = append.with(Identity::Number(Arc::new(Numbering { producer: 1, window }), 1));
    for (append, operation) in
        [(by_id, "Log::append with a dedup id"), (by_number, "Log::append with a number")]
    {
        let appended = h.backend.log().append(&[append]).await.into_iter().collect::<Result<Vec<_>>>();
        as_claimed(&h, Capability::Dedup, operation, appended)?;
    }
    Ok(())
}

async fn unique_ids_are_as_claimed(h: Harness) -> Verdict {
    let append = Append::new(h.partition().await?, body("a"));
    let item = append.with(UniqueIdentity { id: DedupId::new("a")?, send: 1, earlier: Vec::new() });
    let appended = h.backend.log().append(&[item]).await.into_iter().collect::<Result<Vec<_>>>();
    as_claimed(&h, Capability::Unique, "Log::append with a unique id", appended)
}

async fn trimming_without_a_lease_is_as_claimed(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let trimmed = h.backend.log().trim_unleased(&tp, UnleasedTrim::Now(Retention::Consumed)).await;
    as_claimed(&h, Capability::UnleasedTrim, "Log::trim_unleased", trimmed)
}

/// Not counting ends is no error, but visible: leases have none.
async fn ends_are_as_claimed(h: Harness) -> Verdict {
    let resource = Resource::partition(h.partition().await?, GroupName::new("group")?);
    let lost = h.granted(&resource, BRIEF).await?;
    let next = h.eventually_granted(&resource, BRIEF).await?;
    let is_claimed = h.backend.supports(Capability::Ends);
    ensure!(
        next.ends.is_empty() != is_claimed,
        "ends are {}, and after one there are {:?}",
        if is_claimed { "claimed" } else { "not claimed" },
        next.ends
    );
    Ok(h.backend.leases().withdraw_end(&lost).await?)
}

async fn results_are_as_claimed(h: Harness) -> Verdict {
    let id = ResultId::new(h.partition().await?, 7);
    as_claimed(&h, Capability::Results, "Log::result", h.backend.log().result(&id, Duration::ZERO).await)
}

async fn trimming_dead_letters_is_as_claimed(h: Harness) -> Verdict {
    let (tp, group) = (h.partition().await?, GroupName::new("group")?);
    let one = DeadLetterRetention::length(1);
    let trimmed = h.backend.dead_letters()?.trim(&tp, &group, one, TrimBy::Operator).await;
    as_claimed(&h, Capability::TrimDeadLetters, "DeadLetters::trim", trimmed)
}

async fn trimming_dead_tasks_is_as_claimed(h: Harness) -> Verdict {
    let (queue, role) = (h.queue(1).await?.name, h.backend.tasks()?);
    let (trims, one) = (Capability::TrimDeadTasks, DeadLetterRetention::length(1));
    let change = QueueChange::new().dead_letter_retention(one);
    as_claimed(&h, trims, "Tasks::alter_queue", role.alter_queue(&queue, &change).await)?;
    let trimmed = role.trim_dead(&Shard::new(queue, 0), one, TrimTasksBy::Operator).await;
    as_claimed(&h, trims, "Tasks::trim_dead", trimmed)
}

async fn deleting_queues_is_as_claimed(h: Harness) -> Verdict {
    let name = h.queue(1).await?.name;
    as_claimed(
        &h,
        Capability::DeleteQueue,
        "Tasks::delete_queue",
        h.backend.tasks()?.delete_queue(&name).await,
    )
}

async fn pausing_queues_is_as_claimed(h: Harness) -> Verdict {
    let shard = Shard::new(h.queue(1).await?.name, 0);
    let paused = h.backend.tasks()?.set_paused(&shard, true).await;
    as_claimed(&h, Capability::PauseQueue, "Tasks::set_paused", paused)
}

async fn finding_tasks_is_as_claimed(h: Harness) -> Verdict {
    let shard = Shard::new(h.queue(1).await?.name, 0);
    let found = h.backend.tasks()?.find(&shard, &id("a")?).await;
    as_claimed(&h, Capability::FindTasks, "Tasks::find", found)
}

async fn rescheduling_is_as_claimed(h: Harness) -> Verdict {
    let place = h.partition().await?.into();
    let moved = h.backend.schedule().reschedule(&place, &[id("a")?], Due::NOW).await;
    as_claimed(&h, Capability::Reschedule, "Schedule::reschedule", moved)
}

async fn listing_what_is_scheduled_is_as_claimed(h: Harness) -> Verdict {
    let (place, schedule) = (h.partition().await?.into(), h.backend.schedule());
    let list = Capability::ListScheduled;
    as_claimed(&h, list, "Schedule::scheduled", schedule.scheduled(&place, None, 10).await)?;
    as_claimed(&h, list, "Schedule::get", schedule.get(&place, &id("a")?).await)?;
    as_claimed(&h, list, "Schedule::waiting", schedule.waiting(&place).await)
}

async fn promoting_without_a_lease_is_as_claimed(h: Harness) -> Verdict {
    let (tp, schedule) = (h.partition().await?, h.backend.schedule());
    let promote = Capability::PromoteDelayed;
    as_claimed(&h, promote, "Schedule::promote_delayed", schedule.promote_delayed(&tp, 10).await)?;
    let seen = schedule.wait(&tp, &Seen::default(), Duration::ZERO).await;
    as_claimed(&h, promote, "Schedule::wait", seen)
}

async fn changing_retries_is_as_claimed(h: Harness) -> Verdict {
    let Scene { tp, group, .. } = scene(&h).await?;
    let (schedule, some) = (h.backend.schedule(), [MessageId::MAX]);
    let settled = schedule.settle_retries(&tp, &group, &some, RetryAction::Release).await;
    as_claimed(&h, Capability::SettleRetries, "Schedule::settle_retries", settled)
}

async fn restoring_is_as_claimed(h: Harness) -> Verdict {
    let Scene { topic, tp, group } = scene(&h).await?;
    let topic = h.backend.catalog().restore_topic(&topic).await;
    as_claimed(&h, Capability::Restore, "Catalog::restore_topic", topic)?;
    let restored = h.backend.catalog().restore_group(&tp, &group, MessageId::ZERO).await;
    as_claimed(&h, Capability::Restore, "Catalog::restore_group", restored)
}

async fn expanding_is_as_claimed(h: Harness) -> Verdict {
    let topic = h.topic(1).await?.name;
    let expanded = h.backend.catalog().expand(&topic, 2).await;
    as_claimed(&h, Capability::Expand, "Catalog::expand", expanded)
}

async fn altering_is_as_claimed(h: Harness) -> Verdict {
    let (topic, change) = (h.topic(1).await?.name, TopicChange::new().retention(Retention::Consumed));
    let altered = h.backend.catalog().alter_topic(&topic, &change).await;
    as_claimed(&h, Capability::AlterTopic, "Catalog::alter_topic", altered)
}

async fn dictionaries_are_as_claimed(h: Harness) -> Verdict {
    let packing = Packing::new().compression(PackCompression::ZstdDictionary);
    let name = TopicName::new(h.unique("topic"))?;
    let spec = TopicSpec::new(name.clone(), 1)?.with_packing(packing);
    // A backend without packs may refuse such a topic.
    if h.backend.supports(Capability::Dictionaries) {
        h.backend.catalog().create_topic(&spec).await?;
    }
    let bytes = super::catalog::dictionaries::dictionary(1, b"d");
    let stored = h.backend.catalog().store_dictionary(&spec, bytes).await;
    as_claimed(&h, Capability::Dictionaries, "Catalog::store_dictionary", stored)?;
    let read = h.backend.catalog().dictionary(&name, DictionaryName { version: 1, id: 1 }).await;
    as_claimed(&h, Capability::Dictionaries, "Catalog::dictionary", read)
}

async fn counting_is_as_claimed(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let count = h.backend.catalog().count(&tp, Start::Earliest, None, 10).await;
    as_claimed(&h, Capability::Count, "Catalog::count", count)
}

async fn pausing_is_as_claimed(h: Harness) -> Verdict {
    let Scene { topic, group, .. } = scene(&h).await?;
    let paused = h.backend.catalog().set_paused(&topic.name, &group, true).await;
    as_claimed(&h, Capability::Pause, "Catalog::set_paused", paused)
}

async fn stats_are_as_claimed(h: Harness) -> Verdict {
    let Scene { topic, group, .. } = scene(&h).await?;
    let stats = h.backend.catalog().stats(&topic, &group).await;
    as_claimed(&h, Capability::Stats, "Catalog::stats", stats)
}

async fn pins_are_as_claimed(h: Harness) -> Verdict {
    let Scene { topic, .. } = scene(&h).await?;
    as_claimed(&h, Capability::Pins, "Catalog::pins", h.backend.catalog().pins(&topic).await)
}

/// Without delay queues nothing would ever claim what is scheduled there.
async fn shards_are_as_claimed(h: Harness) -> Verdict {
    let place = if h.backend.supports(Capability::Tasks) {
        h.shard().await?
    } else {
        Place::Shard(Shard::new(QueueName::new(h.unique("queue"))?, 0))
    };
    let (id, fields) = (ScheduleId::new("a")?, body("a"));
    let (due, on_conflict) = (Due::NOW, OnConflict::Keep);
    let task = Scheduling { place: place.clone(), id: id.clone(), due, fields, on_conflict };
    let scheduled = h.backend.schedule().schedule(&[task]).await.into_iter().collect::<Result<Vec<_>>>();
    as_claimed(&h, Capability::Tasks, "Schedule::schedule at a shard", scheduled)?;
    let cancelled = h.backend.schedule().cancel(&place, &[id]).await;
    as_claimed(&h, Capability::Tasks, "Schedule::cancel at a shard", cancelled)
}
