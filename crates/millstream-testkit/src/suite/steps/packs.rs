//! Steps of messages that are stored together: each has its own.

use millstream_core::Reason;
use millstream_core::batches::Demand;
use millstream_core::results::{MessageResult, StoredResult};
use millstream_core::steps::{Signalled, StepKind, StepWait};
use millstream_core::{GroupName, Settlement};

use super::{again, expect, in_header, names, origin, park, signal, step, store, suite, work};
use crate::case::{Verdict, ensure, equal};
use crate::harness::{Harness, LONG};
use crate::owner::dead;

suite!("steps":
    each_message_of_a_pack_has_its_own_steps,
);

async fn each_message_of_a_pack_has_its_own_steps(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 4).await?;
    let entries = owner.take(4).await?;
    ensure!(entries.iter().all(|it| it.receipt.pack.is_some()), "they are not of a pack: {entries:?}");
    let ids: Vec<_> = entries.iter().map(|it| work(&tp, "group", it.receipt.id)).collect::<Result<_, _>>()?;
    for (entry, value) in entries.iter().zip(["0", "1", "2", "3"]) {
        store(&mut owner, entry, &[step("a", value)]).await?;
    }
    let demand = Demand { steps: Some(ids[0].id.clone().into()), ..Demand::default() };
    let stored = StoredResult::new(demand, MessageResult::Done);
    owner.settle_all(&entries[..1], &Settlement::AckWith(Box::new(stored))).await?;
    expect(&h, &ids[0], &[], "of one that is done").await?;
    owner.settle_all(&entries[1..2], &dead(Reason::Exhausted, 1, entries[1].receipt.id)).await?;
    expect(&h, &ids[1], &[], "of one that is dead").await?;
    if let Some(letters) = h.letters(&tp, &GroupName::new("group")?).await? {
        let found: Vec<_> = letters.iter().map(|it| in_header(&it.body)).collect::<Result<_, _>>()?;
        equal!(found, [vec![step("a", "1")]], "the steps of the dead letter");
    }
    park(&mut owner, &entries[2], LONG, StepWait::signal("it")).await?;
    let expected = [(StepKind::Done, "a".to_owned()), (StepKind::Wait, "it".to_owned())];
    equal!(names(&h, &ids[2]).await?, expected, "the steps of one that waits");
    equal!(signal(&h, &ids[2], "it", "").await?, Signalled::Woken, "a signal for it");
    let came = again(&mut owner).await?;
    equal!(origin(&came), entries[2].receipt.id, "what comes");
    equal!(signal(&h, &ids[3], "it", "").await?, Signalled::Stored, "a signal for the last one");
    park(&mut owner, &entries[3], LONG, StepWait::signal("it")).await?;
    let last = again(&mut owner).await?;
    equal!(origin(&last), entries[3].receipt.id, "what comes at once");
    owner.ack(&[came, last]).await?;
    owner.reopen().await?;
    owner.nothing("everything is settled").await
}
