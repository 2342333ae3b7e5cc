//! Large items that are listed, put back, audited or trimmed: each call of a script takes about 1 MiB of them.

use std::time::Duration;

use millstream_core::Timestamp;
use millstream_core::audit::{Audit, Check, Scope};
use millstream_core::dead_letters::DeadLetters;
use millstream_core::inspect::{Inspect, Range};
use millstream_core::log::{Receipt, Settlement};
use millstream_core::recurring::{Recurrence, Recurring};
use millstream_core::schedule::{Due, OnConflict, Placed, Schedule, Scheduling};

use crate::limits::bytes::{MIB, cost, large};
use crate::schedule::id;
use crate::server::{Bench, fetch, message, retry};
use crate::settle::dead_letters::bury;

const HOUR: Duration = Duration::from_secs(3_600);

impl Bench {
    /// How many calls of scripts there were since the statistics were reset.
    async fn script_calls(&mut self) -> u64 {
        cost(self, "evalsha").await.0 + cost(self, "evalsha_ro").await.0
    }
}

#[tokio::test]
async fn what_is_listed_comes_in_parts() {
    let mut bench = Bench::private(&[]).await;
    let place = bench.partition();
    for n in 0..10 {
        let (id, due, fields) = (id(&n.to_string()), Due::In(HOUR), large(n));
        let one = Scheduling { place: place.clone(), id, due, fields, on_conflict: OnConflict::Keep };
        bench.backend.schedule(&[one]).await.pop().expect("a result").expect("scheduled");
        let (id, rule) = (crate::schedule::id(&n.to_string()), "every 5s".into());
        let recurrence = Recurrence {
            id,
            rule,
            fields: large(n),
            next: Some(Timestamp::from_millis(n as u64 + 1)),
            paused: false,
        };
        let put = Recurring::put(&bench.backend, &place, &recurrence, OnConflict::Keep).await;
        assert_eq!(put.expect("kept"), Placed::New);
    }
    bench.cmd("CONFIG RESETSTAT").await;
    let listed = bench.backend.scheduled(&place, None, 200).await.expect("a page");
    assert!((0..10).eq(listed.iter().map(|one| one.id.as_str().parse::<usize>().expect("a number"))));
    let calls = bench.script_calls().await;
    assert!(calls >= 5, "{calls} calls for 10 MiB");

    let due = bench.backend.due(&place).await.expect("an answer").recurrences;
    assert!((1..=2).contains(&due.len()), "{} of 1 MiB at once", due.len());
    assert_eq!(due[0].next, Some(Timestamp::from_millis(1)), "the first one that is due");
}

#[tokio::test]
async fn retries_that_wait_are_listed_in_parts() {
    let bench = Bench::private(&[]).await;
    bench.fill(10, large).await;
    let (mut reader, mut parked) = (bench.reader().await, 0);
    while parked < 10 {
        let entries = fetch(&mut reader, 10).await.entries;
        let batch: Vec<_> =
            entries.iter().map(|entry| (entry.receipt, retry(HOUR, 2, entry.receipt.id))).collect();
        parked += bench.settle(&batch).await.0;
    }
    let page = bench.backend.parked(&bench.tp, &bench.group, None, 200).await.expect("a page");
    assert!((1..=2).contains(&page.items.len()), "{} of 1 MiB in a page", page.items.len());
    assert!(page.more, "the rest comes with the next pages");
}

#[tokio::test]
async fn large_letters_are_put_back_a_few_at_a_time() {
    let mut bench = Bench::private(&[]).await;
    let body = vec![("payload".into(), vec![b'x'; MIB / 2].into())];
    bench.cmd("CONFIG RESETSTAT").await;
    let ids = bury(&bench, 12, &body).await;
    let calls = bench.script_calls().await;
    assert!(calls >= 6, "{calls} calls for 6 MiB");

    // The letters are still there, so nothing is put: but the script reads each of them to find that out.
    let page = bench.backend.list(&bench.tp, &bench.group, Range::ALL, 1).await.expect("listed");
    let small = ids.iter().map(|id| {
        let mut letter = page.items[0].clone();
        (letter.id, letter.body) = (*id, message("small"));
        letter
    });
    let small: Vec<_> = small.collect();
    bench.cmd("CONFIG RESETSTAT").await;
    let put = DeadLetters::put(&bench.backend, &bench.tp, &bench.group, &small, true).await;
    assert_eq!(put.expect("an answer"), [None; 12]);
    let calls = bench.script_calls().await;
    assert!(calls >= 6, "{calls} calls that read 6 MiB");
}

#[tokio::test]
async fn an_audit_of_large_entries_comes_in_parts() {
    let bench = Bench::private(&[]).await;
    bench.fill(10, large).await;
    let (mut reader, mut pending) = (bench.reader().await, 0);
    while pending < 10 {
        pending += fetch(&mut reader, 10).await.entries.len();
    }
    let scope = Scope::Group(bench.tp.clone(), bench.group.clone());
    let (mut after, mut looked_at) = (None, 0);
    for _ in 0..20 {
        let page = bench.backend.audit(&scope, Check::Pending, after.as_deref()).await.expect("looked at");
        assert!(page.looked_at <= 2, "{} of 1 MiB in a page", page.looked_at);
        looked_at += page.looked_at;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((looked_at, after), (10, None), "and all of them in the end");
}

/// To know a ghost, a trim reads the entry that follows it.
#[tokio::test]
async fn a_trim_passes_ghosts_among_large_entries_in_steps() {
    let mut bench = Bench::private(&[]).await;
    let log = bench.log();
    let body: millstream_core::wire::Fields = vec![("payload".into(), vec![b'x'; 100 << 10].into())];
    let (mut ghosts, mut large) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        ghosts.push(bench.append(message("x")).await);
        large.push(bench.append(body.clone()).await);
    }
    let mut reader = bench.reader().await;
    let (mut acks, mut came) = (Vec::new(), 0);
    while came < 80 {
        let receipts: Vec<Receipt> =
            fetch(&mut reader, 80).await.entries.iter().map(|entry| entry.receipt).collect();
        came += receipts.len();
        let of_large = receipts.into_iter().filter(|receipt| large.contains(&receipt.id));
        acks.extend(of_large.map(|receipt| (receipt, Settlement::Ack)));
    }
    assert_eq!(bench.settle(&acks).await.0, 40);
    for id in ghosts {
        bench.cmd(&format!("XDEL {log} {id}")).await;
    }
    bench.cmd("CONFIG RESETSTAT").await;
    assert_eq!(bench.trim().await.expect("trimmed"), 40);
    let calls = bench.script_calls().await;
    assert!(calls >= 4, "{calls} calls that read 4 MiB");
}
