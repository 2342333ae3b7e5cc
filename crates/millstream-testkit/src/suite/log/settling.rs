//! Settle: at most once for each entry, and a retry comes back complete to its own group.

use std::time::Duration;

use millstream_core::envelope::Limits;
use millstream_core::inspect::Range;
use millstream_core::log::{Entry, Receipt, Settled, Source};
use millstream_core::wire::{self, Fields};
use millstream_core::{ErrorKind, History, MessageId, Reason, Settlement};

use super::suite;
use crate::case::{Verdict, ensure, equal, refused};
use crate::harness::{BRIEF, Harness, foreign, message};
use crate::owner::{dead, hold, ids, retry, retry_as};

suite!("log":
    an_acked_entry_is_never_handed_out_again,
    settling_twice_is_stale_and_harmless,
    settling_an_unknown_receipt_is_stale,
    a_mixed_batch_settles_each_by_itself,
    a_retry_comes_back_with_attempt_origin_error_and_body,
    a_retry_comes_back_to_its_own_group_only,
    a_retry_of_a_retry_keeps_origin_and_body,
    a_retry_that_is_done_is_gone;
    with an operator:
    what_a_lost_group_had_in_hand_is_not_settled_away needs [DeadLetters, Restore],
);

const HOUR: Duration = Duration::from_secs(3_600);

async fn an_acked_entry_is_never_handed_out_again(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.brief_owner(&tp, "group", BRIEF).await?;
    h.append_n(&tp, 5).await?;
    let entries = owner.take(5).await?;
    owner.ack(&entries).await?;
    owner.nothing("everything is acked").await?;
    owner.reopen().await?;
    owner.nothing("everything is acked, for a new reader").await?;
    let mut next = h.takeover(&owner.lease).await?;
    next.nothing("everything is acked, for the next owner").await
}

async fn settling_twice_is_stale_and_harmless(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let (_, group) = owner.lease.partition()?;
    let group = group.clone();
    h.append_n(&tp, 3).await?;
    let entries = owner.take(3).await?;
    let says = [
        Settlement::Ack,
        retry(&entries[1], Duration::ZERO),
        dead(Reason::Rejected, 1, entries[2].receipt.id),
    ];
    for (entry, says) in entries.iter().zip(&says) {
        equal!(
            owner.settle(entry.receipt, says.clone()).await?,
            Settled { applied: 1, stale: 0 },
            "{says:?}"
        );
        // The same settlement again, as after a lost reply, and every other settlement.
        for again in says_of(entry, says) {
            let settled = owner.settle(entry.receipt, again).await?;
            equal!(settled, Settled { applied: 0, stale: 1 }, "a second settlement after {says:?}");
        }
    }
    owner.promote(1).await?;
    let retried = owner.take(1).await?;
    equal!(retried[0].receipt.source, Source::Retry, "the only entry left");
    owner.nothing("one retry was parked").await?;
    if let Some(letters) = h.letters(&tp, &group).await? {
        equal!(letters.len(), 1, "dead letters");
    }
    Ok(())
}

fn says_of(entry: &Entry, first: &Settlement) -> [Settlement; 4] {
    let id = entry.receipt.id;
    [first.clone(), Settlement::Ack, retry(entry, Duration::ZERO), dead(Reason::Exhausted, 1, id)]
}

async fn settling_an_unknown_receipt_is_stale(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_each(&tp, 2).await?;
    let entries = owner.take(1).await?;
    let unknown = [
        Receipt::new(Source::Log, MessageId::new(1, 1)),
        // An entry that exists in the other stream, and one that exists but was not delivered.
        Receipt::new(Source::Retry, appended[0]),
        Receipt::new(Source::Log, appended[1]),
    ];
    let settlements =
        [Settlement::Ack, retry(&entries[0], Duration::ZERO), dead(Reason::Rejected, 1, appended[0])];
    for receipt in unknown {
        for settlement in &settlements {
            let settled = owner.settle(receipt, settlement.clone()).await?;
            equal!(settled, Settled { applied: 0, stale: 1 }, "{settlement:?} for {receipt:?}");
        }
    }
    equal!(
        owner.settle(entries[0].receipt, Settlement::Ack).await?.applied,
        1,
        "the entry that was handed out"
    );
    equal!(ids(&owner.take(1).await?), [appended[1]], "the entry that was not handed out yet");
    Ok(())
}

