//! Histories for what is delivered: `queue`, `delays`, `slots`.

use std::time::Duration;

use crate::chaos::record::{End, Fate, Handling, Message, Outcome, Rest, Scope, What};

use super::super::{Limits, PlaceLimits};
use super::builder::{History, handling, message, queue, topic};
use super::{accepted, accepted_with, limits, rejected, rejected_with};

/// Message 1 is sent, with a worker that owns the partition.
pub(super) fn one_sent() -> History {
    let mut it = History::with_faults();
    it.assign(20, 5).send(message(1));
    it
}

mod queues {
    use super::*;

    #[test]
    fn what_is_handled_once_is_accepted() {
        let report = accepted(&one_sent().handle(20, &handling(1, 5)).finish(topic(), &[]));
        let place = &report.figures.places["orders/billing"];
        assert_eq!((place.stored, place.begun, place.acked, place.lost), (1, 1, 1, 0));
        assert_eq!(report.figures.sent_stored, 1);
    }

    #[test]
    fn a_group_that_is_destroyed_protects_nothing_where_the_limits_say_so() {
        let mut it = History::with_faults();
        it.assign(20, 5).fault(Scope::Partition(0)).send(Message { safe: true, ..message(1) }).fault_ends();
        let lines = it.finish(topic(), &[]);
        rejected(&lines, "queue", "lost");
        let place = PlaceLimits { group_faults_lose: true, ..PlaceLimits::default() };
        let report = accepted_with(&lines, &Limits { place, ..limits() });
        assert_eq!(report.figures.places["orders/billing"].lost_by_server, 1);
    }

    #[test]
    fn a_group_that_is_destroyed_elsewhere_loses_nothing_here() {
        let mut it = History::with_faults();
        it.assign(20, 5).fault(Scope::Partition(1)).send(message(1)).fault_ends();
        let place = PlaceLimits { group_faults_lose: true, ..PlaceLimits::default() };
        rejected_with(&it.finish(topic(), &[]), &Limits { place, ..limits() }, "queue", "lost");
    }

    #[test]
    fn a_message_is_handled_under_the_id_that_was_confirmed() {
        let other = Handling { origin: "9-0".to_owned(), ..handling(1, 5) };
        let mut it = one_sent();
        it.fault(Scope::Server).fault_ends().handle(20, &other);
        rejected(&it.finish(topic(), &[]), "queue", "as 9-0, and it was confirmed as 1-0");
        let mut it = one_sent();
        it.fault(Scope::Data).fault_ends().handle(20, &other);
        accepted(&it.finish(topic(), &[]));
    }

    #[test]
    fn a_dropped_acknowledgement_is_a_loss() {
        let mut it = one_sent();
        it.begin(20, &handling(1, 5)).effect(&handling(1, 5), true);
        let report = rejected(&it.finish(topic(), &[]), "queue", "lost at orders/billing");
        assert_eq!(report.figures.places["orders/billing"].lost, 1);
        assert_eq!(report.violations[0].message, Some(1));
    }

    #[test]
    fn a_message_that_nobody_began_is_a_loss() {
        rejected(&one_sent().finish(topic(), &[]), "queue", "lost at orders/billing");
        let nobody = Message { to: "elsewhere".to_owned(), ..message(2) };
        let mut it = one_sent();
        it.handle(20, &handling(1, 5)).send(nobody);
        rejected(&it.finish(topic(), &[]), "queue", "nobody handles what is sent to elsewhere");
    }

    #[test]
    fn each_group_has_to_handle_it() {
        let mut other = topic();
        other.group = "shipping".to_owned();
        let mut it = one_sent();
        it.handle(20, &handling(1, 5));
        let mut lines = it.finish(topic(), &[]);
        let left = What::Left { place: other, rest: Rest::default() };
        lines.push(crate::chaos::record::Line { what: left, ..lines[lines.len() - 1].clone() });
        rejected(&lines, "queue", "lost at orders/shipping");
    }

    #[test]
    fn what_is_left_over_is_not_lost() {
        let rest = Rest { unread: 1, ..Rest::default() };
        let report = rejected(&one_sent().finish_with(topic(), rest), "conservation", "1 are unread");
        assert_eq!(report.violations.len(), 1);
    }

