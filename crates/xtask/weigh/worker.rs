//! A program of a user: a producer and a consumer, as in the tutorial.

use std::time::Duration;

use millstream::{Delivery, Exponential, Millstream, Topic};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Order {
    customer: String,
    cents: u64,
}

const ORDERS: Topic<Order> = Topic::new("orders").partitions(4);

async fn bill(order: Delivery<Order>) -> Result<(), String> {
    let Order { customer, cents } = &order.payload;
    if *cents == 0 {
        return Err("nothing to pay".into());
    }
    println!("{customer} paid {cents} cents (attempt {})", order.attempt());
    Ok(())
}

#[tokio::main]
async fn main() -> millstream::Result<()> {
    let url = std::env::var("MILLSTREAM_URL").unwrap_or_else(|_| "memory://".into());
    let mq = Millstream::connect(&url).await?;
    let orders = mq.producer(ORDERS).await?;
    for (customer, cents) in [("ada", 1_200), ("bob", 0)] {
        let order = Order { customer: customer.into(), cents };
        orders.send(&order).key(&order.customer).await?;
    }
    let retry = Exponential::from(Duration::from_millis(200)).attempts(3);
    let consumer = mq.consumer(ORDERS, "billing").retry(retry).start(bill).await?;
    tokio::signal::ctrl_c().await.expect("a signal handler");
    println!("{} acknowledged", consumer.shutdown().await.acked);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millstream::{Fixed, Millstream};

    use super::{ORDERS, Order, bill};

    #[tokio::test(start_paused = true)]
    async fn an_order_of_nothing_is_not_billed() -> millstream::Result<()> {
        let mq = Millstream::connect("memory://").await?;
        let retry = Fixed::new(Duration::from_secs(60)).attempts(3);
        let consumer = mq.consumer(ORDERS, "billing").retry(retry).start(bill).await?;
        let order = Order { customer: "bob".into(), cents: 0 };
        mq.producer(ORDERS).await?.send(&order).key(&order.customer).await?;
        consumer.wait_idle().await?;
        assert_eq!(consumer.shutdown().await.acked, 0);
        Ok(())
    }
}
