//! Claiming and adopting: entries of dead consumers are delivered to others, and the dead consumers' names are
//! removed.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::Continuity;
use millstream_core::log::ProgressRight;
use millstream_core::log::{Entry, Settled};
use millstream_core::{ErrorKind, Partition, Settlement, TopicSpec};

use super::super::log::results::number;
use super::super::log::results::progress::{read, report};
use super::{Sharer, ids, only, receipts, sharers, suite};
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::continuity::{answered, not_whole};
use crate::harness::{BRIEF, Harness, LARGE, LONG, large};
use crate::owner::hold;

suite!("shared":
    what_the_dead_have_left_is_claimed_when_it_is_old,
    whose_entry_was_claimed_reports_nothing needs [Results],
    the_living_are_left_alone,
    a_claim_is_bounded,
    a_claim_shows_what_was_noted,
    retries_are_claimed_too,
    consumers_that_have_nothing_are_removed,
    what_an_owner_has_left_is_claimed,
    what_consumers_have_left_is_adopted_by_an_owner,
    adopting_is_fenced,
    large_entries_are_claimed_whole_and_once,
    who_was_not_answered_without_a_gap_claims_what_was_given_back,
    who_was_not_answered_without_a_gap_removes_nobody,
    who_was_not_answered_without_a_gap_adopts_what_was_given_back,
    a_record_that_is_whole_but_for_one_thing_claims_and_adopts_nothing;
    with an operator:
    a_claim_tells_ghosts needs [Stats],
);

async fn what_the_dead_have_left_is_claimed_when_it_is_old(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    h.append_n(&only(&topic), 2).await?;
    let entries = a.take(2).await?;
    let early = b.claim(&["b"], LONG, 10).await?;
    equal!((early.abandoned.entries.len(), early.removed), (0, 0), "claimed at once");
    let next = early.next.unwrap_or_default();
    ensure!(
        next <= LONG && next + LONG / 4 > LONG,
        "more to claim in {next:?}, expected a little less than {LONG:?}"
    );
    let claimed = b.claims(&["b"], BRIEF, 2).await?;
    equal!(ids(&claimed), ids(&entries), "what was claimed");
    ensure!(claimed.iter().all(|entry| entry.deliveries == 2), "deliveries of {claimed:?}");
    equal!(claimed[0].fields, entries[0].fields, "the fields of a claimed entry");
    let settled = a.settle(&receipts(&entries), &Settlement::Ack).await?;
    equal!(settled, Settled { applied: 0, stale: 2 }, "what the dead one settles");
    equal!(b.claim(&[], LONG, 10).await?.next, None, "when there is more to claim");
    b.acks(&receipts(&claimed)).await?;
    a.reopen().await?;
    a.nothing("b has done it").await?;
    b.reopen().await?;
    b.nothing("b has done it").await
}

async fn whose_entry_was_claimed_reports_nothing(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    let (tp, number) = (only(&topic), number());
    h.append_n(&tp, 2).await?;
    let entries = a.take(2).await?;
    let right = |sharer: &Sharer, entry: &Entry| ProgressRight::Consumer {
        member: Arc::new(sharer.member.clone()),
        partition: tp.partition,
        receipt: entry.receipt,
    };
    let log = h.backend.log();
    log.report_progress(&right(&a, &entries[0]), &report(number, 1, [(None, "a")])).await?;
    let reported = log.report_progress(&right(&b, &entries[0]), &report(number, 1, [(None, "b")])).await;
    refused(reported, ErrorKind::Fenced, "progress of what another consumer has")?;
    let claimed = b.claims(&[], Duration::ZERO, 2).await?;
    let reported = log.report_progress(&right(&a, &entries[0]), &report(number, 1, [(None, "late")])).await;
    refused(reported, ErrorKind::Fenced, "progress of what was claimed")?;
    log.report_progress(&right(&b, &claimed[0]), &report(number, 1, [(None, "b has it")])).await?;
    b.acks(&receipts(&claimed)).await?;
    let reported = log.report_progress(&right(&b, &claimed[0]), &report(number, 1, [(None, "done")])).await;
    refused(reported, ErrorKind::Fenced, "progress of what is settled")?;
    let texts: Vec<_> = read(&h, &tp, number, 0).await?.0.into_iter().map(|(.., text)| text).collect();
    equal!(texts, ["a", "b has it"], "what consumers have said");
    Ok(())
}

