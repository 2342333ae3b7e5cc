//! Tests of the digest.

use crate::chaos::record::{End, Outcome, Phase, Scope};

use super::super::digest::{Digest, Known};
use super::super::{Spread, check};
use super::builder::{History, handling, message};
use super::limits;

#[test]
fn a_process_id_can_have_two_lives() {
    let mut it = History::with_faults();
    it.kill(20).runs(20, "worker-3", "worker").begin(20, &handling(1, 5));
    let digest = Digest::of(&it.lines);
    let names: Vec<_> = digest.lives.iter().filter_map(|life| life.named).map(|(name, _)| name).collect();
    assert_eq!(names, ["producer-1", "worker-1", "worker-2", "worker-3"]);
    let of = digest.deliveries[0].life;
    assert!(digest.lives[of].gone.is_none() && digest.lives[of].named == Some(("worker-3", "worker")));
    assert!(!digest.faults[0].hits(of), "the fault hit the one before");
}

#[test]
fn an_end_belongs_to_the_begin_of_its_process() {
    let mut it = History::with_faults();
    it.begin(20, &handling(1, 5)).begin(21, &handling(1, 5)).end(20, &handling(1, 5), End::Failed);
    let digest = Digest::of(&it.lines);
    assert!(digest.deliveries[0].ended(End::Failed) && digest.deliveries[1].finish.is_none());
    assert!(digest.unmatched.is_empty());
}

#[test]
fn a_confirmation_outweighs_other_outcomes() {
    let stored = || Outcome::Stored { partition: 0, id: "1-0".to_owned() };
    let [unknown, refused] = [Outcome::Unknown, Outcome::Refused].map(|outcome| outcome("why".to_owned()));
    for (outcomes, known) in [
        (vec![unknown.clone(), stored()], Known::Stored(0, "1-0")),
        (vec![stored(), unknown.clone()], Known::Stored(0, "1-0")),
        (vec![refused.clone(), unknown.clone()], Known::Unknown),
        (vec![unknown, refused.clone()], Known::Unknown),
        (vec![refused], Known::Refused),
    ] {
        let mut it = History::new();
        it.sending(message(1));
        outcomes.into_iter().for_each(|outcome| _ = it.sent(1, outcome));
        assert_eq!(Digest::of(&it.lines).messages[&1].known, known);
    }
}

#[test]
fn a_phase_lasts_until_the_next() {
    let mut it = History::new();
    it.wait(500);
    let lines = it.phase(Phase::Healed).lines;
    let digest = Digest::of(&lines);
    let (from, to) = digest.span(Phase::Calm).expect("a calm phase");
    assert_eq!((to - from, digest.span(Phase::Faults)), (501_000, None));
}

#[test]
fn a_fault_lasts_until_it_is_mended() {
    let mut it = History::new();
    it.fault(Scope::Server).wait(100).fault_ends().fault(Scope::Server);
    let digest = Digest::of(&it.lines);
    let [first, second] = &digest.faults[..] else { panic!("{:?}", digest.faults) };
    let (from, to) = (first.from.us, first.to.expect("an end").us);
    assert!(first.overlaps(to, to + 1, 0, 0) && !first.overlaps(to + 1, to + 2, 0, 0));
    assert!(first.overlaps(to + 1, to + 2, 0, 1) && first.overlaps(from - 2, from - 1, 1, 0));
    assert!(!first.overlaps(from - 2, from - 1, 0, 0) && second.overlaps(u64::MAX - 1, u64::MAX, 0, 0));
}

#[test]
fn quantiles_are_those_of_the_sorted_times() {
    let spread = Spread::of((1..=100).rev().collect());
    assert_eq!((spread.count, spread.p50, spread.p99, spread.p100), (100, 51, 100, 100));
    assert_eq!(Spread::of(Vec::new()), Spread::default());
}

#[test]
fn an_empty_history_is_no_run() {
    let report = check(&[], &limits());
    assert_eq!(report.violations.len(), 1, "{report}");
}
