//! Fencing: an owner that lost its lease has no effect any more.

use std::time::Duration;

use millstream_core::catalog::Start;
use millstream_core::{ErrorKind, Reason, Retention, Settlement};

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{BRIEF, Harness, LONG, QUIET};
use crate::owner::{dead, hold, ids, retry};

suite!("log":
    a_stale_token_reads_nothing,
    a_reader_that_waited_through_a_takeover_reads_nothing,
    a_stale_token_settles_nothing,
    a_stale_token_holds_nothing,
    a_stale_token_seeks_nowhere needs [Seek],
    a_stale_token_trims_nothing,
    a_lease_that_ran_out_works_until_somebody_takes_it,
);

async fn a_stale_token_reads_nothing(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.brief_owner(&tp, "group", BRIEF).await?;
    let appended = h.append_each(&tp, 4).await?;
    owner.take(2).await?;
    let mut next = h.takeover(&owner.lease).await?;
    refused(owner.reader.fetch(10, Duration::ZERO).await, ErrorKind::Fenced, "a fetch after the takeover")?;
    refused(owner.reader.fetch(10, QUIET).await, ErrorKind::Fenced, "a second fetch after the takeover")?;
    owner.reopen().await?;
    let fetched = owner.reader.fetch(10, Duration::ZERO).await;
    refused(fetched, ErrorKind::Fenced, "a fetch by a new reader of the stale lease")?;
    // The settlement had no effect: two entries are pending as before, two are new.
    let pending = next.take(2).await?;
    equal!(ids(&pending), appended[..2], "what is pending");
    ensure!(pending.iter().all(|entry| entry.deliveries == 2), "a refused fetch counted: {pending:?}");
    let new = next.take(2).await?;
    equal!(ids(&new), appended[2..], "what is new");
    ensure!(new.iter().all(|entry| entry.deliveries == 1), "a refused fetch counted: {new:?}");
    Ok(())
}

async fn a_reader_that_waited_through_a_takeover_reads_nothing(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.brief_owner(&tp, "group", BRIEF).await?;
    owner.nothing("nothing was appended").await?;
    let resource = owner.lease.resource.clone();
    let takeover = async {
        let lease = h.eventually_granted(&resource, LONG).await?;
        h.append_n(&tp, 3).await?;
        Ok::<_, Violation>(lease)
    };
    let (fetched, lease) = tokio::join!(owner.reader.fetch(10, h.deadline()), takeover);
    let mut next = h.owner_by(lease?).await?;
    refused(fetched, ErrorKind::Fenced, "a fetch that waited through the takeover")?;
    for entry in next.take(3).await? {
        equal!(entry.deliveries, 1, "deliveries to the next owner");
    }
    Ok(())
}

async fn a_stale_token_settles_nothing(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.brief_owner(&tp, "group", BRIEF).await?;
    let (_, group) = owner.lease.partition()?;
    let group = group.clone();
    let appended = h.append_n(&tp, 3).await?;
    let entries = owner.take(3).await?;
    let mut next = h.takeover(&owner.lease).await?;
    let settlements = [
        Settlement::Ack,
        retry(&entries[1], Duration::ZERO),
        dead(Reason::Rejected, 1, entries[2].receipt.id),
    ];
    for (entry, settlement) in entries.iter().zip(settlements) {
        let what = format!("{settlement:?} after the takeover");
        let settled = h.backend.log().settle(&owner.lease, &[(entry.receipt, settlement)]).await;
        refused(settled, ErrorKind::Fenced, &what)?;
    }
    equal!(ids(&next.take(3).await?), appended, "what is pending");
    let promoted = h.backend.schedule().promote(&next.lease, 10).await?;
    equal!((promoted.moved, promoted.next), (0, None), "what is parked");
    if let Some(letters) = h.letters(&tp, &group).await? {
        equal!(letters.len(), 0, "dead letters");
    }
    Ok(())
}

async fn a_stale_token_holds_nothing(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.brief_owner(&tp, "group", BRIEF).await?;
    h.append_n(&tp, 2).await?;
    let entries = owner.take(2).await?;
    let mut next = h.takeover(&owner.lease).await?;
    let batch = [(entries[0].receipt, hold(2, Duration::ZERO))];
    refused(
        h.backend.log().settle(&owner.lease, &batch).await,
        ErrorKind::Fenced,
        "a hold after the takeover",
    )?;
    for entry in next.take(2).await? {
        equal!(entry.note, None, "the note of an entry after a refused hold");
    }
    Ok(())
}

async fn a_stale_token_seeks_nowhere(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.brief_owner(&tp, "group", BRIEF).await?;
    let appended = h.append_n(&tp, 4).await?;
    owner.take(2).await?;
    let mut next = h.takeover(&owner.lease).await?;
    for start in [Start::Earliest, Start::Latest] {
        let sought = h.backend.log().seek(&owner.lease, start).await;
        refused(sought, ErrorKind::Fenced, "a seek after the takeover")?;
    }
    let pending = next.take(2).await?;
    equal!(ids(&pending), appended[..2], "what is pending");
    ensure!(pending.iter().all(|entry| entry.deliveries == 2), "a refused seek did something: {pending:?}");
    equal!(ids(&next.take(2).await?), appended[2..], "what is new");
    Ok(())
}

async fn a_stale_token_trims_nothing(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.brief_owner(&tp, "group", BRIEF).await?;
    h.append_n(&tp, 3).await?;
    let entries = owner.take(3).await?;
    owner.ack(&entries).await?;
    let next = h.takeover(&owner.lease).await?;
    refused(
        h.backend.log().trim(&owner.lease, Retention::Consumed).await,
        ErrorKind::Fenced,
        "a trim after the takeover",
    )?;
    equal!(h.trim(&next.lease).await?, 3, "entries that were left to trim");
    Ok(())
}

async fn a_lease_that_ran_out_works_until_somebody_takes_it(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.brief_owner(&tp, "group", BRIEF).await?;
    h.append_n(&tp, 2).await?;
    let entries = owner.take(1).await?;
    let mut deadline = h.wait_for("the lease to run out");
    while h.backend.leases().holder(&owner.lease.resource).await?.is_some() {
        deadline.pause().await?;
    }
    owner.ack(&entries).await?;
    equal!(owner.take(1).await?.len(), 1, "entries read under a lease that ran out");
    h.backend.schedule().promote(&owner.lease, 10).await?;
    h.trim(&owner.lease).await?;
    Ok(())
}
