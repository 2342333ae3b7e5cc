//! Histories: the events of a run, and the check that they were allowed.
//!
//! A [`History`] has three kinds of writers: producers and handlers record what they do and see, a recorder
//! [around](History::around) the backend records what the server does, in its order, and the code that injects faults
//! records them. [`check`] then reads it from start to end, and returns every violation as a [`Breach`].
//!
//! Messages are identified by their payload, without surrounding white space: give each message a unique one.

mod checks;
mod naming;
mod record;
mod recorder;
mod shared;
mod story;

pub use checks::{Breach, Lives, Order, Rules, check};
pub use record::{Call, End, Event, Handing, History, Origin, Outcome, Place, Record, Start, Told};
