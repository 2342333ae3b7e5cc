//! Seek: the group continues from another position, and only from there.

use std::time::Duration;

use millstream_core::catalog::Start;
use millstream_core::inspect::Range;
use millstream_core::log::Source;
use millstream_core::{ErrorKind, GroupName, MessageId, Reason, Settlement, Timestamp};

use super::suite;
use crate::case::{Verdict, ensure, equal, refused};
use crate::harness::{Harness, LONG, QUIET};
use crate::owner::{dead, hold, ids, retry};

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

suite!("log":
    seeking_back_reads_again_as_new needs [Seek],
    seeking_forward_skips_what_is_pending_and_what_is_unread needs [Seek],
    seeking_forgets_notes needs [Seek],
    seeking_to_a_time_reads_what_came_then needs [Seek],
    seeking_to_the_ends needs [Seek],
    seeking_beyond_the_end_reads_what_comes needs [Seek],
    a_reader_that_waits_through_a_seek_is_fenced needs [Seek],
    what_was_handed_out_before_a_seek_is_settled_by_nobody needs [DeadLetters, Seek],
    a_seek_gives_the_lease_back needs [Seek],
    seeking_leaves_retries_and_dead_letters needs [DeadLetters, Seek],
    seeking_leaves_other_groups needs [Seek],
    seeking_without_a_group_says_so needs [Seek],
);

const HOUR: Duration = Duration::from_secs(3_600);

async fn seeking_back_reads_again_as_new(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_n(&tp, 5).await?;
    let entries = owner.take(4).await?;
    owner.ack(&entries[1..2]).await?;
    owner.seek(Start::After(appended[0])).await?;
    let again = owner.take(4).await?;
    equal!(ids(&again), appended[1..], "what is read after a seek back");
    let deliveries: Vec<_> = again.iter().map(|entry| entry.deliveries).collect();
    equal!(deliveries, [1, 1, 1, 1], "deliveries of what is read as new");
    owner.ack(&again).await?;
    owner.reopen().await?;
    owner.nothing("everything is settled, or was skipped").await
}

async fn seeking_forward_skips_what_is_pending_and_what_is_unread(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_each(&tp, 5).await?;
    let entries = owner.take(2).await?;
    owner.seek(Start::After(appended[3])).await?;
    equal!(ids(&owner.take(1).await?), appended[4..], "what is read after a seek forward");
    owner.nothing("the rest is skipped").await?;
    owner.reopen().await?;
    equal!(ids(&owner.take(1).await?), appended[4..], "what is pending after a seek forward");
    owner.nothing("the rest is skipped, also what was pending").await?;
    equal!(owner.settle(entries[0].receipt, Settlement::Ack).await?.stale, 1, "an ack of what is skipped");
    // Skipped entries do not prevent a trim.
    equal!(h.trim(&owner.lease).await?, 4, "entries dropped after a seek forward");
    Ok(())
}

async fn seeking_forgets_notes(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 3).await?;
    let entries = owner.take(3).await?;
    owner.settle_all(&entries, &hold(2, HOUR)).await?;
    // A position before a note and one after it, then back to the beginning.
    for start in [Start::After(entries[1].receipt.id), Start::Earliest] {
        owner.seek(start).await?;
    }
    owner.take(3).await?;
    owner.reopen().await?;
    for entry in owner.take(3).await? {
        equal!(entry.note, None, "the note of {:?} after a seek", entry.receipt);
    }
    Ok(())
}

async fn seeking_to_a_time_reads_what_came_then(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let elsewhere = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let early = h.append_n(&tp, 2).await?;
    h.clock_passes(&elsewhere, early[1].timestamp()).await?;
    let late = h.append_n(&tp, 2).await?;
    owner.take(4).await?;
    for ms in [late[0].ms, early[1].ms + 1] {
        owner.seek(Start::At(AT(ms))).await?;
        equal!(ids(&owner.take(2).await?), late, "what is read after a seek to {ms}");
        owner.nothing("everything since was read").await?;
    }
    owner.seek(Start::At(AT(0))).await?;
    equal!(ids(&owner.take(4).await?), [early, late].concat(), "what is read after a seek to the beginning");
    Ok(())
}

async fn seeking_to_the_ends(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    owner.seek(Start::Earliest).await?;
    owner.seek(Start::Latest).await?;
    let mut appended = h.append_n(&tp, 3).await?;
    equal!(ids(&owner.take(1).await?), appended[..1], "what is read of an empty log after a seek");
    owner.seek(Start::Latest).await?;
    owner.nothing("everything was skipped").await?;
    appended.extend(h.append_n(&tp, 1).await?);
    equal!(ids(&owner.take(1).await?), appended[3..], "what is read after a seek to the end");
    owner.seek(Start::Earliest).await?;
    equal!(ids(&owner.take(4).await?), appended, "what is read after a seek to the beginning");
    Ok(())
}

async fn a_reader_that_waits_through_a_seek_is_fenced(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_n(&tp, 3).await?;
    let entries = owner.take(3).await?;
    owner.ack(&entries).await?;
    let sought = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        h.backend.log().seek(&owner.lease, Start::Earliest).await
    };
    // The backend decides whether this fetch or the next one fails.
    let (fetched, sought) = tokio::join!(owner.reader.fetch(10, Duration::from_millis(40)), sought);
    sought?;
    if let Ok(fetched) = fetched {
        equal!(fetched.entries.len(), 0, "entries that are read under a lease that is given back");
        refused(owner.reader.fetch(10, QUIET).await, ErrorKind::Fenced, "a fetch behind a seek")?;
    } else {
        refused(fetched, ErrorKind::Fenced, "a fetch that waited through a seek")?;
    }
    owner.goes_on().await?;
    equal!(ids(&owner.take(3).await?), appended, "what is read after a seek that came while waiting");
    Ok(())
}

