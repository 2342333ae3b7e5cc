//! Parts of the delay queue that more than one role uses.

pub(crate) mod dead_tasks;
pub(crate) mod queues;
pub(crate) mod scheduling;
pub(crate) mod trimming;
