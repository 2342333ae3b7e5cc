//! A sign-up that sleeps three days: a handler of many steps, which waits without being in memory.
//!
//! ```sh
//! cargo run --example signup
//! cargo run --example signup -- --url redis://127.0.0.1
//! ```
//!
//! The handler runs again from its beginning after each wait and after a failure. What it has done under a name is not done again. A day has a
//! quarter of a second here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail, ensure};
use millstream::{Delivery, Error, Millstream, Producer, Signalled, StepError, Topic, WorkId};
use tokio::sync::mpsc;

const SIGN_UPS: Topic<String> = Topic::new("sign-ups").partitions(4);
const MAILS: Topic<String> = Topic::new("mails").partitions(2);
const DAY: Duration = Duration::from_millis(250);

/// How often accounts were created, and mails sent.
static ACCOUNTS: AtomicU32 = AtomicU32::new(0);
static SENT: AtomicU32 = AtomicU32::new(0);

async fn create_account(_: &str) -> Result<u32, Error> {
    Ok(ACCOUNTS.fetch_add(1, Ordering::Relaxed) + 1)
}

/// Sends a mail, and replies with its number.
async fn send_mail(mail: Delivery<String>) -> Result<millstream::Reply, Error> {
    let number = SENT.fetch_add(1, Ordering::Relaxed) + 1;
    println!("mail {number}: {}", mail.payload);
    Ok(millstream::Reply::json(&number))
}

/// Where the example learns of the link in the mail, and of the end.
#[derive(Clone)]
struct Told {
    links: mpsc::UnboundedSender<WorkId>,
    ends: mpsc::UnboundedSender<(u32, Vec<u32>)>,
}

async fn sign_up(
    address: Delivery<String>,
    mails: Arc<Producer<String>>,
    told: Told,
) -> Result<(), StepError> {
    let steps = address.steps();
    let name = &address.payload;
    let account: u32 = steps.step("account", || create_account(name)).await?;
    // A step that is a message for somebody else, whose reply is its result.
    let link = steps.id()?.clone();
    let _: u32 = steps.then("link", mails.send(&format!("to {name}: confirm by {link}"))).await?;
    let _ = told.links.send(link);
    if steps.signal::<bool>("confirmed", 2 * DAY).await? != Some(true) {
        println!("{name} has not confirmed");
        return Ok(());
    }
    steps.sleep("three days", 3 * DAY).await?;
    let texts = ["the first steps", "what others do", "the bill"].map(|text| format!("to {name}: {text}"));
    let tips = steps.each("tips", texts.iter().map(|text| mails.send(text))).await?;
    let _ = told.ends.send((account, tips.all()?));
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let url = match (args.next().as_deref(), args.next()) {
        (None, _) => "memory://".to_owned(),
        (Some("--url"), Some(url)) => url,
        _ => bail!("usage: signup [--url URL]"),
    };
    // Runs on one server do not meet.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
    let mq = Millstream::at(&url).namespace(format!("signup-{run}")).await?;
    let (links, mut next_link) = mpsc::unbounded_channel();
    let (ends, mut next_end) = mpsc::unbounded_channel();
    let (told, mails) = (Told { links, ends }, Arc::new(mq.producer(MAILS).await?));
    let mailer = mq.consumer(MAILS, "mailer").start(send_mail).await?;
    let handler = move |address| sign_up(address, mails.clone(), told.clone());
    let welcome = mq.consumer(SIGN_UPS, "welcome").start(handler).await?;

    mq.producer(SIGN_UPS).await?.send(&"ada@example.com".to_owned()).await?;
    let Some(link) = next_link.recv().await else { bail!("no link was mailed") };
    // As whoever serves the link does, in any process.
    let signalled = mq.signal(&link, "confirmed", &true).await?;
    ensure!(matches!(signalled, Signalled::Woken | Signalled::Stored), "{signalled:?}");
    ensure!(mq.signal(&link, "confirmed", &false).await? == Signalled::Known, "the first one counts");
    let Some((account, mut tips)) = next_end.recv().await else { bail!("nobody signs up any more") };
    tips.sort_unstable();
    ensure!((account, &*tips) == (1, &[2, 3, 4]), "account {account}, mails {tips:?}");
    ensure!(ACCOUNTS.load(Ordering::Relaxed) == 1, "each step is done once");
    println!("account {account} is welcome");
    welcome.shutdown().await;
    mailer.shutdown().await;
    Ok(())
}
