#![doc = include_str!("../README.md")]

mod checks;
#[cfg(feature = "http")]
mod http;
mod metric;
#[cfg(feature = "prometheus")]
mod metrics;
mod observer;
#[cfg(feature = "opentelemetry")]
pub mod otel;
pub mod probe;
#[cfg(feature = "prometheus")]
mod prometheus;
mod registry;
mod sampler;
mod sampling;
mod series;
pub mod table;
#[cfg(test)]
mod tests;

#[cfg(feature = "http")]
pub use http::{Server, ServerConfig};
pub use metric::{Kind, MESSAGES, Metric, MetricSource, SECONDS};
#[cfg(feature = "prometheus")]
pub use metrics::Metrics;
pub use observer::MetricsObserver;
#[cfg(feature = "prometheus")]
pub use prometheus::Prometheus;
pub use registry::{MetricsConfig, OTHER, SharedRecorder};
pub use sampler::{Sampler, SamplerConfig};
pub use sampling::lag::{Lag, LagFailed, Lags};
pub use sampling::lag_reader::LagReader;
