//! Following a topic: reading new messages without a group.

use std::collections::BTreeMap;

use millstream_core::inspect::{Range, Stream};
use millstream_core::log::Source;
use millstream_core::{Error, MessageId, Partition, Result, TopicName, TopicPartition};

use crate::stats::lasting;
use crate::{Admin, Message};

impl Admin {
    /// Follows a topic from now on, or from above the id `from` in every partition. A partition that cannot be read is left
    /// out: [`Tail::failed`] names it.
    ///
    /// # Errors
    /// Same as [`messages`](Self::messages).
    pub async fn tail(&self, topic: &TopicName, from: Option<MessageId>) -> Result<Tail> {
        let spec = self.backend.catalog().topic(topic).await?;
        let (mut positions, mut failed) = (BTreeMap::new(), BTreeMap::new());
        for tp in spec.iter() {
            let after = match from {
                Some(id) => id,
                None => {
                    let newest = Range { newest_first: true, ..Range::ALL };
                    match lasting(self.backend.inspect()?.entries(&tp, &Stream::Log, newest, 1).await)? {
                        Ok(page) => page.items.first().map_or(MessageId::ZERO, |stored| stored.id),
                        Err(error) => {
                            failed.insert(tp, error);
                            continue;
                        }
                    }
                }
            };
            positions.insert(tp, after);
        }
        Ok(Tail { admin: self.clone(), topic: topic.clone(), only: None, positions, failed, turn: 0 })
    }
}

/// Reader that follows a topic without a group.
#[derive(Clone, Debug)]
pub struct Tail {
    admin: Admin,
    topic: TopicName,
    only: Option<Vec<Partition>>,
    positions: BTreeMap<TopicPartition, MessageId>,
    /// Partitions that cannot be read.
    failed: BTreeMap<TopicPartition, Error>,
    /// Rotation of the partitions, so that each has its turn when the limit is smaller than their number.
    turn: usize,
}

impl Tail {
    /// Follows these partitions only. Default: all, including those that are added to the topic later.
    #[must_use]
    pub fn only(self, partitions: impl Into<Vec<Partition>>) -> Self {
        Self { only: Some(partitions.into()), ..self }
    }

    /// Continues above this id in a partition, for entries up to it that were read elsewhere.
    #[must_use]
    pub fn behind(mut self, topic_partition: TopicPartition, id: MessageId) -> Self {
        self.positions.insert(topic_partition, id);
        self
    }

    /// Returns the id above which it continues in a partition.
    #[must_use]
    pub fn position(&self, topic_partition: &TopicPartition) -> MessageId {
        self.positions.get(topic_partition).copied().unwrap_or(MessageId::ZERO)
    }

    /// Returns the partitions that are left out since they cannot be read, with the errors. They are not read again.
    pub fn failed(&self) -> impl Iterator<Item = (&TopicPartition, &Error)> {
        self.failed.iter().filter(|(tp, _)| self.is_wanted(tp))
    }

    fn is_wanted(&self, tp: &TopicPartition) -> bool {
        self.only.as_ref().is_none_or(|some| some.contains(&tp.partition))
    }

