//! A worker of the bank, to be killed by tests.
//!
//! Usage: `bank_worker SETUP`, with the [`Setup`] as JSON. It ends when its stdin is closed.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use integration_tests::databases::bank::{
    Dies, GROUP, HEADER, Setup, Strategy, Transfer, compute, topic, write,
};
use millstream::sql::{Database, Inbox, Mode, SqlIdempotency, Tx};
use millstream::{Delivery, Fixed, Idempotent, Millstream, Outcome};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let setup = std::env::args().nth(1).context("an argument is needed")?;
    let setup: Arc<Setup> = Arc::new(serde_json::from_str(&setup).context("the setup")?);
    // The test holds the other end of stdin: when the test ends, this process ends too.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(1);
    });
    let database = Database::connect(&setup.database).await?;
    let mq = Millstream::at(&setup.redis).namespace(&setup.namespace).await?;
    let mq = match setup.strategy {
        Strategy::SqlMarker => {
            Millstream::over(SqlIdempotency::new(&database, "bank")?.replace(mq.backend().clone()))
        }
        _ => mq,
    };
    // Attempts are for the tests of what goes wrong in transfers, not of the strategies: many kills are no reason to give up.
    let retry = || Fixed::new(Duration::from_millis(50)).attempts(1_000);
    let consumer = mq
        .consumer(topic(), GROUP)
        .lease_ttl(Duration::from_millis(setup.ttl_ms))
        .prefetch(32)
        .retry(retry())
        .crash_limit(1_000);
    let consumer = match setup.strategy {
        Strategy::RedisMarker | Strategy::SqlMarker => consumer.idempotent(Idempotent::by_header(HEADER)),
        _ => consumer,
    };
    let mode = match setup.strategy {
        Strategy::Pessimistic => Some(Mode::Pessimistic),
        Strategy::Optimistic => Some(Mode::Optimistic),
        _ => None,
    };
    let _consumer = match mode {
        Some(mode) => {
            let inbox = Inbox::builder(&database)
                .mode(mode)
                .by_header(HEADER)
                .retries(&retry())
                .max_idle(Duration::from_secs(1))
                .build()?;
            let work = setup.clone();
            let handler = inbox.handler(move |transfer: Delivery<Transfer>, mut tx: Tx| {
                let setup = work.clone();
                async move {
                    write(&mut tx, &transfer.payload, false).await?;
                    dies(&setup, Dies::InTransaction);
                    Ok::<_, anyhow::Error>(())
                }
            });
            let handler = Arc::new(handler);
            let starts = move |transfer: Delivery<Transfer>| {
                let (handler, setup) = (handler.clone(), setup.clone());
                async move {
                    let outcome = handler(transfer).await;
                    if matches!(*outcome, Outcome::Ack) {
                        // Of an inbox both are the same.
                        dies(&setup, Dies::AfterEffect);
                        dies(&setup, Dies::BeforeAck);
                    }
                    outcome
                }
            };
            consumer.start(starts).await?
        }
        None => {
            let handler = move |transfer: Delivery<Transfer>| {
                let (setup, database) = (setup.clone(), database.clone());
                async move { transact(&setup, &database, &transfer.payload).await }
            };
            consumer.start(handler).await?
        }
    };
    std::future::pending().await
}

/// Writes a transfer in a transaction of its own.
async fn transact(setup: &Setup, database: &Database, transfer: &Transfer) -> Result<()> {
    let unique = setup.strategy == Strategy::UniqueIndex;
    let mut tx = database.begin().await?;
    let written = match setup.strategy {
        Strategy::RowLock | Strategy::RowVersion | Strategy::SentVersion => {
            if !compute(&mut tx, transfer, setup.strategy).await? {
                tx.rollback().await;
                return Ok(());
            }
            Ok(())
        }
        _ => write(&mut tx, transfer, unique).await,
    };
    match written {
        Ok(()) => {}
        Err(error) if unique && is_double(&error) => {
            tx.rollback().await;
            return Ok(());
        }
        Err(error) => return Err(error),
    }
    dies(setup, Dies::InTransaction);
    tx.commit().await?;
    dies(setup, Dies::AfterEffect);
    if !matches!(setup.strategy, Strategy::RedisMarker | Strategy::SqlMarker) {
        dies(setup, Dies::BeforeAck);
    }
    Ok(())
}

fn is_double(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<millstream::sql::sqlx::Error>();
    error
        .and_then(|error| error.as_database_error())
        .is_some_and(millstream::sql::sqlx::error::DatabaseError::is_unique_violation)
}

/// Ends the process as a crash would, if it is to die here and none has died before; or waits, if it is to stall.
fn dies(setup: &Setup, here: Dies) {
    if setup.dies == Some(here) && std::fs::File::create_new(&setup.died).is_ok() {
        if !setup.stalls {
            std::process::abort();
        }
        while setup.died.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
