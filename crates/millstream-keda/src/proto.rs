//! Messages of the gRPC interface `externalscaler.ExternalScaler` of KEDA, as its documentation describes them. They are written
//! by hand, so that no compiler of protobuf is needed; names of fields are not on the wire, their numbers are.

use std::collections::HashMap;

/// Path of the service, in front of its methods.
pub(crate) const SERVICE: &str = "/externalscaler.ExternalScaler/";

/// The object that KEDA scales, with the metadata of its trigger.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct ScaledObjectRef {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) namespace: String,
    #[prost(map = "string, string", tag = "3")]
    pub(crate) scaler_metadata: HashMap<String, String>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct IsActiveResponse {
    #[prost(bool, tag = "1")]
    pub(crate) result: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GetMetricSpecResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) metric_specs: Vec<MetricSpec>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MetricSpec {
    #[prost(string, tag = "1")]
    pub(crate) metric_name: String,
    /// Versions of KEDA before the field of floats read this one.
    #[prost(int64, tag = "2")]
    pub(crate) target_size: i64,
    #[prost(double, tag = "3")]
    pub(crate) target_size_float: f64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct GetMetricsRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) scaled_object_ref: Option<ScaledObjectRef>,
    #[prost(string, tag = "2")]
    pub(crate) metric_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GetMetricsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) metric_values: Vec<MetricValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MetricValue {
    #[prost(string, tag = "1")]
    pub(crate) metric_name: String,
    /// Versions of KEDA before the field of floats read this one.
    #[prost(int64, tag = "2")]
    pub(crate) metric_value: i64,
    #[prost(double, tag = "3")]
    pub(crate) metric_value_float: f64,
}
