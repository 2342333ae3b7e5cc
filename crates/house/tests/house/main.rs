//! The rules of the house, as tests: what `CONTRIBUTING.md` asks for and a compiler does not see.
//!
//! They read the source tree and need no server. A rule that fails says where, and what to do.

mod deploy;
mod documents;
mod imports;
mod manifests;
mod members;
mod sources;
mod systems;
mod words;

/// Fails with the rule's advice if there are offenders.
#[track_caller]
fn none(offenders: &[String], advice: &str) {
    assert!(offenders.is_empty(), "{advice}\n  {}\n", offenders.join("\n  "));
}
