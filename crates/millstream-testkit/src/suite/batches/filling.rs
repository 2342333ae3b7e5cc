//! Filling a batch: numbers are handed out in blocks, confirmed, and sealed.

use millstream_core::ErrorKind;
use millstream_core::batches::{
    BatchEventKind, BatchId, BatchParent, BatchSpec, BatchState, Block, Confirmed, EndedMember, MAX_BLOCK,
    MAX_CALLBACK, MAX_MEMBERS, MemberState,
};

use super::{BatchUnderTest, DEAD, DONE, all_of, confirmed, member, number, request, role, spec, suite};
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::Harness;

suite!("batches":
    numbers_are_handed_out_once_and_in_order,
    a_batch_that_exists_is_left_as_it_is,
    what_is_not_used_is_given_back_or_left_out,
    a_block_is_confirmed_once,
    a_block_that_nobody_knows_is_lost,
    a_seal_leaves_out_what_nobody_confirmed,
    a_batch_that_is_sealed_takes_no_more,
    a_batch_has_so_many_members_and_no_more,
    what_does_not_exist_or_is_out_of_bounds_is_refused,
);

/// Returns the blocks, with whether they were confirmed.
fn blocks(state: &BatchState) -> Vec<(Block, bool)> {
    state.blocks.iter().map(|it| (it.block, it.confirmed)).collect()
}

async fn numbers_are_handed_out_once_and_in_order(h: Harness) -> Verdict {
    let batch = BatchUnderTest::new(&h, &spec(&[])).await?;
    let before = h.now().await?;
    let mut next = 0;
    for (count, target) in [(3, "orders"), (MAX_BLOCK, "mails"), (1, "orders")] {
        let asked = request(count);
        let block = role(&h)?.reserve(&batch.id, asked, target, &[]).await?;
        equal!(block, Block { from: next, to: next + count, token: asked.token }, "a block for {target}");
        next = block.to;
    }
    // Only the count of what is asked for matters.
    let asked = Block { from: 1_000, to: 1_002, token: 7 };
    let block = role(&h)?.reserve(&batch.id, asked, "orders", &[]).await?;
    equal!(block, Block { from: next, to: next + 2, token: 7 }, "a block for two");
    let state = batch.state().await?;
    let targets: Vec<_> = state.blocks.iter().map(|it| (it.target.as_str(), it.confirmed)).collect();
    let expected = [("orders", false), ("mails", false), ("orders", false), ("orders", false)];
    equal!(targets, expected, "targets of blocks, and whether they were confirmed");
    ensure!(state.blocks.is_sorted_by_key(|it| it.block.from), "out of order: {:?}", state.blocks);
    equal!((state.members, state.missing()), (next + 2, next + 2), "members, and those that are missing");
    equal!((state.sealed, state.ended, state.succeeded), (None, None, false), "of a batch that is open");
    ensure!(state.created <= before, "created at {}, which was before {before}", state.created);
    Ok(())
}

async fn a_batch_that_exists_is_left_as_it_is(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let parent = BatchParent::Batch(member(&tp, 5));
    let first = BatchSpec { parent: Some(parent.clone()), ..spec(&[BatchEventKind::Complete]) };
    let batch = BatchUnderTest::at(&h, tp, &first).await?;
    let block = batch.reserve(2, &[]).await?;
    role(&h)?.create(&batch.id, &spec(&[BatchEventKind::Success])).await?;
    let state = batch.state().await?;
    equal!(blocks(&state), [(block, false)], "the blocks of a batch that is created again");
    equal!(state.parent, Some(parent), "its parent");
    batch.seal(&[all_of(block)]).await?;
    batch.ends(&[(0, DONE), (1, DONE)]).await?;
    role(&h)?.create(&batch.id, &spec(&[])).await?;
    batch.expect([2, 2, 0, 0], "of a batch that is created again after its end").await?;
    let mut owner = h.owner(&batch.id.place, "group").await?;
    let sent = owner.take(1).await?.remove(0).fields;
    equal!(sent, batch.message(BatchEventKind::Complete, [2, 2, 0]), "what it sent");
    owner.nothing("the message of the second creation").await
}

