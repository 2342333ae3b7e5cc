//! What consuming costs on this side of the backend: nanoseconds of CPU per message, with a log that does nothing.
//!
//! `cargo run --release -p millstream-runtime --example consume [messages] [partitions]`

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use millstream_core::event::Ignore;
use millstream_core::log::{
    Append, Appended, Entry, Fetched, Log, Measured, Reader, Receipt, Settled, Source, Trimmed,
};
use millstream_core::{
    Backend, Lease, MessageId, Result, Retention, Settlement, Start, Topic, TopicPartition,
};
use millstream_memory::MemoryBackend;
use millstream_runtime::{ConsumerBuilder, Delivery};

const READ: usize = 256;
const PAYLOAD: usize = 128;

/// Has messages without end for every partition, and takes note of nothing.
#[derive(Default)]
struct Idle {
    requests: AtomicUsize,
}

#[async_trait]
impl Log for Idle {
    async fn append(&self, _: &[Append]) -> Vec<Result<Appended>> {
        Vec::new()
    }

    async fn reader(&self, _: &Lease) -> Result<Box<dyn Reader>> {
        Ok(Box::new(Endless { last: 0 }))
    }

    async fn settle(&self, _: &Lease, batch: &[(Receipt, Settlement)]) -> Result<Settled> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        Ok(Settled { applied: batch.len(), stale: 0 })
    }

    async fn seek(&self, _: &Lease, _: Start) -> Result<()> {
        Ok(())
    }

    async fn trim(&self, _: &Lease, _: Retention) -> Result<Trimmed> {
        Ok(Trimmed::default())
    }

    async fn append_measured(&self, _: &[Append]) -> Measured {
        Measured::new(Vec::new(), Vec::new())
    }

    async fn lengths(&self, partitions: &[TopicPartition]) -> Result<Vec<u64>> {
        Ok(vec![0; partitions.len()])
    }
}

struct Endless {
    last: u64,
}

#[async_trait]
impl Reader for Endless {
    fn start_over(&mut self) {}

    async fn fetch(&mut self, max: usize, _: Duration) -> Result<Fetched> {
        tokio::task::yield_now().await;
        let mut fetched = Fetched::default();
        fetched.entries = entries(&mut self.last, max);
        Ok(fetched)
    }
}

/// Entries as a backend makes them: parts of one reply.
fn entries(last: &mut u64, count: usize) -> Vec<Entry> {
    let reply = BytesMut::zeroed(count * PAYLOAD).freeze();
    let entry = |at: usize| {
        *last += 1;
        let receipt = Receipt::new(Source::Log, MessageId::new(*last, 0));
        let payload = reply.slice(at * PAYLOAD..(at + 1) * PAYLOAD);
        Entry::new(receipt, 1, vec![(Bytes::from_static(b"payload"), payload)])
    };
    (0..count).map(entry).collect()
}

/// Nanoseconds of CPU of all threads that live.
fn cpu() -> std::io::Result<u64> {
    let mut total = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        total += text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).unwrap_or_default();
    }
    Ok(total)
}

async fn measure(messages: u64, partitions: u32) -> std::result::Result<(u64, usize), Box<dyn Error>> {
    let log = Arc::new(Idle::default());
    let backend = Backend::from(MemoryBackend::new()).with_log(log.clone());
    let topic = Topic::raw("numbers").partitions(partitions);
    let before = cpu()?;
    let builder = ConsumerBuilder::new(backend, topic, "g", Arc::new(Ignore));
    let consumer = builder.start(|_: Delivery<Bytes>| async {}).await?;
    while consumer.report().acked < messages {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let spent = cpu()? - before;
    let done = consumer.report().acked;
    let requests = log.requests.load(Ordering::Relaxed);
    consumer.shutdown().await;
    Ok((spent / done, usize::try_from(done)? / requests.max(1)))
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let messages = args.next().map_or(Ok(2_000_000), |text| text.parse())?;
    let partitions = args.next().map_or(Ok(8), |text| text.parse())?;
    let one = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let two = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (mut last, before, rounds) = (0, cpu()?, 2_000);
    for _ in 0..rounds {
        drop(entries(&mut last, READ));
    }
    let making = (cpu()? - before) / (rounds * READ as u64);
    for (name, runtime) in [("1 thread", &one), ("2 threads", &two)] {
        let (spent, settled) = runtime.block_on(measure(messages, partitions))?;
        let ours = spent.saturating_sub(making);
        println!("{name}: {ours} ns per message (and {making} for making it), {settled} settled at once");
    }
    Ok(())
}
