//! Data for commands: messages, a group with some in flight, some that failed.

use millstream::{
    Delivery, Millstream, Outcome, PackCompression, Packing, Pulled, Puller, Record, Retention, Topic,
};

use crate::support::feed::eventually;

/// Two partitions that keep what was settled.
pub(crate) const ORDERS: Topic<u64> = Topic::new("orders").partitions(2).retention(Retention::Keep);

/// So many messages, in turn on both partitions.
pub(crate) async fn orders(mq: &Millstream, count: u64) {
    let producer = mq.producer(ORDERS).await.expect("a producer");
    for order in 0..count {
        producer.send(&order).partition((order % 2) as u32).await.expect("sent");
    }
}

/// The same topic, packed: so many entries, in turn on both partitions, with `each` messages.
pub(crate) async fn packs(mq: &Millstream, entries: u64, each: u64) {
    let packing = Packing::new().min_messages(2).compression(PackCompression::None);
    let producer = mq.producer(ORDERS.packed(packing)).await.expect("a producer");
    for entry in 0..entries {
        let orders: Vec<u64> = (0..each).map(|it| entry * each + it).collect();
        let records = orders.iter().map(|order| Record::new(order).partition((entry % 2) as u32));
        producer.send_all(records).await.into_iter().for_each(|sent| {
            sent.expect("sent");
        });
    }
}

/// The group `billing` handles so many and ends; those are rejected that are said.
pub(crate) async fn handled(mq: &Millstream, count: u64, rejected: &'static [u64]) {
    let handler = async move |order: Delivery<u64>| match rejected.contains(&order.payload) {
        true => Outcome::dead_letter("no such order"),
        false => Outcome::Ack,
    };
    let consumer = mq.consumer(ORDERS, "billing").start(handler).await.expect("a consumer");
    eventually("all is handled", async || {
        let report = consumer.report();
        report.acked + report.dead == count
    })
    .await;
    consumer.shutdown().await;
}

/// Starts a consumer of the group `billing` that holds all of these: one of each partition is handled, the others wait.
pub(crate) async fn holding(mq: &Millstream, count: u64) -> Holding {
    let puller = mq.consumer(ORDERS, "billing").pull().await.expect("a consumer");
    let held = vec![puller.next().await.expect("a message"), puller.next().await.expect("a message")];
    eventually("all are pending", async || {
        let stats = mq.stats(&ORDERS, "billing").await.expect("stats");
        stats.iter().map(|it| it.pending).sum::<u64>() == count
    })
    .await;
    let (topic, group) = ("orders".parse().expect("a name"), "billing".parse().expect("a name"));
    let owners = mq.admin().owners(&topic, &group).await.expect("owners").by_owner();
    let name = owners.into_keys().next().expect("somebody");
    Holding { name, puller, held }
}

/// A consumer with messages in flight.
pub(crate) struct Holding {
    /// What others see as the owner.
    pub(crate) name: String,
    puller: Puller<u64>,
    held: Vec<Pulled<u64>>,
}

impl Holding {
    /// It is done with what it has, and goes.
    pub(crate) async fn end(self) {
        self.held.into_iter().for_each(Pulled::ack);
        self.puller.shutdown().await;
    }
}