async fn the_living_are_left_alone(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    h.append_n(&only(&topic), 2).await?;
    let entries = a.take(2).await?;
    let claimed = b.claim(&["b", "a"], Duration::ZERO, 10).await?;
    equal!(
        (claimed.abandoned.entries.len(), claimed.removed, claimed.next),
        (0, 0, None),
        "a claim from the living"
    );
    // A claimer does not claim its own entries, whichever consumers are reported as alive.
    let claimed = a.claim(&[], Duration::ZERO, 10).await?;
    equal!(claimed.abandoned.entries.len(), 0, "claimed from oneself");
    a.acks(&receipts(&entries)).await
}

async fn a_claim_is_bounded(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    h.append_each(&only(&topic), 5).await?;
    a.take(5).await?;
    let mut counts = Vec::new();
    for _ in 0..3 {
        let claimed = b.claim(&[], Duration::ZERO, 2).await?;
        let left = 5 - counts.iter().sum::<usize>() - claimed.abandoned.entries.len();
        equal!(
            claimed.next,
            (left > 0).then_some(Duration::ZERO),
            "when there is more, of {left} that are left"
        );
        counts.push(claimed.abandoned.entries.len());
    }
    equal!(counts, [2, 2, 1], "claimed, two at a time");
    Ok(())
}

async fn a_claim_shows_what_was_noted(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    h.append_n(&only(&topic), 2).await?;
    let entries = a.take(2).await?;
    a.settle(&receipts(&entries[1..]), &hold(3, LONG)).await?;
    let claimed = b.claims(&[], Duration::ZERO, 2).await?;
    equal!(claimed[0].note, None, "the note of an entry of which nothing was noted");
    let note = claimed[1].note.as_ref().map(|note| (note.attempt, note.error.as_str()));
    equal!(note, Some((3, "attempt 2 failed")), "the note of a claimed entry");
    let after = claimed[1].note.as_ref().map_or(Duration::ZERO, millstream_core::log::Note::left);
    let slack = Duration::from_millis(5);
    ensure!(after <= LONG + slack && after + LONG / 4 > LONG, "{after:?} are left to wait, of {LONG:?}");
    Ok(())
}

async fn retries_are_claimed_too(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    h.append_n(&only(&topic), 1).await?;
    let entries = a.take(1).await?;
    a.settle(&receipts(&entries), &crate::owner::retry(&entries[0], Duration::ZERO)).await?;
    h.owner(&only(&topic), "group").await?.promote(1).await?;
    let retried = a.take(1).await?;
    let claimed = b.claims(&[], Duration::ZERO, 1).await?;
    equal!(receipts(&claimed), receipts(&retried), "what was claimed");
    b.acks(&receipts(&claimed)).await
}

async fn consumers_that_have_nothing_are_removed(h: Harness) -> Verdict {
    let (topic, [mut a, mut b, mut c]) = sharers(&h, 1, ["a", "b", "c"]).await?;
    h.append_each(&only(&topic), 3).await?;
    let (of_a, of_b) = (a.take(1).await?, b.take(2).await?);
    a.acks(&receipts(&of_a)).await?;
    c.nothing("everything is read").await?;
    equal!(c.claim(&["b"], LONG, 0).await?.removed, 0, "removed, though its heartbeat is new");
    let mut deadline = h.wait_for("a consumer that has nothing to be removed");
    while c.claim(&["b"], BRIEF, 0).await?.removed == 0 {
        deadline.pause().await?;
    }
    equal!(c.claim(&["b"], BRIEF, 0).await?.removed, 0, "removed for a second time");
    // A consumer with entries is not removed, and neither are its entries.
    c.claim(&[], Duration::ZERO, 0).await?;
    let claimed = c.claims(&[], Duration::ZERO, 2).await?;
    equal!(ids(&claimed), ids(&of_b), "what the other one had");
    // A removed consumer can come back.
    h.append_each(&only(&topic), 1).await?;
    let again = a.take(1).await?;
    a.acks(&receipts(&again)).await
}

