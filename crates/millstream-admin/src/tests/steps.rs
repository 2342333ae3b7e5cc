//! Steps of messages and tasks: what is stored, who waits in one, and signals.

use std::time::Duration;

use millstream_core::cancels::WorkPlace;
use millstream_core::log::{ProgressRight, Settlement};
use millstream_core::schedule::Scheduling;
use millstream_core::steps::{StepKind, StepRecord, StepWait};
use millstream_core::tasks::{ClaimRequest, Verdict};
use millstream_core::{
    Capability, Continuity, Due, Envelope, ErrorKind, GroupName, History, MessageId, OnConflict, QueueSpec,
    ScheduleId, Signalled, Timestamp, TopicPartition, WorkId, wire,
};

use super::Stage;
use crate::{Admin, Known, WorkState, batch_of, step_word};

const HOUR: Duration = Duration::from_secs(3_600);

/// Appends a message to partition 0, and parks it for a wait. Returns its id.
async fn parked(stage: &Stage, wait: Option<StepWait>) -> (WorkId, MessageId) {
    let (tp, id) = stage.append(1).await.remove(0);
    let lease = stage.lease(0).await;
    let mut reader = stage.backend.log().reader(&lease).await.expect("a reader");
    let entry = reader.fetch(1, Duration::ZERO).await.expect("read").entries.remove(0);
    let (right, role) = (ProgressRight::Owner(lease.clone()), stage.backend.steps().expect("steps"));
    let batch = format!("orders/0/{:032x} 0-2,", 7);
    let records = [("charge", "{\"id\":7}"), ("tips\u{1}", &batch)].map(|(name, value)| {
        StepRecord::new(StepKind::Done, Timestamp::from_millis(5), name, value.to_owned())
    });
    role.store(&right, &id.to_string(), &records).await.expect("stored");
    let (due, error, history) = (Due::In(HOUR), "slow".to_owned(), History::default());
    let retry = Settlement::Retry { due, attempt: 2, origin: id, error, history, wait: wait.map(Box::new) };
    stage.backend.log().settle(&lease, &[(entry.receipt, retry)]).await.expect("settled");
    (WorkId::new(WorkPlace::Group(tp, stage.group.clone()), id), id)
}

