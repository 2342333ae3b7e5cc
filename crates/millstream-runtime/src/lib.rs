#![doc = include_str!("../README.md")]

// In reading order.
mod producer;

mod consumer;
mod dead_letters;
mod delivery;

mod report;
mod trouble;

pub use consumer::{
    Batch, BatchConfig, BatchOutcome, Concurrency, Consumer, ConsumerBuilder, ConsumerConfig,
    IntoBatchOutcome, Pulled, Puller, RetryOrder,
};
pub use dead_letters::DeadLetterQueue;
pub use delivery::Delivery;
pub use producer::{Producer, ProducerBuilder, ProducerConfig, Record, Send, Sent};
pub use report::Report;
