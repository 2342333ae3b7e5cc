//! Dead tasks on a shelf: listed over all shards, counted, changed, edited and trimmed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_core::schedule::Scheduling;
use millstream_core::tasks::{ClaimRequest, Verdict};
use millstream_core::{
    Backend, Capability, Continuity, DeadLetterRetention, Due, Envelope, ErrorKind, Event, History,
    OnConflict, QueueSpec, Reason, ScheduleId, Shard, wire,
};
use millstream_memory::MemoryBackend;

use crate::{Admin, Failed, Shelf, ShelfAction, ShelfFilter};

/// Gives up the tasks of a shard that are due. Returns their number.
async fn kill(backend: &Backend, shard: &Shard, error: &str) -> usize {
    let (tasks, minute) = (backend.tasks().expect("tasks"), Duration::from_secs(60));
    // What is due now is due in the millisecond that has begun.
    tokio::time::advance(Duration::from_millis(1)).await;
    let (worker, continuity) = ("w".to_owned(), Continuity::assured());
    let ask =
        ClaimRequest { worker, limit: 9, hold: minute, crash_limit: 0, longest_sleep: minute, continuity };
    let claimed = tasks.claim(shard, &ask).await.expect("claimed").tasks;
    for task in &claimed {
        let (reason, error, history) = (Reason::Exhausted, error.to_owned(), History::default());
        let verdict = Verdict::Dead { reason, attempts: 2, error, history, result: None };
        let batch = [(task.id.clone(), task.token.clone(), verdict)];
        tasks.settle_tasks(shard, &batch).await.expect("settled");
    }
    claimed.len()
}

/// A queue of three shards with so many dead tasks, one per millisecond; every third was refused.
async fn dead(backend: &Backend, admin: &Admin, count: u64) -> Shelf {
    let queue = QueueSpec::new("mails".parse().expect("a name"), 3);
    let tasks = backend.tasks().expect("tasks");
    let queue = tasks.create_queue(&queue).await.expect("created");
    for number in 0..count {
        let id = ScheduleId::new(format!("mail-{number}")).expect("an id");
        let shard = queue.shard_of(&id);
        let (place, fields) = (shard.clone().into(), wire::encode(&Envelope::new(number.to_string())));
        let scheduling = Scheduling { place, id, due: Due::NOW, fields, on_conflict: OnConflict::Keep };
        assert!(backend.schedule().schedule(&[scheduling]).await[0].is_ok());
        let error = if number.is_multiple_of(3) { "refused".into() } else { format!("took {number}ms") };
        assert_eq!(kill(backend, &shard, &error).await, 1, "{number} in {shard}");
    }
    admin.dead_tasks(&queue.name).await.expect("the queue")
}

fn refused() -> ShelfFilter {
    ShelfFilter { error: Some("refused".into()), ..ShelfFilter::default() }
}

fn names(items: &[Failed]) -> Vec<String> {
    items.iter().map(|it| it.facts().name()).collect()
}

#[tokio::test(start_paused = true)]
async fn tasks_of_all_shards_come_by_time_and_are_selected() {
    let backend = Backend::from(MemoryBackend::new());
    let shelf = dead(&backend, &Admin::new(backend.clone()), 30).await;
    let first = shelf.first(&ShelfFilter::default(), 4).await.expect("listed");
    assert_eq!(names(&first), ["mail-0", "mail-1", "mail-2", "mail-3"]);
    let late = ShelfFilter { from: Some(first[2].facts().at), ..refused() };
    assert_eq!(names(&shelf.first(&late, 2).await.expect("listed")), ["mail-3", "mail-6"]);
    let named = ["mail-3", "mail-7", "none"].map(str::to_owned).into();
    let some = ShelfFilter { tasks: Some(named), ..ShelfFilter::default() };
    let survey = shelf.survey(&some, None, 9, |_| {}).await.expect("counted");
    assert_eq!((names(&survey.sample), survey.named.len()), (vec!["mail-3".into(), "mail-7".into()], 2));
    let errors = shelf.errors(&ShelfFilter::default(), 10, |_| {}).await.expect("counted").into_groups();
    assert_eq!((errors[0].count, errors[1].example.task.as_deref()), (20, Some("mail-27")));
}

