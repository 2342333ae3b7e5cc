//! Two clients delete the same: the slower one removes nothing that was created since.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_core::catalog::{Catalog, Start};
use millstream_core::topic::TopicSpec;
use millstream_redis::{RedisBackend, RedisConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::deleting::{differing, everything, fill, group, spec};
use crate::server::Bench;

/// A way to the server on which one request waits until it is let go.
struct Slow {
    backend: RedisBackend,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    /// How many requests pass before the one that waits; below 0 it was there.
    left: AtomicI64,
    /// The one that waits.
    held: Mutex<String>,
    here: Notify,
    go: Notify,
}

impl Slow {
    async fn new(bench: &Bench) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let server = bench.url.trim_start_matches("redis://").to_owned();
        let gate = Arc::new(Gate { left: AtomicI64::new(-1), ..Gate::default() });
        let at_gate = gate.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.expect("the server");
                tokio::spawn(carry(client, server, at_gate.clone()));
            }
        });
        let config = RedisConfig::new(format!("redis://127.0.0.1:{port}"));
        let backend = RedisBackend::connect(config.with_namespace(bench.namespace.clone())).await;
        Self { backend: backend.expect("a backend"), gate }
    }
}

async fn carry(client: TcpStream, server: TcpStream, gate: Arc<Gate>) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
    let mut request = vec![0; 1 << 20];
    while let Ok(length @ 1..) = from_client.read(&mut request).await {
        // Not what keeps connections alive.
        let counts = !request[..length].windows(8).any(|part| part == b"\r\nPING\r\n");
        if counts && gate.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            *gate.held.lock().expect("a lock") = String::from_utf8_lossy(&request[..length]).into_owned();
            gate.here.notify_one();
            gate.go.notified().await;
        }
        if to_server.write_all(&request[..length]).await.is_err() {
            break;
        }
    }
}

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
