//! Storing: who may, how much, and what is read.

use bytes::Bytes;
use millstream_core::steps::{MAX_STEPS, StepKind, StepRecord};
use millstream_core::{ErrorKind, Timestamp};

use super::{expect, names, right, role, signal, step, store, suite, work};
use crate::case::{Verdict, ensure, equal, refused};
use crate::harness::{BRIEF, Harness};

suite!("steps":
    what_is_stored_is_read_with_the_servers_time,
    of_one_kind_and_name_the_first_counts,
    each_group_and_message_has_its_own_steps,
    a_former_owner_stores_nothing,
    steps_have_a_bound,
);

async fn what_is_stored_is_read_with_the_servers_time(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entry = owner.take(1).await?.remove(0);
    let id = work(&tp, "group", entry.receipt.id)?;
    expect(&h, &id, &[], "of what has none").await?;
    let at = |ms| Timestamp::from_millis(ms);
    let first = [
        StepRecord::new(StepKind::Done, at(1), "charge the card", "{\"id\":7}"),
        StepRecord::new(StepKind::Done, at(1_700_000_000_000), "größe", &b"\0\xff d 1 1 1\n"[..]),
    ];
    let second = StepRecord::new(StepKind::Done, at(2), "d 1 1 1", Bytes::new());
    store(&mut owner, &entry, &first).await?;
    store(&mut owner, &entry, std::slice::from_ref(&second)).await?;
    let expected = [&first[..], &[second]].concat();
    let before = h.now().await?;
    let (now, records) = role(&h)?.read(&id).await?;
    let after = h.now().await?;
    equal!(records, expected, "the steps");
    ensure!((before..=after).contains(&now), "the time {now} is not in {before}..{after}");
    expect(&h, &id, &expected, "read again").await
}

async fn of_one_kind_and_name_the_first_counts(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entry = owner.take(1).await?.remove(0);
    let id = work(&tp, "group", entry.receipt.id)?;
    for value in ["first", "first", "second"] {
        store(&mut owner, &entry, &[step("a", value)]).await?;
        expect(&h, &id, &[step("a", "first")], "of one name").await?;
    }
    let signal = StepRecord::new(StepKind::Signal, Timestamp::from_millis(7), "a", "third");
    store(&mut owner, &entry, &[step("b", "4"), signal.clone(), step("b", "5")]).await?;
    expect(&h, &id, &[step("a", "first"), step("b", "4"), signal], "of two names and kinds").await
}

async fn each_group_and_message_has_its_own_steps(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (mut one, mut other) = (h.owner(&tp, "one").await?, h.owner(&tp, "other").await?);
    h.append_n(&tp, 2).await?;
    let (of_one, of_other) = (one.take(2).await?, other.take(2).await?);
    let id = |group, at: usize| work(&tp, group, of_one[at].receipt.id);
    store(&mut one, &of_one[0], &[step("a", "1")]).await?;
    expect(&h, &id("one", 0)?, &[step("a", "1")], "of one message").await?;
    expect(&h, &id("one", 1)?, &[], "of another message").await?;
    expect(&h, &id("other", 0)?, &[], "for another group").await?;
    store(&mut other, &of_other[0], &[step("b", "2")]).await?;
    expect(&h, &id("one", 0)?, &[step("a", "1")], "of one message").await?;
    expect(&h, &id("other", 0)?, &[step("b", "2")], "for another group").await?;
    expect(&h, &id("nobody", 0)?, &[], "for a group that does not exist").await
}

async fn a_former_owner_stores_nothing(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut former = h.brief_owner(&tp, "group", BRIEF).await?;
    h.append_n(&tp, 1).await?;
    let entry = former.take(1).await?.remove(0);
    let id = work(&tp, "group", entry.receipt.id)?;
    store(&mut former, &entry, &[step("before", "1")]).await?;
    let mut next = h.takeover(&former.lease).await?;
    let late = role(&h)?.store(&right(&former), &id.id, &[step("late", "2")]).await;
    refused(late, ErrorKind::Fenced, "steps of a former owner")?;
    expect(&h, &id, &[step("before", "1")], "behind that").await?;
    store(&mut next, &entry, &[step("after", "3")]).await?;
    expect(&h, &id, &[step("before", "1"), step("after", "3")], "of both owners").await
}

async fn steps_have_a_bound(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 2).await?;
    let entries = owner.take(2).await?;
    let (id, large) = (work(&tp, "group", entries[0].receipt.id)?, "x".repeat(100_000));
    let size = |records: &[StepRecord]| StepRecord::write(records).len();
    let two = [step("a", &large), step("b", &large)];
    store(&mut owner, &entries[0], &two).await?;
    // The lengths of the values have as many digits.
    let left = MAX_STEPS - size(&two);
    let last = step("c", &"x".repeat(left - size(&[step("c", "")]) - "10000".len() + "0".len()));
    equal!(size(&two) + size(std::slice::from_ref(&last)), MAX_STEPS, "bytes of all steps");
    let role = role(&h)?;
    let more = role.store(&right(&owner), &id.id, &[last.clone(), step("d", "")]).await;
    refused(more, ErrorKind::TooLarge, "more than there may be")?;
    expect(&h, &id, &two, "behind that").await?;
    store(&mut owner, &entries[0], std::slice::from_ref(&last)).await?;
    let [a, b] = two;
    expect(&h, &id, &[a, b, last], "as much as there may be").await?;
    let more = role.store(&right(&owner), &id.id, &[step("d", "")]).await;
    refused(more, ErrorKind::TooLarge, "one step more")?;
    let signal_to_it = role.signal(&id, "s", Bytes::new()).await;
    refused(signal_to_it, ErrorKind::TooLarge, "a signal to a message with as much as there may be")?;
    equal!(names(&h, &id).await?.len(), 3, "what is stored behind that");
    // Each message has its own bound.
    store(&mut owner, &entries[1], &[step("a", &large)]).await?;
    signal(&h, &work(&tp, "group", entries[1].receipt.id)?, "s", "").await.map(drop)
}
