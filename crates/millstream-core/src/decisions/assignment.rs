//! Assignment of partitions to members: a pure function of the members and of the previous assignment.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::time::Duration;

use crate::continuity::Continuity;
use crate::name::MemberId;
use crate::running::Running;
use crate::topic::{Partition, TopicSpec};

/// Instance of a consumer, as its group sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Name of the member. Two instances that run at the same time must not share one.
    pub id: MemberId,
    /// Id of one start of the instance: distinguishes a restart from a second instance of the same name. 1 to 128 bytes
    /// without spaces.
    pub incarnation: String,
    /// Time for which it counts as alive after a heartbeat.
    pub ttl: Duration,
    /// Largest number of partitions that it wants; `None` for no limit.
    pub max_partitions: Option<u32>,
    /// Partitions that it always wants while it is alive: a set, read back in the order of numbers.
    pub pinned: Vec<Partition>,
    /// [Generation](crate::TopicSpec::generation) of the topic name that it works on; `None` for the one that exists. Not
    /// visible to other members.
    pub generation: Option<u64>,
    /// Continuity of the member's connection: without it the member drops no other member. Not visible to other members.
    pub continuity: Continuity,
    /// The messages whose handlers have run for a while, for people who look: it changes no version and no assignment.
    pub running: Running,
}

impl Member {
    /// Creates a member without preferences.
    #[must_use]
    pub fn new(id: MemberId, incarnation: impl Into<String>, ttl: Duration) -> Self {
        let (max_partitions, pinned, continuity) = (None, Vec::new(), Continuity::new(ttl));
        Self {
            id,
            incarnation: incarnation.into(),
            ttl,
            max_partitions,
            pinned,
            generation: None,
            continuity,
            running: Running::default(),
        }
    }

    /// Returns the same member, with at most this many partitions.
    #[must_use]
    pub fn at_most(self, partitions: u32) -> Self {
        Self { max_partitions: Some(partitions), ..self }
    }

    /// Returns the same member, bound to this topic: it does not join one that is created in its place.
    #[must_use]
    pub fn of(self, topic: &TopicSpec) -> Self {
        Self { generation: Some(topic.generation), ..self }
    }

    /// Returns the same member, which runs these messages.
    #[must_use]
    pub fn running(self, running: Running) -> Self {
        Self { running, ..self }
    }

    /// Returns the same member with this continuity.
    #[must_use]
    pub fn with_continuity(self, continuity: Continuity) -> Self {
        Self { continuity, ..self }
    }

    /// Returns the same member, which always wants these partitions.
    #[must_use]
    pub fn pinned_to(self, partitions: impl IntoIterator<Item = Partition>) -> Self {
        Self { pinned: partitions.into_iter().collect(), ..self }
    }
}

/// Partitions that each member should own. A member without partitions has an entry too. Each list is a set: it is read
/// back in the order of numbers.
pub type Assignment = BTreeMap<MemberId, Vec<Partition>>;

/// Decides which member should own which partition.
///
/// It must be a pure function: every member may compute it, and the first published result applies. All members of a
/// group should use the same one.
pub trait Assignor: fmt::Debug + Send + Sync {
    /// Assigns partitions `0..partitions`. `members` are in the order of their ids and not empty; `previous` is the
    /// previous assignment, which may name members that are gone and partitions that do not exist.
    ///
    /// Each member should get an entry, each partition at most one owner. A partition without an owner is not consumed.
    fn assign(&self, partitions: u32, members: &[Member], previous: &Assignment) -> Assignment;
}

/// The default assignor: partition counts that differ by at most one, and as few moves as that allows.
///
/// Pinned partitions go first to the members that want them (of several, to the one with the smallest id). No member gets
/// more than its [`max_partitions`](Member::max_partitions), pins included; partitions that are left over are not
/// consumed. Within these limits the partition counts of any two members differ by at most one, unless pins force a
/// difference, and no assignment with these counts moves fewer partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balanced;

impl Assignor for Balanced {
    fn assign(&self, partitions: u32, members: &[Member], previous: &Assignment) -> Assignment {
        let mut free = Free(vec![true; partitions as usize]);
        let mut held: Vec<Vec<Partition>> = members.iter().map(|member| pins(member, &mut free)).collect();
        let pinned: Vec<usize> = held.iter().map(Vec::len).collect();

        // Each member keeps as many of its previous, unpinned partitions as its share allows.
        let kept: Vec<Vec<Partition>> = members
            .iter()
            .map(|member| {
                let before = previous.get(&member.id).into_iter().flatten();
                before.copied().filter(|partition| free.take(*partition)).collect()
            })
            .collect();
        let wanted: Vec<usize> = pinned.iter().zip(&kept).map(|(pinned, kept)| pinned + kept.len()).collect();
        let shares = shares(partitions as usize, members, &pinned, &wanted);
        for ((held, kept), share) in held.iter_mut().zip(kept).zip(&shares) {
            let room = share - held.len();
            for (at, partition) in kept.into_iter().enumerate() {
                if at < room {
                    held.push(partition);
                } else {
                    // Beyond the share: free for members that are below theirs.
                    free.0[partition.0 as usize] = true;
                }
            }
        }
        let mut free = (0..partitions).map(Partition).filter(|partition| free.take(*partition));
        for (held, share) in held.iter_mut().zip(shares) {
            let missing = share - held.len();
            held.extend(free.by_ref().take(missing));
            held.sort_unstable();
        }
        members.iter().map(|member| member.id.clone()).zip(held).collect()
    }
}

