//! Properties of the default assignment, for groups of any shape and any history.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::collection::{btree_set, vec};
use proptest::option;
use proptest::prelude::*;

use crate::assignment::{Assignor, Balanced};
use crate::members::{Assignment, Member};
use crate::{MemberId, Partition};

fn id(n: u8) -> MemberId {
    MemberId::new(format!("m-{n:03}")).expect("a name")
}

fn plain(ids: &BTreeSet<u8>) -> Vec<Member> {
    ids.iter().map(|n| Member::new(id(*n), "i", Duration::from_secs(10))).collect()
}

/// Members in the order of their ids, with wishes. Some pins are of partitions that do not exist, some are wanted by
/// several, some twice by one.
fn members(most: usize, partitions: u32) -> impl Strategy<Value = Vec<Member>> {
    let wishes = (option::weighted(0.4, 0..=partitions), vec(0..partitions + 2, 0..4));
    (btree_set(any::<u8>(), 1..=most), vec(wishes, most)).prop_map(|(ids, wishes)| {
        let wish = |(mut member, (most, pins)): (Member, (Option<u32>, Vec<u32>))| {
            member.max_partitions = most;
            member.pinned_to(pins.into_iter().map(Partition))
        };
        plain(&ids).into_iter().zip(wishes).map(wish).collect()
    })
}

/// What may have been assigned before, sense or nonsense.
fn previous(members: Vec<Member>, partitions: u32) -> impl Strategy<Value = Assignment> {
    let lists = vec(vec((0..partitions + 2).prop_map(Partition), 0..8), members.len() + 1);
    let gone = MemberId::new("gone").expect("a name");
    lists.prop_map(move |lists| {
        let ids = members.iter().map(|member| member.id.clone()).chain([gone.clone()]);
        ids.zip(lists).collect()
    })
}

fn groups(most: usize, partitions: u32) -> impl Strategy<Value = (u32, Vec<Member>, Assignment)> {
    (0..=partitions)
        .prop_flat_map(move |partitions| (Just(partitions), members(most, partitions)))
        .prop_flat_map(|(partitions, members)| {
            let previous = previous(members.clone(), partitions);
            (Just(partitions), Just(members), previous)
        })
}

/// Each partition's owner; fails if one has two, or does not exist.
fn owners(assignment: &Assignment, partitions: u32) -> BTreeMap<Partition, MemberId> {
    let mut owners = BTreeMap::new();
    for (id, list) in assignment {
        for partition in list {
            assert!(partition.0 < partitions, "{partition:?} does not exist");
            let other = owners.insert(*partition, id.clone());
            assert_eq!(other, None, "{partition:?} is owned twice");
        }
    }
    owners
}

/// The pins that hold, one member after the other.
fn pins(members: &[Member], partitions: u32) -> Vec<BTreeSet<Partition>> {
    let mut taken = BTreeSet::new();
    let mut of = |member: &Member| {
        let most = member.max_partitions.map_or(usize::MAX, |most| most as usize);
        let mut mine = BTreeSet::new();
        for pin in member.pinned.iter().filter(|pin| pin.0 < partitions) {
            if mine.len() < most && taken.insert(*pin) {
                mine.insert(*pin);
            }
        }
        mine
    };
    members.iter().map(&mut of).collect()
}

/// How many partitions stay where they were.
fn kept(before: &Assignment, after: &Assignment) -> usize {
    let had =
        |id: &MemberId, partition: &Partition| before.get(id).is_some_and(|had| had.contains(partition));
    after.iter().map(|(id, list)| list.iter().filter(|partition| had(id, partition)).count()).sum()
}

fn sizes(assignment: &Assignment) -> Vec<usize> {
    assignment.values().map(Vec::len).collect()
}

