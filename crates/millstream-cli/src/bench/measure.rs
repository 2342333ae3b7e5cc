//! What a run is measured by: clocks, CPU, what the server counts; and the figures that come of it.

use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use hdrhistogram::Histogram;
use millstream::Millstream;
use rustix::time::{ClockId, clock_gettime};

use super::bare::{Counted, Probe, Requests};

/// What a figure tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    Throughput,
    P50,
    P99,
    P999,
    Max,
    ClientCpu,
    RedisCpu,
    Commands,
    IdleRequests,
    IdleCommands,
    FirstRequests,
    FirstCommands,
    Bytes,
}

impl Figure {
    /// Its name in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput_per_s",
            Self::P50 => "latency_p50_us",
            Self::P99 => "latency_p99_us",
            Self::P999 => "latency_p99_9_us",
            Self::Max => "latency_max_us",
            Self::ClientCpu => "client_cpu_us_per_message",
            Self::RedisCpu => "redis_cpu_us_per_message",
            Self::Commands => "commands_per_message",
            Self::IdleRequests => "requests_per_s_per_partition",
            Self::IdleCommands => "commands_per_s_per_partition",
            Self::FirstRequests => "first_requests_per_s_per_partition",
            Self::FirstCommands => "first_commands_per_s_per_partition",
            Self::Bytes => "bytes_per_message",
        }
    }

    /// Its name for people.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Throughput => "messages/s",
            Self::P50 => "latency p50, µs",
            Self::P99 => "latency p99, µs",
            Self::P999 => "latency p99.9, µs",
            Self::Max => "latency max, µs",
            Self::ClientCpu => "client CPU, µs/message",
            Self::RedisCpu => "Redis CPU, µs/message",
            Self::Commands => "commands/message",
            Self::IdleRequests => "requests/s per owned partition",
            Self::IdleCommands => "commands/s per owned partition (those of scripts too)",
            Self::FirstRequests => "requests/s per owned partition at first",
            Self::FirstCommands => "commands/s per owned partition at first",
            Self::Bytes => "bytes/message",
        }
    }

    /// What it is of, for people.
    pub(super) fn short(self) -> &'static str {
        self.title().split_once(", ").map_or(self.title(), |(of, _)| of)
    }

    /// What a value has behind it where [`short`](Self::short) stands in front: ` µs`, or nothing.
    pub(super) fn unit(self) -> String {
        self.title().split_once(", ").map(|(_, unit)| format!(" {unit}")).unwrap_or_default()
    }
}

/// What one run of one side gave.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// In the order in which they are shown.
    pub(super) figures: Vec<(Figure, f64)>,
}

impl Measured {
    /// A single figure.
    pub(super) fn of(figure: Figure, value: f64) -> Self {
        Self { figures: vec![(figure, value)] }
    }

    /// With how long messages took, from a histogram in nanoseconds, in front.
    pub(super) fn with_latency(mut self, latency: &Histogram<u64>) -> Self {
        let at = |quantile| latency.value_at_quantile(quantile) as f64 / 1e3;
        let figures = [
            (Figure::P50, at(0.5)),
            (Figure::P99, at(0.99)),
            (Figure::P999, at(0.999)),
            (Figure::Max, latency.max() as f64 / 1e3),
        ];
        self.figures.splice(0..0, figures);
        self
    }

    /// Without a figure that would mislead.
    pub(super) fn without(mut self, figure: Figure) -> Self {
        self.figures.retain(|(it, _)| *it != figure);
        self
    }
}

/// Where a run takes place.
#[derive(Clone)]
pub(super) struct Stage {
    pub(super) url: String,
    /// All keys of the run start with it.
    pub(super) namespace: String,
    pub(super) payload: Bytes,
    pub(super) probe: Probe,
}

impl Stage {
    /// Millstream there, over a connection of its own.
    pub(super) async fn connect(&self) -> Result<Millstream> {
        Ok(Millstream::at(&self.url).namespace(&self.namespace).await?)
    }

    /// Begins to measure.
    pub(super) async fn meter(&self) -> Result<Meter> {
        let counted = self.probe.count().await?;
        Ok(Meter { probe: self.probe.clone(), counted, client_cpu: client_cpu(), began: Instant::now() })
    }

    /// What is asked of the server while nothing happens, per second and owned partition: for a while that is told by
    /// itself, since consumers begin with more than they go on with, and for some time after that.
    pub(super) async fn idle(&self, settle: Duration, lasts: Duration, partitions: u32) -> Result<Measured> {
        let requests = Requests::watch(&self.url).await?;
        let mut figures = Vec::new();
        for (lasts, each) in [
            (settle, [Figure::FirstRequests, Figure::FirstCommands]),
            (lasts, [Figure::IdleRequests, Figure::IdleCommands]),
        ] {
            if lasts.is_zero() {
                continue;
            }
            let (asked, counted, began) = (requests.count()?, self.probe.count().await?, Instant::now());
            tokio::time::sleep(lasts).await;
            let per = began.elapsed().as_secs_f64() * f64::from(partitions);
            let asked = (requests.count()? - asked) as f64;
            let commands = self.probe.count().await?.commands - counted.commands - Probe::OWN;
            figures.splice(0..0, [(each[0], asked / per), (each[1], commands / per)]);
        }
        Ok(Measured { figures })
    }

    /// Deletes what the run has stored.
    pub(super) async fn clear(&self) -> Result<()> {
        self.probe.clear(&self.namespace).await
    }
}

/// Measures from when it is made.
pub(super) struct Meter {
    probe: Probe,
    counted: Counted,
    client_cpu: Duration,
    began: Instant,
}

impl Meter {
    /// How long it has been measuring.
    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// What so many messages took.
    pub(super) async fn stop(self, messages: u64) -> Result<Measured> {
        let took = self.elapsed();
        self.stop_after(messages, took).await
    }

    /// What so many messages took, of which the last was done a while ago: what followed counts as CPU and commands only.
    pub(super) async fn stop_after(self, messages: u64, took: Duration) -> Result<Measured> {
        let client = client_cpu().saturating_sub(self.client_cpu);
        let now = self.probe.count().await?;
        let each = |value: f64| value / messages as f64;
        let figures = vec![
            (Figure::Throughput, messages as f64 / took.as_secs_f64()),
            (Figure::ClientCpu, each(client.as_secs_f64() * 1e6)),
            (Figure::RedisCpu, each((now.cpu - self.counted.cpu) * 1e6)),
            (Figure::Commands, each(now.commands - self.counted.commands - Probe::OWN)),
        ];
        Ok(Measured { figures })
    }

    /// How many bytes of memory the server uses more than before, per message.
    pub(super) async fn stop_memory(self, messages: u64) -> Result<Measured> {
        let now = self.probe.count().await?;
        Ok(Measured::of(Figure::Bytes, (now.memory - self.counted.memory) / messages as f64))
    }
}

/// The CPU time that all threads of this process have used.
fn client_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    seconds + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}
