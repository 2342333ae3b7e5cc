//! Slots: no process handles more at once than it may.
//!
//! **Rule.** At the begin of each handler, the handlers of its process that have begun and not ended, with itself, are at
//! most `per_process` at the place, and at most `per_partition` for the partition under one epoch.
//!
//! **Limits.** Only handlers that end count: others may have been dropped at any time. (That of one key one handler runs
//! at a time is *overlap* of `order`.)

use std::collections::{BTreeMap, HashMap};

use super::super::digest::{Digest, LifeId, PlaceId};
use super::super::limits::Limits;
use super::super::report::Report;

const NAME: &str = "slots";

/// A process at a place, and a partition and epoch there; none for all of them.
type Room = (LifeId, PlaceId, Option<(u32, u64)>);

pub(super) fn check(digest: &Digest<'_>, limits: &Limits, report: &mut Report) {
    // Begins and ends, in the order of their lines.
    let mut moments: BTreeMap<usize, (usize, bool)> = BTreeMap::new();
    for (nth, delivery) in digest.deliveries.iter().enumerate() {
        if let Some(finish) = delivery.finish {
            moments.insert(delivery.at.index, (nth, true));
            moments.insert(finish.at.index, (nth, false));
        }
    }
    let mut running: HashMap<Room, usize> = HashMap::new();
    for (nth, begins) in moments.into_values() {
        let delivery = &digest.deliveries[nth];
        let place = limits.of(digest.places[delivery.place]);
        let (partition, epoch) = (delivery.handling.partition, delivery.handling.epoch);
        let rooms = [(None, place.per_process), (Some((partition, epoch)), place.per_partition)];
        for (room, limit) in rooms {
            let count = running.entry((delivery.life, delivery.place, room)).or_default();
            if !begins {
                *count -= 1;
                continue;
            }
            *count += 1;
            if *count > limit {
                let of = room.map_or(String::new(), |_| format!(", partition {partition}, epoch {epoch}"));
                let what = format!(
                    "{}{of}: {} runs {count} handlers at once, of at most {limit}",
                    digest.label(delivery.place),
                    digest.lives[delivery.life].label()
                );
                report.add(NAME, delivery.at.us, Some(delivery.handling.number), what);
            }
        }
    }
}
