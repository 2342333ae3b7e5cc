//! The results of the suite as a table for people and as one JSON object, and the list of its cases.

use anyhow::Result;
use comfy_table::{Table, presets};
use indicatif::HumanCount;
use serde_json::{Map, Value, json};

use super::entries::{ENTRIES, Section};
use super::growth::Growth;
use super::target::{self, Of};
use super::{Measurement, Results};
use crate::measure::Figure;
use crate::report::{DEBUG_BUILD, figures, number};
use crate::statistics::{Comparison, Row};

/// Formats the list of all cases with their commands and targets.
pub(super) fn list() -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["case", "millstream-bench", "target"]);
    for entry in ENTRIES {
        let asked = match (entry.optional, target::asked(entry.targets)) {
            (true, asked) => format!("{asked} (optional)"),
            (false, asked) => asked,
        };
        table.add_row([entry.name, &entry.command_line(), &asked]);
    }
    trimmed(&table)
}

/// Formats one line per case, and one per series.
pub(super) fn table(results: &Results) -> String {
    let mut text = format!("{}\n", results.about.line());
    if results.about.debug_build {
        text += DEBUG_BUILD;
    }
    for (section, shown) in [
        (Section::Throughput, &[Figure::Throughput, Figure::ClientCpu, Figure::RedisCpu][..]),
        (Section::Latency, &[Figure::P50, Figure::P99]),
        (Section::Memory, &[Figure::Bytes]),
        (Section::Idle, &[Figure::IdleRequests, Figure::IdleCommands, Figure::FirstRequests]),
        (Section::Growth, &[Figure::Throughput, Figure::ClientCpu, Figure::RedisCpu, Figure::IdleRequests]),
    ] {
        let of: Vec<_> = results.of(section).collect();
        if !of.is_empty() {
            text += &format!("\n{}\n", cases(&of, shown));
        }
    }
    let growths = results.growths();
    if !growths.is_empty() {
        text += &format!("\n{}\n", growth(&growths));
    }
    text.truncate(text.trim_end().len());
    text
}

fn cases(of: &[&Measurement], shown: &[Figure]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let measured = |figure: &&Figure| {
        of.iter().any(|it| it.outcome.as_ref().is_ok_and(|outcome| outcome.row(**figure).is_some()))
    };
    let shown: Vec<_> = shown.iter().filter(measured).collect();
    let mut header = vec![""];
    header.extend(shown.iter().map(|figure| figure.title()));
    header.extend(["target", "result"]);
    table.set_header(header);
    for it in of {
        let mut cells = vec![it.entry.title.to_owned()];
        match &it.outcome {
            Ok(outcome) => {
                cells.extend(shown.iter().map(|figure| outcome.row(**figure).map(plain).unwrap_or_default()));
                cells.push(target::asked(it.entry.targets));
                cells.push(target::verdict(it.entry.targets, outcome));
            }
            Err(why) => {
                cells.extend(shown.iter().map(|_| String::new()));
                cells.push(target::asked(it.entry.targets));
                cells.push(format!("failed: {why:#}"));
            }
        }
        table.add_row(cells);
    }
    trimmed(&table)
}

/// Formats a row: `1,234 0.95× (0.90..0.99)`.
fn plain(row: &Row) -> String {
    let ours = number(row.ours.median);
    match &row.ratio {
        Some(it) => format!("{ours} {:.2}× ({:.2}..{:.2})", it.median, it.min, it.max),
        None => ours,
    }
}

fn growth(growths: &[Growth<'_>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["growth", "from", "to", "cost", "logarithmic", "result"]);
    for growth in growths {
        let (from, to) = growth.ends();
        let factors: Vec<_> = growth
            .series
            .costs()
            .iter()
            .filter_map(|figure| Some(format!("{} {:.2}×", figure.short(), growth.factor(*figure)?)))
            .collect();
        table.add_row([
            growth.series.title().to_owned(),
            HumanCount(from).to_string(),
            HumanCount(to).to_string(),
            factors.join(", "),
            format!("{:.2}×", growth.logarithmic()),
            if growth.met() { "met" } else { "missed" }.to_owned(),
        ]);
    }
    trimmed(&table)
}

/// Formats a table without the spaces around its lines.
fn trimmed(table: &Table) -> String {
    let line = |line: &str| line.strip_prefix(' ').unwrap_or(line).trim_end().to_owned();
    table.to_string().lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Formats one object: the conditions, all cases with all their values, and the series.
pub(super) fn json(results: &Results) -> Result<String> {
    let mut object = serde_json::to_value(&results.about)?;
    object["scale"] = results.scale.into();
    object["cases"] = results.measurements.iter().map(case).collect();
    object["growth"] = results.growths().iter().map(growth_object).collect();
    Ok(serde_json::to_string(&object)?)
}

fn case(of: &Measurement) -> Value {
    let mut object = json!({
        "name": of.entry.name,
        "title": of.entry.title,
        "command": of.entry.command_line(),
        "runs": of.plan.runs,
        "warm_up": of.plan.warm_up,
    });
    match &of.outcome {
        Ok(outcome) => {
            object["case"] = outcome.case.as_str().into();
            object["figures"] = figures(outcome).into();
            object["targets"] = of.entry.targets.iter().map(|it| target_object(it, outcome)).collect();
            object["met"] = target::met(of.entry.targets, outcome).into();
        }
        Err(why) => object["error"] = format!("{why:#}").into(),
    }
    object
}

fn target_object(of: &target::Target, comparison: &Comparison) -> Value {
    let (limit, at) = match of.limit {
        target::Limit::AtLeast(at) => ("at_least", at),
        target::Limit::AtMost(at) => ("at_most", at),
    };
    json!({
        "figure": of.figure.name(),
        "of": if of.of == Of::Ratio { "ratio" } else { "ours" },
        limit: at,
        "reached": of.reached(comparison),
        "met": of.met(comparison),
    })
}

fn growth_object(of: &Growth<'_>) -> Value {
    let (from, to) = of.ends();
    let factors: Map<String, Value> = of
        .series
        .costs()
        .iter()
        .map(|figure| (figure.name().to_owned(), of.factor(*figure).into()))
        .collect();
    json!({
        "series": of.series.name(),
        "from": from,
        "to": to,
        "factors": factors,
        "logarithmic": of.logarithmic(),
        "met": of.met(),
    })
}
