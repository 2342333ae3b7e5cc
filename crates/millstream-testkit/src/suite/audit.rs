//! Audit: sound data has no findings, damaged data has one, and a repair loses nothing.

use std::time::Duration;

use millstream_core::audit::{Fault, Finding, Loss, Scope};
use millstream_core::schedule::{OnConflict, Place, ScheduleId, Scheduling};
use millstream_core::{Due, GroupName, MessageId, Reason, TopicPartition};

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::{Harness, message};
use crate::owner::{dead, hold, ids, retry_as};

suite!("audit":
    what_is_sound_has_no_findings needs [Tasks];
    with an operator:
    a_ghost_is_taken_off_the_pending_list,
    a_group_that_is_lost_begins_with_the_oldest_entry,
    a_body_that_is_lost_leaves_no_id needs [ListScheduled],
    what_is_repaired_is_not_repaired_again,
);

const HOUR: Duration = Duration::from_secs(3_600);

/// Returns all findings of these scopes, each checked to its end.
async fn findings(h: &Harness, scopes: &[Scope]) -> Result<Vec<Finding>, Violation> {
    let mut findings = Vec::new();
    for scope in scopes {
        for check in scope.checks() {
            let (mut after, mut pages) = (None, 0);
            loop {
                let page = h.backend.audit()?.audit(scope, *check, after.as_deref()).await?;
                findings.extend(page.findings);
                pages += 1;
                ensure!(pages < 1_000, "the check {} of {scope} does not end", check.as_str());
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
    }
    findings.sort();
    findings.dedup();
    Ok(findings)
}

fn faults(findings: &[Finding]) -> Vec<Fault> {
    findings.iter().map(|finding| finding.fault).collect()
}

/// Repairs all findings, and expects that each repair succeeds and that nothing is left but the record of `lost` pending
/// messages.
async fn repair(h: &Harness, findings_: &[Finding], scopes: &[Scope], lost: u64) -> Verdict {
    for finding in findings_ {
        ensure!(h.backend.audit()?.repair(finding).await?, "not repaired: {finding}");
    }
    for _ in 0..2 {
        let left = findings(h, scopes).await?;
        ensure!(left.iter().all(|it| it.fault == Fault::EntriesLost), "left after the repair: {left:?}");
        let all = left.iter().filter_map(|it| it.loss).fold(Loss::default(), Loss::and);
        equal!((all.unread, all.pending, all.logs), (0, lost, 0), "the record of what was lost");
        equal!(all.at.is_some(), lost > 0, "the time of the loss");
        for record in &left {
            ensure!(!h.backend.audit()?.repair(record).await?, "a record was repaired: {record}");
        }
    }
    Ok(())
}

fn scopes(tp: &TopicPartition) -> Result<[Scope; 3], Violation> {
    let group = Scope::Group(tp.clone(), GroupName::new("group")?);
    Ok([Scope::Topic(tp.topic.clone()), Scope::Partition(tp.clone()), group])
}

async fn later(h: &Harness, place: &Place, id: &str) -> Verdict {
    let scheduling = Scheduling {
        place: place.clone(),
        id: ScheduleId::new(id)?,
        due: Due::In(HOUR),
        fields: message(7),
        on_conflict: OnConflict::Reject,
    };
    for placed in h.backend.schedule().schedule(&[scheduling]).await {
        placed?;
    }
    Ok(())
}

async fn what_is_sound_has_no_findings(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 150).await?;
    let entries = owner.take(140).await?;
    owner.ack(&entries[..5]).await?;
    owner.settle_all(&entries[5..7], &hold(2, HOUR)).await?;
    for (entry, after) in entries[7..12].iter().zip([0, 0, 0, 1, 1]) {
        let settlement = retry_as(2, entry.receipt.id, HOUR * after);
        owner.settle_all(std::slice::from_ref(entry), &settlement).await?;
    }
    let letter = dead(Reason::Rejected, 1, entries[12].receipt.id);
    owner.settle_all(&entries[12..13], &letter).await?;
    owner.promote(3).await?;
    owner.take_retries(2).await?;
    later(&h, &tp.clone().into(), "later").await?;
    let shard = h.shard().await?;
    later(&h, &shard, "later").await?;
    let mut all = scopes(&tp)?.to_vec();
    if let Place::Shard(shard) = shard {
        all.push(Scope::Shard(shard));
    }
    equal!(findings(&h, &all).await?, [], "findings");
    Ok(())
}

async fn a_ghost_is_taken_off_the_pending_list(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_each(&tp, 3).await?;
    let entries = owner.take(3).await?;
    h.operator()?.delete_entry(&tp, entries[1].receipt.id).await?;
    let found = findings(&h, &scopes(&tp)?).await?;
    equal!(faults(&found), [Fault::Ghost], "faults");
    repair(&h, &found, &scopes(&tp)?, 1).await?;
    owner.reopen().await?;
    let left = owner.take(2).await?;
    equal!(ids(&left), [entries[0].receipt.id, entries[2].receipt.id], "what is still pending");
    owner.ack(&left).await
}

async fn a_group_that_is_lost_begins_with_the_oldest_entry(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    // Before the lease: a log of which all entries are newer may be another one than the group had read.
    let appended = h.append_each(&tp, 3).await?;
    let mut owner = h.owner(&tp, "group").await?;
    owner.take(2).await?;
    h.operator()?.destroy_group(&tp, &GroupName::new("group")?).await?;
    let found = findings(&h, &scopes(&tp)?).await?;
    equal!(faults(&found), [Fault::GroupMissing], "faults");
    repair(&h, &found, &scopes(&tp)?, 0).await?;
    owner.reopen().await?;
    equal!(ids(&owner.take(3).await?), appended, "what is handed out after the repair");
    Ok(())
}

async fn a_body_that_is_lost_leaves_no_id(h: Harness) -> Verdict {
    for place in h.places().await? {
        later(&h, &place, "lost").await?;
        later(&h, &place, "kept").await?;
        let scope = match &place {
            Place::Partition(tp) => Scope::Partition(tp.clone()),
            Place::Shard(shard) => Scope::Shard(shard.clone()),
        };
        h.operator()?.delete_scheduled(&place, &ScheduleId::new("lost")?).await?;
        let found = findings(&h, std::slice::from_ref(&scope)).await?;
        equal!(faults(&found), [Fault::BodyLost], "faults at {place}");
        equal!(found[0].id, "lost", "of which message");
        repair(&h, &found, std::slice::from_ref(&scope), 1).await?;
        let left = h.backend.schedule().scheduled(&place, None, 10).await?;
        let left: Vec<_> = left.iter().map(|it| it.id.as_str()).collect();
        equal!(left, ["kept"], "what still waits at {place}");
    }
    Ok(())
}

async fn what_is_repaired_is_not_repaired_again(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_each(&tp, 2).await?;
    let entries = owner.take(2).await?;
    let never = Finding::new(Fault::Ghost, &scopes(&tp)?[2], format!("log:{}", entries[0].receipt.id), "");
    ensure!(!h.backend.audit()?.repair(&never).await?, "an entry that is there was taken for a ghost");
    let unknown =
        Finding::new(never.fault, &never.scope, format!("log:{}", MessageId::new(1, 1)), &*never.detail);
    ensure!(!h.backend.audit()?.repair(&unknown).await?, "what was never there was repaired");
    h.operator()?.delete_entry(&tp, entries[0].receipt.id).await?;
    ensure!(h.backend.audit()?.repair(&never).await?, "the ghost was not taken off");
    ensure!(!h.backend.audit()?.repair(&never).await?, "it was taken off twice");
    Ok(())
}
