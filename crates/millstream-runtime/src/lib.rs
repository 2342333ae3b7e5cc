#![doc = include_str!("../README.md")]

// In reading order.
mod producer;

mod consumer;
mod dead_letters;
mod delayed;
mod delivery;

mod calls;

mod panics;
mod report;

pub use calls::{CallError, Called, IdempotentCalls};
pub use consumer::{
    Batch, BatchConfig, Concurrency, Consumer, ConsumerBuilder, ConsumerConfig, ConsumerEvent, ConsumerState,
    Events, Failure, Health, Idempotent, LoopHealth, Pulled, Puller, RetryOrder, Sharing, TopicHealth,
    WhileRunning,
};
pub use dead_letters::{
    DeadLetterConfig, DeadLetterConsumer, DeadLetterConsumerBuilder, DeadLetterOutcome, DeadLetterReport,
    IntoDeadLetterOutcome, Letter,
};
pub use delayed::{DelayedMessage, DelayedMessages};
pub use delivery::Delivery;
pub use producer::{
    Delayed, DelayedRecord, OnFull, Producer, ProducerBuilder, ProducerConfig, Record, SendDelayed,
    SendFuture, Sent,
};
pub use report::Report;

/// Results of batch handlers, as [`millstream_core`] defines them.
pub use millstream_core::{BatchOutcome, IntoBatchOutcome};
