//! A worker binary: state and parts of the message as arguments, a layer, retries with back-off, dead letters, metrics and probes
//! over HTTP, spans of OpenTelemetry, and an orderly end by SIGTERM or Ctrl-C.
//!
//! ```sh
//! cargo run -p examples-metrics --example worker                               # sends itself messages and SIGTERM, checks the result
//! cargo run -p examples-metrics --example worker -- --url redis://127.0.0.1    # the same on Redis
//! cargo run -p examples-metrics --example worker -- --url redis://127.0.0.1 --listen 127.0.0.1:9464   # stays until SIGTERM or Ctrl-C
//! echo '{"to":"ada","subject":"hello"}' | millstream produce mails --key ada    # work for it
//! curl localhost:9464/readyz; curl localhost:9464/metrics; curl localhost:9464/lag/mails/mailer
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use millstream::extract::{Attempt, Payload, State, with_state};
use millstream::layer::{Answer, Layer, Next};
use millstream::metrics::{Metrics, ServerConfig};
use millstream::{Concurrency, Delivery, Exponential, Millstream, Outcome, Report, Topic};
use opentelemetry::global;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Serialize, Deserialize)]
struct Mail {
    to: String,
    subject: String,
}

const MAILS: Topic<Mail> = Topic::new("mails").partitions(4);
const GROUP: &str = "mailer";

/// State of the handlers: here a list instead of a connection to a mail server.
#[derive(Default)]
struct Outgoing(Mutex<BTreeMap<String, Vec<String>>>);

impl Outgoing {
    async fn send(&self, mail: &Mail) -> Result<(), SendError> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        if !mail.to.chars().all(char::is_alphanumeric) {
            return Err(SendError::Refused);
        }
        let mut sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sent.entry(mail.to.clone()).or_default().push(mail.subject.clone());
        Ok(())
    }
}

#[derive(Debug)]
enum SendError {
    /// The server will never take it.
    Refused,
}

/// The handler: state, the number of the attempt, and the payload last.
async fn deliver(
    State(outgoing): State<Arc<Outgoing>>,
    Attempt(attempt): Attempt,
    Payload(mail): Payload<Mail>,
) -> Outcome {
    if mail.subject == "flaky" && attempt < 3 {
        return Outcome::retry("the mail server is busy"); // the retry policy decides when
    }
    match outgoing.send(&mail).await {
        Ok(()) => Outcome::Ack,
        Err(SendError::Refused) => Outcome::dead_letter("the address was refused"), // a retry would not help
    }
}

/// A layer around every handler: logs what was slow, or failed.
struct Slow(Duration);

#[async_trait]
impl Layer for Slow {
    async fn handle(&self, delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        let (topic_partition, origin, began) =
            (delivery.topic_partition().clone(), delivery.origin(), Instant::now());
        let answer = next.run(delivery).await;
        let took = began.elapsed();
        if took > self.0 {
            tracing::warn!(%topic_partition, %origin, ?took, done = answer.is_done(), "a slow message");
        }
        answer
    }
}

/// Exporter of spans: counts them by name. In production it is that of the crate `opentelemetry-otlp`.
#[derive(Clone, Debug, Default)]
struct Spans(Arc<Mutex<BTreeMap<String, usize>>>);

impl SpanExporter for Spans {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for span in batch {
            *counts.entry(span.name.into_owned()).or_default() += 1;
        }
        Ok(())
    }
}

