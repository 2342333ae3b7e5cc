//! A nightly batch whose last step mails a report: accounts are billed by many workers, some fail, and one message comes at the end.
//!
//! ```sh
//! cargo run --example nightly
//! cargo run --example nightly -- --url redis://127.0.0.1
//! ```
//!
//! Nobody counts in the workers: a batch does, whatever dies or comes twice. When the dead letters are replayed, the same batch says that
//! all is done.

use std::time::SystemTime;

use anyhow::{Result, bail, ensure};
use millstream::{BatchEvent, BatchEventKind, Delivery, Millstream, Outcome, Topic};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::mpsc;

const ACCOUNTS: Topic<u32> = Topic::new("accounts").partitions(4);
const REPORTS: Topic<Report> = Topic::new("reports");
/// Accounts that are billed in a night.
const COUNT: u32 = 1_000;

/// What is mailed, and to whom.
#[derive(Serialize, Deserialize)]
struct Report {
    to: String,
}

/// The bank that says no to every hundredth account, until somebody has talked to it.
static BANK_IS_OPEN: AtomicBool = AtomicBool::new(false);

async fn bill(account: Delivery<u32>) -> Outcome {
    if account.payload.is_multiple_of(100) && !BANK_IS_OPEN.load(Ordering::Relaxed) {
        return Outcome::DeadLetter("the bank says no".into());
    }
    Outcome::Ack
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let url = match (args.next().as_deref(), args.next()) {
        (None, _) => "memory://".to_owned(),
        (Some("--url"), Some(url)) => url,
        _ => bail!("usage: nightly [--url URL]"),
    };
    // Runs on one server do not meet.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
    let mq = Millstream::at(&url).namespace(format!("nightly-{run}")).await?;
    let (mail, mut mails) = mpsc::unbounded_channel::<BatchEvent>();
    let reporter = move |report: Delivery<Report>| {
        let (event, mail, to) = (report.batch_event(), mail.clone(), report.payload.to.clone());
        async move {
            let Some(event) = event else { return };
            let BatchEvent { kind, members, done, dead, .. } = &event;
            match kind {
                BatchEventKind::Progress(percent) => println!("{percent:>3} %"),
                kind => println!("to {to}: {} of {members}, {done} done, {dead} dead", kind.as_str()),
            }
            let _ = mail.send(event);
        }
    };
    let reporter = mq.consumer(REPORTS, "mailer").start(reporter).await?;
    let biller = mq.consumer(ACCOUNTS, "billing").start(bill).await?;

    let report = Report { to: "accounting@example.com".to_owned() };
    let accounts = mq.producer(ACCOUNTS).await?;
    let night = mq.batch(REPORTS).progress(25, &report).complete(&report).success(&report).create().await?;
    println!("{}", night.id());
    for account in 0..COUNT {
        night.add(accounts.send(&account).key(account.to_string())).await?;
    }
    let sealed = night.seal().await?;
    ensure!(sealed.members == COUNT, "{sealed:?}");
    let complete = next(&mut mails).await?;
    ensure!(
        (complete.kind, complete.done, complete.dead) == (BatchEventKind::Complete, 990, 10),
        "{complete:?}"
    );

    BANK_IS_OPEN.store(true, Ordering::Relaxed);
    mq.dead_letters(ACCOUNTS, "billing").await?.replay_all().await?;
    let success = next(&mut mails).await?;
    ensure!((success.kind, success.done, success.dead) == (BatchEventKind::Success, COUNT, 0), "{success:?}");
    println!("all {} accounts are billed", success.done);
    biller.shutdown().await;
    reporter.shutdown().await;
    Ok(())
}

/// Returns the next event that is no progress.
async fn next(mails: &mut mpsc::UnboundedReceiver<BatchEvent>) -> Result<BatchEvent> {
    while let Some(event) = mails.recv().await {
        if !matches!(event.kind, BatchEventKind::Progress(_)) {
            return Ok(event);
        }
    }
    bail!("nobody mails any more")
}
