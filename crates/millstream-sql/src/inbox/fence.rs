//! Fences: no commit under an epoch after one under a later epoch.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::{GroupName, Namespace, TopicPartition};

use crate::database::{Arg, Conn, Database};

/// Longest name of a resource, in bytes: two names and a partition fit.
const MAX_RESOURCE_LEN: usize = 300;

/// Number that grows with every owner of a resource: the epoch of a partition's lease, or the fence of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    resource: Arc<str>,
    epoch: u64,
}

impl Fence {
    /// Creates the fence of a resource under any name, such as `lock:invoice:42`. The table `millstream_fences` keeps a row for
    /// each name for ever. Delete those of resources that are no more, by `raised_at`, once no former owner of them can be
    /// left.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for a name that is empty, above 300 bytes or not printable ASCII;
    /// [`ErrorKind::InvalidConfig`] for an epoch above 2⁶³ - 1, which no database could store.
    pub fn new(resource: impl Into<Arc<str>>, epoch: u64) -> Result<Self> {
        let resource = resource.into();
        let fits = (1..=MAX_RESOURCE_LEN).contains(&resource.len());
        if !fits || !resource.bytes().all(|byte| byte.is_ascii_graphic()) {
            let why = format!(
                "the resource of a fence has 1 to {MAX_RESOURCE_LEN} printable bytes, not {resource:?}"
            );
            return Err(Error::new(ErrorKind::InvalidName, why));
        }
        if i64::try_from(epoch).is_err() {
            let why = format!("epoch {epoch} of {resource} is above {}", i64::MAX);
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        Ok(Self { resource, epoch })
    }

    /// Creates the fence of a group's partition, from the epoch of a delivery.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn of_partition(partition: &TopicPartition, group: &GroupName, epoch: u64) -> Result<Self> {
        Self::new(format!("{}/{group}/{}", partition.topic, partition.partition), epoch)
    }

    /// Returns the epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the epoch as it is stored.
    pub(super) fn stored(&self) -> i64 {
        i64::try_from(self.epoch).expect("checked when it was created")
    }

    fn refused(&self, later: i64) -> Error {
        let Self { resource, epoch } = self;
        let why = format!("epoch {epoch} of {resource} is over: work was committed under epoch {later}");
        Error::new(ErrorKind::Fenced, why)
    }
}

/// Most resources whose fences are remembered: far more than a process has partitions. A lock for each invoice has no bound.
const MOST_RAISED: usize = 10_000;

/// Fences that are known to be in the table, because a transaction that raised them was committed. One entry for each resource.
/// Each saves a request; when there are too many, all are forgotten.
#[derive(Debug, Default)]
pub(super) struct Raised(Mutex<HashMap<Arc<str>, u64>>);

impl Raised {
    pub(super) fn is(&self, fence: &Fence) -> bool {
        self.known().get(&fence.resource) == Some(&fence.epoch)
    }

    pub(super) fn put(&self, fence: &Fence) {
        let mut known = self.known();
        if known.len() >= MOST_RAISED && !known.contains_key(&fence.resource) {
            known.clear();
        }
        // A former owner in this process must not hide the present one.
        if known.get(&fence.resource).is_none_or(|epoch| *epoch < fence.epoch) {
            known.insert(fence.resource.clone(), fence.epoch);
        }
    }

