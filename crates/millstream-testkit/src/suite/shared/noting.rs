//! Notes of members of batches where many consumers read a partition.

use millstream_core::Settlement;
use millstream_core::log::Settled;
use millstream_core::results::MessageResult;

use super::super::batches::{expect_notes, member, noted};
use super::{only, receipts, sharers, suite};
use crate::case::{Verdict, equal};
use crate::harness::Harness;
use crate::owner::retry;

suite!("shared":
    whoever_has_an_entry_leaves_its_note needs [Batches],
);

async fn whoever_has_an_entry_leaves_its_note(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    let tp = only(&topic);
    h.append_n(&tp, 2).await?;
    let entries = a.take(2).await?;
    let all = receipts(&entries);
    let (member, other) = (member(&tp, 1), member(&tp, 2));
    let done = |it| Settlement::AckWith(noted(it, MessageResult::Done));
    let stale = Settled { applied: 0, stale: 1 };
    equal!(b.settle(&all[..1], &done(&other)).await?, stale, "of what another consumer has");
    let later = retry(&entries[1], std::time::Duration::from_secs(3_600));
    equal!(a.settle(&all[1..], &later).await?.applied, 1, "a retry");
    expect_notes(&h, &tp, &[], "of a stale settlement and a retry").await?;
    equal!(a.settle(&all[..1], &done(&member)).await?.applied, 1, "of who has it");
    equal!(a.settle(&all[..1], &done(&other)).await?, stale, "of what is settled");
    expect_notes(&h, &tp, &[(&member, millstream_core::MemberEnd::Done)], "of who has it").await
}
