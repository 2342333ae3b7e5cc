//! Histories for the end of a run: `dead_letters`, `conservation`, `liveness`, `endurance`.

use crate::chaos::record::{End, Fate, Handling, Line, Message, Outcome, Phase, Rest, Scope, What};

use super::super::{Endurance, Limits, Report};
use super::builder::{History, RUNNER, handling, message, topic};
use super::{accepted, accepted_with, limits, rejected, rejected_with};

mod dead_letters {
    use super::*;

    /// Message 1 with this fate, at an owned partition.
    fn sent(fate: Fate) -> History {
        let mut it = History::with_faults();
        it.assign(20, 5).send(Message { fate, ..message(1) });
        it
    }

    fn rejecting() -> History {
        let mut it = sent(Fate::Reject);
        it.begin(20, &handling(1, 5)).end(20, &handling(1, 5), End::Rejected);
        it
    }

    #[test]
    fn a_letter_of_a_message_of_unknown_outcome_may_be_undone_with_it() {
        let history = |safe: bool, outcome: Outcome| {
            let mut it = History::with_faults();
            it.assign(20, 5).fault(Scope::Data);
            it.sending(Message { fate: Fate::Reject, safe, ..message(1) });
            it.begin(20, &handling(1, 5))
                .end(20, &handling(1, 5), End::Rejected)
                .sent(1, outcome)
                .fault_ends();
            it.finish(topic(), &[])
        };
        accepted(&history(true, Outcome::Unknown("no answer".to_owned())));
        let stored = || Outcome::Stored { partition: 0, id: "1-0".to_owned() };
        accepted(&history(false, stored()));
        rejected(&history(true, stored()), "dead_letters", "not a dead letter");
    }

    /// All attempts fail, up to this one.
    fn failing(attempts: u32) -> History {
        let mut it = sent(Fate::Hopeless);
        for attempt in 1..=attempts {
            let handling = Handling { attempt, ..handling(1, 5) };
            it.begin(20, &handling).end(20, &handling, End::Failed);
        }
        it
    }

    #[test]
    fn what_was_given_up_is_dead_once() {
        let report = accepted(&rejecting().finish(topic(), &[(1, "rejected")]));
        assert_eq!(report.figures.places["orders/billing"].dead, 1);
        accepted(&failing(5).finish(topic(), &[(1, "exhausted")]));
    }

    #[test]
    fn a_lost_dead_letter_is_found() {
        rejected(&rejecting().finish(topic(), &[]), "dead_letters", "(Rejected), and not a dead letter");
        rejected(&failing(5).finish(topic(), &[]), "dead_letters", "(Failed), and not a dead letter");
    }

    #[test]
    fn a_dead_letter_of_a_message_of_unknown_outcome_may_be_lost_only_if_nobody_gave_it_up() {
        let unknown = || {
            let mut it = History::with_faults();
            it.assign(20, 5).sending(Message { fate: Fate::Reject, ..message(1) });
            it
        };
        accepted(&unknown().finish(topic(), &[]));
        let mut it = unknown();
        it.begin(20, &handling(1, 5)).end(20, &handling(1, 5), End::Rejected);
        rejected(&it.finish(topic(), &[]), "dead_letters", "not a dead letter");
        accepted(&it.finish(topic(), &[(1, "rejected")]));
    }

    #[test]
    fn a_dead_letter_is_there_once_but_behind_a_fail_over() {
        let twice = [(1, "rejected"), (1, "rejected")];
        rejected(&rejecting().finish(topic(), &twice), "dead_letters", "it is there 2 times");
        let mut it = rejecting();
        it.fault(Scope::Data).fault_ends().begin(20, &handling(1, 5)).end(20, &handling(1, 5), End::Rejected);
        accepted(&it.finish(topic(), &twice));
        accepted(&it.finish(topic(), &twice[..1]));
    }

    #[test]
    fn a_wrong_reason_is_found() {
        let reject = |it: History, reason: &str, words: &str| {
            rejected(&it.finish(topic(), &[(1, reason)]), "dead_letters", words);
        };
        reject(rejecting(), "exhausted", "its fate is Reject");
        reject(failing(5), "rejected", "its fate is Hopeless");
        reject(failing(4), "exhausted", "no handler failed at attempt 5");
        reject(sent(Fate::Reject), "rejected", "no handler rejected it");
        reject(rejecting(), "orphan", "orphan is no reason");
        reject(sent(Fate::Ack), "crashed", "0 processes died in its handler");
        reject(sent(Fate::Ack), "exhausted", "its fate is Ack");
    }

