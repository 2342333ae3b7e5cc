//! Use beyond what is sensible: floods, crowds, sizes, readers that never end. What is refused, what slows down, and what
//! stays is the list of limits in `docs/faults.toml`.

mod crowds;
mod floods;
mod groups;
mod sizes;
mod stuck;