/// A settlement may be in progress while the group is moved, and the same ids are delivered again.
async fn what_was_handed_out_before_a_seek_is_settled_by_nobody(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_n(&tp, 4).await?;
    let entries = owner.take(4).await?;
    let before = owner.lease.clone();
    let late = [
        Settlement::Ack,
        retry(&entries[1], Duration::ZERO),
        hold(2, HOUR),
        dead(Reason::Rejected, 1, appended[3]),
    ];
    let late: Vec<_> = entries.iter().map(|entry| entry.receipt).zip(late).collect();
    owner.seek(Start::Earliest).await?;
    // Before the entries are delivered again, and after it.
    for what in ["before it is read again", "after it was read again"] {
        for one in &late {
            let settled = h.backend.log().settle(&before, std::slice::from_ref(one)).await;
            refused(settled, ErrorKind::Fenced, &format!("{one:?} under the lease before, {what}"))?;
        }
        if what.starts_with("before") {
            equal!(ids(&owner.take(4).await?), appended, "what is read after a seek");
        }
    }
    owner.reopen().await?;
    let pending = owner.take(4).await?;
    equal!(ids(&pending), appended, "what is pending");
    equal!(pending[2].note, None, "a note from before");
    let (_, group) = before.partition()?;
    let letters = h.backend.dead_letters()?.list(&tp, group, Range::ALL, 10).await?.items;
    equal!(letters.len(), 0, "dead letters");
    owner.ack(&pending).await
}

async fn a_seek_gives_the_lease_back(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let owner = h.owner(&tp, "group").await?;
    let before = owner.lease.clone();
    h.backend.log().seek(&before, Start::Latest).await?;
    equal!(h.backend.leases().holder(&before.resource).await?, None, "the holder after a seek");
    refused(h.backend.log().seek(&before, Start::Earliest).await, ErrorKind::Fenced, "a second seek")?;
    refused(h.renew(&before).await?, ErrorKind::Fenced, "a renewal after a seek")?;
    refused(h.backend.leases().release(&before).await, ErrorKind::Fenced, "a release after a seek")?;
    let next = h.granted(&before.resource, LONG).await?;
    ensure!(next.epoch > before.epoch && next.token != before.token, "{next:?} after {before:?}");
    equal!(next.ends, Vec::<u64>::new(), "ends of owners before");
    Ok(())
}

async fn seeking_leaves_retries_and_dead_letters(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let (_, group) = owner.lease.partition()?;
    let group = group.clone();
    let appended = h.append_n(&tp, 4).await?;
    let entries = owner.take(4).await?;
    for entry in &entries[..2] {
        owner.settle(entry.receipt, retry(entry, Duration::ZERO)).await?;
    }
    owner.promote(2).await?;
    let redelivered = owner.take_retries(1).await?;
    owner.settle_all(&redelivered, &hold(9, Duration::ZERO)).await?;
    owner.settle(entries[2].receipt, retry(&entries[2], Duration::ZERO)).await?;
    owner.settle(entries[3].receipt, dead(Reason::Rejected, 1, appended[3])).await?;

    owner.seek(Start::Latest).await?;
    // One entry pending, one unread, one parked.
    owner.promote(1).await?;
    let mut came = owner.take(3).await?;
    came.sort_unstable_by_key(|entry| entry.receipt);
    let sources: Vec<_> = came.iter().map(|entry| entry.receipt.source).collect();
    equal!(sources, [Source::Retry; 3], "where the group reads after a seek to the end");
    equal!(came[0].receipt, redelivered[0].receipt, "what was pending of the retries");
    equal!(came[0].note.as_ref().map(|note| note.attempt), Some(9), "the note of a pending retry");
    owner.ack(&came).await?;
    owner.nothing("everything came").await?;
    let letters = h.backend.dead_letters()?.list(&tp, &group, Range::ALL, 10).await?.items;
    equal!(letters.len(), 1, "dead letters after a seek");
    Ok(())
}

async fn seeking_beyond_the_end_reads_what_comes(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_n(&tp, 2).await?;
    let tomorrow = appended[1].ms + 24 * 3_600_000;
    for start in [
        Start::At(AT(tomorrow)),
        Start::At(AT(u64::MAX)),
        Start::After(MessageId::new(tomorrow, u64::MAX)),
        Start::After(MessageId::MAX),
    ] {
        owner.seek(start).await?;
        owner.nothing("everything that was there is skipped").await?;
        let new = h.append_n(&tp, 2).await?;
        equal!(ids(&owner.take(2).await?), new, "what came after a seek to {start:?}");
    }
    Ok(())
}

async fn seeking_leaves_other_groups(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut first = h.owner(&tp, "first").await?;
    let mut second = h.owner(&tp, "second").await?;
    let appended = h.append_n(&tp, 4).await?;
    second.take(2).await?;
    first.seek(Start::Latest).await?;
    first.nothing("this group skipped everything").await?;
    equal!(ids(&second.take(2).await?), appended[2..], "what comes next in another group");
    second.reopen().await?;
    equal!(ids(&second.take(4).await?), appended, "what is pending in another group");
    Ok(())
}

async fn seeking_without_a_group_says_so(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let owner = h.own(&tp, &GroupName::new("group")?, LONG).await?;
    h.append_n(&tp, 2).await?;
    for start in [Start::Earliest, Start::Latest] {
        let sought = h.backend.log().seek(&owner.lease, start).await;
        refused(sought, ErrorKind::GroupMissing, "a seek of a group that is not there")?;
    }
    Ok(())
}
