//! Claims of a backend choose its cases, and each case says exactly what it needs.

use std::time::Duration;

use millstream_core::{Backend, Capability};
use millstream_memory::MemoryBackend;
use millstream_testkit::{Case, Harness, Verdict, cases, cases_for};
use mutants::{Broken, Mutant};
use tokio::runtime::{Builder, Runtime};

use crate::support::Console;

/// What a backend lacks costs this much of the paused clock at most.
const DEADLINE: Duration = Duration::from_millis(300);

fn paused() -> Runtime {
    Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime")
}

/// Runs a case on a memory backend that lacks one capability: without the role, or without the operations and the claim.
fn run_without(runtime: &Runtime, case: &Case, capability: Capability) -> (bool, Verdict) {
    runtime.block_on(async {
        let memory = MemoryBackend::new();
        let operator = Console(memory.operator());
        let lacks = Mutant::ALL.iter().find(|mutant| mutant.unsupported() == Some(capability));
        let backend = match lacks {
            Some(mutant) => Backend::from(Broken::new(memory, *mutant)),
            None if capability == Capability::Ends => Backend::from(Broken::new(memory, Mutant::EndsHidden)),
            None => Backend::from(memory),
        };
        let backend = backend.without(capability);
        let applies = case.applies_to(&backend);
        let harness = Harness::new(backend).with_deadline(DEADLINE).with_operator(operator);
        (applies, (case.run)(harness).await)
    })
}

#[test]
fn a_case_needs_what_it_says_and_nothing_else() {
    let runtime = paused();
    let mut wrong = Vec::new();
    for capability in Capability::ALL {
        for case in cases() {
            match run_without(&runtime, &case, *capability) {
                (true, Err(violation)) => wrong.push(format!("{case:?} NEEDS {capability:?}: {violation}")),
                (false, Ok(())) => wrong.push(format!("{case:?} does not need {capability:?}")),
                (true, Ok(())) | (false, Err(_)) => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Returns what the cases that check claims say about a backend.
fn complaints(backend: &Backend) -> Vec<String> {
    let claims = cases_for(backend).into_iter().filter(|case| case.role == "claims");
    let verdicts = claims.map(|case| {
        let harness = Harness::new(backend.clone()).with_deadline(DEADLINE);
        paused().block_on((case.run)(harness)).err().map(|violation| violation.to_string())
    });
    verdicts.flatten().collect()
}

fn operations() -> impl Iterator<Item = Capability> {
    Capability::ALL.iter().copied().filter(|capability| !capability.is_role())
}

#[test]
fn what_is_claimed_and_not_supported_is_found() {
    for capability in operations() {
        let mutant = Mutant::ALL.iter().find(|mutant| mutant.unsupported() == Some(capability));
        let mutant = mutant.copied().unwrap_or(Mutant::EndsHidden);
        let runtime = paused();
        let _clock = runtime.enter();
        let found = complaints(&Backend::from(Broken::new(MemoryBackend::new(), mutant)));
        assert_eq!(found.len(), 1, "{capability:?}: {found:#?}");
        assert!(found[0].contains("claimed") && !found[0].contains("not claimed"), "{found:?}");
    }
}

#[test]
fn what_is_supported_and_not_claimed_is_found() {
    for capability in operations() {
        let runtime = paused();
        let _clock = runtime.enter();
        let found = complaints(&Backend::from(MemoryBackend::new()).without(capability));
        assert_eq!(found.len(), 1, "{capability:?}: {found:#?}");
        assert!(found[0].contains("not claimed"), "{found:?}");
    }
}
