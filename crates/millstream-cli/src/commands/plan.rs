//! `millstream plan`: what a load needs.

mod capacity;

use std::time::Duration;

use anyhow::Result;
use clap::Args;

use crate::commands::produce;
use crate::commands::schemas::{Table, of};
use crate::exit::Exit;
use crate::output::{Output, Tone};
use crate::{human, output, parse};
use capacity::{Plan, plan};

/// Computes what a load needs: memory, server CPU, partitions, connections, network
///
/// No server is needed. The figures were measured on one machine, and are extrapolated in proportion to the payload: measure yours with
/// `millstream-bench` before you rely on them.
#[derive(Args, Clone, Copy, Debug)]
#[command(after_help = "Examples:
  millstream plan --rate 2000/s --size 500
  millstream plan --rate 2000/s --size 1KiB --retention 1d --groups 3 --replicas 1
  millstream plan --rate 60000/m --size 200 --handler 50ms --concurrency 1 --instances 8
  millstream plan --rate 100000/s --size 128 --retention 7d --packed --json | jq .data.machine_bytes")]
pub(crate) struct PlanArgs {
    /// Messages that are sent: 2000/s, 6000/m or 10/h; per second without a unit
    #[arg(long, value_name = "N/s", value_parser = rate)]
    rate: f64,
    /// Bytes of a message, with its key and headers: 500, 2KiB
    #[arg(long, value_name = "BYTES", value_parser = parse::size)]
    size: usize,
    /// How long messages stay. Default: until all groups have settled them, which is the time of the handler and a minute
    #[arg(long, value_name = "TIME", value_parser = retention)]
    retention: Option<Duration>,
    /// Groups, each of which handles every message
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    groups: u32,
    /// How long a handler takes
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = handler)]
    handler: Duration,
    /// Handlers at once in a partition: 1 for `Serial`, n for `PerKey(n)` and `Unordered(n)`
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    concurrency: u32,
    /// Instances of each group
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    instances: u32,
    /// The topic is packed, with zstd
    #[arg(long)]
    packed: bool,
    /// Replicas of the server
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=16))]
    replicas: u32,
}

/// The data that the command prints as JSON.
pub(in crate::commands) const DATA: Table = &[("plan", of::<Plan>())];

const DAY: Duration = Duration::from_secs(86_400);

/// Parses a rate up to ten million messages a second, as `produce` does.
fn rate(text: &str) -> Result<f64, String> {
    let rate = produce::rate(text)?;
    if rate <= 1e7 { Ok(rate) } else { Err("at most 10000000/s are allowed".to_owned()) }
}

fn retention(text: &str) -> Result<Duration, String> {
    within(text, 3_650 * DAY)
}

fn handler(text: &str) -> Result<Duration, String> {
    within(text, DAY)
}

fn within(text: &str, most: Duration) -> Result<Duration, String> {
    let time = parse::duration(text)?;
    let is_allowed = !time.is_zero() && time <= most;
    is_allowed.then_some(time).ok_or_else(|| format!("1ms to {} are allowed", human::exact(most)))
}

impl PlanArgs {
    pub(crate) fn run(self, output: Output) -> Result<Exit> {
        output.show(&plan(&self), |plan| text(&self, plan, output))?;
        Ok(Exit::Done)
    }
}

fn text(load: &PlanArgs, plan: &Plan, output: Output) -> String {
    let row = |what: &str, figure: String, how: String| [what.to_owned(), figure, how];
    let size = human::count(load.size as u64);
    let stored = if plan.packs { "packed with zstd" } else { "and overhead" };
    let kept = human::duration(Duration::from_millis(plan.kept_ms));
    let groups = human::of(load.groups.into(), "group", "groups");
    let replicas = human::of(load.replicas.into(), "replica", "replicas");
    let core = |share: f64| format!("{:.1} % of a core", share * 100.0);
    let cost = |us: f64| format!("{us:.2} µs to send a message and to handle it in {groups}");
    let needed = human::count(plan.partitions_needed);
    let [instance, instances] = [plan.instance_connections, load.instances.into()].map(human::count);
    let rows = [
        row("messages kept", human::count(plan.messages), format!("{}/s × {kept}", human::rate(load.rate))),
        row(
            "memory of a message",
            format!("{} B", human::count(plan.message_bytes)),
            format!("{size} B {stored}"),
        ),
        row("memory of all", human::bytes(plan.bytes), "messages × memory of a message".to_owned()),
        row(
            "memory of the machine",
            human::bytes(plan.machine_bytes),
            "÷ 0.6: a save or rewrite copies what is written meanwhile; as much for each replica".to_owned(),
        ),
        row("server CPU, many at a time", core(plan.cpu), cost(plan.cpu_us)),
        row("server CPU, one at a time", core(plan.alone_cpu), cost(plan.alone_cpu_us)),
        row(
            "partitions",
            human::count(plan.partitions),
            format!(
                "{needed}, rounded up: {} at once in each (--concurrency)",
                human::of(load.concurrency.into(), "handler", "handlers")
            ),
        ),
        row(
            "handlers at once",
            human::count(plan.handlers),
            format!("in {groups}; {} are busy on average", human::rate(plan.handlers_busy)),
        ),
        row(
            "connections",
            human::count(plan.connections),
            format!("at most {instance} × {instances} instances × {groups}; `maxclients` is twice that"),
        ),
        row("network in", format!("{}/s", human::bytes(plan.in_bytes_per_second)), "sent".to_owned()),
        row(
            "network out",
            format!("{}/s", human::bytes(plan.out_bytes_per_second)),
            format!("to {groups} and {replicas}"),
        ),
    ];
    let mut text = output::table(&["what", ">figure", "how"], rows) + "\n";
    for near in &plan.near {
        text += &format!("\n{}  {}", output.paint(Tone::Doubtful, "near"), near.advice);
    }
    if plan.near.is_empty() {
        text += &format!("\n{}  no limit is near", output.paint(Tone::Good, "ok"));
    }
    text
}
