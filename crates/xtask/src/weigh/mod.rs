//! What Millstream weighs: the crates that are compiled, the time that this takes, the size of what comes of it. Each weight
//! stands beside its limit in `budget.txt`.

mod budget;
mod counts;
mod instructions;
mod programs;
mod times;

use std::fmt::Write as _;

use anyhow::{Result, bail, ensure};

use budget::Budget;

/// A weight.
#[derive(Debug, PartialEq)]
struct Weight {
    name: String,
    /// `None` if there is nothing to weigh; the note says why.
    value: Option<f64>,
    note: String,
}

impl Weight {
    fn new(name: impl Into<String>, value: f64) -> Self {
        Self { name: name.into(), value: Some(value), note: String::new() }
    }

    fn missing(name: impl Into<String>, note: &str) -> Self {
        Self { name: name.into(), value: None, note: note.to_owned() }
    }

    fn note(mut self, note: String) -> Self {
        self.note = note;
        self
    }
}

/// Weighs what needs no build; with `--times` and `--instructions` builds too. Only weights whose name contains the filter.
pub(crate) fn run(args: &[&str]) -> Result<()> {
    let (mut filter, mut with_times, mut with_instructions) = ("", false, false);
    for arg in args {
        match *arg {
            "--times" => with_times = true,
            "--instructions" => with_instructions = true,
            _ if arg.starts_with('-') => bail!("unknown option of `cargo xtask weigh`: {arg}"),
            _ if !filter.is_empty() => bail!("more than one filter: {arg}"),
            _ => filter = arg,
        }
    }
    let budget = Budget::read()?;
    let mut weights = counts::all(filter)?;
    if with_times {
        weights.extend(times::all(filter)?);
    }
    if with_instructions {
        weights.extend(instructions::all(filter)?);
    }
    ensure!(!weights.is_empty(), "no weight has {filter:?} in its name");
    println!("\n{}", table(&weights, &budget));
    let over: Vec<_> = weights.iter().filter(|weight| is_over(weight, &budget)).collect();
    let names: Vec<_> = over.iter().map(|weight| weight.name.as_str()).collect();
    ensure!(over.is_empty(), "over the limits of crates/xtask/budget.txt: {}", names.join(", "));
    Ok(())
}

/// Whether a weight has a limit and is above it.
fn is_over(weight: &Weight, budget: &Budget) -> bool {
    let limit = budget.limit(&weight.name);
    weight.value.zip(limit).is_some_and(|(value, limit)| value > limit.value)
}

/// A line for each weight.
fn table(weights: &[Weight], budget: &Budget) -> String {
    let mut text = format!("{:<26}{:>8}{:>8}\n", "weight", "found", "limit");
    for weight in weights {
        let limit = budget.limit(&weight.name);
        let unit = limit.map_or("s", |limit| limit.unit.as_str());
        let found = weight.value.map_or("-".to_owned(), |value| shown(value, unit));
        let limit = limit.map_or("-".to_owned(), |limit| limit.value.to_string());
        let over = if is_over(weight, budget) { "OVER " } else { "" };
        let line = format!("{:<26}{found:>8}{limit:>8} {unit:<9}{over}{}", weight.name, weight.note);
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn shown(value: f64, unit: &str) -> String {
    if ["s", "MB"].contains(&unit) { format!("{value:.1}") } else { value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::budget::Budget;
    use super::{Weight, is_over, table};

    #[test]
    fn a_weight_above_its_limit_is_over() {
        let budget = Budget::parse("a 10 crates\nb 1.5 s\n").unwrap();
        let over = |name: &str, value| is_over(&Weight::new(name, value), &budget);
        assert!(!over("a", 10.0) && over("a", 11.0));
        assert!(!over("b", 1.5) && over("b", 1.6));
        assert!(!over("without a limit", 1e9));
        assert!(!is_over(&Weight::missing("a", "not built"), &budget));
    }

    #[test]
    fn each_weight_has_a_line_with_its_limit() {
        let budget = Budget::parse("a 10 crates\nb 1.5 s\n").unwrap();
        let weights = [
            Weight::new("a", 11.0),
            Weight::new("b", 1.25).note("wall 1 s".to_owned()),
            Weight::missing("c", "not built"),
        ];
        let expected = "\
weight                       found   limit
a                               11      10 crates   OVER
b                              1.2     1.5 s        wall 1 s
c                                -       - s        not built
";
        assert_eq!(table(&weights, &budget), expected);
    }
}