async fn what_is_not_used_is_given_back_or_left_out(h: Harness) -> Verdict {
    let batch = BatchUnderTest::new(&h, &spec(&[])).await?;
    let first = batch.reserve(10, &[]).await?;
    // It ends with the next number: what is behind the last that was used is given back.
    let second = batch.reserve(10, &[confirmed(first, 6, &[2, 4])]).await?;
    equal!((second.from, second.to), (6, 16), "the block behind numbers that were given back");
    batch.expect([14, 0, 0, 2], "with two that failed").await?;
    let third = batch.reserve(5, &[]).await?;
    // A number that has ended is a member, also one of which the client does not know that.
    batch.ends(&[(9, DEAD), (10, DONE)]).await?;
    batch.reserve(1, &[confirmed(second, 8, &[6])]).await?;
    equal!(
        batch.numbers(MemberState::LeftOut, 100).await?,
        [2, 4, 6, 8, 11, 12, 13, 14, 15],
        "what was left out"
    );
    let state = batch.seal(&[all_of(third)]).await?;
    let known: Vec<_> = blocks(&state).iter().map(|(it, known)| (it.from, it.to, *known)).collect();
    equal!(known, [(0, 6, true), (6, 16, true), (16, 21, true), (21, 22, false)], "the blocks");
    batch.expect([12, 1, 1, 10], "behind the seal").await?;
    equal!(batch.numbers(MemberState::Done, 100).await?, [10], "what is done");
    equal!(batch.numbers(MemberState::Dead, 100).await?, [9], "what is dead");
    Ok(())
}

async fn a_block_is_confirmed_once(h: Harness) -> Verdict {
    let batch = BatchUnderTest::new(&h, &spec(&[])).await?;
    let first = batch.reserve(4, &[]).await?;
    let confirmed_first = confirmed(first, 3, &[1]);
    let second = batch.reserve(4, std::slice::from_ref(&confirmed_first)).await?;
    equal!(second.from, 3, "the block behind a number that was given back");
    let before = batch.state().await?;
    // A client whose call had no answer sends the same again.
    let third = batch.reserve(4, std::slice::from_ref(&confirmed_first)).await?;
    equal!(third.from, 7, "the block of a repetition");
    let other = confirmed(first, 1, &[0, 2]);
    batch.reserve(1, std::slice::from_ref(&other)).await?;
    let after = batch.state().await?;
    equal!(after.left_out, 1, "what was left out behind a repetition");
    equal!(blocks(&after).get(..2), Some(&blocks(&before)[..]), "the first two blocks behind a repetition");
    let all = [confirmed_first, other, all_of(second), all_of(third), all_of(second)];
    let state = batch.seal(&all).await?;
    equal!((state.members, state.left_out), (10, 2), "members and what was left out, behind the seal");
    Ok(())
}

async fn a_block_that_nobody_knows_is_lost(h: Harness) -> Verdict {
    let batch = BatchUnderTest::new(&h, &spec(&[BatchEventKind::Complete])).await?;
    let block = batch.reserve(4, &[]).await?;
    let open = batch.reserve(4, &[]).await?;
    let before = batch.state().await?;
    let unknown = [
        ("another token", Block { token: block.token ^ 1, ..block }),
        ("another end", Block { to: block.to + 1, ..block }),
        ("another beginning", Block { from: block.from + 1, ..block }),
        ("what was never handed out", Block { from: 100, to: 104, token: block.token }),
    ];
    for (what, unknown) in unknown {
        let all = [confirmed(open, 4, &[]), confirmed(unknown, unknown.to, &[])];
        let refusal = batch.role()?.reserve(&batch.id, request(1), "target", &all).await;
        refused(refusal, ErrorKind::Fenced, &format!("a block with {what}, at a reservation"))?;
        let refusal = batch.role()?.seal(&batch.id, &all).await;
        refused(refusal, ErrorKind::Fenced, &format!("a block with {what}, at the seal"))?;
        equal!(batch.state().await?, before, "the batch behind a block with {what}");
    }
    let next = batch.reserve(1, &[all_of(block)]).await?;
    equal!(next.from, 8, "the next number");
    Ok(())
}

async fn a_seal_leaves_out_what_nobody_confirmed(h: Harness) -> Verdict {
    let batch = BatchUnderTest::new(&h, &spec(&[])).await?;
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(batch.reserve(5, &[]).await?);
    }
    batch.ends(&[(6, DONE), (7, DEAD), (16, DONE)]).await?;
    let before = h.now().await?;
    let state = batch.seal(&[all_of(all[0]), confirmed(all[2], 13, &[10])]).await?;
    ensure!(state.sealed >= Some(before), "sealed at {:?}, which was not before {before}", state.sealed);
    let known: Vec<_> = blocks(&state).into_iter().map(|(_, known)| known).collect();
    equal!(known, [true, false, true, false], "whether blocks were confirmed");
    equal!(batch.state().await?, state, "the state, read again");
    batch.expect([10, 2, 1, 10], "behind the seal").await?;
    equal!(
        batch.numbers(MemberState::LeftOut, 100).await?,
        [5, 8, 9, 10, 13, 14, 15, 17, 18, 19],
        "what was left out"
    );
    equal!(batch.numbers(MemberState::Missing, 100).await?, [0, 1, 2, 3, 4, 11, 12], "what is missing");
    Ok(())
}

