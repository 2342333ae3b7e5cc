//! Packs: each is one consumer's as a whole.

use std::collections::BTreeSet;
use std::time::Duration;

use millstream_core::log::{Receipt, Source};
use millstream_core::{Partition, Settlement, TopicPartition};

use super::{ids, only, receipts, sharers, suite};
use crate::case::{Verdict, ensure, equal};
use crate::harness::Harness;
use crate::owner::retry;

suite!("shared":
    a_pack_goes_to_one_consumer_as_a_whole,
    beside_packs_other_logs_and_all_retries_are_read,
);

async fn a_pack_goes_to_one_consumer_as_a_whole(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    let appended = h.append_n(&only(&topic), 6).await?;
    let entries = a.take(1).await?;
    let all: BTreeSet<_> = appended.iter().copied().collect();
    equal!(ids(&entries), all, "what one consumer reads that asks for one message");
    b.nothing("another has all of it").await?;
    let of_a = receipts(&entries);
    a.acks(&of_a[..2]).await?;
    equal!(b.settle(&of_a[2..3], &Settlement::Ack).await?.applied, 0, "settled by another");
    let claimed = b.claim(&[], Duration::ZERO, 1).await?.abandoned.entries;
    let left: BTreeSet<_> = appended[2..].iter().copied().collect();
    equal!(ids(&claimed), left, "what is not settled of it, claimed as a whole");
    equal!(a.settle(&of_a[2..3], &Settlement::Ack).await?.applied, 0, "settled by the former");
    let lost: BTreeSet<_> = of_a[2..].iter().copied().collect();
    equal!(a.extend(&of_a[2..]).await?, lost, "what the former has lost");
    b.acks(&receipts(&claimed)).await
}

async fn beside_packs_other_logs_and_all_retries_are_read(h: Harness) -> Verdict {
    let (topic, [mut a]) = sharers(&h, 2, ["a"]).await?;
    let [full, other] = [0, 1].map(|partition| TopicPartition::new(topic.name.clone(), partition));
    h.append_n(&full, 3).await?;
    let held = a.take_all(3).await?;
    let failed = &held[0].2;
    let batch = [(failed.receipt, retry(failed, Duration::ZERO))];
    let settled = h.backend.shared()?.settle_shared(&a.member, Partition(0), &batch).await?;
    equal!(settled.applied, 1, "retries");
    h.owner(&full, "group").await?.promote(1).await?;
    h.append_n(&full, 3).await?;
    let appended = h.append_n(&other, 3).await?;
    let expected: BTreeSet<(Partition, Source, _)> =
        appended.iter().map(|id| (Partition(1), Source::Log, *id)).collect();
    let (mut read, mut retries) = (BTreeSet::new(), 0);
    let mut deadline = h.wait_for("what is beside a pack to be read");
    while retries < 1 || read.len() < expected.len() {
        for reader in &mut a.readers {
            for (partition, fetched) in reader.fetch_beside(4, &[Partition(0)]).await? {
                for Receipt { source, id, .. } in receipts(&fetched.entries) {
                    if source == Source::Retry {
                        retries += 1;
                        equal!(partition, Partition(0), "where the retry was read");
                    } else {
                        read.insert((partition, source, id));
                    }
                }
            }
        }
        deadline.pause().await?;
    }
    equal!(read, expected, "messages of other logs");
    let rest = a.take_all(3).await?;
    ensure!(rest.iter().all(|(partition, ..)| *partition == Partition(0)), "what is read later: {rest:?}");
    Ok(())
}
