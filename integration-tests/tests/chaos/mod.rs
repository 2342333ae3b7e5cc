//! Runs under faults on every topology, and with every known mistake: `docs/reliability.md` says what they prove.
//!
//! `MILLSTREAM_CHAOS_SEED` is the seed, and `MILLSTREAM_CHAOS_SECONDS` the length; `cargo run -p integration-tests --bin chaos`
//! repeats one run with options.

use std::path::Path;
use std::time::Duration;

use integration_tests::chaos::checks::check;
use integration_tests::chaos::deployment::Topology;
use integration_tests::chaos::mutants::Mutant;
use integration_tests::chaos::proof::{look_for, provoked_by};
use integration_tests::chaos::run::{Plan, run};
use integration_tests::equipment::valkey;

const BIN: &str = env!("CARGO_BIN_EXE_chaos");

fn from_env(name: &str, otherwise: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(otherwise, |value| {
        value.parse().unwrap_or_else(|_| panic!("{name} is not a number: {value}"))
    })
}

/// One run, with the faults that the seed chooses. A failure keeps the history, and prints the line that repeats the run.
fn survives(topology: Topology) {
    survives_with(topology, false);
}

/// The same, with messages that are packed or not.
fn survives_with(topology: Topology, packed: bool) {
    let seed = from_env("MILLSTREAM_CHAOS_SEED", 1);
    let seconds = from_env("MILLSTREAM_CHAOS_SECONDS", 30);
    let folder = tempfile::Builder::new().prefix("chaos-").tempdir().expect("a folder");
    let plan = Plan {
        length: Duration::from_secs(seconds),
        packed,
        valkey: (topology == Topology::Valkey).then(valkey),
        ..Plan::new(topology, seed, Path::new(BIN), folder.path())
    };
    let kinds: Vec<String> = plan.kinds().iter().map(ToString::to_string).collect();
    println!("{}: {}", plan.command(), kinds.join(", "));
    let report = check(&run(&plan).expect("a run"), &plan.limits());
    println!("{report}");
    if !report.is_clean() {
        panic!("promises were broken; the history is in {}", folder.keep().display());
    }
}

/// Whether a short run with a mistake finds it. Nothing is waited for: what one seed does not show, one of seven has to.
fn finds(mutant: Mutant) {
    let first = from_env("MILLSTREAM_CHAOS_SEED", 1);
    for seed in first..first + 7 {
        let folder = tempfile::Builder::new().prefix("chaos-").tempdir().expect("a folder");
        match look_for(mutant, true, seed, Path::new(BIN), folder.path()).expect("a run") {
            Some(found) => {
                println!("{mutant}, seed {seed}: {:?}, first {}", found.by_check, found.first);
                return;
            }
            None => println!("{mutant}, seed {seed}: nothing found"),
        }
    }
    panic!("{mutant}: {}: no check found it", mutant.description());
}

mod topologies {
    use super::{Topology, survives, survives_with};

    #[test]
    fn standalone_keeps_its_promises() {
        survives(Topology::Standalone);
    }

    #[test]
    fn valkey_keeps_its_promises() {
        survives(Topology::Valkey);
    }

    #[test]
    fn sentinel_keeps_its_promises() {
        survives(Topology::Sentinel);
    }

    #[test]
    fn cluster_keeps_its_promises() {
        survives(Topology::Cluster);
    }

    #[test]
    fn standalone_keeps_its_promises_with_packed_messages() {
        survives_with(Topology::Standalone, true);
    }

    #[test]
    fn cluster_keeps_its_promises_with_packed_messages() {
        survives_with(Topology::Cluster, true);
    }

    #[test]
    fn cluster_tls_keeps_its_promises() {
        survives(Topology::ClusterTls);
    }
}

/// One mistake for each check that finds any, and for each topology that one needs. `chaos mutants` runs all of them, with three
/// seeds each; `mutants` shows of each by itself that it has its fault.
mod mistakes {
    use std::collections::BTreeSet;

    use super::{Mutant, finds, provoked_by};

    macro_rules! found {
        ($($test:ident: $mutant:ident,)*) => {
            $(#[test]
            fn $test() {
                finds(Mutant::$mutant);
            })*

            #[test]
            fn each_check_and_topology_has_its_mistake() {
                let all = |mutants: &[Mutant]| {
                    let places = mutants.iter().filter_map(|mutant| provoked_by(*mutant));
                    places.flat_map(|it| it.checks.iter().map(move |check| format!("{check} on {:?}", it.topology))).collect::<BTreeSet<_>>()
                };
                assert_eq!(all(&[$(Mutant::$mutant),*]), all(Mutant::ALL));
            }
        };
    }

    found! {
        unfenced_settlement_is_found: UnfencedSettlement,
        incr_epoch_is_found: IncrEpoch,
        client_clock_is_found: ClientClock,
        dead_letter_swallowed_is_found: DeadLetterSwallowed,
        pending_not_reread_is_found: PendingNotReread,
        whole_batch_resent_is_found: WholeBatchResent,
        trim_ignores_pending_is_found: TrimIgnoresPending,
        unchecked_lock_release_is_found: UncheckedLockRelease,
    }
}
