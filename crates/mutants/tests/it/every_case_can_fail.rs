//! The suite is guarded: each case catches a mistake, and each mistake is caught. A test for each role, as they run at the same
//! time.

use std::collections::BTreeSet;
use std::time::Duration;

use millstream_core::Backend;
use millstream_memory::MemoryBackend;
use millstream_testkit::{Case, Harness, cases};
use mutants::{Broken, Mutant};
use tokio::runtime::{Builder, Runtime};

use crate::support::Console;

/// No case is stuck for longer, by the paused clock.
const STUCK: Duration = Duration::from_secs(60);

/// What a broken backend gets away with costs this much of the paused clock at most.
const DEADLINE: Duration = Duration::from_millis(300);

fn paused() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime")
}

fn fails(runtime: &Runtime, case: &Case, mutant: Mutant) -> bool {
    runtime.block_on(async {
        let memory = MemoryBackend::new();
        let operator = Console(memory.operator());
        let backend = Backend::from(Broken::new(memory, mutant));
        let harness = Harness::new(backend).with_deadline(DEADLINE).with_operator(operator);
        let verdict = tokio::time::timeout(STUCK, (case.run)(harness)).await;
        let verdict = verdict.unwrap_or_else(|_| panic!("{case:?} is stuck with {mutant:?}"));
        if let (Err(violation), true) = (&verdict, std::env::var_os("SHOW_VIOLATIONS").is_some()) {
            println!("{mutant:?} {case:?}: {violation}");
        }
        verdict.is_err()
    })
}

fn every_case_of(role: &str) {
    let runtime = paused();
    let mut idle = Vec::new();
    for case in cases().into_iter().filter(|case| case.role == role) {
        let caught = Mutant::ALL.iter().filter(|mutant| fails(&runtime, &case, **mutant));
        let caught: Vec<_> = caught.collect();
        println!("{case:?} catches {}: {caught:?}", caught.len());
        if caught.is_empty() {
            idle.push(case);
        }
    }
    assert!(idle.is_empty(), "cases that no mistake fails: {idle:#?}");
}

macro_rules! roles {
    ($($role:ident),* $(,)?) => {
        const ROLES: &[&str] = &[$(stringify!($role)),*];

        $(#[test]
        fn $role() {
            every_case_of(stringify!($role));
        })*
    };
}

roles! {
    audit, batches, cancels, catalog, claims, dead_letters, idempotency, inspect, leases, locks, log, members, permits, recurring,
    schedule, shared, steps, tasks,
}

#[test]
fn every_role_has_a_test() {
    let roles: BTreeSet<&str> = cases().iter().map(|case| case.role).collect();
    assert_eq!(roles, ROLES.iter().copied().collect());
}

#[test]
fn every_mistake_is_caught() {
    let runtime = paused();
    let (mut cases, mut uncaught) = (cases(), Vec::new());
    for mutant in Mutant::ALL {
        match cases.iter().find(|case| fails(&runtime, case, *mutant)).map(|case| case.role) {
            // The next mistake is likely one of the same role.
            Some(role) => cases.sort_by_key(|case| case.role != role),
            None => uncaught.push(mutant),
        }
    }
    assert!(uncaught.is_empty(), "mistakes that no case catches: {uncaught:#?}");
}

/// With the deadline of the broken runs, so that no case fails there for want of time.
#[test]
fn a_good_backend_needs_no_more_than_the_deadline() {
    let runtime = paused();
    for case in cases() {
        let memory = MemoryBackend::new();
        let harness =
            Harness::new(memory.clone()).with_deadline(DEADLINE).with_operator(Console(memory.operator()));
        let verdict = runtime.block_on((case.run)(harness));
        assert!(verdict.is_ok(), "{case:?}: {verdict:?}");
    }
}
