//! What the dashboard costs the server, and how long pages of large topics take.

mod cost;
mod weight;
