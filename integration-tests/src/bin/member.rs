//! A member of a consumer group that records its events, to be killed by tests.
//!
//! Usage: `member SETUP`, with the [`Setup`] as JSON. Events are written, as [`What`], to the file that the setup
//! names. SIGTERM shuts it down in an orderly way, SIGUSR1 releases the handlers that hold their messages. It ends
//! when its stdin is closed.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use integration_tests::delays::wall_us;
use integration_tests::history::{Handling, Sink, What};
use integration_tests::member::{End, GROUP, Job, Mode, OPEN, Setup};
use millstream::{
    Breaker, Delivery, Envelope, Event, Fairness, Fixed, Idempotent, Limit, Millstream, Outcome, Rate,
    Sharing,
};
use millstream_runtime::{Concurrency, RetryOrder};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

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
    let mut release = signal(SignalKind::user_defined1())?;
    let (released, held) = watch::channel(());

    let observer = {
        let sink = sink.clone();
        move |event: &Event<'_>| {
            if let Some(what) = told(event) {
                sink.write(what);
            }
        }
    };
    let mq = Millstream::at(&setup.url).namespace(&setup.namespace).observer(observer).await?;
    let mut consumer = mq
        .consumer(setup.topic(), GROUP)
        .lease_ttl(Duration::from_millis(setup.ttl_ms))
        .prefetch(setup.prefetch)
        .concurrency(match setup.mode {
            Mode::Serial => Concurrency::Serial,
            Mode::PerKey(at_once) => Concurrency::PerKey(at_once),
            Mode::Unordered(at_once) => Concurrency::Unordered(at_once),
        })
        .retry_order(if setup.block_key { RetryOrder::BlockKey } else { RetryOrder::Skip })
        .retry(Fixed::new(Duration::from_millis(setup.back_off_ms)).attempts(setup.attempts))
        .crash_limit(setup.crash_limit)
        .replies(true);
    if setup.shared {
        consumer = consumer.sharing(Sharing::Shared);
    }
    if let Some(id) = &setup.member_id {
        consumer = consumer.member_id(id);
    }
    if setup.idempotent {
        consumer = consumer.idempotent(Idempotent::by(number));
    }
    if let Some(limit) = setup.limit {
        consumer = consumer.limit(Limit::global("members").at_most(limit));
    }
    if let Some(rate) = setup.rate {
        consumer = consumer.limit(Limit::global("rate").rate(Rate::per_second(rate)));
    }
    if let Some(calls) = setup.breaker {
        consumer =
            consumer.limit(Limit::global("service").breaker(Breaker::new().calls(calls).open_for(OPEN)));
    }
    if setup.fair {
        consumer = consumer.fair_by(Fairness::new(tenant));
    }
    let (away, healed) = (setup.breaker.map(|_| setup.away()), setup.healed());
    let handler = {
        let sink = sink.clone();
        move |delivery: Delivery<Job>| {
            handle(delivery, sink.clone(), held.clone(), (away.clone(), healed.clone()))
        }
    };
    let consumer = consumer.start(handler).await?;
    sink.write(What::Ready);
    loop {
        tokio::select! {
            biased;
            _ = terminate.recv() => break,
            _ = release.recv() => drop(released.send(())),
        }
    }
    let report = consumer.shutdown().await;
    sink.write(What::Ended(report.handed_back));
    Ok(())
}

/// Returns the number of a message, which names its operation.
fn number(delivery: &Delivery<Bytes>) -> Option<String> {
    serde_json::from_slice(&delivery.payload).ok().map(|job: Job| job.number.to_string())
}

fn tenant(message: &Envelope) -> Option<Bytes> {
    let job: Job = serde_json::from_slice(&message.payload).ok()?;
    Some((job.number % 3).to_string().into())
}

/// Executes the instructions of the message, and records it.
async fn handle(
    delivery: Delivery<Job>,
    sink: Arc<Sink>,
    mut held: watch::Receiver<()>,
    (away, healed): (Option<PathBuf>, PathBuf),
) -> Outcome {
    let (job, steps) = (delivery.payload, delivery.steps());
    let handling = Handling {
        number: job.number,
        partition: delivery.topic_partition().partition.0,
        attempt: delivery.attempt(),
        deliveries: delivery.deliveries(),
        epoch: delivery.epoch(),
    };
    let again = usize::from(delivery.deliveries() > 1);
    held.mark_unchanged();
    sink.write(What::Started(handling));
    let early = job.due_ms.cast_signed() * 1_000 - wall_us();
    if early > 0 {
        sink.write(What::Early(job.number, early));
    }
    if job.work_us > 0 {
        tokio::time::sleep(Duration::from_micros(job.work_us)).await;
    }
    if job.block_ms > 0 {
        std::thread::sleep(Duration::from_millis(job.block_ms));
    }
    if job.hold[again] {
        tokio::select! {
            biased;
            () = delivery.cancelled() => sink.write(What::Cancelled(handling)),
            _ = held.changed() => {}
        }
    }
    if job.steps
        && let Err(error) = integration_tests::steps::run(&steps, job.number, &sink).await
    {
        sink.write(What::Failed(handling));
        return Outcome::retry(error);
    }
    let is_away = away.is_some_and(|away| away.exists());
    let end = if is_away || delivery.attempt() <= job.fails { End::Fail } else { job.end[again] };
    let end = match end {
        End::DeadLetterUntilHealed if healed.exists() => End::Ack,
        End::DeadLetterUntilHealed => End::DeadLetter,
        other => other,
    };
    match end {
        End::Ack => {
            sink.write(What::Done(handling));
            // Nothing is stored of it unless the message asks for its result.
            Outcome::reply(&job.number)
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

/// Returns the record of an event, for events that tests use.
fn told(event: &Event<'_>) -> Option<What> {
    let what = match event {
        Event::Assigned { topic_partition, epoch, .. } => What::Assigned(topic_partition.partition.0, *epoch),
        Event::Revoked { topic_partition, epoch, .. } => What::Revoked(topic_partition.partition.0, *epoch),
        Event::LeaseLost { topic_partition, epoch, .. } => What::Lost(topic_partition.partition.0, *epoch),
        Event::Settled { topic_partition, settled, .. } => {
            What::Settled(topic_partition.partition.0, settled.applied, settled.stale)
        }
        Event::Crashed { topic_partition, crashes, .. } => {
            What::Crashed(topic_partition.partition.0, *crashes)
        }
        Event::Rebalanced { members, partitions, .. } => What::Rebalanced(*members, *partitions),
        Event::MemberFenced { .. } => What::Superseded,
        Event::Failing { operation, error, .. } => What::Failing(format!("{operation}: {error}")),
        _ => return None,
    };
    Some(what)
}
