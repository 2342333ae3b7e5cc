//! Claims of dead letters: a claimed letter is reserved for its claimer until it is settled or the claim expires.

use std::time::Duration;

use millstream_core::dead_letters::{Claim, DeadLetterAction};
use millstream_core::envelope::Limits;
use millstream_core::log::Source;
use millstream_core::wire::{self, MAX_BODY_FIELDS};
use millstream_core::{ErrorKind, MessageId, Result};

use super::Grave;
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::{Harness, foreign, message};
use crate::suite::suite;

/// A hold longer than any case.
const LONG: Duration = Duration::from_secs(600);
/// A hold short enough to wait for.
const SHORT: Duration = Duration::from_millis(40);

suite!("dead_letters":
    what_somebody_claims_is_nobody_elses,
    of_two_claims_at_once_each_letter_has_one,
    what_is_gone_is_not_claimed,
    a_claim_runs_out_for_whoever_comes,
    a_claim_that_nobody_took_still_counts,
    a_claim_can_be_made_longer,
    what_is_left_is_claimed_later,
    what_is_left_can_be_replayed_and_purged,
    who_was_too_slow_leaves_alone_what_somebody_else_has_left,
    only_who_has_a_letter_can_leave_it,
    an_edited_letter_comes_back_with_another_body,
    a_body_of_too_many_fields_is_refused,
    a_name_that_is_none_cannot_claim,
);

fn claim(by: &str, hold: Duration) -> Claim {
    Claim { by: by.to_owned(), hold, left_too: false }
}

impl Grave {
    async fn claim(&mut self, ids: &[MessageId], claim: &Claim) -> Result<Vec<MessageId>> {
        self.h.backend.dead_letters()?.claim(&self.tp, &self.group, ids, claim).await
    }

    async fn settle(
        &mut self,
        by: Option<&str>,
        ids: &[MessageId],
        deed: &DeadLetterAction,
    ) -> Result<Vec<MessageId>> {
        let deeds: Vec<_> = ids.iter().map(|id| (*id, deed.clone())).collect();
        self.h.backend.dead_letters()?.settle(&self.tp, &self.group, by, &deeds).await
    }

    /// Repeats a claim until it returns letters.
    async fn eventually(&mut self, ids: &[MessageId], claim: &Claim) -> Result<Vec<MessageId>, Violation> {
        let mut deadline = self.h.wait_for("a claim to run out");
        loop {
            let claimed = self.claim(ids, claim).await?;
            if !claimed.is_empty() {
                return Ok(claimed);
            }
            deadline.pause().await?;
        }
    }
}

async fn what_somebody_claims_is_nobody_elses(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&[message(0), message(1), message(2)]).await?;
    let ids = grave.ids(3).await?;
    equal!(grave.claim(&ids[..2], &claim("a", LONG)).await?, ids[..2], "claimed");
    equal!(grave.claim(&ids, &claim("b", LONG)).await?, ids[2..], "claimed by somebody else");
    for by in [None, Some("b")] {
        equal!(grave.settle(by, &ids[..2], &DeadLetterAction::Replay).await?, [], "replayed by {by:?}");
        equal!(grave.settle(by, &ids[..2], &DeadLetterAction::Purge).await?, [], "purged by {by:?}");
    }
    equal!(grave.replay(&ids).await?, 0, "replayed by who claims nothing");
    equal!(grave.ids(3).await?, ids, "what is there, as ever");
    equal!(
        grave.settle(Some("a"), &ids[..1], &DeadLetterAction::Replay).await?,
        ids[..1],
        "replayed by who has it"
    );
    equal!(grave.settle(Some("a"), &ids, &DeadLetterAction::Purge).await?, ids[1..2], "purged by who has it");
    equal!(grave.owner.take(1).await?.len(), 1, "messages that came back");
    equal!(grave.ids(1).await?, ids[2..], "what is left");
    Ok(())
}

async fn of_two_claims_at_once_each_letter_has_one(h: Harness) -> Verdict {
    const COUNT: usize = 250;
    let mut grave = Grave::new(h).await?;
    let bodies: Vec<_> = (0..COUNT).map(message).collect();
    grave.bury(&bodies).await?;
    let ids = grave.ids(COUNT).await?;
    let claims = ["a", "b"].map(|by| {
        let (h, tp, group, ids) = (grave.h.clone(), grave.tp.clone(), grave.group.clone(), ids.clone());
        tokio::spawn(
            async move { h.backend.dead_letters()?.claim(&tp, &group, &ids, &claim(by, LONG)).await },
        )
    });
    let mut all = Vec::new();
    for claimed in claims {
        all.extend(claimed.await.map_err(|error| Violation::new(error.to_string()))??);
    }
    all.sort_unstable();
    equal!(all, ids, "claimed by both");
    Ok(())
}

