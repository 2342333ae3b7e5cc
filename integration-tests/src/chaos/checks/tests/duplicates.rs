//! Histories for `duplicates`.

use crate::chaos::record::{End, Fate, Handling, Message, Scope, What};

use super::builder::{History, RUNNER, handling, message, topic};
use super::delivery::one_sent;
use super::{Limits, accepted, accepted_with, limits, rejected};

/// Message 1 is handled by 20 under epoch 5 and by 21 under epoch 6, with this in between and before.
fn twice(before: impl FnOnce(&mut History), between: impl FnOnce(&mut History)) -> History {
    let mut it = one_sent();
    before(&mut it);
    it.handle(20, &handling(1, 5));
    between(&mut it);
    it.assign(21, 6).handle(21, &handling(1, 6));
    it
}

#[test]
fn a_second_delivery_without_a_cause_is_rejected() {
    let mut it = one_sent();
    it.handle(20, &handling(1, 5)).handle(20, &handling(1, 5));
    let report = rejected(&it.finish(topic(), &[]), "duplicates", "without a cause");
    assert_eq!(report.figures.unexplained, 1);
}

#[test]
fn a_kill_explains_a_redelivery() {
    let mut it = one_sent();
    it.begin(20, &handling(1, 5)).kill(20).wait(900).assign(21, 6).handle(21, &handling(1, 6));
    let report = accepted(&it.finish(topic(), &[]));
    assert_eq!(report.figures.repeated["process"], 1);
    assert!(report.figures.redeliveries.p100 >= 900_000 && report.figures.takeovers.count == 1);
    // It may have died before the acknowledgement had an effect.
    let report = accepted(&twice(|_| {}, |it| _ = it.kill(20)).finish(topic(), &[]));
    assert_eq!(report.figures.repeated["process"], 1);
}

#[test]
fn a_kill_of_another_process_explains_nothing() {
    let mut it = one_sent();
    it.handle(20, &handling(1, 5)).kill(21).handle(20, &handling(1, 5));
    rejected(&it.finish(topic(), &[]), "duplicates", "without a cause");
}

#[test]
fn what_happens_long_after_an_acknowledgement_explains_nothing() {
    let late = twice(|_| {}, |it| _ = it.wait(3_001).kill(20).wait(1_000));
    rejected(&late.finish(topic(), &[]), "duplicates", "without a cause");
    let late = twice(|_| {}, |it| _ = it.wait(3_001).fault(Scope::Process(20)).unassign(20, 5, true));
    rejected(&late.finish(topic(), &[]), "duplicates", "without a cause");
    let mut long_before = one_sent();
    long_before
        .fault(Scope::Server)
        .fault_ends()
        .wait(3_001)
        .handle(20, &handling(1, 5))
        .handle(20, &handling(1, 5));
    rejected(&long_before.finish(topic(), &[]), "duplicates", "without a cause");
    let long_after = twice(|_| {}, |it| _ = it.wait(8_001).fault(Scope::Data).fault_ends());
    rejected(&long_after.finish(topic(), &[]), "duplicates", "without a cause");
}

#[test]
fn a_lost_partition_explains_it_and_one_that_was_given_back_does_not() {
    let mut it = twice(|it| _ = it.fault(Scope::Server).fault_ends(), |it| _ = it.unassign(20, 5, true));
    let report = accepted(&it.finish(topic(), &[]));
    assert_eq!(report.figures.repeated["moved"], 1);
    it = twice(|_| {}, |it| _ = it.unassign(20, 5, false));
    rejected(&it.finish(topic(), &[]), "duplicates", "without a cause");
    let lenient = Limits { orderly_moves_repeat: true, ..limits() };
    accepted_with(&it.finish(topic(), &[]), &lenient);
}

#[test]
fn faults_of_data_and_of_the_partition_explain_it() {
    for (scope, name) in [(Scope::Data, "data"), (Scope::Partition(0), "partition")] {
        let mut it = one_sent();
        it.handle(20, &handling(1, 5)).fault(scope).wait(500).fault_ends().handle(20, &handling(1, 5));
        let report = accepted(&it.finish(topic(), &[]));
        assert_eq!(report.figures.repeated[name], 1);
    }
}

#[test]
fn a_server_that_is_away_a_shutdown_and_another_partition_explain_nothing() {
    for scope in [Scope::Server, Scope::Leaving(20), Scope::Partition(1), Scope::Nothing] {
        let mut it = one_sent();
        it.handle(20, &handling(1, 5)).fault(scope).wait(2_000).fault_ends().handle(20, &handling(1, 5));
        rejected(&it.finish(topic(), &[]), "duplicates", "without a cause");
    }
    let mut it = twice(|_| {}, |it| _ = it.unassign(20, 5, false).push(20, What::Gone { orderly: true }));
    rejected(&it.finish(topic(), &[]), "duplicates", "without a cause");
    // What was taken for a loss of data may have been none.
    it = one_sent();
    it.handle(20, &handling(1, 5)).fault(Scope::Data);
    it.push(RUNNER, What::Kept { fault: 1, scope: Scope::Server, ended_us: 0 })
        .fault_ends()
        .handle(20, &handling(1, 5));
    rejected(&it.finish(topic(), &[]), "duplicates", "without a cause");
}