async fn state(admin: &Admin, tp: &TopicPartition, group: &GroupName, id: MessageId) -> WorkState {
    admin.message_status(tp, group, id, Known::default()).await.expect("a status").state
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_in_a_step_says_so_until_it_is_signalled() {
    let stage = Stage::new().await;
    let (work, id) = parked(&stage, Some(StepWait::signal("approved"))).await;
    let steps = stage.admin.steps(&work).await.expect("steps");
    let told: Vec<_> = steps.records.iter().map(|it| (step_word(it), it.step())).collect();
    assert_eq!(told, [("done", "charge"), ("sent", "tips"), ("waits", "approved")]);
    let batch = batch_of(&steps.records[1]).expect("the batch of the members");
    assert_eq!(batch.number, 7);
    let waits: Vec<_> = steps.waits().map(|it| (it.name.as_str(), it.at)).collect();
    let [("approved", until)] = waits[..] else { panic!("{waits:?}") };
    // What is due in a time is due in the millisecond that begins behind it.
    assert!(until.saturating_duration_since(steps.now) <= HOUR + Duration::from_millis(1), "{until}");
    assert_eq!((steps.foreseen("approved"), steps.foreseen("other")), (None, None));
    let state = async || state(&stage.admin, &stage.partition(0), &stage.group, id).await;
    assert_eq!(state().await, WorkState::InStep { wait: "approved".into(), until });

    assert_eq!(stage.admin.signal(&work, "approved", "true").await.expect("sent"), Signalled::Woken);
    assert!(matches!(state().await, WorkState::Retrying { in_place: false, .. }), "{:?}", state().await);
    let steps = stage.admin.steps(&work).await.expect("steps");
    assert_eq!((steps.waits().count(), steps.foreseen("approved")), (0, Some(Signalled::Known)));
    assert_eq!(stage.admin.signal(&work, "approved", "1").await.expect("sent"), Signalled::Known);
    for name in ["", "tips\u{1}"] {
        let bad = stage.admin.signal(&work, name, "1").await.expect_err("no name of a user");
        assert_eq!(bad.kind(), ErrorKind::InvalidName, "{name:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_over_ends_no_more_and_a_retry_waits_in_no_step() {
    let stage = Stage::new().await;
    let (work, id) = parked(&stage, Some(StepWait::sleep("three days"))).await;
    let steps = stage.admin.steps(&work).await.expect("steps");
    assert_eq!(steps.waits().count(), 0, "no signal ends it");
    assert!(steps.is_open(steps.records.last().expect("the wait")));
    assert_eq!(stage.admin.signal(&work, "nap", "1").await.expect("sent"), Signalled::Stored);
    tokio::time::advance(HOUR * 2).await;
    let steps = stage.admin.steps(&work).await.expect("steps");
    assert_eq!((steps.waits().count(), steps.foreseen("three days")), (0, Some(Signalled::Late)));
    assert_eq!(stage.admin.signal(&work, "three days", "1").await.expect("sent"), Signalled::Late);
    let place = (&stage.partition(0), &stage.group);
    assert!(
        matches!(state(&stage.admin, place.0, place.1, id).await, WorkState::InStep { .. }),
        "still parked"
    );

    let stage = Stage::new().await;
    let (work, id) = parked(&stage, None).await;
    assert!(matches!(state(&stage.admin, place.0, place.1, id).await, WorkState::Retrying { .. }));
    let without = Admin::new(stage.backend.without(Capability::Steps));
    assert!(matches!(state(&without, place.0, place.1, id).await, WorkState::Retrying { .. }));
    assert_eq!(without.steps(&work).await.expect_err("no steps").kind(), ErrorKind::Unsupported);
}

#[tokio::test(start_paused = true)]
async fn a_task_that_waits_in_a_step_says_so() {
    let stage = Stage::new().await;
    let queue = QueueSpec::new("mails".parse().expect("a name"), 3);
    let tasks = stage.backend.tasks().expect("tasks");
    let queue = tasks.create_queue(&queue).await.expect("created");
    let id = ScheduleId::new("welcome-42").expect("an id");
    let shard = queue.shard_of(&id);
    let (place, fields) = (shard.clone().into(), wire::encode(&Envelope::new("mail")));
    let due = Due::In(Duration::from_secs(1));
    let scheduling = Scheduling { place, id: id.clone(), due, fields, on_conflict: OnConflict::Keep };
    assert!(stage.backend.schedule().schedule(&[scheduling]).await[0].is_ok());
    let state = async || stage.admin.task_status(&shard, &id, None).await.expect("a status").state;
    assert!(matches!(state().await, WorkState::Delayed(_)), "{:?}", state().await);
    tokio::time::advance(Duration::from_secs(2)).await;
    let (worker, hold, continuity) = ("w".to_owned(), HOUR, Continuity::assured());
    let ask = ClaimRequest { worker, limit: 9, hold, crash_limit: 0, longest_sleep: HOUR, continuity };
    let task = tasks.claim(&shard, &ask).await.expect("claimed").tasks.remove(0);
    let wait = Some(Box::new(StepWait::signal("opened")));
    let (due, error, history) = (Due::In(HOUR), String::new(), History::default());
    let verdict = Verdict::Retry { due, attempt: 1, error, history, wait };
    tasks.settle_tasks(&shard, &[(task.id, task.token, verdict)]).await.expect("settled");
    assert!(matches!(state().await, WorkState::InStep { wait, .. } if wait == "opened"));
    let work = WorkId::new(WorkPlace::Shard(shard.clone()), &id);
    assert_eq!(stage.admin.signal(&work, "opened", "1").await.expect("sent"), Signalled::Woken);
    assert!(matches!(state().await, WorkState::Delayed(_)), "it is due: {:?}", state().await);
}