async fn what_is_gone_is_not_claimed(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    equal!(grave.claim(&[MessageId::new(1, 0)], &claim("a", LONG)).await?, [], "claimed where nothing is");
    grave.bury(&[message(0), message(1)]).await?;
    let ids = grave.ids(2).await?;
    equal!(grave.purge(&ids[..1]).await?, 1, "purged");
    equal!(
        grave.claim(&ids, &claim("a", LONG)).await?,
        ids[1..],
        "claimed of one that is gone and one that is not"
    );
    Ok(())
}

async fn a_claim_runs_out_for_whoever_comes(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&[message(0)]).await?;
    let ids = grave.ids(1).await?;
    equal!(grave.claim(&ids, &claim("a", SHORT)).await?, ids, "claimed");
    equal!(grave.eventually(&ids, &claim("b", LONG)).await?, ids, "claimed after it ran out");
    equal!(grave.claim(&ids, &claim("a", LONG)).await?, [], "claimed by who had it before");
    equal!(grave.settle(Some("a"), &ids, &DeadLetterAction::Purge).await?, [], "purged by who had it before");
    equal!(grave.settle(Some("b"), &ids, &DeadLetterAction::Purge).await?, ids, "purged by who has it");
    Ok(())
}

async fn a_claim_that_nobody_took_still_counts(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&[message(0), message(1)]).await?;
    let ids = grave.ids(2).await?;
    equal!(grave.claim(&ids, &claim("a", SHORT)).await?, ids, "claimed");
    equal!(grave.eventually(&ids[..1], &claim("b", LONG)).await?, ids[..1], "claimed after it ran out");
    equal!(
        grave.settle(Some("a"), &ids, &DeadLetterAction::Replay).await?,
        ids[1..],
        "replayed of what nobody took"
    );
    Ok(())
}

async fn a_claim_can_be_made_longer(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&[message(0), message(1)]).await?;
    let ids = grave.ids(2).await?;
    grave.claim(&ids, &claim("a", SHORT)).await?;
    equal!(grave.claim(&ids[..1], &claim("a", LONG)).await?, ids[..1], "claimed for longer");
    // When the other letter becomes free, the first claim of this one has expired too.
    equal!(grave.eventually(&ids, &claim("b", LONG)).await?, ids[1..], "claimed after it ran out");
    Ok(())
}

async fn what_is_left_is_claimed_later(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&[message(0), message(1), message(2)]).await?;
    let ids = grave.ids(3).await?;
    grave.claim(&ids, &claim("a", LONG)).await?;
    for (at, left) in [LONG, SHORT, Duration::ZERO].into_iter().enumerate() {
        let one = &ids[at..=at];
        equal!(grave.settle(Some("a"), one, &DeadLetterAction::Leave(left)).await?, one, "left for {left:?}");
    }
    equal!(
        grave.claim(&ids[2..], &claim("b", LONG)).await?,
        ids[2..],
        "claimed of what was left for no time"
    );
    equal!(grave.eventually(&ids[..2], &claim("b", LONG)).await?, ids[1..2], "claimed after a while");
    equal!(grave.claim(&ids[..1], &claim("a", LONG)).await?, [], "claimed before its time by who left it");
    let all = Claim { left_too: true, ..claim("b", LONG) };
    equal!(grave.claim(&ids[..1], &all).await?, ids[..1], "claimed by who claims what was left, too");
    grave.list(3).await?;
    Ok(())
}

async fn what_is_left_can_be_replayed_and_purged(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&[message(0), message(1)]).await?;
    let ids = grave.ids(2).await?;
    grave.claim(&ids, &claim("a", LONG)).await?;
    equal!(grave.settle(Some("a"), &ids, &DeadLetterAction::Leave(LONG)).await?, ids, "left");
    equal!(grave.replay(&ids[..1]).await?, 1, "replayed of what was left");
    equal!(grave.purge(&ids[1..]).await?, 1, "purged of what was left");
    grave.list(0).await?;
    Ok(())
}

