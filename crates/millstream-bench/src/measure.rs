//! Measurements of a run: clocks, CPU, counters of the server; and the figures computed from them.

use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use hdrhistogram::Histogram;
use millstream::{Millstream, TlsConfig};
use rustix::time::{ClockId, clock_gettime};

use crate::bare::{Counted, Probe, Requests};

/// The kind of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
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
    ClientShare,
    RedisShare,
    Connections,
    Bytes,
    Elapsed,
    AllClientCpu,
    AllRedisCpu,
    AllCommands,
}

impl Figure {
    /// Returns its name in JSON.
    pub(crate) fn name(self) -> &'static str {
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
            Self::ClientShare => "client_cpu_percent",
            Self::RedisShare => "redis_cpu_percent",
            Self::Connections => "connections",
            Self::Bytes => "bytes_per_message",
            Self::Elapsed => "elapsed_ms",
            Self::AllClientCpu => "client_cpu_ms",
            Self::AllRedisCpu => "redis_cpu_ms",
            Self::AllCommands => "commands",
        }
    }

    /// Returns its displayed name.
    pub(crate) fn title(self) -> &'static str {
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
            Self::ClientShare => "client CPU, % of a core",
            Self::RedisShare => "Redis CPU, % of a core",
            Self::Connections => "connections",
            Self::Bytes => "bytes/message",
            Self::Elapsed => "time, ms",
            Self::AllClientCpu => "client CPU, ms",
            Self::AllRedisCpu => "Redis CPU, ms",
            Self::AllCommands => "commands",
        }
    }

    /// Returns the short displayed name of the measured quantity.
    pub(crate) fn short(self) -> &'static str {
        self.title().split_once(", ").map_or(self.title(), |(of, _)| of)
    }

    /// Returns the unit after a value where [`short`](Self::short) is in front: ` µs`, or nothing.
    pub(crate) fn unit(self) -> String {
        self.title().split_once(", ").map(|(_, unit)| format!(" {unit}")).unwrap_or_default()
    }
}

/// The figures of one run of one side.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// The figures in the order in which they are shown.
    pub(crate) figures: Vec<(Figure, f64)>,
}

impl Measured {
    /// Creates a measurement with a single figure.
    pub(crate) fn of(figure: Figure, value: f64) -> Self {
        Self { figures: vec![(figure, value)] }
    }

    /// Adds latencies, from a histogram in nanoseconds, in front.
    pub(crate) fn with_latency(mut self, latency: &Histogram<u64>) -> Self {
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

    /// Removes a figure that would mislead.
    pub(crate) fn without(mut self, figure: Figure) -> Self {
        self.figures.retain(|(it, _)| *it != figure);
        self
    }
}

/// The port of a server on which it speaks TLS.
#[derive(Clone, Debug)]
pub(crate) struct Secure {
    pub(crate) url: String,
    pub(crate) tls: TlsConfig,
}

/// The environment of a run.
#[derive(Clone)]
pub(crate) struct Stage {
    pub(crate) url: String,
    /// The URL and the certificates for TLS, if Millstream connects over it. Counters are read from `url`.
    pub(crate) secure: Option<Secure>,
    /// The prefix of all keys of the run.
    pub(crate) namespace: String,
    pub(crate) payload: Bytes,
    pub(crate) probe: Probe,
}

impl Stage {
    /// Connects Millstream to it, over a separate connection.
    pub(crate) async fn connect(&self) -> Result<Millstream> {
        let builder = match &self.secure {
            Some(Secure { url, tls }) => Millstream::at(url).tls(tls.clone()),
            None => Millstream::at(&self.url),
        };
        Ok(builder.namespace(&self.namespace).await?)
    }

    /// Returns the same environment without TLS.
    pub(crate) fn without_tls(&self) -> Self {
        Self { secure: None, ..self.clone() }
    }

    /// Starts to measure.
    pub(crate) async fn meter(&self) -> Result<Meter> {
        let counted = self.probe.count().await?;
        Ok(Meter { probe: self.probe.clone(), counted, client_cpu: client_cpu(), began: Instant::now() })
    }

    /// Measures the requests and commands that the server receives while idle, per second and owned partition:
    /// separately for `settle`, since consumers send more of them at first, and for `lasts` after it; then, for `lasts`
    /// once more, the CPU of both sides and the connections.
    pub(crate) async fn idle(&self, settle: Duration, lasts: Duration, partitions: u32) -> Result<Measured> {
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
            let commands = self.probe.count().await?.commands - counted.commands - self.probe.own();
            figures.splice(0..0, [(each[0], asked / per), (each[1], commands / per)]);
        }
        // `MONITOR` costs both sides more than what it shows.
        drop(requests);
        let (counted, client, began) = (self.probe.count().await?, client_cpu(), Instant::now());
        tokio::time::sleep(lasts).await;
        let (took, client) = (began.elapsed().as_secs_f64(), client_cpu().saturating_sub(client));
        let now = self.probe.count().await?;
        figures.extend([
            (Figure::ClientShare, 100.0 * client.as_secs_f64() / took),
            (Figure::RedisShare, 100.0 * (now.cpu - counted.cpu) / took),
            (Figure::Connections, now.connections),
        ]);
        Ok(Measured { figures })
    }

    /// Deletes the data of the run.
    pub(crate) async fn clear(&self) -> Result<()> {
        self.probe.clear(&self.namespace).await
    }
}

/// A measurement from its creation on.
pub(crate) struct Meter {
    probe: Probe,
    counted: Counted,
    client_cpu: Duration,
    began: Instant,
}

impl Meter {
    /// Returns the time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns the figures for this many messages.
    pub(crate) async fn stop(self, messages: u64) -> Result<Measured> {
        let took = self.elapsed();
        self.stop_after(messages, took).await
    }

    /// Returns the figures for this many messages, the last of which was done after `took`. Later work counts as CPU
    /// and commands only.
    pub(crate) async fn stop_after(self, messages: u64, took: Duration) -> Result<Measured> {
        let client = client_cpu().saturating_sub(self.client_cpu);
        let now = self.probe.count().await?;
        let each = |value: f64| value / messages as f64;
        let figures = vec![
            (Figure::Throughput, messages as f64 / took.as_secs_f64()),
            (Figure::ClientCpu, each(client.as_secs_f64() * 1e6)),
            (Figure::RedisCpu, each((now.cpu - self.counted.cpu) * 1e6)),
            (Figure::Commands, each(now.commands - self.counted.commands - self.probe.own())),
        ];
        Ok(Measured { figures })
    }

    /// Returns the figures of an answer as a whole.
    pub(crate) async fn stop_answer(self) -> Result<Measured> {
        let took = self.elapsed();
        let client = client_cpu().saturating_sub(self.client_cpu);
        let now = self.probe.count().await?;
        let figures = vec![
            (Figure::Elapsed, took.as_secs_f64() * 1e3),
            (Figure::AllClientCpu, client.as_secs_f64() * 1e3),
            (Figure::AllRedisCpu, (now.cpu - self.counted.cpu) * 1e3),
            (Figure::AllCommands, now.commands - self.counted.commands - self.probe.own()),
        ];
        Ok(Measured { figures })
    }

    /// Returns the increase of the server's memory in bytes per message.
    pub(crate) async fn stop_memory(self, messages: u64) -> Result<Measured> {
        let now = self.probe.count().await?;
        Ok(Measured::of(Figure::Bytes, (now.memory - self.counted.memory) / messages as f64))
    }
}

/// Returns the CPU time that all threads of this process have used.
fn client_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    seconds + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}
