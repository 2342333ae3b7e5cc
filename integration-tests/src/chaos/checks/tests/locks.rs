//! Histories for `locks`.

use crate::chaos::record::{Scope, What};

use super::builder::{History, STORE, topic};
use super::{Limits, accepted, limits, rejected, rejected_with};

fn locked(it: &mut History, pid: u32, fence: u64) -> &mut History {
    it.push(pid, What::Locked { lock: "ledger".to_owned(), fence, ttl_ms: 1_000 })
}

fn releasing(it: &mut History, pid: u32, fence: u64) -> &mut History {
    it.push(pid, What::Releasing { lock: "ledger".to_owned(), fence })
}

fn unlocked(it: &mut History, pid: u32, fence: u64, released: bool) -> &mut History {
    if released {
        releasing(it, pid, fence);
    }
    it.push(pid, What::Unlocked { lock: "ledger".to_owned(), fence, released })
}

fn write(it: &mut History, writer: u32, fence: u64, accepted: bool) -> &mut History {
    it.push(STORE, What::Write { lock: "ledger".to_owned(), fence, writer, accepted })
}

/// 20 holds the lock with fence 5.
fn held() -> History {
    let mut it = History::with_faults();
    locked(&mut it, 20, 5);
    it
}

#[test]
fn a_lock_goes_from_hand_to_hand() {
    let mut it = held();
    unlocked(write(&mut it, 20, 5, true), 20, 5, true);
    // The next one may write its grant down before the one before writes down that it has let go.
    locked(&mut it, 21, 6);
    locked(releasing(write(&mut it, 21, 6, true), 21, 6), 20, 7);
    unlocked(&mut it, 21, 6, true);
    unlocked(write(&mut it, 20, 7, true), 20, 7, true);
    let report = accepted(&it.finish(topic(), &[]));
    assert_eq!((report.figures.locks, report.figures.writes_accepted), (3, 3));
}

#[test]
fn a_fence_that_does_not_increase_is_rejected_but_behind_a_fail_over() {
    for fence in [4, 5] {
        let mut it = held();
        locked(unlocked(&mut it, 20, 5, true), 21, fence);
        rejected(&it.finish(topic(), &[]), "locks", "worker-1 (20) was granted 5");
        let mut it = held();
        unlocked(&mut it, 20, 5, true).fault(Scope::Data).fault_ends().wait(1_100);
        locked(&mut it, 21, fence);
        assert_eq!(accepted(&it.finish(topic(), &[])).figures.fences_regressed, 1);
        let of_one_clock = Limits { epochs_may_regress: false, ..limits() };
        rejected_with(&it.finish(topic(), &[]), &of_one_clock, "locks", "worker-1 (20) was granted 5");
    }
}

/// A primary that was replaced has answered too.
#[test]
fn the_answers_of_two_servers_come_in_any_order() {
    let history = |fence: u64| {
        let mut it = held();
        unlocked(&mut it, 20, 5, true).fault(Scope::Data);
        locked(&mut it, 21, fence);
        it.fault_ends().finish(topic(), &[])
    };
    let of_one_clock = Limits { epochs_may_regress: false, ..limits() };
    super::accepted_with(&history(4), &of_one_clock);
    rejected_with(&history(5), &of_one_clock, "locks", "worker-1 (20) was granted 5");
}

#[test]
fn a_lock_that_is_released_goes_on_soon() {
    let history = |ms: u64, released: bool| {
        let mut it = History::with_faults();
        for turn in 0..12 {
            let pid = 20 + u32::from(turn % 2 == 1);
            locked(&mut it, pid, 5 + turn);
            unlocked(&mut it, pid, 5 + turn, released).wait(ms);
        }
        it.finish(topic(), &[])
    };
    accepted(&history(400, true));
    rejected(&history(600, true), "locks", "half of 11 releases");
    accepted(&history(600, false));
}

#[test]
fn a_lock_that_is_held_is_not_granted() {
    let mut it = held();
    locked(&mut it, 21, 6);
    rejected(&it.finish(topic(), &[]), "locks", "worker-1 (20) holds it with fence 5");
    unlocked(&mut it, 20, 5, true);
    rejected(&it.finish(topic(), &[]), "locks", "and let it go at");
}

#[test]
fn a_holder_that_died_or_was_stopped_is_replaced_after_its_ttl() {
    let history = |fault: fn(&mut History), ms: u64| {
        let mut it = held();
        fault(&mut it);
        locked(it.wait(ms), 21, 6);
        it.finish(topic(), &[])
    };
    let faults: [fn(&mut History); 2] = [|it| _ = it.kill(20), |it| _ = it.fault(Scope::Process(20))];
    for fault in faults {
        accepted(&history(fault, 700));
        rejected(&history(fault, 500), "locks", "holds it with fence 5");
    }
    rejected(
        &history(|it| _ = it.fault(Scope::Process(10)).fault_ends(), 2_000),
        "locks",
        "holds it with fence 5",
    );
    accepted(&history(|it| _ = it.fault(Scope::Server).fault_ends(), 100));
}

#[test]
fn a_fence_is_shown_by_its_holder_only() {
    let mut it = held();
    write(write(&mut it, 20, 5, true), 21, 5, true);
    let report = rejected(&it.finish(topic(), &[]), "locks", "and so did process 20");
    assert!(report.violations.iter().any(|it| it.what.contains("it was not granted it")));
    let mut it = held();
    write(&mut it, 20, 4, true);
    rejected(&it.finish(topic(), &[]), "locks", "it was not granted it");
}

#[test]
fn the_store_accepts_no_earlier_fence_and_refuses_no_other() {
    let late = |accepted: bool| {
        let mut it = held();
        it.fault(Scope::Process(20)).wait(900);
        write(locked(&mut it, 21, 6), 21, 6, true).fault_ends();
        write(&mut it, 20, 5, accepted);
        unlocked(&mut it, 20, 5, false);
        it.finish(topic(), &[])
    };
    assert_eq!(accepted(&late(false)).figures.writes_refused, 1);
    rejected(&late(true), "locks", "accepted after 6");
    let mut it = held();
    write(&mut it, 20, 5, false);
    rejected(&it.finish(topic(), &[]), "locks", "refused, and the highest fence was 0");
}