#[tokio::test(start_paused = true)]
async fn what_was_surveyed_is_changed_and_what_dies_later_stays() {
    let backend = Backend::from(MemoryBackend::new());
    let admin = Admin::new(backend.clone());
    let shelf = dead(&backend, &admin, 12).await;
    let survey = shelf.survey(&refused(), None, 0, |_| {}).await.expect("counted");
    assert_eq!((survey.matched, survey.looked_at), (4, 12));
    // The ids of those that wait again are in use.
    let again = shelf.act(&refused(), Some(2), ShelfAction::Retry, None).await.expect("begun");
    assert_eq!(again.run().await.expect("replayed"), 2);
    tokio::time::advance(Duration::from_secs(1)).await;
    let queue = QueueSpec::new("mails".parse().expect("a name"), 3);
    for shard in queue.iter() {
        kill(&backend, &shard, "refused again").await;
    }
    assert_eq!(shelf.count().await.expect("counted"), 12);
    let acting = shelf.act(&refused(), None, ShelfAction::Drop, Some(survey)).await.expect("begun");
    assert_eq!(acting.run().await.expect("purged"), 2, "those that died again were not surveyed");
    let one = shelf.first(&refused(), 1).await.expect("listed").remove(0);
    let Failed::Task(task) = one else { panic!("{one:?}") };
    assert!(shelf.replay_task_as(&task, wire::encode(&Envelope::new("mended"))).await.expect("scheduled"));
    assert!(
        !shelf.replay_task_as(&task, wire::encode(&Envelope::new("x"))).await.expect("asked"),
        "it waits"
    );
    assert_eq!(shelf.count().await.expect("counted"), 9);
}

#[tokio::test(start_paused = true)]
async fn a_trim_by_hand_counts_by_shard_and_is_told() {
    let backend = Backend::from(MemoryBackend::new());
    let told = Arc::new(Mutex::new(0));
    let counted = told.clone();
    let admin = Admin::new(backend.clone()).with_observer(move |event: &Event<'_>| {
        if let Event::DeadTasksDropped { excess, .. } = event {
            *counted.lock().expect("a lock") += excess;
        }
    });
    let shelf = dead(&backend, &admin, 30).await;
    let three = DeadLetterRetention::length(3);
    let would = shelf.would_trim(three).await.expect("counted");
    assert_eq!((would.dropped(), *told.lock().expect("a lock")), (21, 0));
    let trimmed = shelf.trim(three).await.expect("trimmed");
    assert_eq!((&trimmed, trimmed.partitions.values().sum::<u64>()), (&would, 21));
    assert_eq!((shelf.count().await.expect("counted"), *told.lock().expect("a lock")), (9, 21));
    assert_eq!(shelf.trim(DeadLetterRetention::KEEP).await.expect("trimmed").dropped(), 0);
    let without = Admin::new(backend.without(Capability::TrimDeadTasks));
    let shelf = without.dead_tasks(&"mails".parse().expect("a name")).await.expect("the queue");
    assert_eq!(shelf.trim(three).await.expect_err("not supported").kind(), ErrorKind::Unsupported);
}

#[tokio::test(start_paused = true)]
async fn of_a_task_that_died_several_times_the_newest_is_named() {
    let backend = Backend::from(MemoryBackend::new());
    let admin = Admin::new(backend.clone());
    let shelf = dead(&backend, &admin, 3).await;
    let shelf_again = dead(&backend, &admin, 2).await;
    let tasks = Some(["mail-0", "mail-1", "mail-2"].map(str::to_owned).into());
    let named = ShelfFilter { tasks, ..ShelfFilter::default() };
    let all = shelf.first(&named, 9).await.expect("listed");
    assert_eq!(all.len(), 5);
    let survey = shelf_again.survey(&named, None, 9, |_| {}).await.expect("counted");
    assert_eq!((survey.matched, survey.named["mail-0"], survey.named["mail-2"]), (3, 2, 1));
    let newest: Vec<_> = survey.sample.iter().map(|it| it.facts().id).collect();
    assert_eq!(newest, [all[3].facts().id, all[4].facts().id, all[2].facts().id]);
    let mut acting = shelf.act(&named, Some(2), ShelfAction::Drop, None).await.expect("begun");
    while !acting.is_done() {
        acting.run_once().await.expect("done");
    }
    assert_eq!(acting.changed(), 2);
    let left: Vec<_> = shelf.first(&named, 9).await.expect("listed").iter().map(|it| it.facts().id).collect();
    assert_eq!(left, all[..3].iter().map(|it| it.facts().id).collect::<Vec<_>>());
}
