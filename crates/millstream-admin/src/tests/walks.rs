//! Walks over many messages and letters: what a step may hold, and what is left of a step that is dropped.

use std::time::Duration;

use millstream_core::log::Append;
use millstream_core::{Backend, Envelope, wire};
use millstream_testkit::chaos::{Chaos, Client, Faults};
use tokio::time::timeout;

use super::dead_letters::Grave;
use super::*;
use crate::{Browse, ShelfFilter};

const MEBIBYTE: usize = 1 << 20;

/// A connection on which each request takes 1 to 3 ms.
fn slow(backend: &Backend) -> Client {
    let client = Chaos::new(backend.clone(), 7).client();
    client.suffer(&Faults::none().latency(Duration::from_millis(1), Duration::from_millis(3)));
    client
}

#[tokio::test(start_paused = true)]
async fn a_step_over_large_messages_is_small_and_a_page_is_whole() {
    let stage = Stage::new().await;
    for _ in 0..20 {
        let fields = wire::encode(&Envelope::new(vec![b'x'; MEBIBYTE]));
        let entry = Append::new(stage.partition(0), fields);
        assert!(stage.backend.log().append(&[entry]).await.iter().all(Result::is_ok));
    }
    let browse = Browse { limit: 1_000, ..Browse::default() };
    let mut walk = stage.admin.walk(&stage.topic.name, &browse).await.expect("a walk");
    let mut steps = Vec::new();
    loop {
        match walk.run_once(1_000).await.expect("read").len() {
            0 => break,
            some => steps.push(some),
        }
    }
    assert_eq!(steps, [4; 5], "about 4 MiB each");
    let page = stage.admin.messages(&stage.topic.name, &browse).await.expect("read");
    assert_eq!((page.messages.len(), page.next), (20, None));
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_step_that_was_dropped_are_in_the_next_one() {
    let stage = Stage::new().await;
    let appended = stage.append(3_000).await;
    let admin = Admin::new(slow(&stage.backend).backend());
    let browse = Browse { limit: 10_000, ..Browse::default() };
    let mut walk = admin.walk(&stage.topic.name, &browse).await.expect("a walk");
    let (mut seen, mut dropped) = (Vec::new(), 0);
    while seen.len() < appended.len() {
        match timeout(Duration::from_millis(4), walk.run_once(appended.len())).await {
            Ok(step) => seen.extend(step.expect("read").into_iter().map(|message| message.stored.id)),
            Err(_) => dropped += 1,
        }
        assert!(dropped < 10_000, "{} of {} after {dropped}", seen.len(), appended.len());
    }
    let mut expected: Vec<_> = appended.into_iter().map(|(_, id)| id).collect();
    expected.sort_unstable();
    assert!(seen == expected && dropped > 0, "dropped {dropped} times");
}

#[tokio::test(start_paused = true)]
async fn letters_of_a_step_that_was_dropped_are_in_the_next_one() {
    let grave = Grave::over(Backend::from(MemoryBackend::new()), 900).await;
    let admin = Admin::new(slow(&grave.backend).backend());
    let letters = admin.dead_letters(&grave.topic, &grave.group).await.expect("the topic");
    let expected = grave.count().await;
    let mut walk = letters.walk(&ShelfFilter::default(), None).await.expect("a walk");
    let (mut seen, mut dropped) = (0, 0);
    while !walk.is_done() {
        match timeout(Duration::from_millis(4), walk.run_once(1_000)).await {
            Ok(step) => seen += step.expect("read").len() as u64,
            Err(_) => dropped += 1,
        }
        assert!(dropped < 10_000, "{seen} of {expected} after {dropped}");
    }
    assert!(seen == expected && dropped > 0, "{seen} of {expected}, dropped {dropped} times");
}
