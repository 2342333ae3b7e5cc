#![doc = include_str!("../README.md")]

// In reading order.
mod producer;

mod consumer;
mod dead_letters;
mod delayed;

mod calls;

mod panics;
mod report;
mod spans;
mod trimming;

/// Arguments of handlers, as the engine defines them for consumers and delay queues.
pub use millstream_engine::{extract, test};

pub use calls::{CallError, Called, IdempotentCalls};
pub use consumer::{
    Concurrency, Consumer, ConsumerBuilder, ConsumerConfig, ConsumerEvent, ConsumerState, Events, Health,
    LoopFailure, LoopHealth, Pulled, Puller, RetryOrder, Router, Sharing, TopicHealth,
};
pub use dead_letters::{DeadLetterConfig, DeadLetterConsumer, DeadLetterConsumerBuilder, DeadLetterReport};
pub use delayed::{DelayedMessage, DelayedMessages};
pub use millstream_engine::delivery::CancelReason;
pub use millstream_engine::requests::{Follow, Followed, RequestError, ResultFuture};
pub use millstream_engine::{
    Answer, Batch, BatchBuilder, BatchConfig, BatchItem, Breaker, DeadLetterOutcome, Delivery, Fairness,
    FanIn, FanOut, Idempotent, IntoDeadLetterOutcome, Layer, Letter, Limit, Next, OpenBatch, Priorities,
    StepError, Steps, Timeout, Trace, WhileRunning, priorities::PRIORITY_HEADER,
};
pub use producer::{
    AsyncProducerLayer, Delayed, DelayedRecord, OnFull, Producer, ProducerBuilder, ProducerConfig,
    ProducerLayer, QualifiedRecord, QualifiedSend, Record, Request, Requested, SendDelayed, SendFuture, Sent,
    TYPE_HEADER,
};
pub use report::Report;

/// Results of batch handlers, as [`millstream_core`] defines them.
pub use millstream_core::{BatchOutcome, IntoBatchOutcome};
