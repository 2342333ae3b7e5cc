//! Memory usage of a topic by structure, partition and group, and of the servers, with a forecast of when they are full.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_core::inspect::{Server, Structure, Usage};
use millstream_core::{GroupName, Partition, Result, TopicName, TopicPartition};

use crate::Admin;
use crate::stats::readable;

/// Number of partitions per request.
const CHUNK: usize = 50;

/// Number of items, and their size in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Number of entries, messages or fields.
    pub items: u64,
    /// Size in bytes, as estimated by the server.
    pub bytes: u64,
}

impl Size {
    /// Returns the mean size of an item, in bytes; `None` if there is none.
    #[must_use]
    pub fn each(&self) -> Option<u64> {
        self.bytes.checked_div(self.items)
    }

    fn add(&mut self, usage: &Usage) {
        self.items += usage.items;
        self.bytes += usage.bytes;
    }
}

/// Memory usage of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Usage by structure.
    pub structures: BTreeMap<Structure, Size>,
    /// Usage by partition.
    pub partitions: BTreeMap<Partition, Size>,
    /// Usage of each group's own data. Its pending list counts as part of the log.
    pub groups: BTreeMap<GroupName, Size>,
    /// Reasons why a part is missing: the items of a structure could not be counted, or the groups are unknown.
    pub unreadable: Vec<String>,
}

impl Memory {
    /// Returns the memory usage of the topic, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.structures.values().map(|size| size.bytes).sum()
    }

    fn add(&mut self, usage: &Usage) {
        self.structures.entry(usage.structure).or_default().add(usage);
        self.partitions.entry(usage.partition).or_default().add(usage);
        self.unreadable.extend(usage.unreadable.clone());
        if let Some(group) = &usage.group {
            self.groups.entry(group.clone()).or_default().add(usage);
        }
    }
}

/// Memory usage of all servers together, of all keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerMemory {
    /// Bytes that they use; `None` if one of them does not report it.
    pub used: Option<u64>,
    /// Their memory limit, in bytes; `None` if one of them has none, or does not report it.
    pub max: Option<u64>,
}

impl ServerMemory {
    /// Returns that of these servers, which [`Admin::servers`] returns.
    #[must_use]
    pub fn of(servers: &[Server]) -> Self {
        let sum = |of: fn(&Server) -> Option<u64>| servers.iter().map(of).sum();
        let max = sum(|server| server.max_memory.filter(|max| *max > 0));
        Self { used: sum(|server| server.used_memory), max }
    }

    /// Returns the time until they are full, if they grow as between `earlier` and this reading. `None` if they did
    /// not grow, or have no limit.
    #[must_use]
    pub fn full_in(&self, earlier: &Self, between: Duration) -> Option<Duration> {
        let (used, before, max) = (self.used?, earlier.used?, self.max?);
        let grown = used.checked_sub(before).filter(|grown| *grown > 0)?;
        let seconds = between.as_secs_f64() * max.saturating_sub(used) as f64 / grown as f64;
        Duration::try_from_secs_f64(seconds).ok()
    }
}

impl Admin {
    /// Returns the memory usage of a topic as far as it can be read, estimated from samples: the cost grows with partitions
    /// and groups, not with messages.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](millstream_core::ErrorKind::NotFound) for a topic that does not exist; transient ones.
    pub async fn memory(&self, topic: &TopicName) -> Result<Memory> {
        let all: Vec<TopicPartition> = self.backend.catalog().topic(topic).await?.iter().collect();
        let mut memory = Memory::default();
        let groups = readable(&mut memory.unreadable, self.backend.catalog().groups(topic).await)?;
        let groups = groups.unwrap_or_default();
        for chunk in all.chunks(CHUNK) {
            let usage = self.backend.inspect()?.usage(chunk, &groups).await?;
            usage.iter().for_each(|usage| memory.add(usage));
        }
        Ok(memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked(used: u64, max: Option<u64>) -> ServerMemory {
        ServerMemory { used: Some(used), max }
    }

    #[test]
    fn it_is_full_when_what_is_left_is_used_at_the_same_rate() {
        let minute = Duration::from_secs(60);
        let full = |before, used, max| looked(used, max).full_in(&looked(before, max), minute);
        assert_eq!(full(100, 200, Some(1_200)), Some(Duration::from_secs(600)));
        assert_eq!(full(100, 200, Some(200)), Some(Duration::ZERO));
        assert_eq!(full(100, 200, Some(150)), Some(Duration::ZERO), "over the limit already");
        assert_eq!([full(200, 200, Some(300)), full(200, 100, Some(300)), full(100, 200, None)], [None; 3]);
    }

    #[test]
    fn the_memory_of_several_servers_is_known_if_that_of_each_is() {
        let server = |used, max| {
            let mut server = Server::default();
            (server.used_memory, server.max_memory) = (used, max);
            server
        };
        let of = |servers: &[Server]| {
            let memory = ServerMemory::of(servers);
            (memory.used, memory.max)
        };
        let [one, two] = [server(Some(10), Some(100)), server(Some(5), Some(50))];
        assert_eq!(of(&[one.clone(), two]), (Some(15), Some(150)));
        assert_eq!(of(&[one.clone(), server(Some(5), Some(0))]), (Some(15), None), "one has no limit");
        assert_eq!(of(&[one, server(None, None)]), (None, None), "one is away");
    }

    #[test]
    fn sums_are_those_of_the_parts() {
        let mut memory = Memory::default();
        let group: GroupName = "g".parse().expect("a name");
        for (partition, group, structure, items, bytes) in [
            (0, None, Structure::Log, 10, 1_000),
            (1, None, Structure::Log, 5, 600),
            (1, Some(&group), Structure::DeadLetters, 1, 300),
        ] {
            let (partition, group) = (Partition(partition), group.cloned());
            memory.add(&Usage { partition, group, structure, items, bytes, unreadable: None });
        }
        assert_eq!(memory.bytes(), 1_900);
        assert_eq!(memory.structures[&Structure::Log].each(), Some(106));
        assert_eq!(memory.partitions[&Partition(1)], Size { items: 6, bytes: 900 });
        assert_eq!(memory.groups[&group], Size { items: 1, bytes: 300 });
        assert_eq!(Size::default().each(), None);
    }
}