async fn a_batch_that_is_sealed_takes_no_more(h: Harness) -> Verdict {
    let batch = BatchUnderTest::new(&h, &spec(&[])).await?;
    let (known, open) = (batch.reserve(3, &[]).await?, batch.reserve(3, &[]).await?);
    let state = batch.seal(&[all_of(known)]).await?;
    for block in [known, open] {
        let refusal = batch.role()?.reserve(&batch.id, request(1), "target", &[all_of(block)]).await;
        refused(refusal, ErrorKind::Closed, "a reservation behind the seal")?;
    }
    for again in [&[][..], &[all_of(known)], &[confirmed(known, 1, &[0])]] {
        equal!(batch.seal(again).await?, state, "a second seal with {again:?}");
    }
    let foreign = Block { token: known.token ^ 1, ..known };
    let never = Block { from: 100, to: 103, token: known.token };
    for late in [open, foreign, never] {
        let all = [all_of(known), all_of(late)];
        refused(batch.role()?.seal(&batch.id, &all).await, ErrorKind::Closed, "a block that comes too late")?;
    }
    equal!(batch.state().await?, state, "the state behind all of this");
    Ok(())
}

async fn a_batch_has_so_many_members_and_no_more(h: Harness) -> Verdict {
    let (role, batch) = (role(&h)?, BatchUnderTest::new(&h, &spec(&[])).await?);
    let blocks = MAX_MEMBERS / MAX_BLOCK;
    let mut last = None;
    for _ in 0..blocks {
        last = Some(batch.reserve(MAX_BLOCK, &[]).await?);
    }
    let last = last.ok_or_else(|| Violation::new("there is no block"))?;
    let reserve = async |count, confirmed: &[Confirmed]| {
        role.reserve(&batch.id, request(count), "target", confirmed).await
    };
    let full = "a block above the limit";
    refused(reserve(MAX_BLOCK, &[]).await, ErrorKind::TooLarge, full)?;
    // One number less than is left is given back.
    let left = MAX_MEMBERS - blocks * MAX_BLOCK;
    let short = confirmed(last, last.from + left + 1, &[]);
    refused(reserve(MAX_BLOCK, &[short]).await, ErrorKind::TooLarge, full)?;
    let before = batch.state().await?;
    equal!((before.members, before.left_out), (blocks * MAX_BLOCK, 0), "members, and what was left out");
    ensure!(before.blocks.iter().all(|it| !it.confirmed), "a refused call has confirmed a block");
    let enough = confirmed(last, last.from + left, &[]);
    let rest = batch.reserve(MAX_BLOCK, &[enough]).await?;
    equal!(rest.to, MAX_MEMBERS, "the end of the last block");
    refused(reserve(1, &[]).await, ErrorKind::TooLarge, full)
}

async fn what_does_not_exist_or_is_out_of_bounds_is_refused(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (role, id) = (role(&h)?, BatchId::new(tp.clone(), number()));
    let gone = "a batch that does not exist";
    refused(role.reserve(&id, request(1), "target", &[]).await, ErrorKind::NotFound, gone)?;
    refused(role.seal(&id, &[]).await, ErrorKind::NotFound, gone)?;
    refused(role.close(&id, true).await, ErrorKind::NotFound, gone)?;
    equal!(role.end_members(&id, &[EndedMember::new(0, DONE)]).await?, None, "ends of members of {gone}");
    equal!(role.state(&id).await?, None, "the state of {gone}");
    equal!(role.numbers(&id, MemberState::Missing, 0, 10).await?, (vec![], None), "numbers of {gone}");
    equal!(role.list(&tp, 10).await?, [], "the batches of a new partition");
    let sized = |bytes: usize| BatchSpec {
        callbacks: vec![(BatchEventKind::Success, vec![("name".into(), vec![b'x'; bytes - 4].into())])],
        ..BatchSpec::default()
    };
    refused(role.create(&id, &sized(MAX_CALLBACK + 1)).await, ErrorKind::TooLarge, "a large message")?;
    equal!(role.state(&id).await?, None, "the state of what was refused");
    role.create(&id, &sized(MAX_CALLBACK)).await?;
    for count in [MAX_BLOCK + 1] {
        let refusal = role.reserve(&id, request(count), "target", &[]).await;
        refused(refusal, ErrorKind::InvalidConfig, &format!("a block of {count}"))?;
    }
    let state = role.state(&id).await?.unwrap_or_default();
    equal!((state.members, state.blocks.len()), (0, 0), "members and blocks behind that");
    Ok(())
}
