//! Commands that serve something over HTTP.

#[cfg(feature = "dashboard")]
pub(crate) mod dashboard;
#[cfg(feature = "exporter")]
mod exporter;
#[cfg(feature = "keda")]
mod scaler;
