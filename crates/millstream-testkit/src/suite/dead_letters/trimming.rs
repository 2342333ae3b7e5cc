//! Trimming of dead letters: those that the retention does not keep are dropped, and none that is claimed.

use std::time::Duration;

use millstream_core::dead_letters::{Claim, DeadLetterAction, TrimBy, TrimmedLetters};
use millstream_core::wire::Fields;
use millstream_core::{DeadLetterRetention, ErrorKind, MessageId, Result};

use super::Grave;
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{BRIEF, Harness, foreign, message};
use crate::suite::suite;

suite!("dead_letters":
    dead_letters_that_are_kept_are_not_dropped needs [TrimDeadLetters],
    dead_letters_that_are_too_old_are_dropped needs [TrimDeadLetters],
    dead_letters_that_are_too_many_are_dropped needs [TrimDeadLetters],
    a_dead_letter_is_dropped_for_its_age_first needs [TrimDeadLetters],
    only_the_letters_of_the_group_are_dropped needs [TrimDeadLetters],
    a_claimed_letter_is_not_dropped needs [TrimDeadLetters],
    a_letter_whose_claim_ran_out_is_dropped needs [TrimDeadLetters],
    a_letter_that_was_left_is_dropped needs [TrimDeadLetters],
    a_dry_run_of_a_trim_drops_nothing needs [TrimDeadLetters],
    a_former_owner_drops_no_letters needs [TrimDeadLetters],
    of_two_trims_at_once_each_letter_is_dropped_once needs [TrimDeadLetters],
    many_letters_are_dropped_around_claims needs [TrimDeadLetters],
    large_letters_are_dropped_around_claims needs [TrimDeadLetters],
);

const HOUR: Duration = Duration::from_secs(3_600);
/// An age that passes while a case waits.
const YOUNG: Duration = Duration::from_millis(20);

impl Grave {
    async fn trim(&mut self, retention: DeadLetterRetention) -> Result<TrimmedLetters> {
        self.trim_by(retention, TrimBy::Operator).await
    }

    async fn trim_by(&mut self, retention: DeadLetterRetention, by: TrimBy<'_>) -> Result<TrimmedLetters> {
        self.h.backend.dead_letters()?.trim(&self.tp, &self.group, retention, by).await
    }

    /// Trims as the owner until nothing is left to drop. Returns the number of dropped letters.
    async fn trim_as_owner(&mut self, retention: DeadLetterRetention) -> Result<u64> {
        let mut dropped = 0;
        loop {
            let lease = self.owner.lease.clone();
            let trimmed = self.trim_by(retention, TrimBy::Owner(&lease)).await?;
            dropped += trimmed.dropped();
            if !trimmed.more {
                return Ok(dropped);
            }
        }
    }

    async fn reserve(&mut self, ids: &[MessageId], hold: Duration) -> Verdict {
        let claim = Claim { by: "somebody".into(), hold, left_too: false };
        let claimed = self.h.backend.dead_letters()?.claim(&self.tp, &self.group, ids, &claim).await?;
        equal!(claimed, ids, "claimed");
        Ok(())
    }

    async fn leave(&mut self, ids: &[MessageId], time: Duration) -> Verdict {
        let deeds: Vec<_> = ids.iter().map(|id| (*id, DeadLetterAction::Leave(time))).collect();
        let role = self.h.backend.dead_letters()?;
        equal!(role.settle(&self.tp, &self.group, Some("somebody"), &deeds).await?, ids, "left");
        Ok(())
    }

    /// Waits until all present letters are older than [`YOUNG`].
    async fn grow_old(&mut self, letters: usize) -> Verdict {
        let last = self.ids(letters).await?[letters - 1];
        // A second partition provides the time, so that no entries are added to this one.
        let elsewhere = self.h.partition().await?;
        self.h.clock_passes(&elsewhere, last.timestamp().saturating_add(YOUNG + YOUNG / 2)).await
    }
}

fn messages(count: usize) -> Vec<Fields> {
    (0..count).map(message).collect()
}

async fn dead_letters_that_are_kept_are_not_dropped(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    equal!(grave.trim(DeadLetterRetention::length(1)).await?, TrimmedLetters::default(), "dropped of none");
    grave.bury(&messages(5)).await?;
    let ids = grave.ids(5).await?;
    grave.grow_old(5).await?;
    for retention in [
        DeadLetterRetention::KEEP,
        DeadLetterRetention::age(HOUR),
        DeadLetterRetention::length(5),
        DeadLetterRetention::age(Duration::MAX).and_length(u64::MAX),
    ] {
        equal!(grave.trim(retention).await?, TrimmedLetters::default(), "dropped under {retention}");
    }
    equal!(grave.ids(5).await?, ids, "what is there, as ever");
    Ok(())
}

