//! The claim loop: takes over entries of dead consumers, and makes sure that their names are removed.
//!
//! The member that a partition is assigned to claims its entries. If that member is dead itself, another one that all
//! members compute in the same way does so. Since one member may be busy, each member also checks all partitions now and
//! then: at any time about one of them does.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{ErrorKind, Result};
use millstream_core::members::GroupMembers;
use millstream_core::shared::{Claimed, consumer_of};
use millstream_core::{MemberId, Partition};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::consumer::group::membership::within;
use crate::consumer::shared::Sharer;
use crate::consumer::shared::fetch::{Origin, take_in};

/// Minimum pause between two checks.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);

/// Claims entries for one consumer.
pub(in crate::consumer) struct Claimer {
    sharer: Arc<Sharer>,
    /// To the fetcher: the number of partitions.
    grown: watch::Sender<u32>,
    /// Time of the last check of all partitions.
    looked: Instant,
    /// The partition to begin with, so that one that fails slowly does not keep us from those behind it.
    first: u32,
}

/// Result of a check.
struct Looked {
    /// Time until the next check.
    pause: Duration,
    /// Whether there was more to claim than room.
    full: bool,
}

impl Claimer {
    pub(in crate::consumer) fn new(sharer: Arc<Sharer>, grown: watch::Sender<u32>) -> Self {
        Self { sharer, grown, looked: Instant::now(), first: 0 }
    }

    /// Claims until the consumer stops.
    pub(in crate::consumer) async fn run(mut self) {
        let sharer = self.sharer.clone();
        let observer = &*sharer.context.observer;
        let monitor = sharer.context.monitor("claim");
        let work = async {
            loop {
                let looked = match self.run_once().await {
                    Ok(looked) => {
                        monitor.succeeded(observer);
                        looked
                    }
                    Err(error) => {
                        let pause = monitor.failed(&error, observer);
                        Looked { pause: pause.min(sharer.context.period()), full: false }
                    }
                };
                tokio::select! {
                    biased;
                    () = sharer.context.changed.notified() => {}
                    () = sharer.leases.unclaimed(), if looked.full => {}
                    () = sleep(looked.pause) => {}
                }
            }
        };
        tokio::select! {
            biased;
            () = sharer.context.stop.cancelled() => {}
            () = work => {}
        }
    }

    /// Checks all partitions that are ours to look after, once.
    async fn run_once(&mut self) -> Result<Looked> {
        let sharer = self.sharer.clone();
        let Sharer { context, member, leases, .. } = &*sharer;
        let period = context.period();
        let roster = context.backend.members().roster(&member.topic, &member.group);
        let roster = within(context.patience(), roster).await?;
        self.grown.send_if_modified(|known| {
            let grown = roster.partitions > *known;
            *known = roster.partitions.max(*known);
            grown
        });
        let members = u32::try_from(roster.members.len()).unwrap_or(u32::MAX);
        // Each member checks all partitions once per `members` periods, so in each period about one member does.
        let all = self.looked.elapsed() >= period.saturating_mul(members);
        if all {
            self.looked = Instant::now();
        }
        let alive: Vec<MemberId> = roster.members.iter().map(consumer_of).collect();
        let living: Vec<_> = roster.members.iter().map(|member| member.incarnation.clone()).collect();
        let living = Arc::new(living);
        let mut paused = context.pauses.changes();
        let mut looked = Looked { pause: period, full: false };
        let mut failed = None;
        let (started, first, count) = (Instant::now(), self.first, roster.partitions);
        for partition in (0..count).map(|at| Partition((first + at) % count)) {
            let ours = all || is_ours(&roster, &context.member, partition);
            if !ours || paused.is_on(&member.partition(partition)) {
                continue;
            }
            let room = leases.claim_room();
            let (asked, idle) = (context.lease_clock.now(), context.config.lease_ttl);
            let heard = context.heard();
            leases.begin_claim();
            let claim = context.backend.shared()?.claim(member, partition, &alive, idle, room, &heard);
            let claimed = within(idle, claim).await;
            let Claimed { abandoned, given_back, next, .. } = match claimed {
                Ok(claimed) => claimed,
                Err(error) => {
                    leases.end_claim();
                    // It may have been executed: then entries are pending under our name that we do not know.
                    if error.kind() != ErrorKind::Unavailable {
                        leases.start_over();
                    }
                    self.first = (partition.0 + 1) % count;
                    if started.elapsed() >= period {
                        return Err(error);
                    }
                    // The server of one partition may be away while others are not.
                    failed = Some(error);
                    continue;
                }
            };
            take_in(&sharer, partition, abandoned, asked, Origin::Abandoned(living.clone()));
            take_in(&sharer, partition, given_back, asked, Origin::GivenBack);
            leases.end_claim();
            if let Some(next) = next {
                let full = next.is_zero() && leases.claim_room() == 0;
                looked.full |= full;
                if !full {
                    looked.pause = looked.pause.min(next.max(SHORTEST_PAUSE));
                }
            }
        }
        failed.map_or(Ok(looked), Err)
    }
}

/// Whether a member is responsible for a partition.
fn is_ours(roster: &GroupMembers, me: &MemberId, partition: Partition) -> bool {
    let living = |id: &MemberId| roster.members.binary_search_by(|member| member.id.cmp(id));
    let Ok(place) = living(me) else { return false };
    let assigned = roster.assignment.iter().find(|(_, partitions)| partitions.contains(&partition));
    match assigned {
        Some((id, _)) if living(id).is_ok() => id == me,
        // No living member is assigned: all members compute the same substitute.
        _ => partition.0 as usize % roster.members.len() == place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::members::Member;

    #[test]
    fn somebody_looks_after_each_partition_and_only_one() {
        let id = |name: &str| MemberId::new(name).expect("a name");
        let mut roster = GroupMembers::default();
        roster.members =
            ["a", "b", "c"].map(|name| Member::new(id(name), "i", Duration::from_secs(1))).to_vec();
        roster.partitions = 8;
        roster.assignment = [("b", vec![0, 1]), ("c", vec![2]), ("dead", vec![3, 4])]
            .map(|(name, partitions)| (id(name), partitions.into_iter().map(Partition).collect()))
            .into();
        let of = |name: &str| -> Vec<u32> {
            (0..8).filter(|partition| is_ours(&roster, &id(name), Partition(*partition))).collect()
        };
        assert_eq!((of("a"), of("b"), of("c")), (vec![3, 6], vec![0, 1, 4, 7], vec![2, 5]));
        assert!(of("dead").is_empty() && of("stranger").is_empty());
    }
}