/// A claim of a task or entry has no epoch.
#[test]
fn links_explain_it_if_they_are_bad_for_long_and_another_process_has_it() {
    let history = |ms: u64, second: u32| {
        let claimed = handling(1, 0);
        let mut it = History::with_faults();
        it.send(message(1))
            .handle(20, &claimed)
            .fault(Scope::Links)
            .wait(ms)
            .fault_ends()
            .handle(second, &claimed);
        it.finish(topic(), &[])
    };
    assert_eq!(accepted(&history(650, 21)).figures.repeated["links"], 1);
    rejected(&history(550, 21), "duplicates", "without a cause");
    rejected(&history(650, 20), "duplicates", "without a cause");
}

#[test]
fn a_process_that_was_stopped_for_less_than_its_lease_repeats_nothing() {
    let history = |ms: u64| {
        let (claimed, mut it) = (handling(1, 0), History::with_faults());
        it.send(message(1)).begin(20, &claimed).fault(Scope::Process(20)).wait(ms).fault_ends();
        it.effect(&claimed, true).end(20, &claimed, End::Acked).handle(21, &claimed).finish(topic(), &[])
    };
    assert_eq!(accepted(&history(650)).figures.repeated["process"], 1);
    rejected(&history(550), "duplicates", "without a cause");
}

#[test]
fn a_fail_over_undoes_the_tail_of_acknowledgements() {
    let history = |ms: u64| {
        let mut it = one_sent();
        it.handle(20, &handling(1, 5)).wait(ms).fault(Scope::Data).fault_ends().handle(20, &handling(1, 5));
        it.finish(topic(), &[])
    };
    accepted(&history(7_900));
    rejected(&history(8_100), "duplicates", "without a cause");
}

#[test]
fn a_process_that_was_stopped_may_begin_under_an_old_epoch() {
    let history = |ms| {
        let (new, stale) = (handling(1, 6), handling(1, 5));
        let mut it = one_sent();
        it.fault(Scope::Process(20)).wait(1_200).assign(21, 6).handle(21, &new).fault_ends().wait(ms);
        it.begin(20, &stale).effect(&stale, false).end(20, &stale, End::Failed).unassign(20, 5, true);
        it.finish(topic(), &[])
    };
    accepted(&history(200));
    rejected(&history(300), "duplicates", "without a cause");
}

#[test]
fn nothing_is_repeated_in_the_calm_phase() {
    let mut it = History::new();
    it.assign(20, 5).send(message(1)).begin(20, &handling(1, 5)).kill(20);
    it.assign(21, 6).handle(21, &handling(1, 6));
    rejected(&it.finish(topic(), &[]), "duplicates", "in the calm phase");
}

#[test]
fn a_retry_needs_a_failure() {
    let failing = Message { fate: Fate::Fail(1), ..message(1) };
    let second = Handling { attempt: 2, ..handling(1, 5) };
    let mut it = History::with_faults();
    it.assign(20, 5).send(failing).begin(20, &handling(1, 5)).end(20, &handling(1, 5), End::Failed);
    accepted(&it.handle(20, &second).finish(topic(), &[]));
    let lines = one_sent().handle(20, &second).finish(topic(), &[]);
    rejected(&lines, "duplicates", "no attempt 1 failed");
}

#[test]
fn a_failure_of_a_former_owner_is_no_reason_for_another_attempt() {
    let flaky = Message { fate: Fate::Flaky, ..message(1) };
    let (old, new) = (handling(1, 5), handling(1, 6));
    let history = |fault: Scope, again: &Handling| {
        let mut it = History::with_faults();
        it.assign(20, 5).send(flaky.clone()).begin(20, &old).fault(fault).end(20, &old, End::Failed);
        it.wait(1_200).assign(21, 6).handle(21, &new).fault_ends().unassign(20, 5, true).handle(21, again);
        it.finish(topic(), &[])
    };
    let second = Handling { attempt: 2, ..new.clone() };
    rejected(&history(Scope::Process(20), &second), "duplicates", "no attempt 1 failed");
    // A fail-over may have undone that the other one was granted the partition.
    accepted(&history(Scope::Data, &second));
}

/// The store refused its effect, so another owner was known when it ended.
#[test]
fn a_failure_whose_effect_was_refused_is_no_reason_for_another_attempt() {
    let (old, second) = (handling(1, 5), Handling { attempt: 2, ..handling(1, 6) });
    let history = |fault: Scope| {
        let mut it = one_sent();
        it.send(message(2))
            .begin(20, &old)
            .fault(fault)
            .wait(1_200)
            .assign(21, 6)
            .handle(21, &handling(2, 6));
        it.fault_ends()
            .effect(&old, false)
            .end(20, &old, End::Failed)
            .unassign(20, 5, true)
            .handle(21, &second);
        it.finish(topic(), &[])
    };
    rejected(&history(Scope::Process(20)), "duplicates", "no attempt 1 failed");
    accepted(&history(Scope::Data));
}

#[test]
fn a_message_is_stored_once() {
    let copy = Handling { origin: "9-0".to_owned(), ..handling(1, 5) };
    let history = |fault: Option<Scope>| {
        let mut it = one_sent();
        it.handle(20, &handling(1, 5));
        if let Some(scope) = fault {
            it.fault(scope).fault_ends();
        }
        it.handle(20, &copy).finish(topic(), &[])
    };
    rejected(&history(Some(Scope::Server)), "duplicates", "stored twice");
    rejected(&history(None), "duplicates", "stored twice");
    accepted(&history(Some(Scope::Data)));
}