async fn dead_letters_that_are_too_old_are_dropped(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    // Entries of other programs are letters too.
    grave.bury(&[message(0), foreign(), message(2)]).await?;
    grave.grow_old(3).await?;
    equal!(grave.trim_as_owner(DeadLetterRetention::age(HOUR)).await?, 0, "dropped of what is young");
    grave.list(3).await?;
    equal!(grave.trim_as_owner(DeadLetterRetention::age(YOUNG)).await?, 3, "dropped of what is old");
    grave.list(0).await?;
    equal!(grave.trim_as_owner(DeadLetterRetention::age(YOUNG)).await?, 0, "dropped again");
    grave.owner.nothing("what was dropped does not come back").await
}

async fn dead_letters_that_are_too_many_are_dropped(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&messages(10)).await?;
    let ids = grave.ids(10).await?;
    let four = DeadLetterRetention::length(4);
    equal!(grave.trim(four).await?, TrimmedLetters::new(0, 6, 0), "beyond the newest four");
    equal!(grave.ids(4).await?, ids[6..], "the newest four");
    equal!(grave.trim(four).await?, TrimmedLetters::default(), "dropped again");
    grave.bury(&messages(1)).await?;
    equal!(grave.trim_as_owner(four).await?, 1, "dropped for one that is new");
    equal!(grave.ids(4).await?[..3], ids[7..], "the newest four");
    Ok(())
}

async fn a_dead_letter_is_dropped_for_its_age_first(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&messages(5)).await?;
    let young = DeadLetterRetention::age(HOUR).and_length(3);
    equal!(grave.trim(young).await?, TrimmedLetters::new(0, 2, 0), "dropped of what is young");
    grave.grow_old(3).await?;
    let old = DeadLetterRetention::age(YOUNG).and_length(2);
    equal!(grave.trim(old).await?, TrimmedLetters::new(3, 0, 0), "dropped of what is old");
    Ok(())
}

async fn only_the_letters_of_the_group_are_dropped(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut first = Grave::of(h.clone(), tp.clone(), "first").await?;
    let mut second = Grave::of(h, tp, "second").await?;
    first.bury(&messages(3)).await?;
    for entry in second.owner.take(3).await? {
        let letter = crate::owner::dead(millstream_core::Reason::Rejected, 1, entry.receipt.id);
        second.owner.settle_all(std::slice::from_ref(&entry), &letter).await?;
    }
    equal!(first.trim(DeadLetterRetention::length(1)).await?.excess, 2, "dropped");
    first.list(1).await?;
    second.list(3).await?;
    Ok(())
}

async fn a_claimed_letter_is_not_dropped(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&messages(6)).await?;
    let ids = grave.ids(6).await?;
    let claimed = [ids[0], ids[2]];
    grave.reserve(&claimed, HOUR).await?;
    let two = DeadLetterRetention::length(2);
    equal!(grave.trim(two).await?, TrimmedLetters::new(0, 2, 2), "dropped around claims");
    equal!(grave.ids(4).await?, [ids[0], ids[2], ids[4], ids[5]], "what is left");
    equal!(grave.trim(two).await?, TrimmedLetters::new(0, 0, 2), "dropped again");
    // The claimer still has them: it replays one and gives the other one back.
    let replay = [(ids[0], DeadLetterAction::Replay)];
    let role = grave.h.backend.dead_letters()?.clone();
    equal!(role.settle(&grave.tp, &grave.group, Some("somebody"), &replay).await?, ids[..1], "replayed");
    equal!(grave.owner.take(1).await?.len(), 1, "messages that came back");
    grave.leave(&claimed[1..], Duration::ZERO).await?;
    equal!(grave.trim(two).await?, TrimmedLetters::new(0, 1, 0), "dropped without claims");
    equal!(grave.ids(2).await?, ids[4..], "what is left");
    Ok(())
}

async fn a_letter_whose_claim_ran_out_is_dropped(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&messages(2)).await?;
    let ids = grave.ids(2).await?;
    grave.reserve(&ids, Duration::from_millis(40)).await?;
    let mut deadline = grave.h.wait_for("a claim to run out");
    while grave.trim(DeadLetterRetention::length(1)).await?.excess == 0 {
        deadline.pause().await?;
    }
    equal!(grave.ids(1).await?, ids[1..], "what is left");
    Ok(())
}

/// Nobody works on it: a letter that may be left for a year would never be dropped.
async fn a_letter_that_was_left_is_dropped(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&messages(3)).await?;
    let ids = grave.ids(3).await?;
    grave.reserve(&ids, HOUR).await?;
    grave.leave(&ids, HOUR).await?;
    equal!(grave.trim(DeadLetterRetention::length(1)).await?, TrimmedLetters::new(0, 2, 0), "dropped");
    equal!(grave.ids(1).await?, ids[2..], "what is left");
    Ok(())
}

