//! Each mutant has the fault that it is named after, and without it the same steps are fine.

mod appends;
mod grants;
mod outbox;
mod reads;
mod scene;
mod settlements;
mod times;
