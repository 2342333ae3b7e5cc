//! A web request that waits for a worker: `POST /quotes` answers with what the worker replies, or says where the reply will be.
//!
//! ```sh
//! cargo run -p examples-web --example quotes                               # asks itself, and checks the answers
//! cargo run -p examples-web --example quotes -- --url redis://127.0.0.1    # the same on Redis
//! ```

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use axum::extract::{Path, State};
use axum::http::{StatusCode, header::LOCATION};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use millstream::{
    Concurrency, Delivery, MessageResult, Millstream, Never, Producer, Reply, RequestError, ResultId, Topic,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[derive(Serialize, Deserialize)]
struct Basket {
    chairs: u32,
}

#[derive(Serialize, Deserialize)]
struct Quote {
    cents: u64,
}

const BASKETS: Topic<Basket> = Topic::new("baskets").partitions(4);
/// How long a client waits for an answer. A quote that takes longer is fetched.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long the worker thinks about many chairs.
const LONG: Duration = Duration::from_secs(2);

/// The worker. It knows nothing of who asks: its reply is stored for him if it is asked for.
async fn quote(basket: Delivery<Basket>) -> Result<Reply, String> {
    match basket.payload.chairs {
        0 => return Err("an empty basket".into()),
        1..100 => {}
        _ => tokio::time::sleep(LONG).await,
    }
    Ok(Reply::json(&Quote { cents: u64::from(basket.payload.chairs) * 4_900 }))
}

/// State of the service.
#[derive(Clone)]
struct Shop {
    mq: Millstream,
    baskets: Producer<Basket>,
}

async fn ask(State(shop): State<Shop>, Json(basket): Json<Basket>) -> Response {
    match shop.baskets.send(&basket).reply::<Quote>().within(PATIENCE).await {
        Ok(quote) => Json(quote).into_response(),
        // The work goes on, and its result is kept for an hour: here, or at another instance of this service.
        Err(RequestError::Timeout { id, .. }) => {
            (StatusCode::ACCEPTED, [(LOCATION, format!("/quotes/{id}"))]).into_response()
        }
        Err(RequestError::Failed { error, .. }) => (StatusCode::UNPROCESSABLE_ENTITY, error).into_response(),
        Err(error) => unavailable(&error),
    }
}

async fn fetch(State(shop): State<Shop>, Path(id): Path<String>) -> Response {
    let Ok(id) = id.parse::<ResultId>() else { return StatusCode::NOT_FOUND.into_response() };
    match shop.mq.result(&id).await {
        Ok(Some(MessageResult::Replied(quote))) => quote.into_response(),
        Ok(Some(MessageResult::Failed { error, .. })) => {
            (StatusCode::UNPROCESSABLE_ENTITY, error).into_response()
        }
        Ok(Some(_)) => StatusCode::NO_CONTENT.into_response(),
        // Not yet, or not any longer, or never asked for: nobody can tell.
        Ok(None) => StatusCode::NOT_FOUND.into_response(),
        Err(error) => unavailable(&error),
    }
}

fn unavailable(error: &dyn std::fmt::Display) -> Response {
    tracing::error!(%error, "a quote cannot be had");
    StatusCode::SERVICE_UNAVAILABLE.into_response()
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let url = match (args.next().as_deref(), args.next()) {
        (None, _) => "memory://".to_owned(),
        (Some("--url"), Some(url)) => url,
        _ => bail!("usage: quotes [--url URL]"),
    };
    // Runs on one server do not meet.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
    let mq = Millstream::at(&url).namespace(format!("quotes-{run}")).await?;
    let worker = mq.consumer(BASKETS, "quotes").concurrency(Concurrency::Unordered(16)).retry(Never);
    let worker = worker.start(quote).await?;

    let shop = Shop { mq: mq.clone(), baskets: mq.producer(BASKETS).await? };
    let routes = Router::new().route("/quotes", post(ask)).route("/quotes/{*id}", get(fetch));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let service = tokio::spawn(async move { axum::serve(listener, routes.with_state(shop)).await });

    let small = send(address, "POST /quotes", r#"{"chairs":3}"#).await?;
    ensure!((small.status, &*small.body) == (200, r#"{"cents":14700}"#), "three chairs: {small:?}");
    let none = send(address, "POST /quotes", r#"{"chairs":0}"#).await?;
    ensure!((none.status, &*none.body) == (422, "an empty basket"), "no chairs: {none:?}");
    let many = send(address, "POST /quotes", r#"{"chairs":200}"#).await?;
    let place = many.location.as_deref().context("where the quote will be")?;
    ensure!(many.status == 202, "many chairs: {many:?}");
    let early = send(address, &format!("GET {place}"), "").await?;
    ensure!(early.status == 404, "before it is there: {early:?}");
    let late = loop {
        let found = send(address, &format!("GET {place}"), "").await?;
        if found.status != 404 {
            break found;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    ensure!((late.status, &*late.body) == (200, r#"{"cents":980000}"#), "later: {late:?}");
    println!("one quote at once, one later, one refused");
    service.abort();
    worker.shutdown().await;
    Ok(())
}

#[derive(Debug)]
struct Answer {
    status: u16,
    location: Option<String>,
    body: String,
}

/// Sends a request.
async fn send(address: SocketAddr, what: &str, body: &str) -> Result<Answer> {
    let mut stream = TcpStream::connect(address).await?;
    let length = body.len();
    let head = format!(
        "{what} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let (head, body) = response.split_once("\r\n\r\n").context("a body")?;
    let location = head.lines().find_map(|line| line.strip_prefix("location: ")).map(str::to_owned);
    let status = head.split(' ').nth(1).context("a status")?.parse()?;
    Ok(Answer { status, location, body: body.to_owned() })
}
