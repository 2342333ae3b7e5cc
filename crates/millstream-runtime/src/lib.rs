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
mod spans;
mod trimming;

pub mod extract;
pub mod test;

pub use calls::{CallError, Called, IdempotentCalls};
pub use consumer::{
    Answer, Batch, BatchConfig, Concurrency, Consumer, ConsumerBuilder, ConsumerConfig, ConsumerEvent,
    ConsumerState, Events, Health, Idempotent, Layer, LoopFailure, LoopHealth, Next, Pulled, Puller,
    RetryOrder, Router, Sharing, Timeout, TopicHealth, Trace, WhileRunning,
};
pub use dead_letters::{
    DeadLetterConfig, DeadLetterConsumer, DeadLetterConsumerBuilder, DeadLetterOutcome, DeadLetterReport,
    IntoDeadLetterOutcome, Letter,
};
pub use delayed::{DelayedMessage, DelayedMessages};
pub use delivery::Delivery;
pub use producer::{
    AsyncProducerLayer, Delayed, DelayedRecord, OnFull, Producer, ProducerBuilder, ProducerConfig,
    ProducerLayer, QualifiedRecord, QualifiedSend, Record, SendDelayed, SendFuture, Sent, TYPE_HEADER,
};
pub use report::Report;

/// Results of batch handlers, as [`millstream_core`] defines them.
pub use millstream_core::{BatchOutcome, IntoBatchOutcome};
