//! What is tested of the runtime, over the backend in memory.
//! One binary, because each costs its own linking.
#![allow(missing_docs)]

mod batches;
mod calls;
mod cancels;
mod consumer;
mod control;
mod dead_letters;
mod fairness;
mod groups;
mod handlers;
mod limits;
mod outages;
mod poison;
mod priorities;
mod producer;
mod progress;
mod requests;
mod shared;
mod steps;
mod support;
