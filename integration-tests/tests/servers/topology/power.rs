//! What is left of confirmed sends when the server loses its power.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use integration_tests::equipment::power::Power;
use integration_tests::equipment::redis_8;
use integration_tests::eventually;
use integration_tests::server::Server;
use millstream::{Durability, Millstream, Producer, Topic};

const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(1);
const LOG: &str = "stream:topic:{numbers:p:0}";
/// Senders that wait for the disk, which is synced once a second.
const PATIENT: usize = 8;

/// Sends until it is to stop, and counts what is confirmed. Returns the ids.
fn sender(
    producer: &Producer<u64>,
    durability: Durability,
    stop: &Arc<AtomicBool>,
    count: &Arc<AtomicUsize>,
) -> tokio::task::JoinHandle<Vec<String>> {
    let (producer, stop, count) = (producer.clone(), stop.clone(), count.clone());
    tokio::spawn(async move {
        let mut confirmed = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            // The server dies in the middle of some.
            if let Ok(sent) = producer.send(&1).durability(durability).await {
                confirmed.push(sent.id.to_string());
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        confirmed
    })
}

/// With `appendfsync everysec`, `Fsynced` loses nothing, and `Stored` what came after the last sync. (It fails on Valkey, which
/// answers `WAITAOF` before the file is synced.)
#[tokio::test(flavor = "multi_thread")]
async fn what_waited_for_the_disk_survives_the_loss_of_power_and_what_did_not_may_be_lost() {
    let power = Power::new();
    let (name, library) = power.env();
    // `redis-server` 7.0 has no WAITAOF.
    let start = || {
        let server = Server::builder().program(redis_8()).appendonly(true).arg("--appendfsync", "everysec");
        server.env(name, library).start()
    };
    let mut server = tokio::task::block_in_place(start);
    let (mut stored, mut synced, mut lost) = ((0, 0), (0, 0), 0);
    for round in 0..3 {
        let producer = Millstream::connect(&server.url()).await.expect("connected").producer(NUMBERS).await;
        let producer = producer.expect("a producer");
        let stop = Arc::new(AtomicBool::new(false));
        let (quick, patient) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let of_stored = sender(&producer, Durability::Stored, &stop, &quick);
        let of_synced: Vec<_> =
            (0..PATIENT).map(|_| sender(&producer, Durability::Fsynced, &stop, &patient)).collect();
        eventually(async || patient.load(Ordering::Relaxed) >= 2 * PATIENT, "sends wait for the disk").await;
        // A message that is confirmed now comes behind a sync of which a patient sender was told.
        let told = quick.load(Ordering::Relaxed);
        eventually(async || quick.load(Ordering::Relaxed) > told + 10, "messages behind the sync").await;
        lost += tokio::task::block_in_place(|| {
            server.kill();
            let lost = power.lose(server.dir());
            server.restart();
            lost
        });
        stop.store(true, Ordering::Relaxed);
        let of_stored = of_stored.await.expect("a task");
        let mut ids = Vec::new();
        for sender in of_synced {
            ids.extend(sender.await.expect("a task"));
        }
        let log = server.cli(&["XRANGE", LOG, "-", "+"]);
        let left: HashSet<&str> = log.lines().collect();
        let is_left = |id: &String| left.contains(id.as_str());
        let count = |confirmed: &[String], (all, missing): &mut (usize, usize)| {
            *all += confirmed.len();
            *missing += confirmed.iter().filter(|id| !is_left(id)).count();
        };
        count(&of_stored, &mut stored);
        count(&ids, &mut synced);
        producer.close().await;
        println!("round {round}: stored {stored:?}, fsynced {synced:?} (confirmed, lost); {lost} bytes lost");
    }
    assert_eq!(synced.1, 0, "of {} messages that waited for the disk", synced.0);
    assert!(stored.1 > 0, "no power was lost: of {} messages that did not wait, all are left", stored.0);
}
