//! Hold: the note of a pending entry is kept with it for its next reader.

use std::time::Duration;

use millstream_core::catalog::Start;
use millstream_core::log::{Entry, Note, Receipt, Settled, Source};
use millstream_core::wire::MAX_ERROR_LEN;
use millstream_core::{Capability, Due, GroupName, History, MessageId, Reason, Settlement, TopicSpec};
use tokio::time::Instant;

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::{BRIEF, Harness, LONG};
use crate::owner::{dead, hold, ids, note, retry, retry_as};

suite!("log":
    a_note_is_read_with_its_entry,
    a_note_is_read_by_the_next_owner,
    a_note_may_say_nothing_or_too_much,
    the_last_note_holds,
    a_held_entry_stays_pending,
    the_wait_of_a_note_goes_by_and_is_never_early,
    a_note_of_a_redelivery_is_kept_too,
    a_note_is_its_groups_own,
    holding_what_is_not_pending_is_stale;
    with an operator:
    a_settled_entry_leaves_no_note needs [Restore],
);

const HOUR: Duration = Duration::from_secs(3_600);

/// Returns notes without their waits, which decrease with time.
fn told(entries: &[Entry]) -> Vec<Option<Note>> {
    let still = |note: &Note| Note { due: Due::NOW, history: History::default(), ..note.clone() };
    entries.iter().map(|entry| entry.note.as_ref().map(still)).collect()
}

async fn a_note_is_read_with_its_entry(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_n(&tp, 3).await?;
    let entries = owner.take(3).await?;
    equal!(told(&entries), [None, None, None], "notes of entries that are read for the first time");
    let batch =
        [(entries[0].receipt, hold(2, Duration::ZERO)), (entries[2].receipt, hold(7, Duration::ZERO))];
    let settled = h.backend.log().settle(&owner.lease, &batch).await?;
    equal!(settled, Settled { applied: 2, stale: 0 }, "two holds");
    for _ in 0..2 {
        owner.reopen().await?;
        let pending = owner.take(3).await?;
        equal!(ids(&pending), appended, "what is pending");
        let expected = [Some(note(2, Duration::ZERO)), None, Some(note(7, Duration::ZERO))];
        equal!(told(&pending), expected, "notes of what is pending");
    }
    Ok(())
}

async fn a_note_is_read_by_the_next_owner(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.brief_owner(&tp, "group", BRIEF).await?;
    h.append_n(&tp, 2).await?;
    let entries = owner.take(2).await?;
    owner.settle_all(&entries[..1], &hold(3, Duration::ZERO)).await?;
    let mut next = h.takeover(&owner.lease).await?;
    equal!(told(&next.take(2).await?), [Some(note(3, Duration::ZERO)), None], "notes after a takeover");
    Ok(())
}

async fn a_note_may_say_nothing_or_too_much(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 4).await?;
    let entries = owner.take(4).await?;
    let odd = |error: String| Note { attempt: u32::MAX, suspicions: u32::MAX, error, ..Note::default() };
    let notes = [
        Note::default(),
        odd("two  words\r\n\tand \0 naïve ✓ ".to_owned()),
        odd("x".repeat(MAX_ERROR_LEN)),
        Note { by: "b".repeat(128), ..odd("é".repeat(MAX_ERROR_LEN)) },
    ];
    for (entry, note) in entries.iter().zip(&notes) {
        equal!(owner.settle(entry.receipt, Settlement::Hold(note.clone())).await?.applied, 1, "a hold");
    }
    owner.reopen().await?;
    let mut expected = notes;
    expected[3].error = "é".repeat(MAX_ERROR_LEN / 2);
    equal!(told(&owner.take(4).await?), expected.map(Some), "notes of what is pending");
    Ok(())
}

async fn the_last_note_holds(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 2).await?;
    let entries = owner.take(2).await?;
    owner.settle_all(&entries, &hold(2, HOUR)).await?;
    owner.settle_all(&entries[..1], &hold(3, Duration::ZERO)).await?;
    let twice = [hold(4, HOUR), hold(5, Duration::ZERO)].map(|hold| (entries[1].receipt, hold));
    equal!(h.backend.log().settle(&owner.lease, &twice).await?.applied, 2, "two holds in one batch");
    owner.reopen().await?;
    let pending = owner.take(2).await?;
    equal!(told(&pending), [3, 5].map(|n| Some(note(n, Duration::ZERO))), "notes that replaced others");
    for entry in pending {
        let after = entry.note.map(|note| note.left());
        ensure!(after < Some(BRIEF), "a wait of {after:?} is left of none");
    }
    Ok(())
}

async fn a_held_entry_stays_pending(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let (_, group) = owner.lease.partition()?;
    let group = group.clone();
    let appended = h.append_n(&tp, 3).await?;
    let entries = owner.take(3).await?;
    owner.settle_all(&entries[..2], &hold(2, HOUR)).await?;
    owner.ack(&entries[2..]).await?;
    equal!(h.trim(&owner.lease).await?, 0, "entries dropped behind one that is held");
    let topic = TopicSpec::new(tp.topic.clone(), 1)?;
    if h.backend.supports(Capability::Stats) {
        let pending = h.backend.catalog().stats(&topic, &group).await?.first().map(|stats| stats.pending);
        equal!(pending, Some(2), "pending entries, two of them held");
    }
    owner.nothing("what is held is not handed out to its owner again").await?;
    owner.reopen().await?;
    let pending = owner.take(2).await?;
    equal!(ids(&pending), appended[..2], "what is pending");
    owner.ack(&pending).await?;
    owner.reopen().await?;
    owner.nothing("everything is settled").await
}

