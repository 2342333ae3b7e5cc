//! Settling and extending: possible only for entries of the same consumer.

use std::collections::BTreeSet;
use std::time::Duration;

use millstream_core::envelope::Limits;
use millstream_core::inspect::Range;
use millstream_core::log::{Receipt, Settled};
use millstream_core::{Due, History, MessageId, Partition, Reason, Settlement, Timestamp, wire};

use super::{ids, only, receipts, sharers, suite};
use crate::case::{Verdict, ensure, equal};
use crate::harness::{BRIEF, Harness, LONG};
use crate::owner::{dead, hold, note, retry};
use crate::suite::log::results;
use millstream_core::MessageResult;

suite!("shared":
    only_what_one_has_can_be_settled needs [Stats],
    a_shared_entry_is_settled_once,
    a_shared_dead_letter_is_kept needs [DeadLetters],
    a_shared_entry_has_a_result_of_whoever_has_it needs [Results],
    a_shared_retry_keeps_attempt_and_failures,
    what_is_extended_is_not_claimed,
    what_is_lost_cannot_be_extended,
    to_extend_is_not_to_hand_out,
    what_is_given_back_is_claimed_at_once_and_never_by_others,
);

async fn only_what_one_has_can_be_settled(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    h.append_each(&only(&topic), 5).await?;
    let (of_a, of_b) = (a.take(4).await?, b.take(1).await?);
    let origin = of_a[0].receipt.id;
    let says =
        [Settlement::Ack, retry(&of_a[0], LONG), dead(Reason::Rejected, 1, origin), hold(2, Duration::ZERO)];
    for (entry, says) in of_a.iter().zip(&says) {
        let stale = b.settle(&[entry.receipt], says).await?;
        equal!(stale, Settled { applied: 0, stale: 1 }, "another's {says:?}");
    }
    // In one batch with an entry of its own.
    let mixed = b.settle(&[of_a[0].receipt, of_b[0].receipt], &Settlement::Ack).await?;
    equal!(mixed, Settled { applied: 1, stale: 1 }, "a batch with an entry of another");
    let stats = h.backend.catalog().stats(&topic, &a.member.group).await?;
    equal!(
        (stats[0].pending, stats[0].retrying, stats[0].dead),
        (4, 0, 0),
        "what another did to the entries of a"
    );
    for (entry, says) in of_a.iter().zip(&says) {
        let settled = a.settle(&[entry.receipt], says).await?;
        equal!(settled, Settled { applied: 1, stale: 0 }, "one's own {says:?}");
    }
    let stats = h.backend.catalog().stats(&topic, &a.member.group).await?;
    equal!((stats[0].pending, stats[0].retrying, stats[0].dead), (1, 1, 1), "what a did");
    a.reopen().await?;
    let held = a.take(1).await?;
    let noted = held[0].note.as_ref().map(|it| (it.attempt, it.suspicions));
    let expected = note(2, Duration::ZERO);
    equal!((held[0].receipt, noted), (of_a[3].receipt, Some((2, expected.suspicions))), "what is held");
    Ok(())
}

async fn a_shared_entry_is_settled_once(h: Harness) -> Verdict {
    let (topic, [mut a]) = sharers(&h, 1, ["a"]).await?;
    h.append_n(&only(&topic), 3).await?;
    let entries = a.take(3).await?;
    let unknown = Receipt::new(entries[0].receipt.source, MessageId::new(1, 1));
    equal!(
        a.settle(&[unknown], &Settlement::Ack).await?,
        Settled { applied: 0, stale: 1 },
        "an unknown entry"
    );
    for applied in [3, 0] {
        let settled = a.settle(&receipts(&entries), &Settlement::Ack).await?;
        equal!(settled, Settled { applied, stale: 3 - applied }, "three acks");
    }
    a.reopen().await?;
    a.nothing("everything is settled").await
}

async fn a_shared_entry_has_a_result_of_whoever_has_it(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    let (tp, number) = (only(&topic), results::number());
    h.append_each(&tp, 2).await?;
    let (of_a, of_b) = (a.take(1).await?, b.take(1).await?);
    let of = |text: &'static str| MessageResult::Replied(text.into());
    let stale = b.settle(&[of_a[0].receipt], &results::done(number, of("b"))).await?;
    equal!(stale, Settled { applied: 0, stale: 1 }, "another's result");
    results::expect(&h, &tp, number, None, "of who does not have it").await?;
    let settled = a.settle(&[of_a[0].receipt], &results::done(number, of("a"))).await?;
    equal!(settled, Settled { applied: 1, stale: 0 }, "one's own result");
    results::expect(&h, &tp, number, Some(&of("a")), "of who has it").await?;
    let mut settlement = dead(Reason::Rejected, 1, of_b[0].receipt.id);
    if let (Settlement::DeadLetter { result, .. }, Settlement::AckWith(stored)) =
        (&mut settlement, results::done(number + 1, of("b")))
    {
        *result = Some(stored);
    }
    let settled = b.settle(&[of_b[0].receipt], &settlement).await?;
    equal!(settled, Settled { applied: 1, stale: 0 }, "a dead letter with a result");
    results::expect(&h, &tp, number + 1, Some(&of("b")), "of a dead letter").await
}

