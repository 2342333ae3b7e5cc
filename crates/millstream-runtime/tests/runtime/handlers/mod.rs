//! What stands around handlers and sends: the layers that come with the runtime, routers, streams, time limits of sends. Over the
//! backend in memory.

mod letters;
mod router;
mod sends;
mod shipped_layers;
mod streams;
mod support;