/// The partitions without an owner: whether each is one.
struct Free(Vec<bool>);

impl Free {
    /// Takes a partition. Returns false if it has an owner, or does not exist.
    fn take(&mut self, partition: Partition) -> bool {
        self.0.get_mut(partition.0 as usize).is_some_and(std::mem::take)
    }
}

/// Takes a member's pins out of the free partitions, and returns them.
fn pins(member: &Member, free: &mut Free) -> Vec<Partition> {
    let limit = member.max_partitions.map_or(usize::MAX, |most| most as usize);
    let mut pins = Vec::new();
    for partition in &member.pinned {
        if pins.len() < limit && free.take(*partition) {
            pins.push(*partition);
        }
    }
    pins
}

/// Returns the number of partitions of each member. Partitions are given out one at a time, to the member that has the
/// fewest; of several, to the one that would otherwise have to give one away.
fn shares(partitions: usize, members: &[Member], pinned: &[usize], wanted: &[usize]) -> Vec<usize> {
    let mut shares = pinned.to_vec();
    let limit = |member: &Member| member.max_partitions.map_or(usize::MAX, |most| most as usize);
    // Members by share and then by the number of partitions that they would lose: a heap in the order in which they are
    // served.
    let mut queue = BinaryHeap::new();
    let place = |at: usize, share: usize| Reverse((share, Reverse(wanted[at].saturating_sub(share)), at));
    for (at, member) in members.iter().enumerate() {
        if shares[at] < limit(member) {
            queue.push(place(at, shares[at]));
        }
    }
    let mut left = partitions - pinned.iter().sum::<usize>();
    while left > 0 {
        let Some(Reverse((_, _, at))) = queue.pop() else { break };
        shares[at] += 1;
        left -= 1;
        // A member at its limit leaves the queue. With no member left in it, the remaining partitions get no owner.
        if shares[at] < limit(&members[at]) {
            queue.push(place(at, shares[at]));
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: &str) -> Member {
        Member::new(MemberId::new(id).expect("name"), "i", Duration::from_secs(10))
    }

    fn members(ids: &[&str]) -> Vec<Member> {
        ids.iter().map(|id| member(id)).collect()
    }

    fn sizes(assignment: &Assignment) -> Vec<usize> {
        assignment.values().map(Vec::len).collect()
    }

    fn moves(before: &Assignment, after: &Assignment) -> usize {
        let owner = |assignment: &Assignment| -> BTreeMap<Partition, MemberId> {
            let pairs = assignment.iter().flat_map(|(id, list)| list.iter().map(|p| (*p, id.clone())));
            pairs.collect()
        };
        let before = owner(before);
        owner(after).iter().filter(|(partition, id)| before.get(partition) != Some(id)).count()
    }

    #[test]
    fn members_that_come_and_go_move_as_little_as_balance_allows() {
        let one = Balanced.assign(32, &members(&["a"]), &Assignment::new());
        assert_eq!(sizes(&one), [32]);
        let five = Balanced.assign(32, &members(&["a", "b", "c", "d", "e"]), &one);
        assert_eq!(sizes(&five), [7, 7, 6, 6, 6]);
        assert_eq!(moves(&one, &five), 25, "a keeps the larger share that it can");
        let two = Balanced.assign(32, &members(&["b", "d"]), &five);
        assert_eq!(sizes(&two), [16, 16]);
        assert_eq!(moves(&five, &two), 32 - 7 - 6, "what b and d had stays");
    }

    #[test]
    fn a_pin_holds_while_its_member_lives_and_a_cap_always() {
        let mut all = members(&["a", "b", "c"]);
        all[1] = member("b").pinned_to([Partition(0), Partition(99)]).at_most(2);
        all[2] = member("c").pinned_to([Partition(0)]);
        let assignment = Balanced.assign(9, &all, &Assignment::new());
        assert_eq!(sizes(&assignment), [4, 2, 3]);
        assert!(assignment[&all[1].id].contains(&Partition(0)), "of two that want it the smaller id");
        let alone = Balanced.assign(9, &all[1..2], &assignment);
        assert_eq!(sizes(&alone), [2], "the rest is left over");
        let later = Balanced.assign(9, &all[2..], &assignment);
        assert_eq!(sizes(&later), [9]);
    }

    #[test]
    fn fewer_partitions_than_members_and_none_at_all() {
        let all = members(&["a", "b", "c"]);
        let assignment = Balanced.assign(2, &all, &Assignment::new());
        assert_eq!(sizes(&assignment), [1, 1, 0]);
        assert_eq!(sizes(&Balanced.assign(0, &all, &assignment)), [0, 0, 0]);
    }

    #[test]
    fn nonsense_in_the_previous_assignment_does_no_harm() {
        let all = members(&["a", "b"]);
        let twice = vec![Partition(0), Partition(0), Partition(7)];
        let previous: Assignment = all.iter().map(|member| (member.id.clone(), twice.clone())).collect();
        let assignment = Balanced.assign(4, &all, &previous);
        let mut owned: Vec<u32> = assignment.values().flatten().map(|partition| partition.0).collect();
        owned.sort_unstable();
        assert_eq!(owned, [0, 1, 2, 3]);
    }
}