    #[test]
    fn processes_that_died_in_a_handler_explain_a_crashed_message() {
        let mut it = sent(Fate::Ack);
        it.begin(20, &handling(1, 5)).kill(20).wait(900).assign(21, 6);
        let mut once = it.clone();
        once.fault(Scope::Process(21)).fault_ends();
        rejected(&once.finish(topic(), &[(1, "crashed")]), "dead_letters", "1 processes died");
        it.begin(21, &handling(1, 6)).kill(21).wait(900);
        accepted(&it.finish(topic(), &[(1, "crashed")]));
    }

    #[test]
    fn a_message_is_not_both_acknowledged_and_dead() {
        let mut it = sent(Fate::Ack);
        it.handle(20, &handling(1, 5));
        rejected(&it.finish(topic(), &[(1, "crashed")]), "dead_letters", "it was acknowledged");
    }

    #[test]
    fn a_dead_letter_that_nobody_sent_is_found() {
        let it = sent(Fate::Ack).handle(20, &handling(1, 5)).clone();
        rejected(&it.finish(topic(), &[(9, "rejected")]), "dead_letters", "it was never sent");
        let rest = Rest { dead: vec![(None, "malformed".to_owned())], ..Rest::default() };
        rejected(&it.finish_with(topic(), rest), "dead_letters", "a body that nobody sent");
        let mut it = History::with_faults();
        it.assign(20, 5).sending(Message { fate: Fate::Reject, ..message(1) });
        it.sent(1, Outcome::Refused("full".to_owned()));
        rejected(&it.finish(topic(), &[(1, "rejected")]), "dead_letters", "its send was refused");
    }

    #[test]
    fn a_fail_over_may_lose_a_letter_with_its_message() {
        let mut it = rejecting();
        it.fault(Scope::Data).fault_ends();
        let report = accepted(&it.finish(topic(), &[]));
        assert_eq!(report.figures.places["orders/billing"].lost_by_server, 1);
        let mut it = rejecting();
        it.wait(6_000).fault(Scope::Data).fault_ends();
        rejected(&it.finish(topic(), &[]), "dead_letters", "not a dead letter");
    }
}

mod conservation {
    use super::*;

    #[test]
    fn what_an_audit_finds_is_a_violation() {
        let mut it = History::with_faults();
        it.assign(20, 5).push(RUNNER, What::Audit { findings: Vec::new() });
        accepted(&it.finish(topic(), &[]));
        let missing = || What::Audit { findings: vec!["group_missing at orders/1".to_owned()] };
        let mut destroyed = it.clone();
        destroyed.fault(Scope::Partition(0)).push(RUNNER, missing());
        destroyed.fault_ends();
        accepted(&destroyed.finish(topic(), &[]));
        it.push(RUNNER, missing());
        rejected(&it.finish(topic(), &[]), "conservation", "group_missing");
        it.push(RUNNER, What::Audit { findings: vec!["a hole".to_owned()] });
        rejected(&it.finish(topic(), &[]), "conservation", "a hole");
    }

    #[test]
    fn what_is_left_is_a_violation() {
        let it = History::with_faults();
        let rests = [
            (Rest { pending: 1, ..Rest::default() }, "1 are pending"),
            (Rest { unread: 2, ..Rest::default() }, "2 are unread"),
            (Rest { waiting: 3, ..Rest::default() }, "3 are waiting"),
            (Rest { ownerless: vec![4], ..Rest::default() }, "partitions [4]"),
        ];
        for (rest, words) in rests {
            rejected(&it.finish_with(topic(), rest), "conservation", words);
        }
        let mut lines = it.clone().assign(20, 5).finish(topic(), &[]);
        lines.pop();
        rejected(&lines, "conservation", "nobody looked at what is left");
    }
}

mod liveness {
    use super::*;

