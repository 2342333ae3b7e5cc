//! Steps of tasks: what is done stays done, waits hold nothing, and another task with the id begins anew.

use bytes::Bytes;
use millstream_core::policy::{Fixed, Never};
use millstream_core::steps::{Signalled, StepRecord};
use millstream_core::{Backend, BoxError, ErrorKind, WorkId};
use millstream_engine::StepError;
use tokio::time::{Instant, sleep};

use crate::Task;
use crate::tests::support::{MS, SECS, Seen, memory, open};

async fn signal(backend: &Backend, work: &WorkId, name: &str) -> Signalled {
    backend.steps().expect("steps").signal(work, name, Bytes::from_static(b"7")).await.expect("signalled")
}

async fn stored(backend: &Backend, work: &WorkId) -> Vec<StepRecord> {
    backend.steps().expect("steps").read(work).await.expect("read").1
}

/// What a step does.
async fn pushed<T: Clone + Send + 'static>(seen: &Seen<T>, what: T) -> Result<(), BoxError> {
    seen.push(what);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_task_goes_on_where_it_was_and_its_waits_hold_nothing() {
    let backend = memory();
    let (queue, seen) = (open(&backend, 1).await, Seen::default());
    let told = seen.clone();
    let handler = move |task: Task<u64>| {
        let told = told.clone();
        async move {
            let steps = task.steps();
            if task.payload > 0 {
                told.push("passes".to_owned());
                return Ok(());
            }
            steps.step("charge", || pushed(&told, "charges".to_owned())).await?;
            steps.sleep("nap", SECS(3_600)).await?;
            // Behind the next wait its attempts begin anew.
            if !told.all().contains(&"fails".to_owned()) {
                told.push("fails".to_owned());
                return Err(StepError::from(millstream_core::Error::new(ErrorKind::Unavailable, "the bank")));
            }
            let said: Option<u64> = steps.signal("go", SECS(3_600)).await?;
            told.push(format!("{said:?} in attempt {}", task.attempt()));
            Ok(())
        }
    };
    let worker = queue.worker().concurrency(1).retry(Fixed::new(MS(10)));
    let worker = worker.start(handler).await.expect("started");
    let (began, work) = (Instant::now(), queue.work_id("task").expect("an id"));
    queue.schedule(&0).id("task").await.expect("scheduled");
    seen.reach(1).await;
    queue.schedule(&1).await.expect("scheduled");
    seen.reach(2).await;
    assert!(began.elapsed() < SECS(60), "one at a time, and it does not wait");
    while seen.len() < 3 && began.elapsed() < SECS(7_200) {
        sleep(SECS(1)).await;
    }
    assert!(began.elapsed() >= SECS(3_600));
    sleep(SECS(60)).await;
    assert_eq!(signal(&backend, &work, "go").await, Signalled::Woken);
    let asked = Instant::now();
    seen.reach(4).await;
    assert!(asked.elapsed() < SECS(1), "{:?}", asked.elapsed());
    assert_eq!(seen.all(), ["charges", "passes", "fails", "Some(7) in attempt 1"]);
    sleep(SECS(1)).await;
    assert_eq!(stored(&backend, &work).await, []);
    assert_eq!(signal(&backend, &work, "go").await, Signalled::Gone);
    worker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn another_task_with_the_id_begins_anew_and_a_replayed_one_goes_on() {
    let backend = memory();
    let (queue, seen) = (open(&backend, 1).await, Seen::default());
    let told = seen.clone();
    let handler = move |task: Task<u64>| {
        let told = told.clone();
        async move {
            let steps = task.steps();
            steps.step("charge", || pushed(&told, task.payload)).await?;
            if task.payload == 2 {
                return Err("hopeless".into());
            }
            // In the end, and not before.
            let until = if task.payload == 1 { SECS(3_600) } else { SECS(0) };
            steps.sleep("nap", until).await?;
            Ok::<_, BoxError>(())
        }
    };
    let worker = queue.worker().retry(Never).start(handler).await.expect("started");
    let work = queue.work_id("task").expect("an id");
    queue.schedule(&1).id("task").await.expect("scheduled");
    seen.reach(1).await;
    sleep(SECS(1)).await;
    assert_eq!(stored(&backend, &work).await.len(), 2, "it waits");
    assert!(queue.cancel("task").await.expect("cancelled"));
    assert_eq!(stored(&backend, &work).await, [], "with its steps");
    queue.schedule(&2).id("task").await.expect("scheduled");
    seen.reach(2).await;
    let dead = queue.dead();
    while dead.count().await.expect("counted") == 0 {
        sleep(SECS(1)).await;
    }
    assert_eq!(stored(&backend, &work).await, [], "they are in the dead task");
    dead.replay_all().await.expect("replayed");
    sleep(SECS(60)).await;
    assert_eq!(seen.all(), [1, 2], "the replayed one is not charged again");
    worker.shutdown().await;
}
