//! Departures from New York, through the whole life of a message.
//!
//! ```text
//! cargo run --release --example flights                               # the sample, on a queue in memory
//! cargo run --release --example flights -- --url redis://127.0.0.1    # the same on Redis
//! cargo run --release --example flights -- --url redis+cluster://127.0.0.1:7000   # on a cluster with replicas
//! cargo run --release --example flights -- path/to/flights.jsonl.gz   # another file: JSON lines, gzipped or not
//! ```
//!
//! Every line is a departure. It is sent under its aircraft's tail number, so that the departures of one aircraft
//! stay in order. The group `board` handles them: one in a hundred fails at the first attempt and comes back;
//! cancelled flights are given up and become dead letters. Then somebody "fixes" the board, the dead letters are
//! replayed, and everything must be accounted for. On a cluster or under Sentinels each send waits for a replica
//! (`--durability replicated:1`) and is repeated if none has confirmed it: a server can be killed in the middle. The data is CC0: departures of 2013, published by the U.S.
//! Bureau of Transportation Statistics.

mod board;
mod events;
mod progress;
mod send;
mod table;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use millstream::{DeadLetter, Durability, Event, Exponential, Millstream, Reason, Topic};

use board::Board;
use events::Departure;
use progress::Progress;

const GROUP: &str = "board";

struct Options {
    path: Option<PathBuf>,
    url: String,
    partitions: u32,
    durability: Durability,
}

const USAGE: &str =
    "usage: flights [PATH] [--url URL] [--partitions N] [--durability stored|fsynced|replicated:N]";

fn options() -> Result<Options> {
    let (mut path, mut url, mut partitions, mut durability) = (None, "memory://".to_owned(), 8, None);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--url" => url = args.next().context("--url needs a value")?,
            "--partitions" => {
                let value = args.next().context("--partitions needs a value")?;
                partitions = value.parse().context("--partitions needs a number")?;
            }
            "--durability" => {
                durability = Some(args.next().context("--durability needs a value")?.parse()?);
            }
            "--help" | "-h" => {
                println!("{USAGE}");
                std::process::exit(0);
            }
            other if other.starts_with('-') => bail!("unknown option {other}\n{USAGE}"),
            given => path = Some(given.into()),
        }
    }
    let fails_over = url.starts_with("redis+cluster") || url.starts_with("redis+sentinel");
    let default = if fails_over { Durability::Replicated(1) } else { Durability::Stored };
    Ok(Options { path, url, partitions, durability: durability.unwrap_or(default) })
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = options()?;
    let departures = events::read(options.path.as_deref())?;
    let cancelled: BTreeSet<usize> =
        departures.iter().filter(|departure| departure.is_cancelled()).map(|departure| departure.n).collect();
    println!("{} departures, {} of them cancelled", departures.len(), cancelled.len());

    let mq = Millstream::connect(&options.url).await.context("connecting")?.with_observer(complain);
    // A topic of its own for every run, so that runs on one server do not meet.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis();
    let flights =
        Topic::<Departure>::new("flights").named(format!("flights-{run}")).partitions(options.partitions);

    let board = Arc::new(Board::new(departures.len(), options.partitions as usize));
    let consumer = mq
        .consumer(flights.clone(), GROUP)
        .retry(Exponential::from(Duration::from_millis(20)).up_to(Duration::from_secs(1)).attempts(5))
        .start({
            let board = board.clone();
            move |departure| {
                let outcome = board.show(&departure);
                async move { outcome }
            }
        })
        .await?;

    let mut progress = Progress::new(departures.len());
    let started = Instant::now();
    let producer = mq.producer(flights.clone()).durability(options.durability).await?;
    let repeated = send::send(&producer, &departures, options.durability, &board, &mut progress).await?;
    producer.close().await;
    let produced_in = started.elapsed();

    settle(&board, departures.len(), &mut progress).await?;
    let handled_in = started.elapsed();

    let queue = mq.dead_letters(&flights, GROUP).await?;
    // The last dead letter was announced before it was stored.
    let time_limit = Instant::now() + Duration::from_secs(60);
    while queue.count().await? < cancelled.len() as u64 {
        ensure!(Instant::now() < time_limit, "a cancelled flight is not among the dead letters");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let letters = queue.list(usize::MAX).await?;
    check(&letters, &cancelled, &flights, repeated > 0)?;
    if let Some(letter) = letters.first() {
        println!("\na dead letter: {}", describe(letter));
    }
    board.fix();
    let replayed = queue.replay_all().await?;
    println!("the board is fixed, {replayed} dead letters are replayed\n");
    settle(&board, departures.len(), &mut progress).await?;
    progress.finish();
    let report = consumer.shutdown().await;

    let summary = table::Summary { board: &board, report, replayed, repeated, produced_in, handled_in };
    print!("{}", summary.render());
    let lost = board.lost();
    ensure!(lost == 0, "{lost} departures were lost");
    ensure!(board.violations() == 0, "{} departures came out of order", board.violations());
    ensure!(queue.count().await? == 0, "dead letters are left");
    Ok(())
}

/// Says what fails, and that it works again. A service logs it with `tracing`, or counts it.
fn complain(event: &Event<'_>) {
    match event {
        Event::Failing { operation, error, .. } => eprintln!("{operation} failed: {error}"),
        Event::Recovered { operation, .. } => eprintln!("{operation} works again"),
        _ => {}
    }
}

/// Waits until every departure is on the board or among the dead.
async fn settle(board: &Board, total: usize, progress: &mut Progress) -> Result<()> {
    let mut last = (Instant::now(), 0);
    while board.done() < total {
        progress.show(board);
        if board.touched() != last.1 {
            last = (Instant::now(), board.touched());
        }
        ensure!(last.0.elapsed() < Duration::from_secs(60), "nothing happened for a minute");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    progress.show(board);
    Ok(())
}

/// Every cancelled flight, and nothing else, is there, with everything that one needs to know: once, unless sends were
/// repeated.
fn check(
    letters: &[DeadLetter],
    cancelled: &BTreeSet<usize>,
    topic: &Topic<Departure>,
    repeated: bool,
) -> Result<()> {
    let mut found = BTreeSet::new();
    let name = topic.spec()?.name;
    for letter in letters {
        let envelope = letter.envelope(&millstream::Limits::default())?;
        let departure = topic.codec().decode(&envelope.payload).map_err(anyhow::Error::from_boxed)?;
        ensure!(found.insert(departure.n) || repeated, "departure {} is dead twice", departure.n);
        ensure!(letter.reason == Reason::Rejected, "reason {}", letter.reason);
        ensure!(letter.error == board::CANCELLED, "error {:?}", letter.error);
        ensure!(letter.attempts == 1, "{} attempts", letter.attempts);
        ensure!(letter.topic_partition.topic == name, "topic {}", letter.topic_partition);
        // Two streams count the messages of one millisecond each for itself.
        ensure!((1..=letter.id.ms).contains(&letter.origin.ms), "origin {}", letter.origin);
    }
    ensure!(found == *cancelled, "{} dead letters for {} cancelled flights", found.len(), cancelled.len());
    Ok(())
}

fn describe(letter: &DeadLetter) -> String {
    format!(
        "{} from {} after {} attempt: {:?} ({})",
        letter.origin, letter.topic_partition, letter.attempts, letter.error, letter.reason
    )
}
