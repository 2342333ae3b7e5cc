#![doc = include_str!("../README.md")]

mod checks;
mod clock;
mod gauges;
#[cfg(feature = "http")]
mod http;
mod lag;
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
mod sample;
mod sampler;
mod series;
pub mod table;

#[cfg(feature = "http")]
pub use http::{Server, ServerConfig};
pub use lag::{Lag, LagFailed, Lags};
pub use metric::{Kind, MESSAGES, Metric, MetricSource, SECONDS};
#[cfg(feature = "prometheus")]
pub use metrics::Metrics;
pub use observer::MetricsObserver;
#[cfg(feature = "prometheus")]
pub use prometheus::Prometheus;
pub use registry::{MetricsConfig, OTHER, SharedRecorder};
pub use sampler::{Sampler, SamplerConfig};
