#![doc = include_str!("../README.md")]

// Reading order: first the queue and its operations.
mod dead;
mod inner;
mod list;
mod queue;
mod request;
mod schedule;

// The workers of a queue.
mod task;
mod worker;

// Recurring tasks and messages, for queues and topics.
mod expected;
mod fire;
mod recurring;
mod rule;

// The promoters, which move delayed messages and retries of topics.
mod delayed;
mod promoter;

// Shared by all loops.
mod sleep;

#[cfg(test)]
mod tests;

pub use dead::DeadTasks;
pub use delayed::DelayedPromoter;
pub use fire::fire_due;
pub use list::WaitingTask;
pub use promoter::{Promoter, PromoterConfig};
pub use queue::{DelayQueue, DelayQueueBuilder};
pub use recurring::{Recur, RecurringEntry, RecurringMessages, recur};
pub use request::{RequestedTask, TaskRequest};
pub use rule::{GRACE, MAX_MISSED, Missed, Plan, Rule, SHORTEST};
pub use schedule::{ScheduleTask, ScheduledTask, TaskRecord};
pub use task::Task;
pub use worker::{Check, Failing, IntoCheck, Progress, Worker, WorkerBuilder, WorkerConfig, WorkerReport};