async fn a_mixed_batch_settles_each_by_itself(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let (_, group) = owner.lease.partition()?;
    let group = group.clone();
    h.append_n(&tp, 5).await?;
    let entries = owner.take(5).await?;
    let receipt = |n: usize| entries[n].receipt;
    let batch = [
        (receipt(3), dead(Reason::Rejected, 1, receipt(3).id)),
        (receipt(0), Settlement::Ack),
        (Receipt::new(Source::Log, MessageId::new(1, 1)), Settlement::Ack),
        (receipt(2), retry(&entries[2], Duration::ZERO)),
        (receipt(0), Settlement::Ack),
    ];
    let settled = h.backend.log().settle(&owner.lease, &batch).await?;
    equal!(
        settled,
        Settled { applied: 3, stale: 2 },
        "a batch of three good ones, an unknown one and one twice"
    );
    equal!(h.backend.log().settle(&owner.lease, &[]).await?, Settled::default(), "an empty batch");
    owner.promote(1).await?;
    let retried = owner.take(1).await?;
    equal!(wire::body_of(Source::Retry, &retried[0].fields), &message(2)[..], "the retry");
    if let Some(letters) = h.letters(&tp, &group).await? {
        let origins: Vec<_> = letters.iter().map(|letter| letter.origin).collect();
        equal!(origins, [receipt(3).id], "dead letters");
    }
    owner.reopen().await?;
    let pending = owner.take(3).await?;
    let mut pending: Vec<_> = pending.iter().map(|entry| entry.receipt).collect();
    pending.sort_unstable();
    equal!(pending, [receipt(1), receipt(4), retried[0].receipt], "what is left");
    Ok(())
}

/// Expects a redelivery with all values of its settlement.
fn expect_redelivery(entry: &Entry, attempt: u32, origin: MessageId, body: &Fields) -> Verdict {
    equal!(entry.receipt.source, Source::Retry, "where the retry was read");
    let decoded = wire::decode(entry.receipt, &entry.fields, &Limits::default());
    equal!(decoded.attempt, attempt, "the attempt of a redelivery");
    equal!(decoded.origin, origin, "the origin of a redelivery");
    equal!(decoded.error, Some(format!("attempt {} failed", attempt - 1)), "the error of a redelivery");
    let found = wire::body_of(Source::Retry, &entry.fields);
    ensure!(found == &body[..], "the body came back changed: {found:?}, expected {body:?}");
    equal!(entry.deliveries, 1, "deliveries of a redelivery");
    Ok(())
}

async fn a_retry_comes_back_with_attempt_origin_error_and_body(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    for body in [
        message(0),
        foreign(),
        wire::redelivery(9, MessageId::new(1, 1), "no error", &History::default(), &message(1)),
    ] {
        h.append(&tp, [body.clone()]).await?;
        let entries = owner.take(1).await?;
        owner.settle_all(&entries, &retry(&entries[0], Duration::ZERO)).await?;
        // A redelivery is independent: the log may be trimmed before it is due.
        h.trim(&owner.lease).await?;
        owner.promote(1).await?;
        let retried = owner.take(1).await?;
        expect_redelivery(&retried[0], 2, entries[0].receipt.id, &body)?;
        owner.ack(&retried).await?;
    }
    owner.nothing("every retry is done").await
}

