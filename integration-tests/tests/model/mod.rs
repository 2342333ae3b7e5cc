//! An exhaustive check of the protocol in small sizes: lease, fence, read, settlement, promotion and fail-over, with every
//! interleaving of requests, answers and faults. `docs/reliability.md` says what is modelled and what is not.

mod mistakes;
mod owner;
mod producer;
mod server;
mod sizes;
mod system;

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use mistakes::Mistake;
use producer::Sends;
use sizes::{Faults, Sizes};
use system::System;

/// Larger sizes, for which CI has no time.
fn is_large() -> bool {
    std::env::var("MILLSTREAM_MODEL").is_ok_and(|size| size == "large")
}

/// Explores all states. Every property has to hold, and what should be reached has to be.
fn holds<M>(name: &str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + Send + Sync + PartialEq + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let begun = Instant::now();
    let checker = model.checker().threads(1).spawn_bfs().join();
    let states = checker.unique_state_count();
    let (depth, seconds) = (checker.max_depth(), begun.elapsed().as_secs_f64());
    println!("figure: {name}: {states} states, {depth} steps deep, in {seconds:.1} s");
    // Prints the counterexample, step by step.
    checker.assert_properties();
    assert!(checker.is_done(), "{name} is not explored to its end");
}

/// The checker finds a counterexample of this property.
fn refuted<M>(mistake: Mistake, property: &'static str, model: M)
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + Send + Sync + PartialEq + 'static,
    M::Action: Clone + Debug + PartialEq + Send + Sync + 'static,
{
    let found = HasDiscoveries::AllOf([property].into());
    let checker = model.checker().threads(1).finish_when(found).spawn_bfs().join();
    let states = checker.unique_state_count();
    let path = checker.discovery(property);
    let actions = path
        .unwrap_or_else(|| panic!("{mistake:?} is not refuted by {property}: {states} states"))
        .into_actions();
    println!(
        "figure: {mistake:?} is refuted by {property} in {} steps, after {states} states",
        actions.len()
    );
    // Read with --nocapture: the story of the mistake.
    for action in actions {
        println!("    {action:?}");
    }
}

const NO_FAULTS: Faults =
    Faults { losses: 0, crashes: 0, pauses: 0, renewals: 0, releases: 0, fail_overs: 0, behind: false };

/// Two messages, of which the first fails once, and two owners.
const SIZES: Sizes = Sizes {
    owners: 2,
    messages: 2,
    stored: 2,
    failing: 0b01,
    prefetch: 1,
    faults: NO_FAULTS,
    other_group: false,
};

/// One test for each of these: together they take minutes on a slow machine, and a test that takes so long counts as hung.
macro_rules! scenes {
    ($($scene:ident: $sizes:expr;)*) => {
        $(#[test]
        fn $scene() {
            holds(stringify!($scene), System::new($sizes, None));
        })*
    };
}

/// The protocol keeps what it promises, in sizes that CI explores, each under its own faults.
mod protocol {
    use super::{Faults, NO_FAULTS, SIZES, Sizes, System, holds};

    /// One message that is there from the beginning, and is done by its first attempt.
    const ONE: Sizes = Sizes { messages: 1, stored: 1, failing: 0, ..SIZES };

    scenes! {
        two_takeovers: Sizes { faults: Faults { pauses: 2, ..NO_FAULTS }, ..SIZES };
        a_takeover_and_late_requests: Sizes { faults: Faults { pauses: 1, losses: 1, ..NO_FAULTS }, ..SIZES };
        a_crash_and_a_takeover: Sizes { faults: Faults { crashes: 1, pauses: 1, ..NO_FAULTS }, ..SIZES };
        a_renewal_a_release_and_late_requests: Sizes {
            faults: Faults { renewals: 1, releases: 1, losses: 1, ..NO_FAULTS },
            ..ONE
        };
        a_fail_over: Sizes { stored: 1, faults: Faults { fail_overs: 1, ..NO_FAULTS }, ..SIZES };
        a_fail_over_to_a_clock_that_is_behind: Sizes {
            stored: 0,
            failing: 0,
            prefetch: 2,
            faults: Faults { fail_overs: 1, behind: true, ..NO_FAULTS },
            ..SIZES
        };
        a_takeover_and_a_fail_over: Sizes {
            faults: Faults { fail_overs: 1, pauses: 1, ..NO_FAULTS },
            ..ONE
        };
        three_owners: Sizes { owners: 3, faults: Faults { pauses: 1, ..NO_FAULTS }, ..ONE };
        three_messages_that_are_read_ahead: Sizes {
            messages: 3,
            stored: 3,
            failing: 0b101,
            prefetch: 2,
            faults: Faults { pauses: 1, ..NO_FAULTS },
            ..SIZES
        };
        another_group: Sizes { other_group: true, faults: Faults { pauses: 1, ..NO_FAULTS }, ..SIZES };
    }
}

/// Sizes for which CI has no time.
fn large_scenes() -> Vec<(&'static str, Sizes)> {
    let all = Faults { losses: 1, crashes: 1, pauses: 1, renewals: 1, releases: 1, ..NO_FAULTS };
    vec![
        ("large: every fault but a fail-over", Sizes { messages: 1, stored: 1, faults: all, ..SIZES }),
        (
            "large: a takeover, late requests, a fail-over",
            Sizes {
                stored: 0,
                faults: Faults { losses: 1, pauses: 1, fail_overs: 1, behind: true, ..NO_FAULTS },
                ..SIZES
            },
        ),
        (
            "large: three owners, two takeovers",
            Sizes { owners: 3, faults: Faults { pauses: 2, ..NO_FAULTS }, ..SIZES },
        ),
        (
            "large: three messages, late requests",
            Sizes {
                messages: 3,
                stored: 1,
                failing: 0b101,
                prefetch: 2,
                faults: Faults { losses: 1, pauses: 1, ..NO_FAULTS },
                ..SIZES
            },
        ),
    ]
}

/// With `MILLSTREAM_MODEL=large` only.
#[test]
fn the_protocol_keeps_what_it_promises_in_large_sizes() {
    let scenes = if is_large() { large_scenes() } else { Vec::new() };
    for (name, sizes) in scenes {
        holds(name, System::new(sizes, None));
    }
}

#[test]
fn a_send_with_a_dedup_id_is_stored_once() {
    let [losses, crashes, fail_overs] = if is_large() { [4, 3, 2] } else { [2, 2, 1] };
    holds("sends", Sends { messages: 3, losses, crashes, fail_overs, mistake: None });
}

#[test]
fn each_mistake_is_refuted() {
    let pause = Faults { pauses: 1, ..NO_FAULTS };
    let loss = Faults { losses: 1, ..NO_FAULTS };
    let fail_over = Faults { fail_overs: 1, behind: true, ..NO_FAULTS };
    let owner = Sizes { owners: 1, ..SIZES };
    let released = Faults { renewals: 1, releases: 1, losses: 1, ..NO_FAULTS };
    let cases = [
        (Mistake::AckBeforeRetry, "NO-LOSS", owner),
        (Mistake::UnfencedAck, "FENCED", Sizes { faults: pause, ..SIZES }),
        (Mistake::EpochAlone, "TOKENS", Sizes { faults: fail_over, ..SIZES }),
        (Mistake::EpochAlone, "EPOCHS", Sizes { faults: Faults { behind: false, ..fail_over }, ..SIZES }),
        (Mistake::EpochAlone, "FENCED", Sizes { faults: fail_over, ..SIZES }),
        (Mistake::RenewAfterRelease, "FENCED", Sizes { faults: released, ..owner }),
        (Mistake::RetryIntoLog, "ONE-GROUP", Sizes { other_group: true, ..owner }),
        (Mistake::NoReread, "LIVENESS", Sizes { faults: loss, ..owner }),
        (Mistake::PromoteWithoutLease, "FENCED", Sizes { faults: pause, ..SIZES }),
        (Mistake::PromoteWithoutGate, "ONCE", Sizes { faults: loss, ..owner }),
        (Mistake::LateRead, "LIVENESS", Sizes { faults: loss, ..owner }),
        (Mistake::NewBeforePending, "ORDER", Sizes { faults: pause, ..SIZES }),
        (
            Mistake::KeepLostTail,
            "NO-LOSS",
            Sizes { stored: 0, failing: 0, prefetch: 2, faults: fail_over, ..owner },
        ),
        (Mistake::LateAnswer, "LIVENESS", Sizes { messages: 1, stored: 1, faults: fail_over, ..owner }),
    ];
    for (mistake, property, sizes) in cases {
        refuted(mistake, property, System::new(sizes, Some(mistake)));
    }
    let mistake = Mistake::MarkerBeforeAppend;
    let sends = Sends { messages: 1, losses: 1, crashes: 0, fail_overs: 0, mistake: Some(mistake) };
    refuted(mistake, "STORED", sends);
}
