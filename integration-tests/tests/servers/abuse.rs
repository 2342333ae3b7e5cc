//! Use beyond what is sensible: floods, crowds, sizes, readers that never end. What is refused, what slows down, and what
//! stays is the table "Limits" of `docs/reliability.md`.

mod crowds;
mod floods;
mod groups;
mod sizes;
mod stuck;
