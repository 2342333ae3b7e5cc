//! Producers, consumers and delay queues under a tracer, as exporters get their spans and metrics.

mod conventions;
mod harness;
mod metrics;
mod stories;
