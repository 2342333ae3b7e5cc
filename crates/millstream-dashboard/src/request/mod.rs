//! A request as handlers see it: who asks, and its parameters.

pub(crate) mod context;
pub(crate) mod params;
