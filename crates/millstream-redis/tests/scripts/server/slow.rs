//! A way to the server on which one request of a backend is held up.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use millstream_redis::{RedisBackend, RedisConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::Bench;

/// A way to the server on which one request waits until it is let go.
pub(crate) struct Slow {
    pub(crate) backend: RedisBackend,
    pub(crate) gate: Arc<Gate>,
}

#[derive(Default)]
pub(crate) struct Gate {
    /// How many requests pass before the one that waits; below 0 it was there.
    pub(crate) left: AtomicI64,
    /// The one that waits.
    pub(crate) held: Mutex<String>,
    pub(crate) here: Notify,
    pub(crate) go: Notify,
}

impl Slow {
    pub(crate) async fn new(bench: &Bench) -> Self {
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