proptest! {
    #[test]
    fn limits_hold_and_what_they_allow_is_owned_once((partitions, members, before) in groups(12, 60)) {
        let after = Balanced.assign(partitions, &members, &before);
        let ids: Vec<_> = members.iter().map(|member| member.id.clone()).collect();
        prop_assert_eq!(after.keys().cloned().collect::<Vec<_>>(), ids, "each member has an entry");
        let limits: Vec<_> = members.iter().map(|m| m.max_partitions.unwrap_or(partitions)).collect();
        let allowed: u64 = limits.iter().map(|limit| u64::from(*limit)).sum();
        prop_assert_eq!(owners(&after, partitions).len() as u64, allowed.min(partitions.into()));
        for (list, limit) in after.values().zip(limits) {
            prop_assert!(list.len() <= limit as usize);
            prop_assert!(list.is_sorted());
        }
    }

    #[test]
    fn pins_hold_and_the_rest_is_balanced((partitions, members, before) in groups(12, 60)) {
        let after = Balanced.assign(partitions, &members, &before);
        let pins = pins(&members, partitions);
        for (list, pins) in after.values().zip(&pins) {
            prop_assert!(pins.iter().all(|pin| list.contains(pin)), "{pins:?} are not all in {list:?}");
        }
        let sizes = sizes(&after);
        for (more, pins) in sizes.iter().zip(&pins) {
            for (less, member) in sizes.iter().zip(&members) {
                let forced = *more == pins.len() || member.max_partitions.is_some_and(|most| *less == most as usize);
                prop_assert!(*more <= less + 1 || forced, "{sizes:?} with {members:?}");
            }
        }
    }

    #[test]
    fn assigning_again_moves_nothing((partitions, members, before) in groups(12, 60)) {
        let first = Balanced.assign(partitions, &members, &before);
        prop_assert_eq!(Balanced.assign(partitions, &members, &first), first);
    }

    /// Members come and go, the topic grows: no step moves more than it has to, also not by a choice of who has one
    /// partition more than the others.
    #[test]
    fn over_any_history_each_step_moves_the_minimum(
        steps in vec((btree_set(0..24u8, 1..16), 0..20u32), 1..12),
        mut partitions in 0..150u32,
    ) {
        let mut before = Assignment::new();
        for (ids, more) in steps {
            partitions += more;
            let after = Balanced.assign(partitions, &plain(&ids), &before);
            let total = owners(&after, partitions).len();
            prop_assert_eq!(total, partitions as usize, "each partition is owned");
            let (least, larger) = (total / ids.len(), total % ids.len());
            let expected = ids.len() - larger;
            prop_assert_eq!(sizes(&after).iter().filter(|size| **size == least).count(), expected);
            prop_assert_eq!(sizes(&after).iter().filter(|size| **size == least + 1).count(), larger);
            // Everybody keeps what fits into the smaller share, and as many as there are larger shares one more.
            let had: Vec<_> = ids.iter().map(|n| before.get(&id(*n)).map_or(0, Vec::len)).collect();
            let small: usize = had.iter().map(|had| least.min(*had)).sum();
            let one_more = had.iter().filter(|had| **had > least).count().min(larger);
            prop_assert_eq!(kept(&before, &after), small + one_more, "{:?} to {:?}", before, after);
            before = after;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Against every assignment that there is: none with the same sizes and pins keeps more where it was.
    #[test]
    fn no_assignment_of_these_sizes_moves_fewer((partitions, members, before) in groups(3, 6)) {
        let before = first_owner_only(before);
        let after = Balanced.assign(partitions, &members, &before);
        let (pins, sizes) = (pins(&members, partitions), sizes(&after));
        let mut best = 0;
        // Each partition goes to a member or to nobody.
        let choices = members.len() + 1;
        for mut code in 0..choices.pow(partitions) {
            let mut lists = vec![Vec::new(); choices];
            for partition in 0..partitions {
                lists[code % choices].push(Partition(partition));
                code /= choices;
            }
            let lists = &lists[..members.len()];
            let pinned = lists.iter().zip(&pins).all(|(list, pins)| pins.iter().all(|pin| list.contains(pin)));
            if pinned && lists.iter().map(Vec::len).eq(sizes.iter().copied()) {
                let ids = members.iter().map(|member| member.id.clone());
                best = best.max(kept(&before, &ids.zip(lists.iter().cloned()).collect()));
            }
        }
        prop_assert_eq!(kept(&before, &after), best, "{:?} to {:?}", before, after);
    }
}

/// Takes the nonsense out: what has two owners has none.
fn first_owner_only(mut assignment: Assignment) -> Assignment {
    let mut seen = BTreeSet::new();
    for list in assignment.values_mut() {
        list.retain(|partition| seen.insert(*partition));
    }
    assignment
}