async fn what_an_owner_has_left_is_claimed(h: Harness) -> Verdict {
    let (topic, [mut b]) = sharers(&h, 1, ["b"]).await?;
    let mut owner = h.owner(&only(&topic), "group").await?;
    h.append_n(&only(&topic), 2).await?;
    let entries = owner.take(2).await?;
    b.nothing("the owner has everything").await?;
    h.backend.leases().release(&owner.lease).await?;
    equal!(b.claim(&[], LONG, 10).await?.abandoned.entries.len(), 0, "claimed at once");
    let claimed = b.claims(&[], BRIEF, 2).await?;
    equal!(ids(&claimed), ids(&entries), "what was claimed");
    b.acks(&receipts(&claimed)).await
}

async fn what_consumers_have_left_is_adopted_by_an_owner(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    h.append_each(&only(&topic), 3).await?;
    let mut entries = a.take(2).await?;
    entries.extend(b.take(1).await?);
    let mut owner = h.owner(&only(&topic), "group").await?;
    owner.nothing("others have everything").await?;
    equal!(
        h.backend.shared()?.adopt(&owner.lease, LONG, 10, &Continuity::assured()).await?,
        0,
        "adopted at once"
    );
    let mut deadline = h.wait_for("what others have left to be adopted");
    let mut adopted = 0;
    while adopted < 3 {
        let more = h.backend.shared()?.adopt(&owner.lease, BRIEF, 2, &Continuity::assured()).await?;
        ensure!(more <= 2, "{more} entries were adopted, 2 were asked for");
        adopted += more;
        deadline.pause().await?;
    }
    owner.reopen().await?;
    let pending = owner.take(3).await?;
    equal!(ids(&pending), ids(&entries), "what is pending");
    equal!(
        a.settle(&receipts(&entries[..1]), &Settlement::Ack).await?.applied,
        0,
        "settled by who had it before"
    );
    owner.ack(&pending).await?;
    equal!(
        h.backend.shared()?.adopt(&owner.lease, Duration::ZERO, 10, &Continuity::assured()).await?,
        0,
        "adopted from nobody"
    );
    Ok(())
}

async fn adopting_is_fenced(h: Harness) -> Verdict {
    let (topic, [mut a]) = sharers(&h, 1, ["a"]).await?;
    h.append_n(&only(&topic), 1).await?;
    let entries = a.take(1).await?;
    let before = h.brief_owner(&only(&topic), "group", BRIEF).await?;
    let next = h.takeover(&before.lease).await?;
    let adopted = h.backend.shared()?.adopt(&before.lease, Duration::ZERO, 10, &Continuity::assured()).await;
    refused(adopted, ErrorKind::Fenced, "adopting with a lost lease")?;
    equal!(next.lease.partition()?.0.partition, Partition(0), "the partition of the next owner");
    a.acks(&receipts(&entries)).await
}

/// Returns two entries of `a`, the first of which it has given back.
async fn one_given_back(h: &Harness, a: &mut Sharer, topic: &TopicSpec) -> Result<Vec<Entry>, Violation> {
    h.append_each(&only(topic), 2).await?;
    let entries = a.take(2).await?;
    h.backend.shared()?.give_back(&a.member, Partition(0), &receipts(&entries[..1])).await?;
    Ok(entries)
}

async fn who_was_not_answered_without_a_gap_claims_what_was_given_back(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    let entries = one_given_back(&h, &mut a, &topic).await?;
    // The entries have been idle for long, but possibly because the server was unreachable.
    let continuity = Continuity::new(LONG);
    let claimed = b.claim_with(&[], (Duration::ZERO, 10), &continuity).await?;
    equal!(receipts(&claimed.given_back.entries), [entries[0].receipt], "what was given back");
    equal!(claimed.abandoned.entries.len(), 0, "claimed from one that may come back");
    equal!(claimed.next, Some(LONG), "when there is more to claim, if the claimer is answered from now on");
    a.acks(&receipts(&entries[1..])).await?;
    equal!(
        b.claim_with(&[], (Duration::ZERO, 10), &continuity).await?.next,
        None,
        "when there is more, of nothing"
    );
    b.acks(&receipts(&claimed.given_back.entries)).await
}

async fn who_was_not_answered_without_a_gap_removes_nobody(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    h.append_n(&only(&topic), 1).await?;
    let entries = a.take(1).await?;
    a.acks(&receipts(&entries)).await?;
    let removed = b.claim_with(&[], (Duration::ZERO, 10), &Continuity::new(LONG)).await?.removed;
    equal!(removed, 0, "consumers that were removed by who does not judge");
    let removed = b.claim(&[], Duration::ZERO, 10).await?.removed;
    ensure!(removed > 0, "nobody was removed by who judges");
    Ok(())
}