/// The claimer is too slow, and settles the letter after another one has already settled it.
async fn who_was_too_slow_leaves_alone_what_somebody_else_has_left(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&[message(0), message(1)]).await?;
    let ids = grave.ids(2).await?;
    grave.claim(&ids, &claim("a", SHORT)).await?;
    equal!(grave.eventually(&ids[..1], &claim("b", LONG)).await?, ids[..1], "claimed after it ran out");
    equal!(grave.settle(Some("b"), &ids[..1], &DeadLetterAction::Leave(LONG)).await?, ids[..1], "left");
    for deed in [
        DeadLetterAction::Replay,
        DeadLetterAction::Purge,
        DeadLetterAction::Leave(Duration::ZERO),
        DeadLetterAction::Leave(SHORT),
    ] {
        equal!(grave.settle(Some("a"), &ids[..1], &deed).await?, [], "{deed:?} of who was too slow");
    }
    equal!(grave.ids(2).await?, ids, "what is there, as ever");
    equal!(grave.claim(&ids[..1], &claim("c", LONG)).await?, [], "claimed of what is still left");
    // A call without a claimer applies to any letter. A letter that nobody else has taken still belongs to its
    // claimer.
    equal!(grave.replay(&ids[..1]).await?, 1, "replayed of what was left");
    equal!(
        grave.settle(Some("a"), &ids, &DeadLetterAction::Purge).await?,
        ids[1..],
        "purged of what nobody took"
    );
    Ok(())
}

async fn only_who_has_a_letter_can_leave_it(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&[message(0), message(1)]).await?;
    let ids = grave.ids(2).await?;
    grave.claim(&ids[..1], &claim("a", LONG)).await?;
    for by in [None, Some("b")] {
        equal!(grave.settle(by, &ids, &DeadLetterAction::Leave(LONG)).await?, [], "left by {by:?}");
    }
    equal!(grave.claim(&ids, &claim("b", LONG)).await?, ids[1..], "claimed after all that");
    Ok(())
}

async fn an_edited_letter_comes_back_with_another_body(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    let origins = grave.bury(&[message(0), message(1)]).await?;
    let ids = grave.ids(2).await?;
    let deeds =
        [(ids[0], DeadLetterAction::ReplayAs(foreign())), (ids[1], DeadLetterAction::ReplayAs(Vec::new()))];
    let settled = grave.h.backend.dead_letters()?.settle(&grave.tp, &grave.group, None, &deeds).await?;
    equal!(settled, ids, "replayed");
    let entries = grave.owner.take(2).await?;
    let back: Vec<_> = entries.iter().map(|entry| wire::body_of(Source::Retry, &entry.fields)).collect();
    equal!(back, [&foreign()[..], &message(1)[..]], "bodies, of which one is another");
    for (entry, origin) in entries.iter().zip(origins) {
        let decoded = wire::decode(entry.receipt, &entry.fields, &Limits::default());
        equal!((decoded.attempt, decoded.origin), (1, origin), "attempt and origin");
    }
    Ok(())
}

async fn a_body_of_too_many_fields_is_refused(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&[message(0), message(1)]).await?;
    let ids = grave.ids(2).await?;
    let wide = vec![("n".into(), "v".into()); MAX_BODY_FIELDS + 1];
    let deeds = [(ids[0], DeadLetterAction::Replay), (ids[1], DeadLetterAction::ReplayAs(wide.clone()))];
    let settled = grave.h.backend.dead_letters()?.settle(&grave.tp, &grave.group, None, &deeds).await;
    ensure!(
        settled.as_ref().is_err_and(|error| error.kind() == ErrorKind::TooLarge),
        "a body of too many fields: {settled:?}"
    );
    let mut letters = grave.list(2).await?;
    letters[0].body = wide;
    let put = grave.h.backend.dead_letters()?.put(&grave.tp, &grave.group, &letters, true).await;
    ensure!(
        put.as_ref().is_err_and(|error| error.kind() == ErrorKind::TooLarge),
        "a body of too many fields: {put:?}"
    );
    let widest = vec![("n".into(), "v".into()); MAX_BODY_FIELDS];
    equal!(
        grave.settle(None, &ids[..1], &DeadLetterAction::ReplayAs(widest.clone())).await?,
        ids[..1],
        "replayed as the widest"
    );
    let entries = grave.owner.take(1).await?;
    equal!(wire::body_of(Source::Retry, &entries[0].fields), &widest[..], "the widest body");
    Ok(())
}

async fn a_name_that_is_none_cannot_claim(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&[message(0)]).await?;
    let ids = grave.ids(1).await?;
    for bad in ["", "-", "a b"] {
        let claimed = grave.claim(&ids, &claim(bad, LONG)).await;
        ensure!(
            claimed.as_ref().is_err_and(|error| error.kind() == ErrorKind::InvalidConfig),
            "{bad:?} claims: {claimed:?}"
        );
    }
    Ok(())
}
