//! What each strategy leaves open, shown by a worker that dies at a point that the test chooses.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use integration_tests::HANG;
use integration_tests::databases::bank::{BALANCE, Dies, Strategy, Transfer, pairs};
use integration_tests::proxy::{Proxy, Way};

use super::Bank;

const TRANSFER: Transfer = Transfer { number: 7, from: 1, to: 2, amount: 5 };

/// How often the transfer was applied when the first worker died at this point, and another one took over.
async fn applied(strategy: Strategy, on_postgres: bool, dies: Dies) -> Result<i64> {
    let mut bank = Bank::open(strategy, on_postgres).await?;
    bank.setup.dies = Some(dies);
    let mut first = bank.worker();
    bank.send(&[TRANSFER]).await?;
    let deadline = Instant::now() + HANG;
    while first.is_alive() {
        ensure!(Instant::now() < deadline, "{strategy:?}: the first worker did not die at {dies:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let _second = bank.worker();
    bank.drained().await?;
    let rows = pairs(&bank.database, "SELECT count(*), count(*) FROM transfers").await?;
    let (times, _) = rows[0];
    let sql = "SELECT balance, version FROM accounts WHERE id IN (1, 2) ORDER BY id";
    let balances: Vec<_> =
        pairs(&bank.database, sql).await?.into_iter().map(|(balance, _)| balance).collect();
    let moved = times * TRANSFER.amount;
    ensure!(balances == [BALANCE - moved, BALANCE + moved], "{strategy:?}: {balances:?} after {times} times");
    Ok(times)
}

/// A strategy, with how often the effect is there for each death: in the transaction, after the effect, before the
/// acknowledgement. The transfer is sent twice.
async fn shows(strategy: Strategy, on_postgres: bool, expected: &[(Dies, i64)]) -> Result<()> {
    for (dies, times) in expected {
        let found = applied(strategy, on_postgres, *dies).await?;
        ensure!(found == *times, "{strategy:?} {dies:?}: applied {found} times, expected {times}");
    }
    Ok(())
}

/// The first message of the two is handled again, and the second one is another message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_marker_each_delivery_has_its_effect() -> Result<()> {
    shows(Strategy::Nothing, true, &[(Dies::InTransaction, 2), (Dies::AfterEffect, 3)]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_marker_on_redis_leaves_the_time_between_effect_and_marker() -> Result<()> {
    shows(Strategy::RedisMarker, true, &[(Dies::InTransaction, 1), (Dies::AfterEffect, 2)]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_marker_in_the_database_leaves_the_same_time() -> Result<()> {
    shows(Strategy::SqlMarker, true, &[(Dies::InTransaction, 1), (Dies::AfterEffect, 2)]).await?;
    shows(Strategy::SqlMarker, false, &[(Dies::AfterEffect, 2)]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unique_index_leaves_nothing() -> Result<()> {
    let once = [(Dies::InTransaction, 1), (Dies::AfterEffect, 1)];
    shows(Strategy::UniqueIndex, true, &once).await?;
    shows(Strategy::UniqueIndex, false, &once[1..]).await
}

/// They guard a row while it is read and written. A redelivery is one more writer of it, which comes later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_or_a_version_of_a_row_stops_no_redelivery() -> Result<()> {
    for strategy in [Strategy::RowLock, Strategy::RowVersion] {
        shows(strategy, true, &[(Dies::InTransaction, 2), (Dies::AfterEffect, 3)]).await?;
    }
    shows(Strategy::RowVersion, false, &[(Dies::AfterEffect, 3)]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_that_comes_with_the_message_leaves_nothing() -> Result<()> {
    let once = [(Dies::InTransaction, 1), (Dies::AfterEffect, 1)];
    shows(Strategy::SentVersion, true, &once).await?;
    shows(Strategy::SentVersion, false, &once[1..]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inbox_leaves_nothing() -> Result<()> {
    let once = [(Dies::InTransaction, 1), (Dies::BeforeAck, 1)];
    shows(Strategy::Pessimistic, true, &once).await?;
    shows(Strategy::Optimistic, true, &once).await?;
    shows(Strategy::Pessimistic, false, &once[1..]).await
}

/// How often the transfer was applied when the link of the first worker was cut between its effect and what it tells Redis. It
/// goes on when another one has taken over.
async fn applied_behind_a_cut_link(strategy: Strategy, on_postgres: bool) -> Result<i64> {
    let mut bank = Bank::open(strategy, on_postgres).await?;
    (bank.setup.dies, bank.setup.stalls) = (Some(Dies::AfterEffect), true);
    let link = Proxy::to(bank.redis.port());
    let mut first = bank.worker_behind(&link);
    bank.send(&[TRANSFER]).await?;
    let deadline = Instant::now() + HANG;
    while !bank.setup.died.exists() {
        ensure!(Instant::now() < deadline, "{strategy:?}: the first worker did not come to its effect");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    link.cut();
    // It must not stall as well.
    bank.setup.dies = None;
    let _second = bank.worker();
    bank.drained().await?;
    std::fs::remove_file(&bank.setup.died)?;
    link.heal();
    // The late one is back when it has handled something of its own, or is told that it is late: both need its link.
    let (deadline, before) = (Instant::now() + HANG, link.bytes(Way::Down));
    while link.bytes(Way::Down) < before + 1_000 {
        ensure!(first.is_alive() && Instant::now() < deadline, "{strategy:?}: the first worker is not back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    bank.drained().await?;
    Ok(pairs(&bank.database, "SELECT count(*), count(*) FROM transfers").await?[0].0)
}

/// A marker is completed after the effect. Where that does not reach Redis in time, the effect is there once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_is_cut_behind_the_effect_doubles_it_with_a_marker_and_not_with_an_inbox() -> Result<()> {
    for (strategy, on_postgres, expected) in [
        (Strategy::RedisMarker, true, 2),
        (Strategy::Pessimistic, true, 1),
        (Strategy::Optimistic, true, 1),
        (Strategy::Pessimistic, false, 1),
    ] {
        let times = applied_behind_a_cut_link(strategy, on_postgres).await?;
        ensure!(times == expected, "{strategy:?}: applied {times} times, expected {expected}");
    }
    Ok(())
}