async fn a_dry_run_of_a_trim_drops_nothing(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&messages(8)).await?;
    let ids = grave.ids(8).await?;
    grave.reserve(&ids[1..2], HOUR).await?;
    let three = DeadLetterRetention::length(3);
    for _ in 0..2 {
        let would = grave.trim_by(three, TrimBy::DryRun).await?;
        equal!(would, TrimmedLetters::new(0, 4, 1), "what a dry run counts");
        equal!(grave.ids(8).await?, ids, "what is there, as ever");
    }
    equal!(grave.trim(three).await?, TrimmedLetters::new(0, 4, 1), "dropped");
    Ok(())
}

async fn a_former_owner_drops_no_letters(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let owner = h.brief_owner(&tp, "group", BRIEF).await?;
    let group = owner.lease.partition()?.1.clone();
    let mut grave = Grave { h, tp, group, owner };
    grave.bury(&messages(3)).await?;
    let former = grave.owner.lease.clone();
    grave.owner = grave.h.takeover(&former).await?;
    let one = DeadLetterRetention::length(1);
    let refusal = grave.trim_by(one, TrimBy::Owner(&former)).await;
    refused(refusal, ErrorKind::Fenced, "a trim after the takeover")?;
    grave.list(3).await?;
    equal!(grave.trim_as_owner(one).await?, 2, "dropped by the owner");
    Ok(())
}

async fn of_two_trims_at_once_each_letter_is_dropped_once(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&messages(20)).await?;
    let trims = [(); 2].map(|()| {
        let (h, tp, group) = (grave.h.clone(), grave.tp.clone(), grave.group.clone());
        let five = DeadLetterRetention::length(5);
        tokio::spawn(async move { h.backend.dead_letters()?.trim(&tp, &group, five, TrimBy::Operator).await })
    });
    let mut dropped = 0;
    for trim in trims {
        dropped += trim.await.map_err(|error| Violation::new(error.to_string()))??.dropped();
    }
    equal!(dropped, 15, "dropped by both");
    grave.list(5).await?;
    Ok(())
}

/// More than one call of a script looks at, with claimed letters at the beginning, in the middle and at the end.
async fn many_letters_are_dropped_around_claims(h: Harness) -> Verdict {
    const COUNT: usize = 270;
    let mut grave = Grave::new(h).await?;
    grave.bury(&messages(1)).await?;
    let one = grave.list(1).await?.remove(0);
    let many = (1..COUNT as u64).map(|n| {
        let mut letter = one.clone();
        letter.id = MessageId::new(1, n);
        letter
    });
    let many: Vec<_> = many.collect();
    let put = grave.h.backend.dead_letters()?.put(&grave.tp, &grave.group, &many, false).await?;
    equal!(put.iter().flatten().count(), COUNT - 1, "letters that were put");
    let ids = grave.ids(COUNT).await?;
    let claimed = [&ids[..30], &ids[240..250], &ids[COUNT - 1..]].concat();
    grave.reserve(&claimed, HOUR).await?;
    let three = DeadLetterRetention::length(3);
    let expected = TrimmedLetters::new(0, COUNT as u64 - 3 - 40, 40);
    equal!(grave.trim_by(three, TrimBy::DryRun).await?, expected, "what a dry run counts");
    equal!(grave.trim(three).await?, expected, "dropped");
    let left = [&ids[..30], &ids[240..250], &ids[COUNT - 3..]].concat();
    equal!(grave.ids(43).await?, left, "what is left");
    grave.leave(&claimed, Duration::ZERO).await?;
    equal!(grave.trim_as_owner(three).await?, 40, "dropped without claims");
    Ok(())
}

async fn large_letters_are_dropped_around_claims(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    let large: Vec<_> = (0..4).map(crate::harness::large).collect();
    grave.bury(&large).await?;
    let ids = grave.list_of_large(4).await?;
    grave.reserve(&ids[1..2], HOUR).await?;
    equal!(grave.trim(DeadLetterRetention::length(1)).await?, TrimmedLetters::new(0, 2, 1), "dropped");
    equal!(grave.list_of_large(2).await?, [ids[1], ids[3]], "what is left");
    Ok(())
}

impl Grave {
    /// Returns the ids of all letters, of which a page has only some.
    async fn list_of_large(&mut self, count: usize) -> Result<Vec<MessageId>, Violation> {
        let mut ids = Vec::new();
        let mut range = millstream_core::inspect::Range::ALL;
        loop {
            let page = self.h.backend.dead_letters()?.list(&self.tp, &self.group, range, 1_000).await?;
            let Some(last) = page.items.last() else { break };
            range = range.behind(last.id);
            ids.extend(page.items.iter().map(|letter| letter.id));
            // A backend that ignores the range would return the first page for ever.
            ensure!(ids.len() <= count, "{} dead letters, {count} were stored", ids.len());
        }
        equal!(ids.len(), count, "dead letters");
        Ok(ids)
    }
}
