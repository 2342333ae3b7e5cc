//! The claim loop: takes over entries of dead consumers, and makes sure that their names are removed.
//!
//! The member that a partition is assigned to claims its entries. If that member is dead itself, another one that all
//! members compute in the same way does so. Since one member may be busy, each member also checks all partitions now and
//! then: at any time about one of them does.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use millstream_core::error::{ErrorKind, Result};
use millstream_core::log::Fetched;
use millstream_core::members::GroupMembers;
use millstream_core::shared::{Claimed, consumer_of};
use millstream_core::sorted::SortedSet;
use millstream_core::{MemberId, Partition};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

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
    /// Claims under way. Those at a server that gives no answer go on while others are begun anew.
    claims: FuturesUnordered<BoxFuture<'static, Ended>>,
    /// Their partitions.
    asked: SortedSet<Partition>,
    /// Number of checks so far. Each begins with another portion: there may be room for the first ones only.
    checks: usize,
}

/// Result of a check.
struct Looked {
    /// Time until the next check.
    pause: Duration,
    /// Partitions in which there was more to claim than room.
    full: Vec<Partition>,
}

/// Partitions of which a claim has ended, and how.
type Ended = (Vec<Partition>, Result<Looked>);

impl Claimer {
    pub(in crate::consumer) fn new(sharer: Arc<Sharer>, grown: watch::Sender<u32>) -> Self {
        let (claims, asked) = (FuturesUnordered::new(), SortedSet::new());
        Self { sharer, grown, looked: Instant::now(), claims, asked, checks: 0 }
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
                        // One that is under way has a server that gives no answer.
                        if self.claims.is_empty() {
                            monitor.succeeded(observer);
                        }
                        looked
                    }
                    Err(error) => {
                        let pause = monitor.failed(&error, observer);
                        Looked { pause: pause.min(sharer.context.period()), full: Vec::new() }
                    }
                };
                tokio::select! {
                    biased;
                    () = sharer.context.changed.notified() => {}
                    () = sharer.leases.unclaimed(&looked.full), if !looked.full.is_empty() => {}
                    // A server answers again.
                    (_, ended) = self.ended(), if !self.claims.is_empty() => if let Err(error) = ended {
                        sleep(monitor.failed(&error, observer)).await;
                    },
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
        let roster = within(context.request_timeout(), roster).await?;
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
        let living = sharer.set_living(&roster);
        let alive = Arc::new(alive);
        let mut paused = context.pauses.changes();
        let mut wanted = Vec::new();
        for partition in (0..roster.partitions).map(Partition) {
            let ours = all || is_ours(&roster, &context.member, partition);
            // One that is asked already has a server that gives no answer.
            let asked = self.asked.contains(&partition);
            // Others may be able to read what it cannot.
            let asked = asked || sharer.unreadable.contains(partition);
            if ours && !asked && !paused.is_on(&member.partition(partition)) {
                wanted.push(partition);
            }
        }
        // One portion after the other's partitions share the room; portions are asked side by side.
        let portions = context.backend.shared()?.portions(&wanted);
        let mut portions: Vec<_> = portions.into_iter().filter(|partitions| !partitions.is_empty()).collect();
        let others = portions.len() > 1 || !self.asked.is_empty();
        let share = (leases.claim_room(others) / portions.len().max(1)).max(1);
        let limits = Limits { share, others };
        self.checks = self.checks.wrapping_add(1);
        let first = self.checks % portions.len().max(1);
        portions.rotate_left(first);
        for partitions in portions {
            self.asked.extend(partitions.iter().copied());
            let members = (alive.clone(), living.clone());
            self.claims.push(Box::pin(claim(sharer.clone(), partitions, members, limits)));
        }
        let mut looked = Looked { pause: period, full: Vec::new() };
        let mut failed = None;
        let until = Instant::now() + period;
        // Not for those of earlier rounds, whose servers give no answer.
        let mut missing = wanted;
        while !missing.is_empty()
            && let Ok((partitions, claimed)) = timeout_at(until, self.ended()).await
        {
            missing.retain(|partition| !partitions.contains(partition));
            match claimed {
                Ok(more) => {
                    looked.full.extend(more.full);
                    looked.pause = looked.pause.min(more.pause);
                }
                // The server of one partition may be away while others are not.
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(looked), Err)
    }

    /// Waits until a claim that is under way has ended.
    async fn ended(&mut self) -> Ended {
        let Some(ended) = self.claims.next().await else { return std::future::pending().await };
        for partition in &ended.0 {
            self.asked.remove(partition);
        }
        ended
    }
}

/// How much one claim may take.
#[derive(Clone, Copy)]
struct Limits {
    /// Maximum number of entries of one request.
    share: usize,
    /// Whether there are claims of other portions beside it.
    others: bool,
}

/// Claims entries of these partitions, one after the other.
async fn claim(
    sharer: Arc<Sharer>,
    partitions: Vec<Partition>,
    (alive, living): (Arc<Vec<MemberId>>, Arc<Vec<String>>),
    Limits { share, others }: Limits,
) -> Ended {
    let Sharer { context, member, leases, .. } = &*sharer;
    let mut looked = Looked { pause: context.period(), full: Vec::new() };
    let mut failed = None;
    let started = Instant::now();
    let mut left = partitions.iter().copied().peekable();
    while let Some(partition) = left.peek().copied() {
        let reserved = leases.reserve_claim(partition, share, others);
        let room = reserved.room;
        let (asked, idle) = (context.lease_clock.now(), context.config.lease_ttl);
        let continuity = context.continuity();
        leases.begin_claim(partition);
        let claimed = match context.backend.shared() {
            Ok(shared) => {
                let request = within(idle, shared.claim(member, partition, &alive, idle, room, &continuity));
                sharer.answer(&[partition], request).await
            }
            Err(error) => Err(error),
        };
        match claimed {
            Ok(Claimed { abandoned, given_back, next, .. }) => {
                let came = |fetched: &Fetched| fetched.entries.len() + fetched.ghosts.len();
                let came = came(&abandoned) + came(&given_back);
                take_in(&sharer, partition, abandoned, asked, Origin::Abandoned(living.clone()));
                take_in(&sharer, partition, given_back, asked, Origin::GivenBack);
                drop(reserved);
                leases.end_claim(partition);
                let more = next.is_some_and(|next| next.is_zero());
                // It had a share, and the others may need none.
                let unread = sharer.unreadable.contains(partition);
                if others && more && !unread && came >= room.max(1) && started.elapsed() < context.period() {
                    continue;
                }
                left.next();
                if let Some(next) = next {
                    if next.is_zero() && leases.claim_room_of(partition, others) == 0 {
                        looked.full.push(partition);
                    } else {
                        looked.pause = looked.pause.min(next.max(SHORTEST_PAUSE));
                    }
                }
            }
            Err(error) => {
                drop(reserved);
                leases.end_claim(partition);
                left.next();
                // It may have been executed: then entries are pending under our name that we do not know.
                if error.kind() != ErrorKind::Unavailable {
                    leases.claim_unanswered(partition);
                }
                failed = Some(error);
                // What is known of the members grows old.
                if started.elapsed() >= context.period() {
                    break;
                }
            }
        }
    }
    (partitions, failed.map_or(Ok(looked), Err))
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
