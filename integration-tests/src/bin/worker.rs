//! A worker of a delay queue that records its events, to be killed by tests.
//!
//! Usage: `worker SETUP`, with the [`Setup`] as JSON. Events are written, as [`What`], to the file that the setup
//! names. SIGTERM shuts it down in an orderly way. It ends when its stdin is closed.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use integration_tests::delays::wall_us;
use integration_tests::delays::worker::{Setup, Work, label};
use integration_tests::history::{Handling, Sink, What};
use integration_tests::member::End;
use millstream::{Event, Fixed, Limit, Millstream, Outcome};
use millstream_delay::{DelayQueue, Task};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let setup = std::env::args().nth(1).context("an argument is needed")?;
    let setup: Setup = serde_json::from_str(&setup).context("the setup")?;
    let sink = Arc::new(Sink::open(&setup.sink).context("the sink")?);
    // The test holds the other end of stdin: when the test ends, this process ends too.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    let mut terminate = signal(SignalKind::terminate())?;
    let observer = {
        let sink = sink.clone();
        move |event: &Event<'_>| match event {
            Event::ClaimsLost { shard, tasks } => sink.write(What::ClaimsLost(shard.shard, *tasks)),
            Event::TasksSettled { shard, settled } => {
                sink.write(What::Settled(shard.shard, settled.applied, settled.stale));
            }
            Event::Failing { operation, error, .. } => {
                sink.write(What::Failing(format!("{operation}: {error}")));
            }
            _ => {}
        }
    };
    let mq = Millstream::connect(&setup.url).await?;
    let queue = DelayQueue::<Work>::new(&setup.queue).observer(observer).open(mq.backend()).await?;
    let handler = {
        let sink = sink.clone();
        move |task: Task<Work>| handle(task, sink.clone())
    };
    let worker = match setup.limit {
        Some(at_once) => queue.worker().limit(Limit::global("tasks").at_most(at_once)),
        None => queue.worker(),
    };
    let worker = worker
        .label(label(std::process::id()))
        .concurrency(setup.concurrency)
        .replies(true)
        .hold(Duration::from_millis(setup.hold_ms))
        .retry(Fixed::new(Duration::from_millis(setup.back_off_ms)).attempts(setup.attempts))
        .crash_limit(setup.crash_limit)
        .start(handler)
        .await?;
    sink.write(What::Ready);
    terminate.recv().await;
    let report = worker.shutdown().await;
    sink.write(What::Ended(report.handed_back));
    Ok(())
}

/// Executes the instructions of the task, and records it.
async fn handle(task: Task<Work>, sink: Arc<Sink>) -> Outcome {
    let (work, steps) = (task.payload, task.steps());
    let early = work.due_ms.cast_signed() * 1_000 - wall_us();
    let handling = Handling {
        number: work.number,
        partition: task.shard().shard,
        attempt: task.attempt(),
        deliveries: task.crashes() + 1,
        epoch: 0,
    };
    sink.write(What::Started(handling));
    if early > 0 {
        sink.write(What::Early(work.number, early));
    }
    if work.work_us > 0 {
        tokio::time::sleep(Duration::from_micros(work.work_us)).await;
    }
    if work.hold[0] {
        task.cancelled().await;
        sink.write(What::Cancelled(handling));
    }
    if work.steps
        && let Err(error) = integration_tests::steps::run(&steps, work.number, &sink).await
    {
        sink.write(What::Failed(handling));
        return Outcome::retry(error);
    }
    let end = if task.attempt() <= work.fails { End::Fail } else { work.end[0] };
    match end {
        End::Ack => {
            sink.write(What::Done(handling));
            Outcome::reply(&work.number)
        }
        End::Fail => {
            sink.write(What::Failed(handling));
            Outcome::retry("as planned")
        }
        End::DeadLetter | End::DeadLetterUntilHealed => {
            sink.write(What::Failed(handling));
            Outcome::dead_letter("hopeless")
        }
        End::Abort => std::process::abort(),
    }
}
