//! Commands that serve something over HTTP.

#[cfg(feature = "dashboard")]
mod dashboard;
#[cfg(feature = "exporter")]
mod exporter;
#[cfg(feature = "keda")]
mod scaler;
