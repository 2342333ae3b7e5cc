//! A breaker: the service that handlers call is away for a while, and no message becomes a dead letter.
//!
//! ```sh
//! cargo run --example breaker
//! cargo run --example breaker -- --url redis://127.0.0.1
//! ```
//!
//! Two consumers stand for two processes. Each message has three attempts within half a second, so without the breaker an outage of two
//! seconds would make dead letters of all that are handled meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail, ensure};
use millstream::{Breaker, Concurrency, Consumer, Delivery, Fixed, Limit, Millstream, Topic};

const CHARGES: Topic<u64> = Topic::new("charges").partitions(4);
const MESSAGES: u32 = 600;
const OUTAGE: Duration = Duration::from_secs(2);
const OPEN: Duration = Duration::from_millis(400);
const CALLS: u32 = 20;
const AT_ONCE: u32 = 8;

/// The service, and what became of calls.
#[derive(Default)]
struct Service {
    is_away: AtomicBool,
    failed: AtomicU32,
    done: AtomicU32,
    attempts: AtomicU32,
}

impl Service {
    async fn charge(&self, charge: &Delivery<u64>) -> Result<()> {
        tokio::time::sleep(Duration::from_millis(5)).await;
        if self.is_away.load(Ordering::Relaxed) {
            self.failed.fetch_add(1, Ordering::Relaxed);
            bail!("503 Service Unavailable");
        }
        self.attempts.fetch_add(charge.attempt() - 1, Ordering::Relaxed);
        self.done.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    async fn until(&self, done: u32) {
        while self.done.load(Ordering::Relaxed) < done {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn work(mq: &Millstream, service: &Arc<Service>) -> Result<Consumer> {
    let service = service.clone();
    let consumer = mq
        .consumer(CHARGES, "charging")
        .concurrency(Concurrency::Unordered(AT_ONCE as usize))
        .retry(Fixed::new(Duration::from_millis(200)).attempts(3))
        .limit(Limit::global("payments").breaker(Breaker::new().calls(CALLS).open_for(OPEN)))
        .start(move |charge: Delivery<u64>| {
            let service = service.clone();
            async move { service.charge(&charge).await }
        })
        .await?;
    Ok(consumer)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => "memory://".to_owned(),
        [option, url] if option == "--url" => url.clone(),
        _ => bail!("usage: breaker [--url URL]"),
    };
    // Runs on one server do not meet.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
    let mq = Millstream::at(url).namespace(format!("breaker-{run}")).await?;
    let producer = mq.producer(CHARGES).await?;
    let service = Arc::new(Service::default());
    let consumers = [work(&mq, &service).await?, work(&mq, &service).await?];
    for n in 0..u64::from(MESSAGES / 2) {
        producer.send(&n).await?;
    }
    service.until(MESSAGES / 2).await;

    service.is_away.store(true, Ordering::Relaxed);
    for n in 0..u64::from(MESSAGES / 2) {
        producer.send(&n).await?;
    }
    tokio::time::sleep(OUTAGE).await;
    // As `millstream limits list` shows it.
    for open in mq.admin().open_breakers().await? {
        println!("{} is open: {}", open.key, open.reason);
    }
    service.is_away.store(false, Ordering::Relaxed);
    let back = Instant::now();
    service.until(MESSAGES).await;
    let took = back.elapsed();
    let mut dead = 0;
    for consumer in consumers {
        dead += consumer.shutdown().await.dead;
    }

    let (failed, attempts) =
        (service.failed.load(Ordering::Relaxed), service.attempts.load(Ordering::Relaxed));
    println!("{:<28}{failed:>8}", "calls that failed");
    println!("{:<28}{attempts:>8}", "attempts that were used");
    println!("{:<28}{dead:>8}", "dead letters");
    println!("{:<28}{:>5} ms", "all done after the outage", took.as_millis());
    // What opens it in each consumer, and one for each time that it stays open; what ran then is no attempt.
    let tries = (OUTAGE.as_millis() / OPEN.as_millis()) as u32 + 2;
    ensure!(attempts <= 2 * CALLS + tries, "{attempts} attempts");
    ensure!(dead == 0, "{dead} dead letters");
    Ok(())
}
