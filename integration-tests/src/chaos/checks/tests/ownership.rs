//! Histories for who may do something: `leases`, `effects`.

use crate::chaos::record::{End, Handling, Message, Scope, What};

use super::super::{Limits, PlaceLimits};
use super::builder::{History, handling, message, once, topic};
use super::{accepted, accepted_with, limits, rejected, rejected_with};

mod leases {
    use super::*;

    #[test]
    fn an_epoch_that_does_not_increase_is_rejected() {
        for epoch in [4, 5] {
            let mut it = History::with_faults();
            it.assign(20, 5).unassign(20, 5, false).assign(21, epoch);
            rejected(&it.finish(topic(), &[]), "leases", "worker-1 (20) was granted 5");
        }
        let mut it = History::with_faults();
        it.assign(20, 5).unassign(20, 5, false).assign(21, 6);
        accepted(&it.finish(topic(), &[]));
    }

    #[test]
    fn a_fail_over_may_take_epochs_back() {
        let mut it = History::with_faults();
        it.assign(20, 5).fault(Scope::Data).fault_ends().wait(1_100).unassign(20, 5, true).assign(21, 4);
        let report = accepted(&it.finish(topic(), &[]));
        assert_eq!((report.figures.epochs_regressed, report.figures.losses), (1, 1));
        let of_one_clock = Limits { epochs_may_regress: false, ..limits() };
        rejected_with(&it.finish(topic(), &[]), &of_one_clock, "leases", "worker-1 (20) was granted 5");
    }

    #[test]
    fn a_stopped_process_may_write_its_grant_down_late() {
        let mut it = History::with_faults();
        it.fault(Scope::Process(20)).fault_ends().assign(21, 6).assign(20, 5);
        rejected(&it.finish(topic(), &[]), "leases", "is granted epoch 5");
        let mut it = History::with_faults();
        it.fault(Scope::Process(20)).wait(1_000).assign(21, 6).wait(10).fault_ends().assign(20, 5);
        accepted(&it.finish(topic(), &[]));
    }

    #[test]
    fn two_owners_in_one_epoch_are_rejected() {
        let mut it = History::with_faults();
        it.assign(20, 5)
            .send(message(1))
            .send(message(2))
            .handle(20, &handling(1, 5))
            .handle(21, &handling(2, 5));
        let report = rejected(&it.finish(topic(), &[]), "leases", "and so did worker-1 (20)");
        assert!(report.violations.iter().any(|it| it.what.contains("worker-2 (21) was not granted it")));
    }

    #[test]
    fn a_process_that_knows_its_loss_begins_nothing() {
        let history = |wait| {
            let mut it = History::with_faults();
            it.assign(20, 5).send(message(1)).fault(Scope::Process(20)).fault_ends().unassign(20, 5, true);
            it.wait(wait).handle(20, &handling(1, 5)).assign(21, 6);
            it.finish(topic(), &[])
        };
        accepted(&history(200));
        rejected(&history(300), "leases", "and lost it at");
    }

    #[test]
    fn the_store_refuses_an_old_epoch() {
        let mut it = History::with_faults();
        it.assign(20, 5).send(message(1)).send(message(2)).begin(20, &handling(1, 5));
        it.fault(Scope::Process(20)).wait(1_000).assign(21, 6).handle(21, &handling(1, 6)).fault_ends();
        it.handle(21, &handling(2, 6));
        let mut refused = it.clone();
        refused.effect(&handling(1, 5), false).unassign(20, 5, true);
        accepted(&refused.finish(topic(), &[]));
        let mut again = refused.clone();
        again.effect(&handling(1, 5), true);
        rejected(&again.finish(topic(), &[]), "leases", "accepted, and one was refused at");
        it.effect(&handling(1, 5), true).unassign(20, 5, true);
        rejected(&it.finish(topic(), &[]), "leases", "accepted after one of epoch 6");
    }

