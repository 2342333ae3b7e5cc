//! What all loops of one consumer share.

use std::sync::Arc;

use millstream_core::{Backend, GroupName, Observer, TopicSpec, Upkeep};
use tokio_util::sync::CancellationToken;

use super::{ConsumerConfig, handler::Handler};
use crate::report::Counts;

/// What all loops of one consumer share.
pub(super) struct Context {
    pub(super) backend: Backend,
    pub(super) topic: TopicSpec,
    pub(super) group: GroupName,
    pub(super) config: ConsumerConfig,
    pub(super) handler: Handler,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) upkeep: Vec<Arc<dyn Upkeep>>,
    pub(super) counts: Counts,
    /// The label and a unique part.
    pub(super) owner: String,
    /// Read no more, end what has started.
    pub(super) stop: CancellationToken,
    /// The time for ending is over: give up handlers.
    pub(super) kill: CancellationToken,
}