    /// A calm phase of 5 s with 20 messages a second, faults, and a phase of this many seconds after them with as many, of
    /// which those at some of the times are handled, and the others when nothing more is sent.
    fn rates(seconds: u64, handles: impl Fn(u64) -> bool) -> Vec<Line> {
        let mut it = History::new();
        it.assign(20, 5);
        let mut number = 0;
        for _ in 0..100 {
            number += 1;
            it.send(Message { key: None, ..message(number) }).handle(20, &handling(number, 5)).wait(45);
        }
        it = it.phase(Phase::Faults).phase(Phase::Healed);
        let mut late = Vec::new();
        for tick in 0..seconds * 20 {
            number += 1;
            it.send(Message { key: None, ..message(number) });
            if handles(tick * 50) {
                it.handle(20, &handling(number, 5)).wait(45);
            } else {
                late.push(number);
                it.wait(48);
            }
        }
        it = it.phase(Phase::Draining);
        for number in late {
            it.handle(20, &handling(number, 5));
        }
        it = it.phase(Phase::Ended);
        it.push(RUNNER, What::Left { place: topic(), rest: Rest::default() });
        // The two that had nothing to do recorded something.
        let ended = it.lines.len() - 2;
        for pid in [10, 21] {
            let line = Line { pid, what: What::Audit { findings: Vec::new() }, ..it.lines[ended].clone() };
            it.lines.insert(ended, line);
        }
        it.lines
    }

    #[test]
    fn what_is_sent_is_handled_as_fast_again_in_time() {
        let report = accepted(&rates(20, |ms| ms >= 9_000));
        let figures = &report.figures;
        assert!((19.0..21.0).contains(&figures.rate_calm), "{report}");
        let after = figures.recovered_after_us.expect("reached");
        assert!((8_000_000..10_000_000).contains(&after), "{report}");
        assert!((0.95..1.05).contains(&figures.pace["orders/billing"]), "{report}");
        rejected(&rates(20, |ms| ms >= 16_000), "liveness", "were handled meanwhile");
    }

    #[test]
    fn who_handles_a_fraction_of_what_is_sent_is_found() {
        accepted(&rates(30, |ms| ms % 150 != 0));
        rejected(&rates(30, |ms| ms < 9_000 || ms % 200 == 0), "liveness", "were handled meanwhile");
        rejected(&rates(12, |ms| ms < 5_000), "liveness", "partition 0: from");
    }

    /// The calm phase is no measure of it: the machine may have been another one.
    #[test]
    fn who_is_slower_than_before_with_those_who_send_is_not_blamed() {
        let mut lines = rates(30, |_| true);
        let healed = lines.iter().position(|line| line.what == What::Phase(Phase::Healed)).expect("a phase");
        let from = lines[healed].at_us;
        for line in &mut lines[healed..] {
            line.at_us = from + (line.at_us - from) * 3;
        }
        let report = accepted(&lines);
        assert!(report.figures.rate_healed * 2.0 < report.figures.rate_calm, "{report}");
        assert_eq!(report.figures.recovered_after_us, None, "{report}");
    }

    #[test]
    fn a_process_does_what_it_is_asked_to() {
        let mut it = History::with_faults();
        it.push(RUNNER, What::Disobeyed("worker-1 did not end well".to_owned()));
        rejected(&it.finish(topic(), &[]), "liveness", "did not end well");
    }

    #[test]
    fn a_process_whose_loops_fail_is_not_at_work() {
        let mut it = History::with_faults().phase(Phase::Healed);
        for pid in [10, 20] {
            it.push(pid, What::Audit { findings: Vec::new() });
        }
        it.push(21, What::Failing("settle".to_owned())).push(21, What::Tasks(9));
        it = it.phase(Phase::Draining).phase(Phase::Ended);
        rejected(&it.finish_lines(topic()), "liveness", "has recorded nothing since");
    }

    #[test]
    fn each_place_handles_something() {
        let mut it = History::with_faults().phase(Phase::Healed);
        it.assign(20, 5).send(message(1));
        let rest = Rest { unread: 1, ..Rest::default() };
        rejected(&it.finish_with(topic(), rest), "liveness", "nothing is handled after the last fault");
    }

    #[test]
    fn a_handler_that_never_ends_is_found() {
        let history = |ms, scope: Option<Scope>| {
            let mut it = History::with_faults();
            it.assign(20, 5).send(message(1)).begin(20, &handling(1, 5));
            scope.into_iter().for_each(|scope| _ = it.fault(scope).fault_ends());
            it.wait(ms);
            it.finish_with(topic(), Rest { pending: 1, ..Rest::default() })
        };
        let hangs = |report: &Report| report.violations.iter().any(|it| it.what.contains("has not ended"));
        rejected(&history(11_000, None), "liveness", "began in worker-1 (20) and has not ended");
        rejected(&history(11_000, Some(Scope::Server)), "liveness", "has not ended");
        for innocent in [history(9_000, None), history(11_000, Some(Scope::Data))] {
            assert!(!hangs(&rejected(&innocent, "conservation", "1 are pending")));
        }
    }