    #[test]
    fn a_fail_over_loses_what_was_sent_shortly_before_without_waiting() {
        let mut it = one_sent();
        it.wait(1_000).fault(Scope::Data).wait(100).fault_ends();
        let report = accepted(&it.finish(topic(), &[]));
        assert_eq!(report.figures.places["orders/billing"].lost_by_server, 1);
    }

    #[test]
    fn a_fail_over_loses_nothing_that_was_safe_nor_what_was_sent_long_before_or_after() {
        let mut safe = History::with_faults();
        safe.assign(20, 5).send(Message { safe: true, ..message(1) }).fault(Scope::Data).fault_ends();
        rejected(&safe.finish(topic(), &[]), "queue", "lost at");
        let mut before = one_sent();
        before.wait(5_001).fault(Scope::Data).fault_ends();
        rejected(&before.finish(topic(), &[]), "queue", "lost at");
        let mut after = History::with_faults();
        after.assign(20, 5).fault(Scope::Data).fault_ends().send(message(1));
        rejected(&after.finish(topic(), &[]), "queue", "lost at");
        let mut server = one_sent();
        server.fault(Scope::Server).fault_ends();
        rejected(&server.finish(topic(), &[]), "queue", "lost at");
    }

    #[test]
    fn a_message_of_unknown_outcome_is_there_or_not() {
        for answer in [Some(Outcome::Unknown("cut".to_owned())), None] {
            let mut it = History::with_faults();
            it.assign(20, 5).sending(message(1)).sending(message(2));
            for number in [1, 2] {
                answer.iter().for_each(|answer| _ = it.sent(number, answer.clone()));
            }
            let report = accepted(&it.handle(20, &handling(2, 5)).finish(topic(), &[]));
            assert_eq!(report.figures.places["orders/billing"].recovered, 1);
            assert_eq!(report.figures.sent_unknown, 2);
        }
    }

    #[test]
    fn a_message_that_nobody_sent_is_rejected() {
        let mut it = one_sent();
        it.handle(20, &handling(1, 5)).handle(20, &handling(2, 5));
        rejected(&it.finish(topic(), &[]), "queue", "it was never sent");
        let mut it = History::with_faults();
        it.assign(20, 5).handle(20, &handling(1, 5)).send(message(1));
        rejected(&it.finish(topic(), &[]), "queue", "it was not yet sent");
    }

    #[test]
    fn a_refused_message_is_not_there() {
        let mut it = History::with_faults();
        it.assign(20, 5).sending(message(1)).sent(1, Outcome::Refused("full".to_owned()));
        accepted(&it.finish(topic(), &[]));
        rejected(&it.handle(20, &handling(1, 5)).finish(topic(), &[]), "queue", "its send was refused");
    }

    #[test]
    fn a_wrong_body_place_or_partition_is_rejected() {
        let mut it = one_sent();
        it.push(20, What::Begun { handling: handling(1, 5), intact: false, early_ms: 0 });
        it.effect(&handling(1, 5), true).end(20, &handling(1, 5), End::Acked);
        rejected(&it.finish(topic(), &[]), "queue", "its body is not the one");
        let elsewhere = Handling { place: queue(), epoch: 0, ..handling(1, 0) };
        rejected(&one_sent().handle(20, &elsewhere).finish(topic(), &[]), "queue", "it was sent to orders");
        let elsewhere = Handling { partition: 3, ..handling(1, 5) };
        let lines = one_sent().handle(20, &elsewhere).finish(topic(), &[]);
        rejected(&lines, "queue", "confirmed at partition 0");
    }

    #[test]
    fn two_messages_under_one_id_are_rejected_but_behind_a_fail_over() {
        let history = |is_data: bool| {
            let mut it = one_sent();
            it.handle(20, &handling(1, 5));
            if is_data {
                it.fault(Scope::Data).fault_ends();
            }
            it.sending(message(2)).sent(2, Outcome::Stored { partition: 0, id: "1-0".to_owned() });
            it.handle(20, &handling(2, 5)).finish(topic(), &[])
        };
        rejected(&history(false), "queue", "it has the id 1-0 of message");
        accepted(&history(true));
    }

