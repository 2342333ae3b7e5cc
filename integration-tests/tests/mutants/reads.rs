//! Mistakes of reading, trimming and taking over.

use std::time::Duration;

use integration_tests::chaos::mutants::Mutant;
use integration_tests::proxy::Proxy;
use millstream_core::log::Settlement;
use millstream_core::{Continuity, MemberId, Partition, Retention, SharedMember};

use super::scene::{Scene, Stage, entry, fetch, open, receipts};

/// The reply that is lost has the second entry. The third one shows that the reader reads on.
#[test]
fn an_entry_in_a_lost_reply_is_never_read() {
    Scene::new("reads::an_entry_in_a_lost_reply_is_never_read", Mutant::PendingNotReread).run(
        async |stage| {
            let port = stage.url.rsplit_once(':').expect("a port").1.parse().expect("a number");
            let proxy = Proxy::to(port);
            let backend = open(&proxy.url(), stage.mutant).await;
            let ids = stage.append(1).await;
            let lease = stage.lease(&stage.group, "owner").await;
            let mut reader = backend.log().reader(&lease).await.expect("a reader");
            let mut read: Vec<_> = receipts(&fetch(&mut *reader).await);
            assert_eq!(read.len(), ids.len());
            backend.log().settle(&lease, &[(read[0], Settlement::Ack)]).await.expect("settled");

            proxy.swallow("XREADGROUP", 1);
            stage.append(1).await;
            while proxy.swallowed() == 0 {
                // The reply is lost, and an error comes for it, or the reader has read again by itself.
                if let Ok(fetched) = reader.fetch(100, Duration::from_secs(5)).await {
                    read.extend(receipts(&fetched));
                }
            }
            let last = stage.append(1).await[0];
            while read.iter().all(|receipt| receipt.id != last) {
                if let Ok(fetched) = reader.fetch(100, Duration::from_secs(5)).await {
                    read.extend(receipts(&fetched));
                }
            }
            read.sort_unstable();
            read.dedup();
            format!("{} of 3 are read", read.len())
        },
        async |stage, said| match (said.as_deref(), stage.counts().await.1) {
            (Some("2 of 3 are read"), 2) => true,
            (Some("3 of 3 are read"), 2) => false,
            other => panic!("{other:?}"),
        },
    );
}

#[test]
fn a_trim_drops_what_is_pending() {
    Scene::new("reads::a_trim_drops_what_is_pending", Mutant::TrimIgnoresPending).run(
        async |stage| {
            stage.append(2).await;
            let lease = stage.lease(&stage.group, "owner").await;
            let read = stage.read(&lease).await;
            stage.backend.log().settle(&lease, &[(read[0], Settlement::Ack)]).await.expect("settled");
            let trimmed = stage.backend.log().trim(&lease, Retention::Consumed).await.expect("trimmed");
            format!("{} dropped", trimmed.dropped)
        },
        async |stage, said| match (said.as_deref(), stage.counts().await.0) {
            (Some("2 dropped"), 0) => true,
            (Some("1 dropped"), 1) => false,
            other => panic!("{other:?}"),
        },
    );
}

fn member(stage: &Stage, name: &str) -> SharedMember {
    SharedMember::new(stage.topic.name.clone(), stage.group.clone(), MemberId::new(name).expect("a name"))
}

#[test]
fn the_entries_of_a_dead_consumer_go_with_it() {
    Scene::new("reads::the_entries_of_a_dead_consumer_go_with_it", Mutant::DelconsumerWithPending).run(
        async |stage| {
            let entry = entry(&stage.tp, "x");
            stage.backend.log().append(&[entry]).await.remove(0).expect("stored");
            let shared = stage.backend.shared().expect("shared mode");
            let (dead, next) = (member(&stage, "dead"), member(&stage, "next"));
            let partition = Partition(0);
            let mut reader = shared.shared_reader(&dead, &[partition]).await.expect("a reader");
            let read = reader.fetch(10, Duration::from_secs(5)).await.expect("read");
            let read: usize = read.iter().map(|(_, fetched)| fetched.entries.len()).sum();
            let (alive, continuity) = ([next.consumer.clone()], Continuity::assured());
            let claimed = shared.claim(&next, partition, &alive, Duration::ZERO, 10, &continuity).await;
            let claimed = claimed.expect("claimed");
            format!("{read} read, {} claimed", claimed.abandoned.entries.len())
        },
        async |stage, said| match (said.as_deref(), stage.counts().await.1) {
            (Some("1 read, 0 claimed"), 0) => true,
            (Some("1 read, 1 claimed"), 1) => false,
            other => panic!("{other:?}"),
        },
    );
}