async fn a_shared_dead_letter_is_kept(h: Harness) -> Verdict {
    let (topic, [mut a]) = sharers(&h, 1, ["a"]).await?;
    let appended = h.append_n(&only(&topic), 1).await?;
    let entries = a.take(1).await?;
    a.settle(&receipts(&entries), &dead(Reason::Rejected, 3, appended[0])).await?;
    let letters = h.backend.dead_letters()?.list(&only(&topic), &a.member.group, Range::ALL, 9).await?.items;
    let [letter] = &letters[..] else { return Err(crate::case::Violation::new(format!("{letters:?}"))) };
    equal!((letter.origin, letter.attempts), (appended[0], 3), "origin and attempts of the dead letter");
    equal!(letter.body, entries[0].fields, "its body");
    Ok(())
}

async fn a_shared_retry_keeps_attempt_and_failures(h: Harness) -> Verdict {
    let (topic, [mut a]) = sharers(&h, 1, ["a"]).await?;
    let tp = only(&topic);
    let origin = h.append_n(&tp, 1).await?[0];
    let entries = a.take(1).await?;
    let (error, history) = ("attempt 2 failed".to_owned(), History::parse("5 1 first"));
    let says = Settlement::Retry { due: Due::NOW, attempt: 3, origin, error, history, wait: None };
    equal!(a.settle(&receipts(&entries), &says).await?.applied, 1, "a retry");
    h.own(&tp, &a.member.group, LONG).await?.promote(1).await?;
    let back = a.take(1).await?.remove(0);
    let back = wire::decode(back.receipt, &back.fields, &Limits::default());
    let failures: Vec<_> = back.history.failures().iter().map(|failed| failed.attempt).collect();
    equal!(
        (back.attempt, failures, back.history.since()),
        (3, vec![1, 2], Some(Timestamp::from_millis(5))),
        "attempt and failures"
    );
    Ok(())
}

async fn what_is_extended_is_not_claimed(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    h.append_each(&only(&topic), 2).await?;
    let entries = a.take(2).await?;
    let (kept, left) = (entries[0].receipt, entries[1].receipt);
    let mut deadline = h.wait_for("an entry that nobody extends to be claimed");
    loop {
        equal!(a.extend(&[kept]).await?, BTreeSet::new(), "entries that are lost");
        let claimed = b.claim(&[], BRIEF, 10).await?.abandoned.entries;
        if !claimed.is_empty() {
            equal!(receipts(&claimed), [left], "what was claimed");
            return a.acks(&[kept]).await;
        }
        deadline.pause().await?;
    }
}

async fn what_is_lost_cannot_be_extended(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    h.append_each(&only(&topic), 3).await?;
    let of_a = receipts(&a.take(3).await?);
    a.acks(&of_a[..1]).await?;
    let claimed = receipts(&b.claims(&[], Duration::ZERO, 1).await?);
    let lost: BTreeSet<_> = [of_a[0], claimed[0]].into();
    for _ in 0..2 {
        equal!(a.extend(&of_a).await?, lost, "entries that a has no more");
    }
    equal!(b.extend(&claimed).await?, BTreeSet::new(), "entries that b has lost");
    b.acks(&claimed).await?;
    let kept: Vec<_> = of_a.into_iter().filter(|receipt| !lost.contains(receipt)).collect();
    a.acks(&kept).await
}

async fn to_extend_is_not_to_hand_out(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    h.append_n(&only(&topic), 1).await?;
    let entries = receipts(&a.take(1).await?);
    for _ in 0..3 {
        equal!(a.extend(&entries).await?, BTreeSet::new(), "entries that are lost");
    }
    equal!(b.claims(&[], Duration::ZERO, 1).await?[0].deliveries, 2, "deliveries of a claimed entry");
    Ok(())
}

async fn what_is_given_back_is_claimed_at_once_and_never_by_others(h: Harness) -> Verdict {
    let (topic, [mut a, mut b, mut c]) = sharers(&h, 1, ["a", "b", "c"]).await?;
    h.append_each(&only(&topic), 3).await?;
    let entries = a.take(3).await?;
    h.backend.shared()?.give_back(&a.member, Partition(0), &receipts(&entries[..2])).await?;
    h.backend.shared()?.give_back(&b.member, Partition(0), &receipts(&entries[2..])).await?;
    let claimed = b.claim(&["a"], LONG, 10).await?;
    ensure!(claimed.given_back.entries.is_empty(), "the living are robbed: {claimed:?}");
    let claimed = b.claim(&[], LONG, 10).await?;
    equal!(ids(&claimed.given_back.entries), ids(&entries[..2]), "what was given back");
    ensure!(claimed.given_back.pending, "it looks like new");
    equal!(claimed.abandoned.entries.len(), 0, "entries that somebody died over");
    let claimed = c.claim(&[], LONG, 10).await?;
    let count = claimed.given_back.entries.len() + claimed.abandoned.entries.len();
    equal!(count, 0, "entries that can be claimed once more");
    b.acks(&receipts(&entries[..2])).await?;
    a.acks(&receipts(&entries[2..])).await
}
