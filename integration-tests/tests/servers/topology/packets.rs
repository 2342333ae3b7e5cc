//! A network that drops packets. TCP sends them again, later and later: requests and answers come in bursts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use integration_tests::equipment::network::Network;
use integration_tests::eventually;
use integration_tests::server::Server;
use millstream::{Delivery, Event, Millstream, Topic};

const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(4);
const MESSAGES: u64 = 300;

/// A tenth of the packets in each direction, with the default ttl of a lease.
#[test]
fn a_network_that_drops_packets_costs_no_lease_and_no_message() {
    // This thread, and all that it starts.
    let network = Network::private().expect("the right to make a network, and nft");
    let server = Server::start();
    let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    threads.expect("threads").block_on(async {
        let lost = Arc::new(Mutex::new(Vec::new()));
        let told = lost.clone();
        let observer = move |event: &Event<'_>| {
            if matches!(event, Event::LeaseLost { .. }) {
                told.lock().expect("lock").push(format!("{event:?}"));
            }
        };
        let mq = Millstream::at(server.url()).observer(observer).await.expect("connected");
        let handled = Arc::new(Mutex::new(BTreeMap::<u64, usize>::new()));
        let log = handled.clone();
        let consumer = mq.consumer(NUMBERS, "g").start(move |delivery: Delivery<u64>| {
            *log.lock().expect("lock").entry(delivery.payload).or_default() += 1;
            async { Ok::<(), millstream::Error>(()) }
        });
        let consumer = consumer.await.expect("a consumer");
        let producer = mq.producer(NUMBERS).idempotent(true).await.expect("a producer");

        network.drop_packets(server.port(), 10);
        for number in 0..MESSAGES {
            producer.send(&number).await.expect("it is sent again until it is stored");
        }
        let all = || handled.lock().expect("lock").len() == usize::try_from(MESSAGES).expect("few");
        eventually(async || all(), "every message is handled").await;
        // Settlements pass the same network, and a shutdown waits for them.
        consumer.shutdown().await;
        network.drop_nothing();
        let repeated: Vec<_> =
            handled.lock().expect("lock").iter().filter(|(_, count)| **count > 1).map(|(n, _)| *n).collect();
        assert_eq!(repeated, [0; 0], "handled more than once");
        assert_eq!(*lost.lock().expect("lock"), Vec::<String>::new());
        let stats = mq.stats(&NUMBERS, "g").await.expect("stats");
        assert_eq!(stats.iter().map(|stats| stats.pending).sum::<u64>(), 0, "all is settled");
    });
    assert!(sent_again() > 20, "{} packets were sent again: none were dropped", sent_again());
}

/// Returns how many packets of TCP were sent again in the network of this thread.
fn sent_again() -> u64 {
    let counters = std::fs::read_to_string("/proc/thread-self/net/snmp").expect("counters of the network");
    let mut lines = counters.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut all = names.split(' ').zip(values.split(' '));
    let (_, value) = all.find(|(name, _)| *name == "RetransSegs").expect("a counter");
    value.parse().expect("a number")
}
