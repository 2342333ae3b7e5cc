//! Two clients delete the same: the slower one removes nothing that was created since.

use std::sync::atomic::Ordering;
use std::time::Duration;

use millstream_core::catalog::{Catalog, Start};
use millstream_core::topic::TopicSpec;

use crate::deleting::{differing, everything, fill, group, spec};
use crate::server::Bench;
use crate::server::slow::Slow;

/// One is held up before each of its requests in turn; meanwhile another one deletes the same, and somebody creates it
/// again. Gives back how many requests a deletion has, and how many of them were looked at.
async fn each_in_turn(bench: &mut Bench, slow: &Slow, flights: &TopicSpec, of_topic: bool) -> (i64, usize) {
    let (mut at, mut looked) = (0, 0);
    loop {
        fill(bench, flights, "billing").await;
        fill(bench, flights, "audit").await;
        slow.gate.left.store(at, Ordering::SeqCst);
        let (backend, name) = (slow.backend.clone(), flights.name.clone());
        let deletes = tokio::spawn(async move {
            if of_topic {
                backend.delete_topic(&name).await
            } else {
                backend.delete_group(&name, &group("billing")).await
            }
        });
        let held = tokio::select! {
            biased;
            () = slow.gate.here.notified() => slow.gate.held.lock().expect("a lock").clone(),
            () = tokio::time::sleep(Duration::from_secs(30)) => panic!("neither held up nor done"),
            () = async { while !deletes.is_finished() { tokio::task::yield_now().await } } => String::new(),
        };
        if held.is_empty() {
            // It was done before so many requests.
            assert!(deletes.await.expect("no panic").expect("deleted"));
            return (at, looked);
        }
        let marked = if of_topic {
            bench.int(&format!("HEXISTS {} deletion", bench.keys.topic_meta(&flights.name))).await
        } else {
            bench
                .int(&format!(
                    "HEXISTS {} deletion",
                    bench.keys.group_state(&flights.name, &group("billing"))
                ))
                .await
        };
        if of_topic {
            assert!(bench.backend.delete_topic(&flights.name).await.expect("deleted"));
        } else {
            assert!(bench.backend.delete_group(&flights.name, &group("billing")).await.expect("deleted"));
        }
        fill(bench, flights, "billing").await;
        let before = everything(bench).await;
        slow.gate.go.notify_one();
        let said = deletes.await.expect("no panic").expect("an answer");
        // What has not begun is a deletion of what is there now. And a request that takes something away and is under way
        // already is not called back: it was asked right before whether the deletion is still the same.
        let takes = ["UNLINK", "SREM", "XGROUP", "XADD", "SADD"]
            .iter()
            .any(|word| held.contains(&format!("\r\n{word}\r\n")));
        // A script that takes partitions from their owners.
        let takes = takes || held.contains(redis::Script::new(&millstream_lua::DISOWN.checked()).get_hash());
        if marked == 1 && !takes {
            assert!(said, "held up before {held}");
            let lost = differing(&before, &everything(bench).await);
            assert_eq!(lost, [""; 0], "held up before {held}");
            looked += 1;
        }
        bench.backend.delete_topic(&flights.name).await.expect("deleted");
        at += 1;
    }
}

#[tokio::test]
async fn who_deletes_a_topic_slowly_takes_nothing_from_the_next_one() {
    let mut bench = Bench::private(&[]).await;
    let (slow, flights) = (Slow::new(&bench).await, spec("flights", 2));
    let (requests, looked) = each_in_turn(&mut bench, &slow, &flights, true).await;
    assert!(looked >= 6, "{looked} of {requests} requests");
}

#[tokio::test]
async fn who_deletes_a_group_slowly_takes_nothing_from_the_next_one() {
    let mut bench = Bench::private(&[]).await;
    let (slow, flights) = (Slow::new(&bench).await, spec("flights", 2));
    let (requests, looked) = each_in_turn(&mut bench, &slow, &flights, false).await;
    assert!(looked >= 3, "{looked} of {requests} requests");
}

/// The list of topics is in another slot: taken off it too late, the next topic is put there again.
#[tokio::test]
async fn a_topic_that_was_created_since_is_listed() {
    let mut bench = Bench::private(&[]).await;
    let (slow, flights) = (Slow::new(&bench).await, spec("flights", 2));
    let mut at = 0;
    loop {
        fill(&mut bench, &flights, "billing").await;
        slow.gate.left.store(at, Ordering::SeqCst);
        let (backend, name) = (slow.backend.clone(), flights.name.clone());
        let deletes = tokio::spawn(async move { backend.delete_topic(&name).await });
        slow.gate.here.notified().await;
        let listed = slow.gate.held.lock().expect("a lock").contains("\r\nSREM\r\n");
        if listed {
            assert!(bench.backend.delete_topic(&flights.name).await.expect("deleted"));
            bench.backend.create_topic(&flights).await.expect("created");
        }
        slow.gate.go.notify_one();
        assert!(deletes.await.expect("no panic").expect("deleted"));
        if listed {
            break;
        }
        at += 1;
    }
    assert!(bench.backend.topics().await.expect("topics").contains(&flights.name));
    bench.backend.create_group(&flights, &group("billing"), Start::Earliest).await.expect("created");
}
