//! The suite is guarded: each case catches a mistake, and each mistake is caught.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use millstream_core::Backend;
use millstream_memory::MemoryBackend;
use millstream_testkit::broken::{Broken, Mutant};
use millstream_testkit::{Case, Harness, cases};
use tokio::runtime::{Builder, Runtime};

use crate::support::Console;

/// No case is stuck for longer, by the paused clock.
const STUCK: Duration = Duration::from_secs(60);

/// What a broken backend gets away with costs this much of the paused clock at most.
const DEADLINE: Duration = Duration::from_millis(300);

fn fails(runtime: &Runtime, case: &Case, sabotage: Mutant) -> bool {
    runtime.block_on(async {
        let memory = MemoryBackend::new();
        let operator = Console(memory.operator());
        let backend = Backend::from(Broken::new(memory, sabotage));
        let harness = Harness::new(backend).with_deadline(DEADLINE).with_operator(operator);
        let verdict = tokio::time::timeout(STUCK, (case.run)(harness)).await;
        let verdict = verdict.unwrap_or_else(|_| panic!("{case:?} is stuck with {sabotage:?}"));
        if let (Err(violation), true) = (&verdict, std::env::var_os("SHOW_VIOLATIONS").is_some()) {
            println!("{sabotage:?} {case:?}: {violation}");
        }
        verdict.is_err()
    })
}

#[test]
fn every_case_can_fail() {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let cases = cases();
    let mut caught: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut catches: BTreeSet<String> = BTreeSet::new();
    for sabotage in Mutant::ALL {
        let by = caught.entry(format!("{sabotage:?}")).or_default();
        for case in cases.iter().filter(|case| fails(&runtime, case, *sabotage)) {
            by.push(format!("{case:?}"));
            catches.insert(format!("{case:?}"));
        }
    }
    for (sabotage, by) in &caught {
        println!("{sabotage} is caught by {}: {}", by.len(), by.join(", "));
    }
    let uncaught: Vec<_> =
        caught.iter().filter(|(_, by)| by.is_empty()).map(|(sabotage, _)| sabotage).collect();
    let idle: Vec<_> =
        cases.iter().map(|case| format!("{case:?}")).filter(|c| !catches.contains(c)).collect();
    println!("{} cases, {} mistakes", cases.len(), caught.len());
    assert!(uncaught.is_empty(), "mistakes that no case catches: {uncaught:#?}");
    assert!(idle.is_empty(), "cases that no mistake fails: {idle:#?}");
}

/// With the deadline of the broken runs, so that no case fails there for want of time.
#[test]
fn a_good_backend_needs_no_more_than_the_deadline() {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    for case in cases() {
        let memory = MemoryBackend::new();
        let harness =
            Harness::new(memory.clone()).with_deadline(DEADLINE).with_operator(Console(memory.operator()));
        let verdict = runtime.block_on((case.run)(harness));
        assert!(verdict.is_ok(), "{case:?}: {verdict:?}");
    }
}