async fn who_was_not_answered_without_a_gap_adopts_what_was_given_back(h: Harness) -> Verdict {
    let (topic, [mut a]) = sharers(&h, 1, ["a"]).await?;
    one_given_back(&h, &mut a, &topic).await?;
    let owner = h.owner(&only(&topic), "group").await?;
    let adopt =
        async |continuity| h.backend.shared()?.adopt(&owner.lease, Duration::ZERO, 10, &continuity).await;
    equal!(adopt(Continuity::new(LONG)).await?, 1, "adopted by who does not judge");
    equal!(adopt(Continuity::new(LONG)).await?, 0, "adopted by who does not judge");
    equal!(adopt(Continuity::assured()).await?, 1, "adopted");
    Ok(())
}

async fn a_record_that_is_whole_but_for_one_thing_claims_and_adopts_nothing(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    h.append_each(&only(&topic), 2).await?;
    let entries = a.take(2).await?;
    let (server, owner) = (h.server().await?, h.owner(&only(&topic), "group").await?);
    let adopt =
        async |continuity| h.backend.shared()?.adopt(&owner.lease, Duration::ZERO, 1, &continuity).await;
    for (continuity, why) in not_whole(&server, h.now().await?, BRIEF) {
        let claimed = b.claim_with(&[], (Duration::ZERO, 10), &continuity).await?;
        equal!(receipts(&claimed.abandoned.entries), [], "claimed {why}");
        equal!(adopt(continuity).await?, 0, "adopted {why}");
    }
    // The same record without a fault. A slow machine may need more than one attempt before it becomes old.
    let whole = async || Ok::<_, Violation>(answered(&server, h.now().await?, BRIEF, BRIEF * 3));
    let mut deadline = h.wait_for("an entry to be claimed by who was answered for a ttl");
    loop {
        let claimed = b.claim_with(&[], (Duration::ZERO, 1), &whole().await?).await?;
        if !claimed.abandoned.entries.is_empty() {
            equal!(receipts(&claimed.abandoned.entries), [entries[0].receipt], "what was claimed");
            break;
        }
        deadline.pause().await?;
    }
    let mut deadline = h.wait_for("an entry to be adopted by who was answered for a ttl");
    while adopt(whole().await?).await? == 0 {
        deadline.pause().await?;
    }
    Ok(())
}

async fn a_claim_tells_ghosts(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    let appended = h.append_each(&only(&topic), 2).await?;
    let entries = a.take(2).await?;
    h.operator()?.delete_entry(&only(&topic), appended[0]).await?;
    let claimed = b.claim(&[], Duration::ZERO, 10).await?;
    equal!(claimed.abandoned.ghosts, [entries[0].receipt], "ghosts");
    equal!(receipts(&claimed.abandoned.entries), [entries[1].receipt], "what is whole");
    b.acks(&receipts(&claimed.abandoned.entries)).await?;
    let pending = h.backend.catalog().stats(&topic, &a.member.group).await?[0].pending;
    equal!(pending, 0, "pending entries, ghosts among them");
    b.reopen().await?;
    b.nothing("nothing is left").await
}

/// Exceeds the bytes that are claimed in one call, so several calls are needed.
async fn large_entries_are_claimed_whole_and_once(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    let fields: Vec<_> = (0..LARGE).map(large).collect();
    h.append(&only(&topic), fields.clone()).await?;
    let read = a.take(LARGE).await?;
    let mut claimed = Vec::new();
    while claimed.len() < LARGE {
        let more = b.claim(&[], Duration::ZERO, 100).await?;
        ensure!(!more.abandoned.entries.is_empty(), "nothing more after {} entries", claimed.len());
        claimed.extend(more.abandoned.entries);
    }
    equal!(ids(&claimed), ids(&read), "what was claimed");
    ensure!(claimed.iter().zip(&fields).all(|(entry, fields)| entry.fields == *fields), "with other fields");
    ensure!(claimed.iter().all(|entry| entry.deliveries == 2), "deliveries of claimed entries");
    equal!(b.claim(&[], Duration::ZERO, 100).await?.next, None, "when there is more to claim");
    b.acks(&receipts(&claimed)).await
}