    #[test]
    fn the_store_refuses_nothing_else() {
        let mut it = History::with_faults();
        it.assign(20, 5).send(message(1)).begin(20, &handling(1, 5)).effect(&handling(1, 5), false);
        it.end(20, &handling(1, 5), End::Failed);
        rejected(&it.finish(topic(), &[]), "leases", "refused, and the highest epoch was 0");
    }

    #[test]
    fn a_partition_is_lost_only_if_a_fault_is_near() {
        let mut it = History::with_faults();
        it.assign(20, 5).unassign(20, 5, true).assign(21, 6);
        let lines = it.finish(topic(), &[]);
        rejected(&lines, "leases", "lost epoch 5");
        accepted_with(&lines, &Limits { unexplained_losses: 1, ..limits() });
        let mut it = History::with_faults();
        it.assign(20, 5).assign(21, 6);
        rejected(&it.finish(topic(), &[]), "leases", "lost epoch 5");
        let mut it = History::with_faults();
        it.assign(20, 5).kill(20).wait(900).assign(21, 6);
        assert_eq!(accepted(&it.finish(topic(), &[])).figures.losses, 0);
        let mut it = History::with_faults();
        it.assign(20, 5)
            .fault(Scope::Process(21))
            .wait(2_000)
            .fault_ends()
            .unassign(20, 5, true)
            .assign(21, 6);
        rejected(&it.finish(topic(), &[]), "leases", "lost epoch 5");
        let mut it = History::with_faults();
        it.assign(20, 5).fault(Scope::Server).wait(2_000).fault_ends().unassign(20, 5, true).assign(21, 6);
        accepted(&it.finish(topic(), &[]));
    }
}

mod effects {
    use super::*;

    fn sent() -> History {
        let mut it = History::with_faults();
        it.assign(20, 5).send(message(1));
        it
    }

    #[test]
    fn an_acknowledgement_needs_an_effect() {
        let mut it = sent();
        it.begin(20, &handling(1, 5)).end(20, &handling(1, 5), End::Acked);
        let lines = it.finish(topic(), &[]);
        rejected(&lines, "effects", "acknowledged without an effect");
        let place = PlaceLimits { has_effects: false, ..PlaceLimits::default() };
        accepted_with(&lines, &Limits { place, ..limits() });
    }

    #[test]
    fn an_effect_that_comes_after_the_end_does_not_count() {
        let mut it = sent();
        it.begin(20, &handling(1, 5)).end(20, &handling(1, 5), End::Acked).effect(&handling(1, 5), true);
        rejected(&it.finish(topic(), &[]), "effects", "acknowledged without an effect");
    }

    #[test]
    fn a_handler_has_one_effect_and_none_before_it_begins() {
        let mut it = sent();
        it.handle(20, &handling(1, 5)).effect(&handling(1, 5), true);
        rejected(&it.finish(topic(), &[]), "effects", "effect 2 of 1 handlers");
        let mut it = sent();
        it.effect(&handling(1, 5), true).handle(20, &handling(1, 5));
        rejected(&it.finish(topic(), &[]), "effects", "effect 1 of 0 handlers");
    }

    #[test]
    fn a_place_with_transactions_has_one_effect_for_each_message() {
        let (one, two) =
            (Handling { place: once(), ..handling(1, 5) }, Handling { place: once(), ..handling(1, 6) });
        let assign = |it: &mut History, pid, epoch| {
            _ = it.push(pid, What::Assigned { place: once(), partition: 0, epoch });
        };
        let mut it = History::with_faults();
        assign(&mut it, 20, 5);
        it.send(Message { to: once().name, ..message(1) })
            .begin(20, &one)
            .effect(&one, true)
            .kill(20)
            .wait(900);
        assign(&mut it, 21, 6);
        let mut twice = it.clone();
        it.begin(21, &two).effect(&two, false).end(21, &two, End::Acked);
        accepted(&it.finish(once(), &[]));
        twice.handle(21, &two);
        rejected(&twice.finish(once(), &[]), "effects", "a second effect");
    }
}