async fn the_wait_of_a_note_goes_by_and_is_never_early(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entries = owner.take(1).await?;
    let wait = Duration::from_secs(10);
    let before = Instant::now();
    owner.settle_all(&entries, &hold(2, wait)).await?;
    let held = Instant::now();
    let mut left = wait;
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(40)).await;
        let asked = held.elapsed();
        owner.reopen().await?;
        let read = owner.take(1).await?.remove(0).note.map(|note| note.left());
        let Some(read) = read else { return Err(Violation::new("a note is lost")) };
        // Milliseconds are rounded up at most twice, and a server's clock may be slightly slower or faster.
        let slack = Duration::from_millis(5);
        ensure!(read + before.elapsed() + slack >= wait, "early: {read:?} left of {wait:?} after {asked:?}");
        ensure!(read + asked <= wait + slack, "late: {read:?} are left of {wait:?} after {asked:?}");
        ensure!(read < left, "{read:?} left, {left:?} some time before");
        left = read;
    }
    owner.settle_all(&entries, &hold(2, Duration::from_millis(20))).await?;
    let mut deadline = h.wait_for("the wait of a note to pass");
    loop {
        owner.reopen().await?;
        if owner.take(1).await?[0].note.as_ref().is_some_and(|note| note.left().is_zero()) {
            return Ok(());
        }
        deadline.pause().await?;
    }
}

async fn a_note_of_a_redelivery_is_kept_too(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.brief_owner(&tp, "group", BRIEF).await?;
    h.append_n(&tp, 1).await?;
    let entries = owner.take(1).await?;
    owner.settle_all(&entries, &hold(2, Duration::ZERO)).await?;
    owner.settle_all(&entries, &retry(&entries[0], Duration::ZERO)).await?;
    owner.promote(1).await?;
    let redelivery = owner.take_retries(1).await?;
    equal!(told(&redelivery), [None], "the note of a new redelivery");
    owner.settle_all(&redelivery, &hold(5, Duration::ZERO)).await?;
    let mut next = h.takeover(&owner.lease).await?;
    let pending = next.take(1).await?;
    equal!(told(&pending), [Some(note(5, Duration::ZERO))], "the note of a redelivery");
    // The next redelivery is another entry.
    next.settle_all(&pending, &retry_as(3, entries[0].receipt.id, Duration::ZERO)).await?;
    next.promote(1).await?;
    next.take_retries(1).await?;
    next.reopen().await?;
    equal!(told(&next.take(1).await?), [None], "the note of the redelivery after that");
    Ok(())
}

async fn a_note_is_its_groups_own(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut first = h.owner(&tp, "first").await?;
    let mut second = h.owner(&tp, "second").await?;
    h.append_n(&tp, 2).await?;
    let entries = first.take(2).await?;
    second.take(1).await?;
    first.settle_all(&entries, &hold(2, HOUR)).await?;
    equal!(told(&second.take(1).await?), [None], "the note of what another group holds");
    second.reopen().await?;
    equal!(told(&second.take(2).await?), [None, None], "notes of what is pending in another group too");
    Ok(())
}

async fn holding_what_is_not_pending_is_stale(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_each(&tp, 3).await?;
    let entries = owner.take(2).await?;
    owner.ack(&entries[..1]).await?;
    let unknown = [
        entries[0].receipt,
        Receipt::new(Source::Log, MessageId::new(1, 1)),
        Receipt::new(Source::Log, appended[2]),
        Receipt::new(Source::Retry, appended[1]),
    ];
    for receipt in unknown {
        let settled = owner.settle(receipt, hold(2, HOUR)).await?;
        equal!(settled, Settled { applied: 0, stale: 1 }, "a hold of {receipt:?}, which is not pending");
    }
    owner.take(1).await?;
    owner.reopen().await?;
    let pending = owner.take(2).await?;
    equal!(ids(&pending), appended[1..], "what is pending");
    equal!(told(&pending), [None, None], "notes of what was never held");
    Ok(())
}

/// The group is destroyed and created again, so that the same entries are delivered once more.
async fn a_settled_entry_leaves_no_note(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let group = GroupName::new("group")?;
    h.backend.catalog().create_group(&TopicSpec::new(tp.topic.clone(), 1)?, &group, Start::Earliest).await?;
    let mut owner = h.own(&tp, &group, LONG).await?;
    let appended = h.append_each(&tp, 4).await?;
    let entries = owner.take(4).await?;
    owner.settle_all(&entries, &hold(2, HOUR)).await?;
    owner.ack(&entries[..1]).await?;
    owner.settle_all(&entries[1..2], &retry(&entries[1], HOUR)).await?;
    owner.settle_all(&entries[2..3], &dead(Reason::Rejected, 1, appended[2])).await?;
    h.operator()?.delete_entry(&tp, appended[3]).await?;
    owner.reopen().await?;
    let ghosts = owner.fetch(10, Duration::ZERO).await?.ghosts;
    equal!(ghosts, [entries[3].receipt], "ghosts");
    equal!(owner.settle(ghosts[0], Settlement::Ack).await?.applied, 1, "the ack of a held ghost");
    h.operator()?.destroy_group(&tp, &group).await?;
    h.backend.catalog().restore_group(&tp, &group, MessageId::ZERO).await?;
    owner.reopen().await?;
    equal!(told(&owner.take(3).await?), [None, None, None], "notes of entries that are read anew");
    owner.reopen().await?;
    let pending = owner.take(3).await?;
    equal!(ids(&pending), appended[..3], "what is pending");
    equal!(told(&pending), [None, None, None], "notes of entries that were settled once");
    Ok(())
}
