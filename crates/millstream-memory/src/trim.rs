//! Trimming of a log by its retention, with the losses of each group.

use std::time::Duration;

use millstream_core::log::{Lost, Trimmed, UnleasedTrim};
use millstream_core::sorted::sort_by;
use millstream_core::{Error, ErrorKind, GroupName, MessageId, Result, Retention, Timestamp};

use crate::state::Partition;

/// Time after a turn in which nobody has one, its last millisecond included: as a key of Redis that has this ttl.
const TURN: Duration = Duration::from_secs(1);

/// Trims for a client without a lease.
pub(crate) fn trim_unleased(
    partition: &mut Partition,
    rule: UnleasedTrim,
    now: Timestamp,
) -> Result<Trimmed> {
    match rule {
        UnleasedTrim::OncePerSecond(retention) => {
            if partition.trimmed.is_some_and(|at| at >= now.saturating_sub(TURN)) {
                let mut trimmed = Trimmed::default();
                trimmed.skipped = true;
                return Ok(trimmed);
            }
            partition.trimmed = Some(now);
            trim(partition, retention, now)
        }
        UnleasedTrim::Now(retention) => trim(partition, retention, now),
        UnleasedTrim::Below(id) => Ok(drop_below(partition, id, true)),
        other => Err(Error::new(ErrorKind::Unsupported, format!("unsupported rule {other:?}"))),
    }
}

pub(crate) fn trim(partition: &mut Partition, retention: Retention, now: Timestamp) -> Result<Trimmed> {
    let keeping = partition.groups.iter().filter(|(name, _)| !name.is_instance());
    let cursors = keeping.filter_map(|(_, group)| group.cursor.as_ref());
    let settled = cursors.map(|cursor| cursor.watermark(&partition.log)).min();
    let old = |age: Duration| MessageId::new(now.saturating_sub(age).as_millis(), 0);
    let cut = match retention {
        Retention::Consumed => settled,
        Retention::ConsumedAfter(age) => settled.map(|settled| settled.min(old(age))),
        Retention::Age(age) => Some(old(age)),
        Retention::Length(entries) => partition.log.newest(entries),
        Retention::Keep => None,
    };
    // The groups of instances keep nothing, whatever the retention is.
    let is_lossy = retention.is_lossy() || partition.groups.keys().any(GroupName::is_instance);
    Ok(cut.map_or_else(Trimmed::default, |cut| drop_below(partition, cut, is_lossy)))
}

fn drop_below(partition: &mut Partition, cut: MessageId, is_lossy: bool) -> Trimmed {
    // A pack stays until all of it may go.
    let cut = *partition.log.packs.around(cut).start();
    let lost = if is_lossy { lost(partition, cut) } else { Vec::new() };
    let mut trimmed = Trimmed::new(partition.log.drop_below(cut));
    trimmed.lost = lost;
    trimmed
}

fn lost(partition: &Partition, cut: MessageId) -> Vec<Lost> {
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let groups = partition.groups.iter().filter_map(|(name, group)| Some((name, group.cursor.as_ref()?)));
    let lost = groups.map(|(name, cursor)| {
        let pending = cursor.pending.range(..cut).filter(|(id, _)| partition.log.get(**id).is_some());
        let unread = partition.log.count_between(cursor.delivered, cut);
        Lost { group: name.clone(), unread: count(unread), pending: count(pending.count()) }
    });
    let mut lost: Vec<_> = lost.filter(|lost| lost.unread + lost.pending > 0).collect();
    sort_by(&mut lost, |one, other| one.group.cmp(&other.group));
    lost
}
