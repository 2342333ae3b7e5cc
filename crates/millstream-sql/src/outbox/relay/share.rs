//! Shares of the shards among relays, as a pure function.

use crate::outbox::store::Shares;

/// Shards that a relay asks for and gives back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) acquire: Vec<i16>,
    pub(super) release: Vec<i16>,
}

/// Returns what relay `me` changes so that each relay holds its share: the number of shards divided by that of relays, and one
/// more for the first ones by name if that leaves a remainder. A shard moves only from a relay with more than its share, or,
/// if `takes_expired`, from one that did not renew its lease.
pub(super) fn change(me: &str, shares: &Shares, takes_expired: bool) -> Change {
    let relays = shares.relays.len().max(1);
    let nth = shares.relays.iter().position(|relay| relay == me).unwrap_or(0);
    let shards = shares.leases.len();
    let quota = shards / relays + usize::from(nth < shards % relays);
    let held_by = |holder: Option<&str>| -> Vec<i16> {
        let held = shares.leases.iter().filter(|it| it.holder.as_deref() == holder);
        held.filter(|it| takes_expired || !it.is_expired).map(|it| it.shard).collect()
    };
    let (mine, mut free) = (held_by(Some(me)), held_by(None));
    if mine.len() >= quota {
        return Change { acquire: Vec::new(), release: mine[quota..].to_vec() };
    }
    // Relays that start together begin at different shards: one that another relay takes at the same moment is passed over.
    let first = (nth * free.len() / relays).min(free.len());
    free.rotate_left(first);
    free.truncate(quota - mine.len());
    Change { acquire: free, release: Vec::new() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::outbox::store::ShardLease;

    fn shares(relays: &[&str], holders: &[Option<&str>]) -> Shares {
        let lease = |(shard, holder): (usize, &Option<&str>)| ShardLease {
            shard: i16::try_from(shard).expect("small"),
            epoch: 1,
            holder: holder.map(str::to_owned),
            is_expired: false,
            expires_in: Duration::ZERO,
        };
        Shares {
            relays: relays.iter().map(ToString::to_string).collect(),
            leases: holders.iter().enumerate().map(lease).collect(),
        }
    }

    #[test]
    fn one_relay_takes_all() {
        let change = change("a", &shares(&["a"], &[None; 4]), false);
        assert_eq!((change.acquire.len(), change.release.len()), (4, 0));
    }

    #[test]
    fn relays_come_to_even_shares_and_stay_there() {
        let names = ["a", "b", "c", "d", "e"];
        for count in 1..=names.len() {
            let relays = &names[..count];
            // All belongs to one of them, or to one that has ended.
            for first in [Some("a"), Some("gone"), None] {
                let mut holders = vec![first.filter(|it| *it != "gone"); 16];
                let mut rounds = 0;
                loop {
                    let before = holders.clone();
                    for me in relays {
                        let change = change(me, &shares(relays, &holders), false);
                        for shard in change.release {
                            holders[usize::try_from(shard).expect("positive")] = None;
                        }
                        for shard in change.acquire {
                            holders[usize::try_from(shard).expect("positive")] = Some(me);
                        }
                    }
                    if holders == before {
                        break;
                    }
                    rounds += 1;
                    assert!(rounds < 4, "{count} relays: {holders:?}");
                }
                for me in relays {
                    let held = holders.iter().filter(|it| **it == Some(*me)).count();
                    assert!(
                        held == 16 / count || held == 16usize.div_ceil(count),
                        "{count} relays: {holders:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_lease_of_another_relay_is_not_asked_for() {
        let change = change("b", &shares(&["a", "b"], &[Some("a"), Some("a")]), true);
        assert_eq!(change, Change::default());
    }

    #[test]
    fn a_lease_that_expired_is_asked_for_only_if_it_may_be_taken() {
        let mut shares = shares(&["b"], &[None, None]);
        shares.leases[0].is_expired = true;
        assert_eq!(change("b", &shares, false).acquire, [1]);
        assert_eq!(change("b", &shares, true).acquire, [0, 1]);
    }
}