/// Ends with SIGTERM, which Kubernetes and systemd send, or with Ctrl-C.
async fn stopped() {
    let mut terminate = signal(SignalKind::terminate()).expect("a signal handler");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

/// Works until it is stopped: handlers that run then end, within 20 s, and partitions are released at once for other workers.
async fn work(mq: &Millstream, outgoing: Arc<Outgoing>) -> millstream::Result<Report> {
    mq.consumer(MAILS, GROUP)
        .concurrency(Concurrency::PerKey(16))
        .retry(Exponential::from(Duration::from_millis(50)).up_to(Duration::from_secs(60)).attempts(8))
        .handler_timeout(Duration::from_secs(30))
        .shutdown_timeout(Duration::from_secs(20))
        .layer(Slow(Duration::from_secs(1)))
        .run_until(stopped(), with_state(outgoing, deliver))
        .await
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
            _ => bail!("usage: worker [--url URL] [--listen ADDRESS]"),
        }
    }
    Ok(options)
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = options()?;
    let level = if options.listen.is_some() { tracing::Level::INFO } else { tracing::Level::WARN };
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).init();
    let metrics = Metrics::new()?;
    let spans = Spans::default();
    let tracers = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
    global::set_tracer_provider(tracers.clone());
    let mut queue = Millstream::at(&options.url).metrics(&metrics).opentelemetry();
    if options.listen.is_none() {
        // Runs on one server do not meet.
        let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
        queue = queue.namespace(format!("worker-{run}"));
    }
    let mq = queue.await?;
    let address = options.listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
    // Ready once the consumer has joined its group, and while Redis answers.
    let server = metrics.serve(mq.backend(), ServerConfig::default().address(address).consumers(1)).await?;

    let outgoing = Arc::new(Outgoing::default());
    let visitor = options.listen.is_none().then(|| {
        let (mq, address) = (mq.clone(), server.address());
        tokio::spawn(async move {
            let result = visit(&mq, address).await;
            // The worker ends by the signal that it gets where it is deployed.
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM)?;
            result
        })
    });
    let report = work(&mq, outgoing.clone()).await?;
    tracing::info!(
        acked = report.acked,
        retried = report.retried,
        dead = report.dead,
        "the worker has ended"
    );
    server.shutdown().await;
    tracers.shutdown()?;
    if let Some(visitor) = visitor {
        visitor.await??;
        ensure!((report.acked, report.retried, report.dead) == (100, 20, 1), "{report:?}");
        let sent =
            outgoing.0.lock().unwrap_or_else(PoisonError::into_inner).values().map(Vec::len).sum::<usize>();
        ensure!(sent == 100, "{sent} mails");
        let spans = spans.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One for each send, and for each attempt: 100 succeed, 20 fail before, 1 is refused.
        let count = |name| spans.get(name).copied().unwrap_or(0);
        ensure!((count("send mails"), count("process mails")) == (101, 121), "{spans:?}");
        println!("100 mails sent, 10 of them at the third attempt, 1 refused");
    }
    Ok(())
}

/// Sends mails, waits until they are handled, and looks at metrics and probes.
async fn visit(mq: &Millstream, address: SocketAddr) -> Result<()> {
    let mails = mq.producer(MAILS).await?;
    for number in 0..101 {
        let subject = if number < 10 { "flaky".to_owned() } else { format!("mail {number}") };
        let to = if number == 100 { "not an address".to_owned() } else { format!("customer{}", number % 20) };
        mails.send(&Mail { to: to.clone(), subject }).key(&to).await?;
    }
    mails.close().await;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let (status, lag) = get(address, &format!("/lag/mails/{GROUP}")).await?;
        // The group exists once the worker has joined it.
        if status == 200 && lag.contains(r#""backlog":0,"#) {
            break;
        }
        ensure!(Instant::now() < deadline, "still work to do after 30 s: {status} {lag}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ensure!(get(address, "/livez").await?.0 == 200, "alive");
    let (ready, checks) = get(address, "/readyz").await?;
    ensure!(ready == 200, "ready: {checks}");
    let (_, metrics) = get(address, "/metrics").await?;
    // One line for each partition.
    let produced =
        metrics.lines().filter(|line| line.starts_with(r#"millstream_produced_total{topic="mails","#));
    let produced: u64 = produced.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum();
    ensure!(produced == 101, "{produced} mails are produced by the metrics");
    Ok(())
}

/// Sends a request and returns status and text of the answer.
async fn get(address: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok((response.split(' ').nth(1).context("a status")?.parse()?, response))
}
