//! Groups as a whole: created, reset, deleted; and those that nobody uses any more.

use std::time::Duration;

use millstream_core::catalog::{GroupCreated, Pin};
use millstream_core::{Error, ErrorKind, GroupName, Result, Start, TopicName};

use crate::Admin;
use crate::topics::InUse;

/// A group that nobody has read with for a long time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredGroup {
    /// The group.
    pub group: GroupName,
    /// For how long nobody has read with it: the shortest time of the partitions where it keeps something.
    pub idle: Duration,
    /// Entries that stay for this group alone, over all partitions; see [`Pin::entries`].
    pub entries: u64,
    /// About how many bytes these take.
    pub bytes: u64,
}

impl Admin {
    /// Creates a group on all partitions where it is missing.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; transient ones.
    pub async fn create_group(
        &self,
        topic: &TopicName,
        group: &GroupName,
        start: Start,
    ) -> Result<GroupCreated> {
        let spec = self.backend.catalog.topic(topic).await?;
        self.backend.catalog.create_group(&spec, group, start).await
    }

    /// All groups of a topic, by name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; transient ones.
    pub async fn groups(&self, topic: &TopicName) -> Result<Vec<GroupName>> {
        self.backend.catalog.topic(topic).await?;
        self.backend.catalog.groups(topic).await
    }

    /// Deletes a group with everything that is kept for it: what is pending and parked, its dead letters, members and
    /// leases. What only it kept in the log is dropped by the next trim.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic or group that is not there; [`ErrorKind::Exists`] if somebody works in it,
    /// unless it is forced: who, is said, and nothing was done. Transient ones, after which it can be asked again.
    pub async fn delete_group(&self, topic: &TopicName, group: &GroupName, in_use: InUse) -> Result<()> {
        let spec = self.backend.catalog.topic(topic).await?;
        if in_use == InUse::Refuse {
            self.refuse_in_use(&spec, group).await?;
        }
        if self.backend.catalog.delete_group(topic, group).await? {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NotFound, format!("group {group} of topic {topic} does not exist")))
    }

    /// Which group keeps most from being dropped, of every partition of a topic: the largest first.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; transient ones.
    pub async fn pins(&self, topic: &TopicName) -> Result<Vec<Pin>> {
        let spec = self.backend.catalog.topic(topic).await?;
        let mut pins = self.backend.catalog.pins(&spec).await?;
        pins.sort_by_key(|pin| (std::cmp::Reverse(pin.bytes), pin.partition));
        Ok(pins)
    }

    /// Deletes the groups that keep entries of a topic, in which nobody lives and which nobody has read with for `idle`;
    /// or only names them, in a dry run. Nothing ever does this by itself.
    ///
    /// A group that was created and has never read is not expired: since when that is so, the server does not know.
    /// [Delete](Self::delete_group) it by name.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; transient ones, after which it can be asked again.
    pub async fn expire_groups(
        &self,
        topic: &TopicName,
        idle: Duration,
        dry_run: bool,
    ) -> Result<Vec<ExpiredGroup>> {
        let spec = self.backend.catalog.topic(topic).await?;
        let mut expired = Vec::new();
        for candidate in candidates(&self.backend.catalog.pins(&spec).await?) {
            if candidate.idle < idle || !self.users(&spec, &candidate.group).await?.is_empty() {
                continue;
            }
            if !dry_run {
                self.backend.catalog.delete_group(topic, &candidate.group).await?;
            }
            expired.push(candidate);
        }
        Ok(expired)
    }
}

/// The groups that pin a partition and have read at some time, with all that they pin.
fn candidates(pins: &[Pin]) -> Vec<ExpiredGroup> {
    let mut candidates: Vec<ExpiredGroup> = Vec::new();
    for pin in pins {
        let Some(idle) = pin.idle else { continue };
        let (group, entries, bytes) = (pin.group.clone(), pin.entries, pin.bytes);
        match candidates.iter_mut().find(|it| it.group == group) {
            Some(it) => {
                it.idle = it.idle.min(idle);
                (it.entries, it.bytes) = (it.entries + entries, it.bytes + bytes);
            }
            None => candidates.push(ExpiredGroup { group, idle, entries, bytes }),
        }
    }
    candidates.sort_by(|one, other| one.group.cmp(&other.group));
    candidates
}

#[cfg(test)]
mod tests {
    use millstream_core::{MessageId, Partition};

    use super::*;

    #[test]
    fn what_a_group_pins_is_added_up_and_its_youngest_read_counts() {
        let pin = |partition, group: &str, idle: Option<u64>, entries| {
            let mut pin = Pin::new(Partition(partition), group.parse().expect("a name"), MessageId::ZERO);
            (pin.idle, pin.entries, pin.bytes) = (idle.map(Duration::from_secs), entries, 10 * entries);
            pin
        };
        let pins = [
            pin(0, "b", Some(90), 5),
            pin(1, "a", Some(70), 1),
            pin(2, "b", Some(60), 2),
            pin(3, "new", None, 9),
        ];
        let found = candidates(&pins);
        let expected = |group: &str, idle, entries| ExpiredGroup {
            group: group.parse().expect("a name"),
            idle: Duration::from_secs(idle),
            entries,
            bytes: 10 * entries,
        };
        assert_eq!(found, [expected("a", 70, 1), expected("b", 60, 7)]);
    }
}