    #[test]
    fn an_end_that_the_message_does_not_ask_for_is_rejected() {
        let mut it = History::with_faults();
        it.assign(20, 5).send(Message { fate: Fate::Reject, ..message(1) }).handle(20, &handling(1, 5));
        rejected(&it.finish(topic(), &[(1, "rejected")]), "queue", "its fate is Reject");
        let mut it = one_sent();
        it.end(20, &handling(1, 5), End::Acked);
        rejected(&it.finish(topic(), &[]), "queue", "ends without a begin");
    }
}

mod delays {
    use super::*;

    /// Message 1 is due after this many milliseconds, and its handler begins with this `early_ms`.
    fn delayed(due: u64, early_ms: i64, meanwhile: impl FnOnce(&mut History)) -> History {
        let mut it = History::with_faults();
        let due_ms = it.wall_ms() + due;
        it.send(Message { to: queue().name, due_ms, ..message(1) });
        meanwhile(&mut it);
        it.wait((due as i64 - early_ms) as u64);
        let task = Handling { place: queue(), ..handling(1, 0) };
        it.push(20, What::Begun { handling: task.clone(), intact: true, early_ms });
        it.effect(&task, true).end(20, &task, End::Acked);
        it
    }

    #[test]
    fn a_message_is_not_early_by_a_millisecond() {
        accepted(&delayed(500, 0, |_| {}).finish(queue(), &[]));
        let lines = delayed(500, 1, |_| {}).finish(queue(), &[]);
        rejected(&lines, "delays", "1 ms early");
        let lenient = Limits { early: Duration::from_millis(1), ..limits() };
        accepted_with(&lines, &lenient);
    }

    #[test]
    fn a_message_is_late_only_if_a_fault_is_near() {
        let report = accepted(&delayed(500, -900, |_| {}).finish(queue(), &[]));
        assert_eq!(report.figures.lateness.count, 1);
        rejected(&delayed(500, -1_010, |_| {}).finish(queue(), &[]), "delays", "ms late");
        let fault = |it: &mut History| _ = it.fault(Scope::Server).fault_ends();
        let report = accepted(&delayed(500, -1_010, fault).finish(queue(), &[]));
        assert_eq!(report.figures.lateness_in_faults.count, 1);
        let long_ago = |it: &mut History| _ = it.fault(Scope::Server).fault_ends().wait(10_100);
        let lines = delayed(500, -1_010, long_ago).finish(queue(), &[]);
        rejected(&lines, "delays", "ms late");
    }

    #[test]
    fn a_retry_waits_for_its_back_off() {
        let place = PlaceLimits { back_off: Duration::from_millis(100), ..PlaceLimits::default() };
        let limits = Limits { place, ..limits() };
        let history = |ms: u64| {
            let mut it = History::with_faults();
            it.assign(20, 5).send(Message { fate: Fate::Fail(1), ..message(1) });
            it.begin(20, &handling(1, 5)).end(20, &handling(1, 5), End::Failed).wait(ms);
            it.handle(20, &Handling { attempt: 2, ..handling(1, 5) }).finish(topic(), &[])
        };
        accepted_with(&history(99), &limits);
        rejected_with(&history(96), &limits, "delays", "of 100 ms");
    }
}

mod slots {
    use super::*;

    #[test]
    fn more_handlers_than_slots_are_rejected() {
        let mut it = one_sent();
        it.send(Message { key: None, ..message(2) });
        let (one, two) = (handling(1, 5), handling(2, 5));
        it.begin(20, &one).begin(20, &two).effect(&one, true).effect(&two, true);
        it.end(20, &one, End::Acked).end(20, &two, End::Acked);
        let lines = it.finish(topic(), &[]);
        let places = [
            PlaceLimits { per_process: 1, ..PlaceLimits::default() },
            PlaceLimits { per_partition: 1, ..PlaceLimits::default() },
            PlaceLimits { per_process: 2, per_partition: 2, ..PlaceLimits::default() },
        ];
        let [process, partition, wide] = places.map(|place| Limits { place, ..limits() });
        rejected_with(&lines, &process, "slots", "runs 2 handlers at once");
        rejected_with(&lines, &partition, "slots", "partition 0, epoch 5");
        accepted_with(&lines, &wide);
    }
}
