//! Partitioners: where a message goes that is sent through them.

use std::num::NonZeroU32;

use millstream_core::inspect::{Range, Stream};
use millstream_core::partitioner::{ByKey, Consistent, Partitioner, RoundRobin};
use millstream_core::{Partition, Topic, TopicPartition};
use millstream_runtime::{Record, SendFuture};

use crate::support::bench;

const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(6);

/// Gives partition 0 to one key.
#[derive(Debug)]
struct Reserved;

impl Partitioner for Reserved {
    fn partition(&self, key: Option<&[u8]>, partitions: NonZeroU32) -> Partition {
        match key {
            Some(b"acme") => Partition(0),
            key => {
                Partition(1 + u32::from(*key.and_then(<[u8]>::first).unwrap_or(&0)) % (partitions.get() - 1))
            }
        }
    }
}

/// Sends messages of some keys, alone, together and delayed, and returns the partition of each.
async fn sent(partitioner: impl Partitioner + 'static, keys: &[&str]) -> Vec<u32> {
    let bench = bench();
    let producer = bench.producing(NUMBERS).partitioner(partitioner).await.expect("a producer");
    let mut partitions = Vec::new();
    for key in keys {
        partitions.push(producer.send(&7).key(key).await.expect("sent").partition.0);
    }
    let together = producer.send_all(keys.iter().map(|key| Record::new(&7).key(key))).await;
    partitions.extend(together.into_iter().map(|sent| sent.expect("sent").partition.0));
    for key in keys {
        let delayed = SendFuture::delay(producer.send(&7).key(key), std::time::Duration::from_secs(9));
        partitions.push(delayed.await.expect("sent").partition.0);
    }
    // Where it says that a message went, there it is.
    let told = producer.send(&7).key("the last").await.expect("sent");
    let tp = TopicPartition::new("numbers".parse().expect("a name"), told.partition.0);
    let inspect = bench.backend.inspect().expect("a role");
    let found = inspect.entries(&tp, &Stream::Log, Range::ALL, 100).await.expect("read");
    assert!(found.items.iter().any(|entry| entry.id == told.id), "{found:?}");
    partitions
}

#[tokio::test(start_paused = true)]
async fn each_shipped_partitioner_and_one_of_ones_own_decides_for_every_kind_of_send() {
    let keys = ["a", "b", "a", "acme"];
    assert_eq!(sent(RoundRobin::new(), &keys).await, [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]);
    let count = NonZeroU32::new(6).expect("above 0");
    let three_times = |of: &dyn Partitioner| {
        let once: Vec<u32> = keys.iter().map(|key| of.partition(Some(key.as_bytes()), count).0).collect();
        once.repeat(3)
    };
    assert_eq!(sent(Consistent::new(), &keys).await, three_times(&Consistent::new()));
    assert_eq!(sent(ByKey::new(), &keys).await, three_times(&ByKey::new()));
    assert_eq!(sent(Reserved, &keys).await, three_times(&Reserved));
}

#[tokio::test(start_paused = true)]
async fn an_explicit_partition_goes_before_each_of_them() {
    let bench = bench();
    let producer = bench.producing(NUMBERS).partitioner(RoundRobin::new()).await.expect("a producer");
    for _ in 0..3 {
        assert_eq!(producer.send(&7).partition(5).await.expect("sent").partition.0, 5);
    }
    assert_eq!(producer.send(&7).await.expect("sent").partition.0, 0, "none of them counted");
}
