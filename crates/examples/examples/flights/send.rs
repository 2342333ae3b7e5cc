//! How departures are sent.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use millstream::{Durability, ErrorKind, Producer, Record};

use crate::board::Board;
use crate::events::Departure;
use crate::progress::Progress;

/// How many events are sent per call: enough for full batches, few enough for a lively progress line.
const CHUNK: usize = 2_000;
/// How many aircraft are sent for at a time, where each send is awaited.
const AIRCRAFT: usize = 512;
/// For how long a send is repeated.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Sends all departures, so that those of one aircraft are stored in order. Returns how many sends were repeated.
pub(crate) async fn send(
    producer: &Producer<Departure>,
    departures: &[Departure],
    durability: Durability,
    board: &Board,
    progress: &mut Progress,
) -> Result<u64> {
    if durability == Durability::Stored {
        in_bulk(producer, departures, board, progress).await?;
        return Ok(0);
    }
    one_by_one(producer, departures, board, progress).await
}

/// Sends in large batches. Ends with the first failure: what came behind it may be stored.
async fn in_bulk(
    producer: &Producer<Departure>,
    departures: &[Departure],
    board: &Board,
    progress: &mut Progress,
) -> Result<()> {
    for chunk in departures.chunks(CHUNK) {
        for sent in producer.send_all(chunk.iter().map(record)).await {
            sent.context("sending")?;
            board.produced();
        }
        progress.show(board);
    }
    Ok(())
}

/// Sends many aircraft's departures side by side, and each departure only when the one before it is confirmed. So a send
/// can be repeated: nothing of its aircraft has come behind it. It may then be stored twice.
async fn one_by_one(
    producer: &Producer<Departure>,
    departures: &[Departure],
    board: &Board,
    progress: &mut Progress,
) -> Result<u64> {
    let mut by_aircraft: Vec<Vec<&Departure>> = Vec::new();
    let mut known: HashMap<&str, usize> = HashMap::new();
    for departure in departures {
        let at = match &departure.tail {
            Some(tail) => *known.entry(tail).or_insert(by_aircraft.len()),
            None => by_aircraft.len(),
        };
        if at == by_aircraft.len() {
            by_aircraft.push(Vec::new());
        }
        by_aircraft[at].push(departure);
    }
    let alone = &AtomicBool::new(false);
    let sends = by_aircraft.into_iter().map(|of_one| async move {
        let mut repeated = 0;
        for departure in of_one {
            repeated += send_once(producer, departure, alone).await?;
            board.produced();
        }
        anyhow::Ok(repeated)
    });
    let mut ends = stream::iter(sends).buffer_unordered(AIRCRAFT);
    let mut repeated = 0;
    while let Some(more) = ends.try_next().await? {
        repeated += more;
        progress.show(board);
    }
    Ok(repeated)
}

/// Sends a departure until that is confirmed. Returns how often the send was repeated.
///
/// A primary that has taken over may have no replica left, and then nothing can be confirmed before somebody adds one. So
/// after the second attempt that ended so, nobody waits for replicas any more (`alone`): a further failure could lose what
/// is sent from then on.
async fn send_once(producer: &Producer<Departure>, departure: &Departure, alone: &AtomicBool) -> Result<u64> {
    let begun = Instant::now();
    let (mut repeated, mut unconfirmed) = (0, 0);
    loop {
        let record = record(departure);
        let record = if alone.load(Relaxed) { record.durability(Durability::Stored) } else { record.into() };
        let sent = producer.send_all([record]).await.pop().context("no result")?;
        match sent {
            Ok(_) => return Ok(repeated),
            Err(error) if begun.elapsed() > TIME_LIMIT => return Err(error).context("sending"),
            Err(error) => match error.kind() {
                ErrorKind::Unavailable => {}
                ErrorKind::Unconfirmed => {
                    unconfirmed += 1;
                    if unconfirmed == 2 && !alone.swap(true, Relaxed) {
                        eprintln!(
                            "from now on messages are only stored, since they are not confirmed: {error}"
                        );
                    }
                }
                _ => return Err(error).context("sending"),
            },
        }
        repeated += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn record(departure: &Departure) -> Record<'_, Departure> {
    match &departure.tail {
        Some(tail) => Record::new(departure).key(tail),
        // The aircraft is not known: any partition will do.
        None => Record::new(departure),
    }
}
