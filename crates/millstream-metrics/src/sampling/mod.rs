//! Figures of the server, read at intervals: state of topics and groups, lag, gauges.

pub(crate) mod cache;
pub(crate) mod clock;
pub(crate) mod gauges;
pub(crate) mod lag;
pub(crate) mod lag_reader;
pub(crate) mod sample;
pub(crate) mod shown;
pub(crate) mod values;
