//! The limits of weights.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::run::root;

/// A limit of a weight.
#[derive(Debug, PartialEq)]
pub(super) struct Limit {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) unit: String,
}

/// All limits.
pub(super) struct Budget(pub(super) Vec<Limit>);

impl Budget {
    pub(super) fn read() -> Result<Self> {
        let file = root().join("crates/xtask/budget.txt");
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Self::parse(&text).with_context(|| file.display().to_string())
    }

    /// From lines of a name, a number and a unit; what begins with `#` is a remark.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut limits: Vec<Limit> = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let words: Vec<_> = line.split_whitespace().collect();
            let [name, value, unit] = words[..] else {
                anyhow::bail!("not a name, a limit and a unit: {line}")
            };
            let value = value.parse().with_context(|| format!("no number: {line}"))?;
            ensure!(limits.iter().all(|limit| limit.name != name), "{name} has two limits");
            limits.push(Limit { name: name.to_owned(), value, unit: unit.to_owned() });
        }
        Ok(Self(limits))
    }

    pub(super) fn limit(&self, name: &str) -> Option<&Limit> {
        self.0.iter().find(|limit| limit.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{counts, instructions, times};
    use super::{Budget, Limit};

    #[test]
    fn limits_have_a_number_and_a_unit() {
        let limit =
            |name: &str, value, unit: &str| Limit { name: name.to_owned(), value, unit: unit.to_owned() };
        let budget = Budget::parse("# a remark\n\na/b   10  crates\nc 1.5 s\n").unwrap();
        assert_eq!(budget.0, [limit("a/b", 10.0, "crates"), limit("c", 1.5, "s")]);
        for wrong in ["a 10", "a x crates", "a 10 crates more", "a 1 s\na 2 s"] {
            assert!(Budget::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_limit_is_that_of_a_weight() {
        let names: Vec<_> = counts::names().chain(times::names()).chain(instructions::names()).collect();
        for limit in Budget::read().unwrap().0 {
            assert!(names.contains(&limit.name), "{} limits nothing", limit.name);
        }
    }
}
