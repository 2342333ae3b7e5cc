//! First figures: Millstream beside bare redis-rs, on one private server, in interleaved runs.
//!
//! ```text
//! cargo run --release -p integration-tests --bin figures -- [--messages N] [--runs N] [--seconds N]
//! ```
//!
//! Every figure is the median of the runs; a ratio is the median of the ratios of neighbouring runs, Millstream by
//! bare, so that a machine that gets slower meanwhile harms both. Server CPU is what `INFO cpu` counts.

mod bare;
mod ours;

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use integration_tests::server::Server;

/// What one run of one side gave.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) messages: u64,
    pub(crate) took: Duration,
    /// Seconds of server CPU.
    pub(crate) server_cpu: f64,
}

impl Run {
    fn rate(&self) -> f64 {
        self.messages as f64 / self.took.as_secs_f64()
    }

    /// Microseconds of server CPU per message.
    fn cpu(&self) -> f64 {
        self.server_cpu * 1e6 / self.messages as f64
    }
}

pub(crate) struct Options {
    pub(crate) messages: u64,
    pub(crate) runs: usize,
    pub(crate) seconds: u64,
}

/// The payload of every message.
pub(crate) const PAYLOAD: [u8; 128] = [b'x'; 128];
/// Messages per second of the latency case.
pub(crate) const RATE: u64 = 1_000;

fn options() -> Result<Options> {
    let mut options = Options { messages: 200_000, runs: 5, seconds: 5 };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next().with_context(|| format!("{arg} needs a value"))?;
        match arg.as_str() {
            "--messages" => options.messages = value.parse()?,
            "--runs" => options.runs = value.parse()?,
            "--seconds" => options.seconds = value.parse()?,
            other => anyhow::bail!("unknown option {other}"),
        }
    }
    Ok(options)
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Seconds of CPU that the server has used.
pub(crate) fn server_cpu(server: &Server) -> f64 {
    let info = server.cli(&["INFO", "cpu"]);
    ["used_cpu_user:", "used_cpu_sys:"]
        .iter()
        .filter_map(|name| info.lines().find_map(|line| line.strip_prefix(name)))
        .filter_map(|value| value.trim().parse::<f64>().ok())
        .sum()
}

fn show(case: &str, pairs: &[(Run, Run)]) {
    let ours = |figure: fn(&Run) -> f64| median(pairs.iter().map(|(ours, _)| figure(ours)));
    let bare = |figure: fn(&Run) -> f64| median(pairs.iter().map(|(_, bare)| figure(bare)));
    let ratio =
        |figure: fn(&Run) -> f64| median(pairs.iter().map(|(ours, bare)| figure(ours) / figure(bare)));
    println!(
        "{case:<34} {:>9.0} {:>9.0} {:>6.2}   {:>6.2} {:>6.2} {:>6.2}",
        ours(Run::rate),
        bare(Run::rate),
        ratio(Run::rate),
        ours(Run::cpu),
        bare(Run::cpu),
        ratio(Run::cpu),
    );
}

fn show_latency(case: &str, pairs: &[(Histogram<u64>, Histogram<u64>)]) {
    for quantile in [0.5, 0.99] {
        let at = |histogram: &Histogram<u64>| histogram.value_at_quantile(quantile) as f64 / 1e3;
        println!(
            "{:<34} {:>9.0} {:>9.0} {:>6.2}",
            format!("{case} p{} (µs)", quantile * 100.0),
            median(pairs.iter().map(|(ours, _)| at(ours))),
            median(pairs.iter().map(|(_, bare)| at(bare))),
            median(pairs.iter().map(|(ours, bare)| at(ours) / at(bare))),
        );
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = options()?;
    let server = Server::start();
    println!(
        "{} messages of 128 bytes, {} interleaved runs, no persistence; redis {}",
        options.messages,
        options.runs,
        server.cli(&["INFO", "server"]).lines().find_map(|l| l.strip_prefix("redis_version:")).unwrap_or("?"),
    );
    println!(
        "{:<34} {:>9} {:>9} {:>6}   {:>6} {:>6} {:>6}",
        "", "messages/s", "bare", "ratio", "µs CPU", "bare", "ratio"
    );
    for partitions in [1, 8] {
        let mut produce = Vec::new();
        let mut consume = Vec::new();
        let mut trimming = Vec::new();
        for run in 0..options.runs {
            server.cli(&["FLUSHALL"]);
            let ours_produced = ours::produce(&server, &options, partitions, run).await?;
            server.cli(&["FLUSHALL"]);
            let bare_produced = bare::produce(&server, &options, partitions).await?;
            produce.push((ours_produced, bare_produced));
            let bare_consumed = bare::consume(&server, &options, partitions, false).await?;
            server.cli(&["FLUSHALL"]);
            let ours_consumed = ours::consume(&server, &options, partitions, false).await?;
            consume.push((ours_consumed, bare_consumed));
            server.cli(&["FLUSHALL"]);
            bare::produce(&server, &options, partitions).await?;
            let bare_trimmed = bare::consume(&server, &options, partitions, true).await?;
            server.cli(&["FLUSHALL"]);
            trimming.push((ours::consume(&server, &options, partitions, true).await?, bare_trimmed));
        }
        show(&format!("bulk produce, {partitions} partitions"), &produce);
        show(&format!("consume + ack, {partitions} partitions"), &consume);
        show(&format!("the same, dropping consumed, {partitions}"), &trimming);
    }
    let mut latency = Vec::new();
    for _ in 0..options.runs {
        server.cli(&["FLUSHALL"]);
        let ours = ours::latency(&server, &options).await?;
        server.cli(&["FLUSHALL"]);
        latency.push((ours, bare::latency(&server, &options).await?));
    }
    show_latency("latency at 1,000/s", &latency);
    Ok(())
}
