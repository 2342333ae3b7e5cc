//! Batches where the contract leaves a choice, and after a fail-over.

use millstream_core::batches::{
    BatchId, BatchMember, BatchParent, BatchSpec, Block, Confirmed, EndedMember, MemberEnd,
};
use millstream_core::{Backend, ErrorKind, Place, TopicPartition};

use crate::MemoryBackend;

fn block(count: u32, token: u64) -> Block {
    Block { from: 0, to: count, token }
}

#[tokio::test(start_paused = true)]
async fn a_number_that_has_ended_is_not_given_back() {
    let backend = Backend::from(MemoryBackend::new());
    let role = backend.batches().unwrap();
    let id = BatchId::new(TopicPartition::new("orders".parse().unwrap(), 0), 1);
    role.create(&id, &BatchSpec::default()).await.unwrap();
    let first = role.reserve(&id, block(4, 1), "orders", &[]).await.unwrap();
    // Its client does not know that the message of the last number was stored.
    role.end_members(&id, &[EndedMember::new(3, MemberEnd::Done)]).await.unwrap();
    let unused = Confirmed { block: first, used: 1, failed: vec![] };
    let second = role.reserve(&id, block(1, 2), "orders", &[unused]).await.unwrap();
    assert_eq!(second.from, 4);
    let state = role.state(&id).await.unwrap().unwrap();
    assert_eq!((state.members, state.done, state.left_out), (3, 1, 2));
}

#[tokio::test(start_paused = true)]
async fn a_block_that_came_since_is_lost_with_what_ended_since() {
    let memory = MemoryBackend::new();
    let (backend, operator) = (Backend::from(memory.clone()), memory.operator());
    let role = backend.batches().unwrap();
    let tp = TopicPartition::new("orders".parse().unwrap(), 0);
    let (id, parent) = (BatchId::new(tp.clone(), 1), BatchId::new(tp.clone(), 2));
    let spec =
        BatchSpec { parent: Some(BatchParent::Batch(BatchMember::new(parent, 0))), ..BatchSpec::default() };
    role.create(&id, &spec).await.unwrap();
    let first = role.reserve(&id, block(1, 1), "orders", &[]).await.unwrap();
    let earlier = operator.snapshot();
    let second = role.reserve(&id, block(1, 2), "orders", &[]).await.unwrap();
    let all = [first, second].map(|block| Confirmed { block, used: block.to, failed: vec![] });
    role.seal(&id, &all).await.unwrap();
    let ends = [0, 1].map(|number| EndedMember::new(number, MemberEnd::Done));
    role.end_members(&id, &ends).await.unwrap();
    let place = Place::from(tp);
    assert_eq!(role.notes(&place, None, 10).await.unwrap().len(), 1);
    operator.restore(&earlier);
    let lost = role.seal(&id, &all).await.map_err(|error| error.kind());
    assert_eq!(lost.map(drop), Err(ErrorKind::Fenced));
    assert_eq!(role.notes(&place, None, 10).await.unwrap(), []);
    let state = role.seal(&id, &all[..1]).await.unwrap();
    assert_eq!((state.members, state.done), (1, 0));
}
