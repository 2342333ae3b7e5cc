//! The faults, limits and mistakes that tests prove: `docs/faults.toml`.

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::tree::read;

/// Where they stand.
pub const FILE: &str = "docs/faults.toml";

/// All of them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Faults {
    /// What can go wrong, and what happens then.
    #[serde(rename = "fault")]
    pub faults: Vec<Fault>,
    /// What is refused, or slows down, where somebody asks for more than is sensible.
    #[serde(rename = "limit")]
    pub limits: Vec<Limit>,
}

/// A fault.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Its number, by which tests and commits name it.
    pub number: String,
    /// What goes wrong.
    pub fault: String,
    /// What happens then.
    pub answer: String,
    /// The tests that prove it: `file::function`.
    #[serde(default)]
    pub tests: Vec<String>,
    /// Why there is no test.
    #[serde(default)]
    pub untested: String,
}

/// A limit.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// What there is too much of.
    pub what: String,
    /// What is refused.
    pub refused: String,
    /// What slows down.
    pub slows: String,
    /// What stays as it is.
    pub stays: String,
    /// The tests that prove it.
    pub tests: Vec<String>,
}

/// Reads them.
///
/// # Errors
/// If the file is not there, or has another form.
pub fn faults() -> Result<Faults> {
    toml::from_str(&read(FILE).with_context(|| format!("there is no {FILE}"))?).context(FILE)
}
