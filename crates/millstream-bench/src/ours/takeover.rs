//! Takeover: a consumer is killed while it handles messages, and another one takes over.

use std::collections::BTreeSet;
use std::env;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use millstream::{Delivery, Millstream, Record};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use super::{GROUP, STALL_LIMIT, topic, until};
use crate::args::{General, Spread, Takeover, Victim};
use crate::measure::{Measured, Stage};
use crate::pacer::Clock;

/// The line that the victim prints when it is handling a message of every partition.
const READY: &str = "ready";

/// Kills a process that owns all partitions while it handles a message of each, and waits until another consumer of
/// the group, which is already running, has handled all of them.
pub(crate) async fn takeover(stage: &Stage, of: &Takeover) -> Result<Measured> {
    let mq = stage.connect().await?;
    let topic = topic(Spread { partitions: of.partitions, keys: 0, packed: None }, false);
    let producer = mq.producer(topic.clone()).await?;
    let records = (0..of.partitions).map(|partition| Record::new(&stage.payload).partition(partition));
    for sent in producer.send_all(records).await {
        sent?;
    }
    let mut victim = Command::new(env::current_exe().context("this program's path")?)
        .args(["victim", "--url", &stage.url, "--namespace", &stage.namespace])
        .args(["--partitions", &of.partitions.to_string(), "--lease", &of.lease.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("the consumer to be killed does not start")?;
    let mut line = String::new();
    let output = victim.stdout.take().context("no output")?;
    BufReader::new(output).read_line(&mut line).await?;
    ensure!(line.trim() == READY, "the consumer to be killed ended before it was handling all messages");

    let (seen, mut handled) = mpsc::unbounded_channel();
    let successor = mq.consumer(topic, GROUP).lease_ttl(Duration::from_millis(of.lease.into())).start(
        move |delivery: Delivery<Bytes>| {
            let recorded = seen.send((delivery.topic_partition().partition, Instant::now()));
            async move { recorded.map_err(|_| "the measurement has ended") }
        },
    );
    let successor = successor.await?;
    until(&successor, |it| {
        it.health().is_ready() && it.health().topics.iter().any(|topic| topic.members == 2)
    })
    .await?;
    let limit = STALL_LIMIT + Duration::from_millis(of.lease.into());
    let (killed, meter) = (Instant::now(), stage.meter().await?);
    victim.kill().await.context("kill")?;
    let (mut latency, mut partitions) = (Clock::histogram()?, BTreeSet::new());
    while partitions.len() < of.partitions as usize {
        let next = timeout(limit, handled.recv()).await;
        let next = next.with_context(|| format!("nothing was taken over within {limit:?}"))?;
        let (partition, at) = next.context("the successor ended")?;
        if partitions.insert(partition) {
            latency.record(Clock::nanos(at.saturating_duration_since(killed)))?;
        }
    }
    let measured = meter.stop(of.partitions.into()).await?;
    successor.shutdown().await;
    Ok(measured.with_latency(&latency))
}

/// Runs the process that is killed: it starts to handle a message of each partition, prints a line, and never ends.
pub(crate) async fn victim(general: &General, of: &Victim) -> Result<()> {
    let url = general.url.as_deref().context("--url")?;
    let mq = Millstream::at(url).namespace(&of.namespace).await?;
    let in_flight = Arc::new(Semaphore::new(0));
    let consumer = mq
        .consumer(topic(Spread { partitions: of.partitions, keys: 0, packed: None }, false), GROUP)
        .lease_ttl(Duration::from_millis(of.lease.into()))
        .start({
            let in_flight = in_flight.clone();
            move |_: Delivery<Bytes>| {
                in_flight.add_permits(1);
                std::future::pending::<()>()
            }
        })
        .await?;
    in_flight.acquire_many(of.partitions).await?.forget();
    let mut output = tokio::io::stdout();
    output.write_all(format!("{READY}\n").as_bytes()).await?;
    output.flush().await?;
    consumer.ended().await;
    Ok(())
}
