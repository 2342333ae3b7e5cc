//! Clients that are slow, or that guess passwords.

use std::time::Duration;

use axum::http::{Request, StatusCode};
use millstream::Millstream;
use millstream_dashboard::{Users, dashboard};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Connects to a server of its own, and sends this.
async fn send(text: &str) -> (millstream_dashboard::Server, TcpStream) {
    let mq = Millstream::connect("memory://").await.expect("a queue");
    let server = dashboard(mq)
        .trust_loopback(true)
        .serve("127.0.0.1:0".parse().expect("an address"))
        .await
        .expect("it serves");
    let mut stream = TcpStream::connect(server.address()).await.expect("it listens");
    stream.write_all(text.as_bytes()).await.expect("sent");
    (server, stream)
}

async fn answer(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let limit = Duration::from_secs(120);
    timeout(limit, stream.read_to_end(&mut bytes)).await.expect("it ends").expect("read");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn a_request_is_answered_and_the_server_stops() {
    let (server, mut stream) =
        send("GET /overview HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
    assert!(answer(&mut stream).await.starts_with("HTTP/1.1 200 OK"));
    server.shutdown().await;
}

#[tokio::test]
async fn a_connection_that_stays_open_does_not_keep_the_server() {
    let (server, mut stream) = send("GET /overview HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let mut first = [0; 15];
    stream.read_exact(&mut first).await.expect("an answer");
    assert_eq!(&first, b"HTTP/1.1 200 OK");
    server.shutdown().await;
    answer(&mut stream).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_send_its_request_is_cut_off() {
    let (server, mut stream) = send("GET /overview HTTP/1.1\r\nhost: loc").await;
    answer(&mut stream).await;
    server.shutdown().await;
    let body = "POST /topics/t/groups/g/pause HTTP/1.1\r\nhost: localhost\r\nsec-fetch-site: same-origin\r\n\
                content-type: application/x-www-form-urlencoded\r\ncontent-length: 10\r\n\r\na=";
    let (server, mut stream) = send(body).await;
    let answer = answer(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    server.shutdown().await;
}

#[tokio::test]
async fn where_others_share_the_loopback_it_is_not_trusted() {
    let mq = Millstream::connect("memory://").await.expect("a queue");
    let address = "127.0.0.1:0".parse().expect("an address");
    let refused = dashboard(mq.clone()).trust_loopback(false).serve(address).await.expect_err("it refuses");
    assert!(refused.to_string().contains("others share the loopback"), "{refused}");
    let server = dashboard(mq).trust_loopback(true).serve(address).await.expect("it serves");
    assert!(server.address().ip().is_loopback());
    server.shutdown().await;
}

#[tokio::test]
async fn a_client_with_many_connections_leaves_room_for_others() {
    let mq = Millstream::connect("memory://").await.expect("a queue");
    let address = "127.0.0.1:0".parse().expect("an address");
    let server = dashboard(mq).trust_loopback(true).serve(address).await.expect("it serves");
    let mut open = Vec::new();
    for _ in 0..520 {
        open.push(TcpStream::connect(server.address()).await.expect("it listens"));
    }
    // Those that are too many are closed, and the first ones are not.
    let mut last = open.pop().expect("the last one");
    let mut nothing = [0];
    let read = timeout(Duration::from_secs(15), last.read(&mut nothing)).await.expect("it is closed");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    let request = b"GET /overview HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    open[0].write_all(request).await.expect("sent");
    assert!(answer(&mut open[0]).await.starts_with("HTTP/1.1 200 OK"));
    let other = tokio::net::TcpSocket::new_v4().expect("a socket");
    other.bind("127.0.0.2:0".parse().expect("an address")).expect("another address");
    let mut other = other.connect(server.address()).await.expect("it listens");
    other.write_all(request).await.expect("sent");
    assert!(answer(&mut other).await.starts_with("HTTP/1.1 200 OK"));
    server.shutdown().await;
}

#[tokio::test]
async fn who_guesses_passwords_has_to_wait() {
    use base64::Engine as _;
    let mq = Millstream::connect("memory://").await.expect("a queue");
    let users = Users::parse("ann admin aaaaaaaaaaaa").expect("users");
    let router = dashboard(mq).users(users).router();
    let ask = async |credentials: &str| {
        let encoded = base64::engine::general_purpose::STANDARD.encode(credentials);
        let request = Request::get("/overview").header("authorization", format!("Basic {encoded}"));
        let request = request.body(axum::body::Body::empty()).expect("a request");
        tower::ServiceExt::oneshot(router.clone(), request).await.expect("it cannot fail").status()
    };
    assert_eq!(ask("ann:aaaaaaaaaaaa").await, StatusCode::OK);
    let mut refused = 0;
    for _ in 0..60 {
        refused += usize::from(ask("ann:wrong").await == StatusCode::TOO_MANY_REQUESTS);
    }
    assert!(refused > 20, "{refused} of 60");
}