    /// Returns up to `limit` messages that arrived since the last call, ordered by id. Empty if none arrived: the
    /// caller decides how long to wait between two calls. A busy partition leaves the others their share of the limit.
    /// Partitions that were added to the topic meanwhile are followed from their beginning. One that cannot be read from now
    /// on is left out.
    ///
    /// # Errors
    /// Same as [`Admin::messages`]; the error of a partition, if none can be read. After an error, or if the future is
    /// dropped, nothing is skipped: the next call reads the same messages.
    pub async fn run_once(&mut self, limit: usize) -> Result<Vec<Message>> {
        let spec = self.admin.backend.catalog().topic(&self.topic).await?;
        let is_open = |tp: &TopicPartition| self.is_wanted(tp) && !self.failed.contains_key(tp);
        let mut open: Vec<TopicPartition> = spec.iter().filter(is_open).collect();
        if open.is_empty()
            && let Some((_, error)) = self.failed().next()
        {
            return Err(error.clone());
        }
        let lanes = open.len().max(1);
        open.rotate_left(self.turn % lanes);
        let mut positions = self.positions.clone();
        let (mut came, mut asked) = (Vec::new(), 0);
        while came.len() < limit && !open.is_empty() {
            let mut more = Vec::new();
            let left = open.len();
            for (nth, tp) in open.into_iter().enumerate() {
                // An equal share of the remaining limit; what a partition does not use is left for the next ones.
                let share = (limit - came.len()).div_ceil(left - nth);
                if share == 0 {
                    break;
                }
                let position = positions.entry(tp.clone()).or_insert(MessageId::ZERO);
                let range = Range { after: *position, ..Range::ALL };
                asked += 1;
                let page = self.admin.backend.inspect()?.entries(&tp, &Stream::Log, range, share).await;
                let page = match lasting(page)? {
                    Ok(page) => page,
                    Err(error) => {
                        self.failed.insert(tp, error);
                        continue;
                    }
                };
                let (source, lane) = (Source::Log, tp.partition.0 as usize);
                for stored in page.items {
                    *position = stored.id;
                    came.push(Message::new(tp.clone(), stored, source, lane));
                }
                if page.more {
                    more.push(tp);
                }
            }
            open = more;
        }
        // Positions move only here, when all messages read are returned: an error above must not skip any.
        self.positions = positions;
        self.turn = (self.turn + asked.min(lanes)) % lanes;
        came.sort_by(|one, other| {
            (one.stored.id, &one.topic_partition).cmp(&(other.stored.id, &other.topic_partition))
        });
        Ok(came)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use async_trait::async_trait;
    use millstream_core::inspect::{
        Inspect, Ownership, Page, Parked, Pending, Reading, Server, Stored, Usage,
    };
    use millstream_core::log::Append;
    use millstream_core::{Backend, Envelope, ErrorKind, GroupName, Timestamp, TopicSpec, wire};
    use millstream_memory::MemoryBackend;

    use super::*;

    const PARTITIONS: u32 = 3;
    const NONE: u32 = u32::MAX;

    /// Backend on which one partition cannot be read.
    struct Fails {
        inner: Arc<dyn Inspect>,
        partition: AtomicU32,
        kind: Mutex<ErrorKind>,
    }

    #[async_trait]
    impl Inspect for Fails {
        async fn entries(
            &self,
            tp: &TopicPartition,
            stream: &Stream,
            range: Range,
            limit: usize,
        ) -> Result<Page<Stored>> {
            if tp.partition.0 == self.partition.load(Ordering::Relaxed) {
                return Err(Error::new(*self.kind.lock().expect("lock"), "it cannot be read"));
            }
            self.inner.entries(tp, stream, range, limit).await
        }

        async fn pending(
            &self,
            tp: &TopicPartition,
            group: &GroupName,
            source: Source,
            after: MessageId,
            limit: usize,
        ) -> Result<Page<Pending>> {
            self.inner.pending(tp, group, source, after, limit).await
        }

        async fn parked(
            &self,
            tp: &TopicPartition,
            group: &GroupName,
            after: Option<(Timestamp, MessageId)>,
            limit: usize,
        ) -> Result<Page<Parked>> {
            self.inner.parked(tp, group, after, limit).await
        }

        async fn owners(&self, topic: &TopicSpec, group: &GroupName) -> Result<Vec<Ownership>> {
            self.inner.owners(topic, group).await
        }

        async fn consumers(&self, tp: &TopicPartition, group: &GroupName) -> Result<Vec<Reading>> {
            self.inner.consumers(tp, group).await
        }

        async fn server(&self) -> Result<Server> {
            self.inner.server().await
        }

        async fn usage(&self, partitions: &[TopicPartition], groups: &[GroupName]) -> Result<Vec<Usage>> {
            self.inner.usage(partitions, groups).await
        }
    }

    struct Stage {
        admin: Admin,
        topic: TopicSpec,
        fails: Arc<Fails>,
    }

    impl Stage {
        async fn new() -> Self {
            let backend = Backend::from(MemoryBackend::new());
            let inner = backend.inspect().expect("inspection").clone();
            let fails = Arc::new(Fails {
                inner,
                partition: AtomicU32::new(NONE),
                kind: Mutex::new(ErrorKind::Unavailable),
            });
            let backend = backend.with_inspect(fails.clone());
            let topic = TopicSpec::new("orders".parse().expect("a name"), PARTITIONS).expect("a topic");
            let topic = backend.catalog().create_topic(&topic).await.expect("created");
            Self { admin: Admin::new(backend), topic, fails }
        }

        async fn append(&self, partition: u32, count: usize) {
            for _ in 0..count {
                let tp = TopicPartition::new(self.topic.name.clone(), partition);
                let entry = Append::new(tp, wire::encode(&Envelope::new("x")));
                self.admin.backend.log().append(&[entry]).await.remove(0).expect("appended");
                tokio::time::advance(Duration::from_millis(1)).await;
            }
        }

        async fn tail(&self) -> Tail {
            self.admin.tail(&self.topic.name, Some(MessageId::ZERO)).await.expect("a tail")
        }

        fn fail(&self, partition: u32) {
            self.fails.partition.store(partition, Ordering::Relaxed);
        }
    }

    /// Returns the number of messages of each partition.
    fn each(came: &[Message]) -> Vec<usize> {
        let of = |partition| came.iter().filter(|it| it.topic_partition.partition.0 == partition).count();
        (0..PARTITIONS).map(of).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_partition_leaves_room_for_the_others() {
        let stage = Stage::new().await;
        stage.append(0, 100).await;
        stage.append(2, 5).await;
        let mut tail = stage.tail().await;
        assert_eq!(each(&tail.run_once(9).await.expect("looked")), [4, 0, 5], "what one leaves is another's");
        assert_eq!(each(&tail.run_once(9).await.expect("looked")), [9, 0, 0], "and all of it if it is alone");
    }

    #[tokio::test(start_paused = true)]
    async fn with_less_room_than_partitions_each_has_its_turn() {
        let stage = Stage::new().await;
        for partition in 0..PARTITIONS {
            stage.append(partition, 10).await;
        }
        let mut tail = stage.tail().await;
        let mut came = Vec::new();
        for _ in 0..6 {
            came.extend(tail.run_once(1).await.expect("looked"));
        }
        assert_eq!(each(&came), [2, 2, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn partitions_can_be_chosen_and_what_was_seen_elsewhere_is_left_out() {
        let stage = Stage::new().await;
        for partition in 0..PARTITIONS {
            stage.append(partition, 4).await;
        }
        let seen = stage.tail().await.only([Partition(1)]).run_once(3).await.expect("looked").pop();
        let seen = seen.expect("the third");
        let tail = stage.tail().await.only([Partition(1), Partition(2)]);
        let mut tail = tail.behind(seen.topic_partition, seen.stored.id);
        assert_eq!(each(&tail.run_once(100).await.expect("looked")), [0, 1, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_passed_over_when_a_partition_cannot_be_read() {
        let stage = Stage::new().await;
        stage.append(0, 3).await;
        stage.append(2, 3).await;
        let mut tail = stage.tail().await;
        stage.fail(2);
        for _ in 0..2 {
            assert_eq!(tail.run_once(100).await.expect_err("away").kind(), ErrorKind::Unavailable);
        }
        stage.fail(NONE);
        assert_eq!(each(&tail.run_once(100).await.expect("looked")), [3, 0, 3]);
        assert_eq!(tail.run_once(100).await.expect("looked"), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_partition_of_a_wrong_type_is_left_out_and_named() {
        let stage = Stage::new().await;
        stage.append(0, 3).await;
        stage.append(2, 3).await;
        *stage.fails.kind.lock().expect("lock") = ErrorKind::WrongType;
        stage.fail(2);
        let mut tail = stage.tail().await;
        assert_eq!(each(&tail.run_once(100).await.expect("looked")), [3, 0, 0]);
        let failed: Vec<_> = tail.failed().map(|(tp, _)| tp.partition.0).collect();
        assert_eq!(failed, [2]);
        let mut others =
            stage.admin.tail(&stage.topic.name, None).await.expect("a tail").only([Partition(0)]);
        assert_eq!((others.failed().count(), others.run_once(9).await.expect("looked").len()), (0, 0));
        let mut only = stage.tail().await.only([Partition(2)]);
        assert_eq!(only.run_once(100).await.expect("nothing else is left to read").len(), 0);
        assert_eq!(only.run_once(100).await.expect_err("nothing").kind(), ErrorKind::WrongType);
    }
}
