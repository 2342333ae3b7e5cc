#![doc = include_str!("../README.md")]

mod checks;
mod clock;
mod gauges;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "prometheus")]
mod kit;
mod lag;
mod metric;
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
#[cfg(feature = "prometheus")]
pub use kit::Metrics;
pub use lag::{Lag, LagFailed, Lags};
pub use metric::{From, Kind, MESSAGES, Metric, SECONDS};
pub use observer::MetricsObserver;
#[cfg(feature = "prometheus")]
pub use prometheus::Prometheus;
pub use registry::{MetricsConfig, OTHER, SharedRecorder};
pub use sampler::{Sampler, SamplerConfig};
