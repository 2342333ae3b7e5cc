//! A web service that enqueues: `POST /orders` stores an order and answers, and a consumer elsewhere bills it.
//!
//! ```sh
//! cargo run -p examples-web --example web                                        # starts, sends itself requests and SIGTERM, checks the result
//! cargo run -p examples-web --example web -- --url redis://127.0.0.1             # the same on Redis
//! cargo run -p examples-web --example web -- --listen 127.0.0.1:8080             # stays until SIGTERM or Ctrl-C
//! curl -i localhost:8080/orders -H 'content-type: application/json' -d '{"number":7,"customer":"ada","cents":1200}'
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header::RETRY_AFTER};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use millstream::{Delivery, Error, ErrorKind, Millstream, Producer, Sent, Topic};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

#[derive(Serialize, Deserialize)]
struct Order {
    number: u64,
    customer: String,
    cents: u64,
}

const ORDERS: Topic<Order> = Topic::new("orders").partitions(4);

/// A request ends within this time.
const HTTP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of a send. With the 5 s that the client waits for an answer to what it has sent, it stays below [`HTTP_TIMEOUT`]: the
/// result of a send is known before the request ends. The default is 30 s.
const SEND_TIMEOUT: Duration = Duration::from_secs(2);

/// State of the service. A producer is shared: clones are cheap, and the sends of all requests go together.
#[derive(Clone)]
struct Shop {
    orders: Producer<Order>,
}

async fn place(State(shop): State<Shop>, Json(order): Json<Order>) -> Response {
    // Made from what is sent: whoever repeats the request, also after a restart, stores nothing twice.
    let id = format!("order-{}", order.number);
    answer(shop.orders.send(&order).key(&order.customer).dedup(id).await)
}

/// Answer to a client.
fn answer(sent: millstream::Result<Sent>) -> Response {
    let error = match sent {
        Ok(sent) if sent.is_duplicate => return (StatusCode::OK, "stored before").into_response(),
        Ok(_) => return (StatusCode::ACCEPTED, "stored").into_response(),
        Err(error) => error,
    };
    match error.kind() {
        // Stored or not, nobody knows. The order has an id, so the same request can be repeated. Neither 202 nor "failed" would be true.
        ErrorKind::Unconfirmed => {
            let text = "it is not known whether the order was stored: repeat the request";
            (StatusCode::GATEWAY_TIMEOUT, [(RETRY_AFTER, "1")], text).into_response()
        }
        // Not stored: the server is away or full.
        _ if error.is_transient() => {
            (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "1")], "not stored: try again").into_response()
        }
        ErrorKind::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "the order is too large").into_response(),
        // The texts of errors are for the log of the service.
        _ => {
            tracing::error!(%error, "an order was not stored");
            (StatusCode::INTERNAL_SERVER_ERROR, "not stored").into_response()
        }
    }
}

/// Ends requests that take too long. It is the last resort: a send whose future is dropped may still be stored.
async fn limited(request: Request, next: Next) -> Response {
    let response = tokio::time::timeout(HTTP_TIMEOUT, next.run(request)).await;
    response.unwrap_or_else(|_| StatusCode::GATEWAY_TIMEOUT.into_response())
}

fn router(shop: Shop) -> Router {
    let routes = Router::new().route("/orders", post(place)).route("/healthz", get(|| async { "ok" }));
    routes.layer(middleware::from_fn(limited)).with_state(shop)
}

/// Ends with SIGTERM, which Kubernetes and systemd send, or with Ctrl-C.
async fn stopped() {
    let mut terminate = signal(SignalKind::terminate()).expect("a signal handler");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

/// Serves until it is stopped: no new connections then, requests under way end, and what they have sent is stored.
async fn serve(mq: &Millstream, listener: TcpListener) -> Result<()> {
    let orders = mq.producer(ORDERS).delivery_timeout(SEND_TIMEOUT).await?;
    let shop = Shop { orders: orders.clone() };
    axum::serve(listener, router(shop)).with_graceful_shutdown(stopped()).await?;
    orders.close().await;
    Ok(())
}

struct Options {
    url: String,
    listen: Option<SocketAddr>,
}

fn options() -> Result<Options> {
    let mut options = Options { url: "memory://".into(), listen: None };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match (arg.as_str(), args.next()) {
            ("--url", Some(url)) => options.url = url,
            ("--listen", Some(address)) => options.listen = Some(address.parse().context("--listen")?),
            _ => bail!("usage: web [--url URL] [--listen ADDRESS]"),
        }
    }
    Ok(options)
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = options()?;
    let level = if options.listen.is_some() { tracing::Level::INFO } else { tracing::Level::WARN };
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).init();
    if let Some(address) = options.listen {
        let mq = Millstream::connect(&options.url).await?;
        return serve(&mq, TcpListener::bind(address).await?).await;
    }
    // Runs on one server do not meet.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
    let mq = Millstream::at(&options.url).namespace(format!("web-{run}")).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let service = tokio::spawn({
        let mq = mq.clone();
        async move { serve(&mq, listener).await }
    });
    visit(&mq, address).await?;
    // The service ends by the signal that it gets where it is deployed.
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM)?;
    service.await??;
    ensure!(TcpStream::connect(address).await.is_err(), "the service still listens");
    Ok(())
}

/// A client of the service: 20 customers place ten orders each, and repeat each request once.
async fn visit(mq: &Millstream, address: SocketAddr) -> Result<()> {
    let mut customers = tokio::task::JoinSet::new();
    for customer in 0..20 {
        customers.spawn(async move {
            for number in (customer * 10)..(customer * 10 + 10) {
                let body = format!(r#"{{"number":{number},"customer":"customer-{customer}","cents":100}}"#);
                let (first, again) = (post_order(address, &body).await?, post_order(address, &body).await?);
                ensure!((first, again) == (202, 200), "order {number}: {first}, then {again}");
            }
            Ok(())
        });
    }
    while let Some(customer) = customers.join_next().await {
        customer??;
    }
    ensure!(post_order(address, r#"{"number":"seven"}"#).await? == 422, "an order without a number");

    // Answers to failures that nothing here can cause.
    let told = |kind| answer(Err(Error::new(kind, "made up by this example"))).status();
    ensure!(told(ErrorKind::Unconfirmed) == StatusCode::GATEWAY_TIMEOUT, "repeat it");
    ensure!(told(ErrorKind::Unavailable) == StatusCode::SERVICE_UNAVAILABLE, "not stored");
    ensure!(told(ErrorKind::Denied) == StatusCode::INTERNAL_SERVER_ERROR, "a mistake of the service");

    let cents = Arc::new(AtomicU64::new(0));
    let bill = {
        let cents = cents.clone();
        move |order: Delivery<Order>| {
            cents.fetch_add(order.payload.cents, Ordering::Relaxed);
            async {}
        }
    };
    let consumer = mq.consumer(ORDERS, "billing").start(bill).await?;
    consumer.wait_idle().await?;
    let billed = (consumer.shutdown().await.acked, cents.load(Ordering::Relaxed));
    ensure!(billed == (200, 20_000), "200 orders of 100 cents, but {billed:?}");
    println!("200 orders placed with 400 requests, {} cents billed", billed.1);
    Ok(())
}

/// Sends a request and returns the status of the answer.
async fn post_order(address: SocketAddr, body: &str) -> Result<u16> {
    let mut stream = TcpStream::connect(address).await?;
    let length = body.len();
    let head = format!(
        "POST /orders HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response.split(' ').nth(1).context("a status")?.parse()?)
}