    pub(super) fn forget(&self, fence: &Fence) {
        self.known().remove(&fence.resource);
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<str>, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const READ: &str = "SELECT epoch FROM millstream_fences WHERE scope = $1 AND resource = $2";

/// Many transactions of one owner hold the row at the same time; who would raise it waits for them.
const SHARE_PG: &str = "SELECT epoch FROM millstream_fences WHERE scope = $1 AND resource = $2 FOR SHARE";

const RAISE_PG: &str = "\
    INSERT INTO millstream_fences AS f (scope, resource, epoch, raised_at) \
    VALUES ($1, $2, $3, clock_timestamp()) \
    ON CONFLICT (scope, resource) DO UPDATE SET epoch = excluded.epoch, raised_at = excluded.raised_at \
    WHERE f.epoch < excluded.epoch RETURNING f.epoch";
const RAISE_LITE: &str = "\
    INSERT INTO millstream_fences (scope, resource, epoch, raised_at) \
    VALUES ($1, $2, $3, CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER)) \
    ON CONFLICT (scope, resource) DO UPDATE SET epoch = excluded.epoch, raised_at = excluded.raised_at \
    WHERE millstream_fences.epoch < excluded.epoch RETURNING epoch";

/// Compares a fence with the table, and raises it there if it is the highest. Until the transaction ends, nobody else can raise it:
/// so whoever commits work under a later epoch does it after this one. `known`: it was raised by a transaction that was
/// committed.
///
/// At a change of owners the first transactions write the row, one after the other, so this belongs to the end of a transaction.
pub(super) async fn compare(
    conn: &mut Conn<'_>,
    namespace: &Namespace,
    fence: &Fence,
    known: bool,
) -> Result<()> {
    let what = "compare the fence";
    let key = [Arg::Text(namespace.as_str()), Arg::Text(&fence.resource)];
    if !known {
        // Read without a lock: of two transactions that hold the row for reading, none could raise it.
        let rows = conn.rows(READ, &key, what).await?;
        let stored = rows.first().map(|row| row.int(0)).transpose()?;
        if stored != Some(fence.stored()) {
            let raise = [key[0], key[1], Arg::Int(fence.stored())];
            if !conn.rows(conn.sql(RAISE_PG, RAISE_LITE), &raise, what).await?.is_empty() {
                return Ok(());
            }
        }
    }
    let rows = conn.rows(conn.sql(SHARE_PG, READ), &key, what).await?;
    let stored = rows.first().map(|row| row.int(0)).transpose()?;
    match stored {
        Some(epoch) if epoch == fence.stored() => Ok(()),
        Some(later) if later > fence.stored() => Err(fence.refused(later)),
        // Somebody has deleted or lowered it. It is raised anew the next time.
        _ => Err(Error::new(ErrorKind::Unavailable, format!("the fence of {} was reset", fence.resource))),
    }
}

/// Returns the epoch in the table.
pub(super) async fn highest(
    database: &Database,
    namespace: &Namespace,
    fence: &Fence,
) -> Result<Option<u64>> {
    let key = [Arg::Text(namespace.as_str()), Arg::Text(&fence.resource)];
    let rows = database.rows(READ, &key, "read the fence").await?;
    let epoch = rows.first().map(|row| row.int(0)).transpose()?;
    Ok(epoch.and_then(|epoch| u64::try_from(epoch).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_has_a_printable_resource_and_an_epoch_that_fits() {
        for bad in ["", "a b", "ü", &"x".repeat(301)] {
            assert_eq!(
                Fence::new(bad, 1).map_err(|error| error.kind()),
                Err(ErrorKind::InvalidName),
                "{bad}"
            );
        }
        let large = Fence::new("x", u64::MAX).expect_err("a refusal");
        assert_eq!(large.kind(), ErrorKind::InvalidConfig);
        let name = "n".repeat(128);
        let partition = TopicPartition::new(name.parse().unwrap(), 4_294_967_295);
        assert!(
            Fence::of_partition(&partition, &name.parse().unwrap(), 1 << 62).is_ok(),
            "the longest names"
        );
    }

    #[test]
    fn what_was_raised_is_not_lowered() {
        let raised = Raised::default();
        let [old, new] = [5, 6].map(|epoch| Fence::new("p", epoch).unwrap());
        assert!(!raised.is(&old));
        raised.put(&new);
        raised.put(&old);
        assert!(raised.is(&new) && !raised.is(&old));
        raised.forget(&new);
        assert!(!raised.is(&new));
    }

    #[test]
    fn what_was_raised_is_bounded() {
        let raised = Raised::default();
        let mut last = None;
        for number in 0..=MOST_RAISED {
            let fence = Fence::new(format!("invoice:{number}"), 1).unwrap();
            raised.put(&fence);
            assert!(raised.is(&fence));
            last = Some(fence);
        }
        assert_eq!(raised.known().len(), 1);
        assert!(raised.is(&last.unwrap()));
    }
}
