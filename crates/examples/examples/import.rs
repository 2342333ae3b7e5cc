//! A long import: a bar while it lasts, and its count at the end, for whoever asked for it. A second one is cancelled halfway.
//!
//! ```sh
//! cargo run --example import
//! cargo run --example import -- --url redis://127.0.0.1
//! ```
//!
//! The worker says how far it is as often as it likes: that is stored four times a second at most, and only where the sender asks for the
//! result. While it runs, `millstream message follow ID` shows the same in any other process.

use std::time::{Duration, SystemTime};

use anyhow::{Result, bail, ensure};
use millstream::admin::CancelState;
use millstream::{Delivery, Followed, Millstream, Reply, Topic};
use serde::{Deserialize, Serialize};

/// A file with this many rows.
#[derive(Serialize, Deserialize)]
struct Import {
    file: String,
    rows: u64,
}

const IMPORTS: Topic<Import> = Topic::new("imports").partitions(2);
/// Rows that are written in one transaction.
const PAGE: u64 = 10_000;

/// The worker. What takes time here is a pause in the place of a database.
async fn import(import: Delivery<Import>) -> Result<Reply, String> {
    let Import { file, rows } = &import.payload;
    import.log(&format!("reading {file}"));
    for done in (0..*rows).step_by(PAGE as usize) {
        if import.is_cancelled() {
            return Err(format!("stopped behind {done} rows"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        import.progress((done + PAGE) as f64 / *rows as f64, "");
        if (done + PAGE).is_multiple_of(25 * PAGE) {
            import.log(&format!("{} rows", done + PAGE));
        }
    }
    Ok(Reply::json(rows))
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let url = match (args.next().as_deref(), args.next()) {
        (None, _) => "memory://".to_owned(),
        (Some("--url"), Some(url)) => url,
        _ => bail!("usage: import [--url URL]"),
    };
    // Runs on one server do not meet.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
    let mq = Millstream::at(&url).namespace(format!("import-{run}")).await?;
    let worker = mq.consumer(IMPORTS, "importers").start(import).await?;
    let imports = mq.producer(IMPORTS).await?;

    let file = Import { file: "flights.csv".into(), rows: 1_000_000 };
    let requested = imports.send(&file).reply::<u64>().begin().await?;
    println!("{}", requested.id);
    let (mut follow, mut last, mut lines) = (requested.follow(), 0.0, 0);
    while let Some(followed) = follow.next().await? {
        if let Followed::Progress(line) = followed {
            let done = line.fraction.unwrap_or_default();
            ensure!(done >= last, "it goes on: {last} and then {line}");
            let bar = "#".repeat((done * 40.0) as usize);
            println!("[{bar:<40}] {line}");
            (last, lines) = (done, lines + 1);
        }
    }
    ensure!(last == 1.0, "the last line says that all is done: {last}");
    ensure!((4..=25).contains(&lines), "{lines} lines, of a hundred pages");
    let rows = requested.within(Duration::from_secs(5)).await?;
    ensure!(rows == 1_000_000, "{rows} rows");
    println!("{rows} rows are imported");

    // The same once more, until somebody changes his mind.
    let requested = imports.send(&file).reply::<u64>().begin().await?;
    let mut follow = requested.follow();
    while let Some(Followed::Progress(line)) = follow.next().await? {
        if line.fraction.is_some_and(|done| done >= 0.5) {
            break;
        }
    }
    let ends = mq.cancel(&requested.id).await?;
    ensure!(ends[0].state == CancelState::Stopped, "{ends:?}");
    let error = requested.within(Duration::from_secs(5)).await.err().map(|error| error.to_string());
    println!("the second one is {}: {}", ends[0].state.as_str(), error.unwrap_or_default());
    worker.shutdown().await;
    Ok(())
}
