//! A delay queue: an order that is not paid in time expires.
//!
//! ```sh
//! cargo run --example orders
//! cargo run --example orders -- --url redis://127.0.0.1
//! ```
//!
//! The task "expire" is scheduled when the order is placed, and cancelled when it is paid. A payment may come while the task runs: so
//! the state of the order decides which of the two wins, and not the queue. In a service that is a row of a database
//! (`UPDATE orders SET state = 'expired' WHERE id = $1 AND state = 'open'`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail, ensure};
use millstream::Millstream;
use millstream::delay::{DelayQueue, Task};

/// Time to pay. A shop would give half an hour.
const TIME_TO_PAY: Duration = Duration::from_millis(1_500);
const ORDERS: u64 = 200;

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Open(Instant),
    Paid,
    Expired,
}

#[derive(Clone, Default)]
struct Orders(Arc<Mutex<BTreeMap<u64, State>>>);

impl Orders {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes an open order. Returns since when it was open, or `None` if it is not open any more.
    fn close(&self, order: u64, state: State) -> Option<Instant> {
        let mut orders = self.lock();
        match orders.insert(order, state) {
            Some(State::Open(since)) => Some(since),
            Some(closed) => {
                orders.insert(order, closed);
                None
            }
            None => {
                orders.remove(&order);
                None
            }
        }
    }
}

async fn place(orders: &Orders, expiry: &DelayQueue<u64>, order: u64) -> Result<()> {
    orders.lock().insert(order, State::Open(Instant::now()));
    // The id is unique while the task waits: if the answer is lost, this call can be repeated.
    expiry.schedule(&order).delay(TIME_TO_PAY).id(format!("expire-{order}")).await?;
    Ok(())
}

/// Returns whether the order is paid: not if it has expired before.
async fn pay(orders: &Orders, expiry: &DelayQueue<u64>, order: u64) -> Result<bool> {
    if orders.close(order, State::Paid).is_none() {
        return Ok(false);
    }
    // It saves the work. Without it, or if the task runs already, the handler finds a paid order.
    expiry.cancel(format!("expire-{order}")).await?;
    Ok(true)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => "memory://".to_owned(),
        [option, url] if option == "--url" => url.clone(),
        _ => bail!("usage: orders [--url URL]"),
    };
    // Runs on one server do not meet.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
    let mq = Millstream::at(url).namespace(format!("orders-{run}")).await?;
    let expiry = DelayQueue::<u64>::new("expiry").shards(2).open(mq.backend()).await?;

    let orders = Orders::default();
    let early = Arc::new(Mutex::new(Vec::new()));
    let worker = {
        let (orders, early) = (orders.clone(), early.clone());
        let expire = move |task: Task<u64>| {
            // Of an order that was paid meanwhile nothing is to be done.
            if let Some(since) = orders.close(task.payload, State::Expired)
                && since.elapsed() < TIME_TO_PAY
            {
                early.lock().unwrap_or_else(PoisonError::into_inner).push(task.payload);
            }
            async {}
        };
        expiry.worker().concurrency(16).start(expire).await?
    };

    // Every second order is paid, the last ones just when they expire.
    let mut tasks = tokio::task::JoinSet::new();
    for order in 0..ORDERS {
        let (orders, expiry) = (orders.clone(), expiry.clone());
        tasks.spawn(async move {
            place(&orders, &expiry, order).await?;
            if order % 2 == 1 {
                return anyhow::Ok(false);
            }
            tokio::time::sleep(TIME_TO_PAY * u32::try_from(order)? / u32::try_from(ORDERS)?).await;
            pay(&orders, &expiry, order).await
        });
    }
    let mut paid = 0;
    while let Some(task) = tasks.join_next().await {
        paid += usize::from(task??);
    }
    // Ends when no task is left that is due; the last one is due after the time to pay.
    let deadline = Instant::now() + TIME_TO_PAY + Duration::from_secs(30);
    while orders.lock().values().any(|state| matches!(state, State::Open(_))) {
        ensure!(Instant::now() < deadline, "orders stay open");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let report = worker.shutdown().await;

    let orders = orders.lock();
    let expired = orders.values().filter(|state| **state == State::Expired).count();
    println!("{paid} orders paid, {expired} expired");
    ensure!(orders.values().filter(|state| **state == State::Paid).count() == paid, "a payment was lost");
    ensure!(paid + expired == orders.len() && orders.len() == usize::try_from(ORDERS)?, "{orders:?}");
    ensure!(orders.iter().all(|(order, state)| order % 2 == 0 || *state == State::Expired), "{orders:?}");
    let early = early.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(early.is_empty(), "expired before their time: {early:?}");
    ensure!(report.done >= u64::try_from(expired)? && report.dead == 0, "{report:?}");
    Ok(())
}
