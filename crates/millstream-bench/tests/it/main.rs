//! The command `millstream-bench` on a real server. One program: each costs its own linking.

mod commands;
mod help;
mod suite;
