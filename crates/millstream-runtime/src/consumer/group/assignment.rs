//! Calls the assignor, and falls back to the default one if the result is invalid.

use millstream_core::assignment::Balanced;
use millstream_core::error::{Error, ErrorKind};
use millstream_core::members::{Assignment, GroupMembers};
use millstream_core::panics::{UserCode, catch};
use millstream_core::sorted::SortedSet;
use millstream_core::{Assignor, Observer, Partition};

/// Returns the assignment for the group's members. If the assignor panics or returns an invalid assignment, the default
/// assignor decides, so that no partition stays without an owner; the error is returned as well.
pub(in crate::consumer) fn decide(
    assignor: &dyn Assignor,
    roster: &GroupMembers,
    observer: &dyn Observer,
) -> (Assignment, Option<Error>) {
    let ask =
        |assignor: &dyn Assignor| assignor.assign(roster.partitions, &roster.members, &roster.assignment);
    let refused = match catch(UserCode::Assignor, || ask(assignor)) {
        Ok(assignment) => match check(&assignment, roster) {
            None => return (assignment, None),
            Some(why) => why,
        },
        Err(panicked) => {
            observer.observe(&panicked.event());
            format!("it panicked: {}", panicked.text)
        }
    };
    // Its `Debug` is user code as well.
    let name = catch(UserCode::Assignor, || format!("{assignor:?}")).unwrap_or_default();
    let error = Error::new(ErrorKind::InvalidConfig, format!("the assignor {name} is not used: {refused}"));
    (ask(&Balanced), Some(error))
}

/// Returns what is wrong with an assignment. `None` if it is valid.
fn check(assignment: &Assignment, roster: &GroupMembers) -> Option<String> {
    let mut owned = SortedSet::new();
    for (id, partitions) in assignment {
        if roster.members.binary_search_by(|member| member.id.cmp(id)).is_err() {
            return Some(format!("{id} is no member"));
        }
        for partition in partitions {
            if *partition >= Partition(roster.partitions) {
                return Some(format!("there is no partition {partition}"));
            }
            if !owned.insert(*partition) {
                return Some(format!("partition {partition} is assigned twice"));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use millstream_core::MemberId;
    use millstream_core::event::{Event, Ignore};
    use millstream_core::members::Member;

    #[derive(Debug)]
    struct Says(Answer);

    type Answer = fn(u32, &[Member]) -> Assignment;

    impl Assignor for Says {
        fn assign(&self, partitions: u32, members: &[Member], _: &Assignment) -> Assignment {
            (self.0)(partitions, members)
        }
    }

    fn roster() -> GroupMembers {
        let member = |id: &str| Member::new(MemberId::new(id).expect("name"), "i", Duration::from_secs(1));
        let mut roster = GroupMembers::default();
        roster.partitions = 4;
        roster.members = vec![member("a"), member("b")];
        roster
    }

    #[test]
    fn a_sound_assignment_holds_even_if_it_is_not_balanced() {
        let all_to_the_last = Says(|partitions, members| {
            let last = members.last().expect("not empty").id.clone();
            Assignment::from([(last, (0..partitions).map(Partition).collect())])
        });
        let (assignment, refused) = decide(&all_to_the_last, &roster(), &Ignore);
        assert!(refused.is_none());
        assert_eq!(assignment.values().map(Vec::len).collect::<Vec<_>>(), [4]);
    }

    /// It may come back from an outage, and is dropped before if it is dead.
    #[test]
    fn an_overdue_member_gets_its_share() {
        let mut roster = roster();
        roster.last_heartbeats = roster.members.iter().map(|it| (it.id.clone(), it.ttl)).skip(1).collect();
        assert_eq!(roster.living().count(), 1);
        let (assignment, refused) = decide(&Balanced, &roster, &Ignore);
        assert!(refused.is_none());
        assert_eq!(assignment.values().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
    }

    #[test]
    fn nonsense_is_told_and_replaced() {
        let nonsense: [(&str, Answer); 4] = [
            ("panicked", |_, _| panic!("no")),
            ("no partition 4", |_, members| Assignment::from([(members[0].id.clone(), vec![Partition(4)])])),
            ("partition 1 is assigned twice", |_, members| {
                members.iter().map(|member| (member.id.clone(), vec![Partition(1)])).collect()
            }),
            ("zoe is no member", |_, _| {
                Assignment::from([(MemberId::new("zoe").expect("name"), vec![Partition(1)])])
            }),
        ];
        for (why, assign) in nonsense {
            let told = std::sync::atomic::AtomicBool::new(false);
            let observer = |event: &Event<'_>| {
                let panicked = matches!(event, Event::Panicked { code: UserCode::Assignor, .. });
                told.fetch_or(panicked, std::sync::atomic::Ordering::Relaxed);
            };
            let (assignment, refused) = decide(&Says(assign), &roster(), &observer);
            assert_eq!(told.into_inner(), why == "panicked");
            assert!(refused.expect("told").to_string().contains(why), "{why}");
            assert_eq!(assignment.values().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
        }
    }
}