async fn a_retry_comes_back_to_its_own_group_only(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut first = h.owner(&tp, "first").await?;
    let mut second = h.owner(&tp, "second").await?;
    h.append_n(&tp, 3).await?;
    let entries = first.take(3).await?;
    let of_second = second.take(3).await?;
    second.ack(&of_second).await?;
    for entry in &entries {
        first.settle(entry.receipt, retry(entry, Duration::ZERO)).await?;
    }
    // In another partition, so that the clock's entries do not interfere.
    let elsewhere = h.partition().await?;
    let now = h.clock(&elsewhere).await?;
    h.clock_passes(&elsewhere, now.saturating_add(Duration::from_millis(20))).await?;
    let promoted = h.backend.schedule().promote(&second.lease, 100).await?;
    equal!((promoted.moved, promoted.next), (0, None), "what the group without retries promotes");
    first.promote(3).await?;
    second.nothing("the retries are another group's").await?;
    equal!(first.take(3).await?.len(), 3, "retries");
    Ok(())
}

async fn a_retry_of_a_retry_keeps_origin_and_body(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let body = foreign();
    let origin = h.append(&tp, [body.clone()]).await?[0];
    let mut entries = owner.take(1).await?;
    for attempt in 2..=5 {
        owner.settle_all(&entries, &retry_as(attempt, origin, Duration::ZERO)).await?;
        owner.promote(1).await?;
        entries = owner.take(1).await?;
        expect_redelivery(&entries[0], attempt, origin, &body)?;
    }
    Ok(())
}

async fn a_retry_that_is_done_is_gone(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.brief_owner(&tp, "group", BRIEF).await?;
    h.append_n(&tp, 4).await?;
    let entries = owner.take(4).await?;
    for entry in &entries {
        owner.settle(entry.receipt, retry(entry, Duration::ZERO)).await?;
    }
    owner.promote(4).await?;
    let retried = owner.take(4).await?;
    owner.ack(&retried[..3]).await?;
    owner.settle(retried[3].receipt, retry_as(3, entries[3].receipt.id, HOUR)).await?;
    let mut next = h.takeover(&owner.lease).await?;
    next.nothing("three retries are done and one is parked for an hour").await
}

/// The caller does not know that the group is gone. Unfinished messages must not count as settled, or they would
/// never be read again.
async fn what_a_lost_group_had_in_hand_is_not_settled_away(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let (_, group) = owner.lease.partition()?;
    let group = group.clone();
    let appended = h.append_each(&tp, 5).await?;
    let entries = owner.take(5).await?;
    owner.settle_all(&entries[..1], &retry(&entries[0], Duration::ZERO)).await?;
    owner.promote(1).await?;
    let redelivered = owner.take_retries(1).await?;
    h.operator()?.destroy_group(&tp, &group).await?;

    let again = [retry(&entries[1], HOUR), dead(Reason::Rejected, 1, appended[1]), hold(2, HOUR)];
    for says in again {
        let settled = h.backend.log().settle(&owner.lease, &[(entries[1].receipt, says.clone())]).await;
        refused(settled, ErrorKind::GroupMissing, &format!("{says:?} without the group"))?;
    }
    equal!(
        owner.settle(entries[2].receipt, Settlement::Ack).await?,
        Settled { applied: 0, stale: 1 },
        "an ack without the group"
    );
    let mixed = [
        (entries[3].receipt, retry(&entries[3], HOUR)),
        (redelivered[0].receipt, Settlement::Ack),
        (entries[4].receipt, Settlement::Ack),
    ];
    let settled = h.backend.log().settle(&owner.lease, &mixed).await;
    refused(settled, ErrorKind::GroupMissing, "a retry among others without the group")?;

    h.backend.catalog().restore_group(&tp, &group, appended[0]).await?;
    owner.reopen().await?;
    let entries = owner.take(4).await?;
    equal!(ids(&entries), appended[1..], "what is read again; and the redelivery that was acked is not");
    owner.settle_all(&entries[..1], &retry(&entries[0], Duration::ZERO)).await?;
    owner.settle_all(&entries[1..], &Settlement::Ack).await?;
    owner.promote(1).await?;
    owner.take_retries(1).await?;
    let letters = h.backend.dead_letters()?.list(&tp, &group, Range::ALL, 10).await?.items;
    equal!(letters.len(), 0, "dead letters");
    Ok(())
}
