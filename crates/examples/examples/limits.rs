//! Limits across consumers: at most two jobs of a tenant at once, five in all, and a hundred a second.
//!
//! ```sh
//! cargo run --example limits
//! cargo run --example limits -- --url redis://127.0.0.1
//! ```
//!
//! Two consumers stand for two processes. Halfway an operator gives one tenant more; both consumers follow at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail, ensure};
use millstream::admin::LimitBound;
use millstream::{Concurrency, Consumer, Delivery, Limit, Millstream, Rate, Topic};

const JOBS: Topic<u64> = Topic::new("jobs").partitions(4);
const TENANTS: [&str; 3] = ["acme", "globex", "initech"];
const MESSAGES: u64 = 180;
const WORK: Duration = Duration::from_millis(45);

/// What runs, and the most that ran at once.
#[derive(Default)]
struct Gauges {
    running: BTreeMap<String, usize>,
    most: BTreeMap<String, usize>,
    most_in_all: usize,
    done: usize,
    begun: Vec<Instant>,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Gauges>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Gauges> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begins(&self, tenant: &str) {
        let mut gauges = self.lock();
        gauges.begun.push(Instant::now());
        let running = gauges.running.entry(tenant.to_owned()).or_default();
        *running += 1;
        let now = *running;
        let most = gauges.most.entry(tenant.to_owned()).or_default();
        *most = now.max(*most);
        gauges.most_in_all = gauges.most_in_all.max(gauges.running.values().sum());
    }

    fn ends(&self, tenant: &str) {
        let mut gauges = self.lock();
        *gauges.running.entry(tenant.to_owned()).or_default() -= 1;
        gauges.done += 1;
    }

    async fn until(&self, done: usize) {
        while self.lock().done < done {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn work(mq: &Millstream, gauges: &Shared) -> Result<Consumer> {
    let gauges = gauges.clone();
    let consumer = mq
        .consumer(JOBS, "workers")
        .concurrency(Concurrency::Unordered(16))
        .limit(Limit::by_header("per-tenant", "x-tenant").at_most(2))
        .limit(Limit::global("in-all").at_most(5))
        .limit(Limit::global("calls").rate(Rate::per_second(100)))
        .start(move |job: Delivery<u64>| {
            let gauges = gauges.clone();
            async move {
                let tenant = job.headers().get("x-tenant").map(|it| String::from_utf8_lossy(it).into_owned());
                let tenant = tenant.unwrap_or_default();
                gauges.begins(&tenant);
                tokio::time::sleep(WORK).await;
                gauges.ends(&tenant);
            }
        })
        .await?;
    Ok(consumer)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => "memory://".to_owned(),
        [option, url] if option == "--url" => url.clone(),
        _ => bail!("usage: limits [--url URL]"),
    };
    // Runs on one server do not meet.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
    let mq = Millstream::at(url).namespace(format!("limits-{run}")).await?;
    let producer = mq.producer(JOBS).await?;
    for n in 0..MESSAGES {
        producer.send(&n).header("x-tenant", TENANTS[n as usize % TENANTS.len()]).await?;
    }

    let gauges = Shared::default();
    let consumers = [work(&mq, &gauges).await?, work(&mq, &gauges).await?];
    gauges.until(MESSAGES as usize / 3).await;
    let before = gauges.lock().most.clone();
    // As `millstream limits set per-tenant:acme 4` does.
    mq.admin().set_limit(&"per-tenant:acme".parse()?, Some(LimitBound::AtMost(4))).await?;
    gauges.until(MESSAGES as usize).await;
    for consumer in consumers {
        consumer.shutdown().await;
    }

    let gauges = gauges.lock();
    println!("{:<12}{:>8}{:>8}", "at once", "before", "at last");
    for tenant in TENANTS {
        let (before, most) = (before.get(tenant), gauges.most.get(tenant));
        println!("{tenant:<12}{:>8}{:>8}", before.unwrap_or(&0), most.unwrap_or(&0));
        ensure!(before <= Some(&2), "more than two of {tenant} before");
        ensure!(most <= Some(if tenant == "acme" { &4 } else { &2 }), "too many of {tenant}");
    }
    println!("{:<12}{:>16}", "in all", gauges.most_in_all);
    let second = Duration::from_secs(1);
    let within =
        |from: &Instant| gauges.begun.iter().filter(|at| *at >= from && **at - *from < second).count();
    let fastest = gauges.begun.iter().map(within).max().unwrap_or(0);
    println!("{:<12}{fastest:>16}", "in a second");
    // Some begin up to 50 ms late, and say so some time after they began.
    ensure!(fastest <= 120, "{fastest} in a second");
    ensure!(gauges.most_in_all <= 5, "more than five at once");
    ensure!(gauges.done == MESSAGES as usize, "{} of {MESSAGES} jobs", gauges.done);
    Ok(())
}
