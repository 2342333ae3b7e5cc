//! Fair tenants: one floods a topic, and the others do not wait behind it.
//!
//! ```sh
//! cargo run --release --example fair
//! cargo run --release --example fair -- --url redis://127.0.0.1
//! ```
//!
//! A quiet tenant sends a message every 25 ms: first alone, then while another one has flooded the topic. Then two that flood it share the
//! handlers 3 to 1 by time, though the messages of the one take five times as long.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use millstream::{Concurrency, Delivery, Fairness, Millstream, Producer, Record, Topic};

const JOBS: Topic<String> = Topic::new("jobs").partitions(4);
const HANDLERS: usize = 8;

/// What handlers noted.
#[derive(Default)]
struct Notes {
    /// When each message of the quiet tenant began.
    begun: HashMap<String, Instant>,
    /// Time in handlers by tenant.
    served: HashMap<Bytes, Duration>,
}

async fn send(producer: &Producer<String>, tenant: &str, names: &[String]) -> Result<()> {
    let record = |name| Record::new(name).header("x-tenant", tenant);
    for sent in producer.send_all(names.iter().map(record)).await {
        sent?;
    }
    Ok(())
}

/// Sends a message of the quiet tenant every 25 ms, and returns how long they waited once they were stored, the shortest first.
async fn waits(producer: &Producer<String>, notes: &Mutex<Notes>, what: &str) -> Result<Vec<Duration>> {
    let mut sent = HashMap::new();
    for n in 0..40 {
        let name = format!("{what}-{n}");
        send(producer, "quiet", std::slice::from_ref(&name)).await?;
        sent.insert(name, Instant::now());
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let begun = || notes.lock().expect("no handler panics").begun.clone();
    let limit = Instant::now() + Duration::from_secs(60);
    while sent.keys().any(|name| !begun().contains_key(name)) {
        ensure!(Instant::now() < limit, "a quiet tenant waits behind the flood");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let begun = begun();
    let mut waits: Vec<_> =
        sent.iter().map(|(name, sent)| begun[name].saturating_duration_since(*sent)).collect();
    waits.sort_unstable();
    println!("{what:<28} half within {:>6.2?}, all within {:>6.2?}", waits[20], waits[39]);
    Ok(waits)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => "memory://".to_owned(),
        [option, url] if option == "--url" => url.clone(),
        _ => bail!("usage: fair [--url URL]"),
    };
    // Runs on one server do not meet.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
    let mq = Millstream::at(url).namespace(format!("fair-{run}")).await?;
    let producer = mq.producer(JOBS).await?;
    let notes: Arc<Mutex<Notes>> = Arc::default();
    let noted = notes.clone();
    let consumer = mq
        .consumer(JOBS, "workers")
        .concurrency(Concurrency::Unordered(HANDLERS))
        .fair_by(Fairness::by_header("x-tenant").weight(|tenant| if tenant == b"gold" { 3 } else { 1 }))
        .start(move |job: Delivery<String>| {
            let (noted, begun) = (noted.clone(), Instant::now());
            async move {
                let tenant = job.headers().get("x-tenant").cloned().unwrap_or_default();
                if tenant == "quiet" {
                    noted.lock().expect("no handler panics").begun.insert(job.payload.clone(), begun);
                }
                tokio::time::sleep(Duration::from_millis(if tenant == "slow" { 25 } else { 5 })).await;
                let mut noted = noted.lock().expect("no handler panics");
                *noted.served.entry(tenant).or_default() += begun.elapsed();
            }
        })
        .await?;

    waits(&producer, &notes, "alone").await?;
    let flood: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
    let (flooded, waited) =
        tokio::join!(send(&producer, "flood", &flood), waits(&producer, &notes, "while the flood comes"));
    flooded?;
    waited?;
    waits(&producer, &notes, "beside the flood").await?;

    send(&producer, "gold", &flood[..40_000]).await?;
    send(&producer, "slow", &flood[..10_000]).await?;
    // Everything that waits is known by now.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let served = || notes.lock().expect("no handler panics").served.clone();
    let before = served();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = served();
    let of = |tenant: &'static str| {
        let tenant = Bytes::from_static(tenant.as_bytes());
        let time = |at: &HashMap<Bytes, Duration>| at.get(&tenant).copied().unwrap_or_default();
        (time(&after) - time(&before)).as_secs_f64()
    };
    let share = of("gold") / of("slow");
    println!("{:<28} {share:.2} times the handler time of weight 1", "weight 3");
    consumer.shutdown().await;
    ensure!((2.7..=3.3).contains(&share), "{share} and not 3");
    Ok(())
}
