#![doc = include_str!("../README.md")]

// In reading order: the queue and what is done with it.
mod dead;
mod list;
mod queue;
mod schedule;

// Who works on it.
mod task;
mod worker;

// What recurs, in queues and topics, and how it fires.
mod expected;
mod fire;
mod recurring;
mod rule;

// What moves messages of topics.
mod delayed;
mod promoter;

// What all loops need.
mod sleep;

pub use dead::DeadTasks;
pub use delayed::DelayedPromoter;
pub use fire::fire_due;
pub use list::WaitingTask;
pub use promoter::{Promoter, PromoterConfig};
pub use queue::{DelayQueue, DelayQueueBuilder};
pub use recurring::{Recur, RecurringEntry, RecurringMessages, recur};
pub use rule::{GRACE, MAX_MISSED, Missed, Plan, Rule, SHORTEST};
pub use schedule::{ScheduleTask, ScheduledTask, TaskRecord};
pub use task::Task;
pub use worker::{Check, Failing, IntoCheck, Progress, Worker, WorkerBuilder, WorkerConfig, WorkerReport};
