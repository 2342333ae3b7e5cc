//! Figures of the documentation. They are no tests of time: each prints what it measured.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use millstream_core::idempotency::Operation;

use crate::tests::support::{Place, operation, run};
use crate::{Cleaner, Inbox, Once, Tx};

/// Messages per second of the batched inbox: 400 batches of 500, by two tasks.
async fn batches(place: Place) {
    let (inbox, began) = (place.inbox(), Instant::now());
    let tasks: Vec<_> = (0..2)
        .map(|task| {
            let inbox = inbox.clone();
            tokio::spawn(async move {
                for batch in 0..200 {
                    let ids: Vec<_> =
                        (0..500).map(|id| operation(&format!("{task}-{batch}-{id:032}"))).collect();
                    let work = async |_: Tx, fresh: Vec<usize>| Ok::<_, Infallible>(fresh.len());
                    let done = inbox.once_all(&ids, None, work).await.unwrap();
                    assert!(matches!(done, Once::First((_, 500))));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    println!(
        "{}: {:.0} messages/s",
        place.url.split(':').next().unwrap(),
        200_000.0 / began.elapsed().as_secs_f64()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures: run it by name, in release"]
async fn batched_inbox() {
    batches(Place::postgres().await.ready().await).await;
    batches(Place::sqlite().await.ready().await).await;
}

async fn inserts(inbox: &Inbox, count: u32, name: &str) -> Duration {
    let mut times = Vec::new();
    for number in 0..count {
        let operation: Operation = operation(&format!("{name}-{number}"));
        let began = Instant::now();
        inbox.once(&operation, None, async |_: Tx| Ok::<_, Infallible>(())).await.unwrap();
        times.push(began.elapsed());
        // An open loop of about 500 a second, so that the cleaning has as much time in each round.
        tokio::time::sleep(Duration::from_millis(2).saturating_sub(began.elapsed())).await;
    }
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!("{name}: p50 {:?}, p99 {:?}, max {:?}", at(0.5), at(0.99), at(1.0));
    at(0.99)
}

/// The 99th percentile of single inserts, without and with cleaning, three times each in turn, beside `MILLSTREAM_ROWS` (default:
/// a million) rows, all of which have expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures: run it by name, in release"]
async fn inserts_while_cleaning() {
    let rows: u64 = std::env::var("MILLSTREAM_ROWS").map_or(1_000_000, |text| text.parse().unwrap());
    let place = Place::postgres().await.ready().await;
    let mut tx = place.database.begin().await.unwrap();
    run(
        &mut tx,
        &format!(
            "INSERT INTO millstream_inbox SELECT 'millstream/orders/billing', md5(n::text)::bytea, 0, NULL, \
             now() - interval '1 day' + n * interval '1 ms' FROM generate_series(1, {rows}) AS n"
        ),
    )
    .await;
    tx.commit().await.unwrap();
    let inbox = place.inbox();
    inserts(&inbox, 500, "warm").await;
    let (mut calm, mut busy) = (Vec::new(), Vec::new());
    for round in 0..3 {
        calm.push(inserts(&inbox, 4_000, &format!("without {round}")).await);
        let cleaner = Cleaner::new(&place.database);
        let before = place.number("SELECT count(*) FROM millstream_inbox").await;
        let cleaning = tokio::spawn(async move { cleaner.run().await });
        busy.push(inserts(&inbox, 4_000, &format!("while cleaning {round}")).await);
        cleaning.abort();
        let deleted = before + 4_000 - place.number("SELECT count(*) FROM millstream_inbox").await;
        println!("deleted {deleted}");
        assert!(deleted > 0, "nothing was cleaned meanwhile");
    }
    calm.sort_unstable();
    busy.sort_unstable();
    println!(
        "{rows} rows: p99 {:?} without, {:?} while cleaning: {:.2}x",
        calm[1],
        busy[1],
        busy[1].as_secs_f64() / calm[1].as_secs_f64()
    );
}
