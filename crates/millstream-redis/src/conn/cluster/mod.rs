//! Several servers as one: which of them owns a slot, and requests that are spread over them.

pub(crate) mod node_answers;
pub(crate) mod routed;
pub(crate) mod servers;
pub(crate) mod slots;
pub(crate) mod together;
