//! Measurements of the delay engine, on private servers without persistence: lateness, traffic, cost, and the effect
//! of kills.
//!
//! ```text
//! cargo build --release -p integration-tests --bins
//! cargo run --release -p integration-tests --bin delays -- [precision|idle|herd|cost|catch-up|kills]... [--quick]
//! ```
//!
//! Without arguments it runs all of them. `kills` starts the binaries `worker` and `member` from the same folder.
//! `--quick` uses a tenth of every amount.

use std::time::Duration;

use anyhow::{Context, Result};
use integration_tests::delays::{Engine, kills, load, precision, spread, traffic};

const ENGINES: [Engine; 2] = [Engine::Queue, Engine::Topic];
const ALL: [&str; 6] = ["precision", "idle", "herd", "cost", "catch-up", "kills"];

#[tokio::main]
async fn main() -> Result<()> {
    let (words, options): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|word| !word.starts_with("--"));
    let quick = options.iter().any(|option| option == "--quick");
    let words = if words.is_empty() { ALL.map(str::to_owned).to_vec() } else { words };
    let share = if quick { 10 } else { 1 };
    for word in words {
        println!("== {word}");
        match word.as_str() {
            "precision" => precision(share).await,
            "idle" => idle(share).await,
            "herd" => herd(share).await,
            "cost" => cost(share).await,
            "catch-up" => catch_up(share).await,
            "kills" => kill(share).await?,
            other => anyhow::bail!("unknown: {other}; one of {ALL:?}"),
        }
    }
    Ok(())
}

async fn precision(share: u64) {
    for engine in ENGINES {
        for parked in [0, 1_000_000 / share] {
            let course = precision::Load { engine, tasks: 10_000 / share, per_second: 500, parked };
            let late = precision::run(&course).await;
            println!("{engine:?}, {} at 500/s, {parked} parked: {}", course.tasks, late.text());
        }
        let late = precision::asleep(engine, usize::try_from(200 / share).unwrap_or(20)).await;
        println!("{engine:?}, an earlier one while all sleep: {}", late.text());
    }
}

async fn idle(share: u64) {
    let listen = Duration::from_secs((60 / share).max(20));
    for (engine, places, workers) in [
        (Engine::Queue, 1, 1),
        (Engine::Queue, 4, 1),
        (Engine::Queue, 1, 64),
        (Engine::Topic, 1, 1),
        (Engine::Topic, 8, 1),
    ] {
        let idle = traffic::idle(engine, places, workers, listen).await;
        println!(
            "{engine:?}, {places} places, {workers} workers: {:.2} commands/s of the engine per place and worker, {:.2} of all \
             per place, and {:.2} for the group; in {listen:?}: {:?}",
            idle.engine / workers as f64,
            idle.place,
            idle.group,
            idle.commands.0
        );
    }
}

async fn herd(share: u64) {
    for workers in [1, 64] {
        let herd = traffic::herd(workers, 5_000 / share, 200).await;
        println!(
            "{workers} workers: {:.2} commands per task; {}; {:?}",
            herd.per_task,
            spread(&herd.late_us),
            herd.commands.0
        );
    }
}

async fn cost(share: u64) {
    for engine in ENGINES {
        let cost = load::cost(engine, 200_000 / share).await;
        println!(
            "{engine:?}: schedule {:.2} + go {:.2} = {:.2} µs of server CPU; complete {:.2} µs, {:.2} µs with bare commands; {:.0} bytes while it waits",
            cost.schedule_us,
            cost.go_us,
            cost.schedule_us + cost.go_us,
            cost.complete_us,
            cost.bare_us,
            cost.bytes
        );
    }
}

async fn catch_up(share: u64) {
    for engine in ENGINES {
        let messages = 500_000 / share;
        let up = load::catch_up(engine, messages).await;
        println!(
            "{engine:?}: {messages} overdue in {:.1?}, {:.0}/s, {:.1} µs of server CPU each; PING {}; scripts took (µs) {}",
            up.took,
            messages as f64 / up.took.as_secs_f64(),
            up.cpu_us,
            spread(&up.pings),
            up.scripts
        );
    }
}

async fn kill(share: u64) -> Result<()> {
    let own = std::env::current_exe()?;
    let beside = |name: &str| own.with_file_name(name).into_os_string().into_string().ok();
    let (worker, member) = (beside("worker").context("a path")?, beside("member").context("a path")?);
    let kills = usize::try_from(200 / share)?;
    let over = Duration::from_secs(120 / share);
    let plan = kills::Plan { instances: 3, kills, tasks: 50_000 / share, over };
    println!("{}", kills::of_queue(&worker, &plan).await);
    println!("{}", kills::of_topic(member.leak(), &plan).await);
    Ok(())
}
