//! What is tested of locks, over the backend in memory. One program: each costs its own linking.

mod locks;
mod support;
mod waiting;
