//! A memory backend under the suite, with its operator.

use async_trait::async_trait;
use millstream_core::{GroupName, MessageId, Place, ScheduleId, TopicPartition};
use millstream_memory::operator::Operator;
use millstream_testkit::Violation;

/// The memory backend's operator, for the cases that need one.
pub(crate) struct Console(pub(crate) Operator);

#[async_trait]
impl millstream_testkit::Operator for Console {
    async fn destroy_group(&self, tp: &TopicPartition, group: &GroupName) -> Result<(), Violation> {
        self.0.destroy_group(tp, group).then_some(()).ok_or_else(|| Violation::new("no such group"))
    }

    async fn delete_entry(&self, tp: &TopicPartition, id: MessageId) -> Result<(), Violation> {
        self.0.delete_entry(tp, id).then_some(()).ok_or_else(|| Violation::new("no such entry"))
    }

    async fn set_position(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        id: MessageId,
    ) -> Result<(), Violation> {
        self.0.set_position(tp, group, id).then_some(()).ok_or_else(|| Violation::new("no such group"))
    }

    async fn delete_parked(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        origin: MessageId,
    ) -> Result<(), Violation> {
        let deleted = self.0.delete_parked(tp, group, origin);
        deleted.then_some(()).ok_or_else(|| Violation::new("no such retry"))
    }

    async fn delete_scheduled(&self, place: &Place, id: &ScheduleId) -> Result<(), Violation> {
        self.0.delete_scheduled(place, id).then_some(()).ok_or_else(|| Violation::new("no such message"))
    }
}
