//! Runs under faults, with producers, workers and a store of effects as processes of their own, on every topology; and
//! the checks of what happened.
//!
//! A run has phases ([`record::Phase`]): a calm one, from which the usual rate is known; one with faults, which the seed
//! chose; one after the last fault, in which everything must work again; and one in which nothing more is sent and
//! everything is handled. All processes write [`record::What`] into one file ([`crate::history`]). [`checks`] reads that
//! file, and nothing else.

pub mod checks;
pub mod deployment;
pub mod mutants;
pub mod nemesis;
pub mod proof;
pub mod record;
pub mod roles;
pub mod run;
pub mod setup;
mod usage;