    #[test]
    fn a_process_that_records_nothing_is_found() {
        let mut it = History::with_faults();
        it.runs(22, "worker-3", "worker");
        let lines = it.finish(topic(), &[]);
        rejected(&lines, "liveness", "worker-3 (22) (worker) has recorded nothing since");
        accepted_with(&lines, &Limits { quiet_roles: vec!["worker".to_owned()], ..limits() });
        accepted(&it.kill(22).finish(topic(), &[]));
    }

    #[test]
    fn a_process_that_ends_by_itself_is_found() {
        let mut it = History::with_faults();
        it.push(21, What::Gone { orderly: false });
        rejected(&it.finish(topic(), &[]), "liveness", "worker-2 (21) ended by itself");
    }

    #[test]
    fn a_run_without_an_end_or_with_a_fault_that_goes_on_is_rejected() {
        rejected(&History::with_faults().lines, "liveness", "its last phase is Some(Faults)");
        let mut it = History::with_faults();
        it.fault(Scope::Server);
        rejected(&it.finish(topic(), &[]), "liveness", "fault 1 (test) has not ended");
        it.fault_ends();
        accepted(&it.finish(topic(), &[]));
    }
}

mod endurance {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn usage(server: u64, connections: u64, keys: u64, resident: u64, threads: u64) -> What {
        let of = |value| vec![("worker-1".to_owned(), value)];
        What::Usage {
            server_bytes: server * MIB,
            connections,
            keys,
            resident: of(resident * MIB),
            threads: of(threads),
        }
    }

    #[test]
    fn growth_is_found() {
        let limits = Limits { endurance: Some(Endurance::default()), ..limits() };
        let history = |last: What| {
            let mut it = History::with_faults();
            it.push(RUNNER, usage(100, 10, 50, 40, 8))
                .push(RUNNER, usage(900, 90, 900, 90, 90))
                .push(RUNNER, last);
            it.finish(topic(), &[])
        };
        accepted_with(&history(usage(111, 14, 66, 56, 10)), &limits);
        let grown = [
            (usage(112, 10, 50, 40, 8), "memory of the servers"),
            (usage(100, 15, 50, 40, 8), "connections"),
            (usage(100, 10, 67, 40, 8), "keys"),
            (usage(100, 10, 50, 57, 8), "resident memory of worker-1"),
            (usage(100, 10, 50, 40, 11), "threads of worker-1"),
        ];
        for (last, words) in grown {
            assert_eq!(rejected_with(&history(last), &limits, "endurance", words).violations.len(), 1);
        }
        let none = History::with_faults().finish(topic(), &[]);
        rejected_with(&none, &limits, "endurance", "no two statements");
    }

    #[test]
    fn what_is_left_when_all_is_handled_is_found() {
        let limits = Limits { endurance: Some(Endurance::default()), ..limits() };
        let history = |drained: What| {
            let mut it = History::with_faults();
            it.push(RUNNER, usage(100, 10, 50, 40, 8)).push(RUNNER, usage(300, 10, 90, 40, 8));
            it.push(RUNNER, What::Phase(Phase::Draining)).push(RUNNER, drained);
            it.finish(topic(), &[])
        };
        // Where nothing is sent any more, processes may have ended, and their connections with them.
        accepted_with(&history(usage(100, 0, 50, 0, 0)), &limits);
        rejected_with(&history(usage(300, 0, 50, 0, 0)), &limits, "endurance", "memory of the servers");
        rejected_with(&history(usage(100, 0, 90, 0, 0)), &limits, "endurance", "keys");
    }

    #[test]
    fn tasks_that_do_not_end_are_found() {
        let limits = Limits { endurance: Some(Endurance::default()), ..limits() };
        let history = |later: u64| {
            let mut it = History::with_faults();
            it.push(20, What::Tasks(20)).push(RUNNER, usage(100, 10, 50, 40, 8));
            it.push(20, What::Tasks(later)).push(RUNNER, usage(100, 10, 50, 40, 8));
            it.finish(topic(), &[])
        };
        accepted_with(&history(84), &limits);
        rejected_with(&history(85), &limits, "endurance", "tasks of ");
    }
}
