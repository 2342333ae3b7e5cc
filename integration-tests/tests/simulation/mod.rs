//! Deterministic simulation: the whole runtime on the memory backend, under a paused clock and one seed per run.
//!
//! ```text
//! MILLSTREAM_SEED=123 cargo test -p integration-tests --test in_process simulation::      one seed, with its story
//! MILLSTREAM_SEEDS=0..20000 cargo test -p integration-tests --test in_process simulation::    a range
//! ```
//!
//! A run is a scenario made from its seed: partitions, instances, keys, handlers that fail, a backend that fails,
//! instances that die. Then everything heals, the rest is handled, and the history is checked. See docs/reliability.md.

mod behaviour;
mod event_recorder;
mod instance;
mod mistakes;
mod nemesis;
mod payload;
mod scenario;
mod sender;
mod watchdog;
mod worker;
mod world;

use std::env;
use std::ops::Range;

use scenario::Scenario;
use world::Outcome;

/// How many seeds run by default, in all parts together.
const SEEDS: u64 = 2_000;
/// Into how many tests they are split, so that they use all cores.
const PARTS: u64 = 8;

/// Seeds that meet the two exceptions of `docs/guarantees.md` where a server gives an id again after a fail-over: in shared mode a late
/// acknowledgement of the old message, and a group that is destroyed by hand afterwards, and restored behind the id or before it.
/// `MILLSTREAM_SEED` runs them.
const KNOWN: [u64; 3] = [1572, 1823, 2977];

/// Runs the part's share of seeds. Panics with those that fail.
fn part(part: u64) {
    let Some(seeds) = asked() else { return all(SEEDS / PARTS * part..SEEDS / PARTS * (part + 1)) };
    let share = (seeds.end.saturating_sub(seeds.start)).div_ceil(PARTS);
    let start = seeds.start + share * part;
    all(start..(start + share).min(seeds.end));
}

/// The seeds that somebody wants instead.
fn asked() -> Option<Range<u64>> {
    if let Ok(seed) = env::var("MILLSTREAM_SEED") {
        let seed = seed.parse().expect("MILLSTREAM_SEED is a number");
        return Some(seed..seed + 1);
    }
    let seeds = env::var("MILLSTREAM_SEEDS").ok()?;
    let (start, end) = seeds.split_once("..").expect("MILLSTREAM_SEEDS is like 0..1000");
    let number = |text: &str| text.parse().expect("MILLSTREAM_SEEDS is like 0..1000");
    Some(number(start)..number(end))
}

fn all(seeds: Range<u64>) {
    let mut failed = Vec::new();
    let is_asked = asked().is_some();
    for seed in seeds.filter(|seed| is_asked || !KNOWN.contains(seed)) {
        let outcome = run(seed);
        if env::var_os("MILLSTREAM_SEED").is_some() {
            outcome.tell();
        }
        if !outcome.breaches.is_empty() {
            eprintln!("{}", outcome.summary());
            failed.push(seed);
        }
    }
    assert!(failed.is_empty(), "{} seeds failed: {failed:?}", failed.len());
}

fn run(seed: u64) -> Outcome {
    let _watched = watchdog::watch(seed);
    world::run(&Scenario::new(seed))
}

macro_rules! parts {
    ($($name:ident = $part:literal;)*) => {
        $(#[test] fn $name() { part($part); })*

        #[test]
        fn all_parts_are_run() {
            assert_eq!([$($part),*], std::array::from_fn::<u64, { PARTS as usize }, _>(|part| part as u64)[..]);
        }
    };
}

parts! {
    seeds_0 = 0;
    seeds_1 = 1;
    seeds_2 = 2;
    seeds_3 = 3;
    seeds_4 = 4;
    seeds_5 = 5;
    seeds_6 = 6;
    seeds_7 = 7;
}

#[test]
fn the_same_seed_is_the_same_story() {
    for seed in asked().unwrap_or(0..40) {
        let (one, two) = (run(seed), run(seed));
        let (left, right) = (one.story(), two.story());
        let differs = left.iter().zip(&right).position(|(left, right)| left != right);
        assert_eq!(
            differs.map(|at| (&left[at], &right[at])),
            None,
            "seed {seed} did not go the same way twice"
        );
        assert_eq!(one.fingerprint, two.fingerprint, "seed {seed}");
    }
}

#[test]
fn another_seed_is_another_story() {
    assert_ne!(run(1).fingerprint, run(2).fingerprint);
}
