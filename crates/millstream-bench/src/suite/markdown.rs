//! The results of the suite as the tables of `docs/performance.md`.

use indicatif::HumanCount;

use super::entries::Section;
use super::growth::{Growth, Series};
use super::target;
use super::{Measurement, Results};
use crate::measure::Figure;
use crate::report::{DEBUG_BUILD, number};
use crate::statistics::{Comparison, Row};

const THROUGHPUT: [Figure; 4] = [Figure::Throughput, Figure::ClientCpu, Figure::RedisCpu, Figure::Commands];
const LATENCY: [Figure; 4] = [Figure::P50, Figure::P99, Figure::P999, Figure::Max];
const IDLE: [Figure; 4] =
    [Figure::IdleRequests, Figure::IdleCommands, Figure::FirstRequests, Figure::FirstCommands];

/// Formats all tables; with an append-only file, only the ratios.
pub(super) fn tables(results: &Results) -> String {
    let mut text = results.about.line();
    if (results.scale - 1.0).abs() > f64::EPSILON {
        text += &format!(", with {} of the messages and seconds", results.scale);
    }
    text += ".\n";
    if results.about.debug_build {
        text += DEBUG_BUILD;
    }
    if results.about.aof.is_some_and(|aof| aof != "no") {
        text += &ratios(results);
        return text.trim_end().to_owned();
    }
    for (section, title, figures) in [
        (Section::Throughput, "Throughput", &THROUGHPUT[..]),
        (Section::Latency, "Latency, in µs", &LATENCY),
        (Section::Memory, "Memory", &[Figure::Bytes]),
        (Section::Idle, "Idle traffic", &IDLE),
    ] {
        let of: Vec<_> = results.of(section).collect();
        if !of.is_empty() {
            text += &format!("\n### {title}\n\n{}", figures_of(&of, figures));
        }
    }
    let growths = results.growths();
    if !growths.is_empty() {
        text += &format!("\n### Growth\n\n{}", factors(&growths));
        for growth in &growths {
            text += &format!("\n{}", points(growth));
        }
    }
    text.trim_end().to_owned()
}

fn figures_of(of: &[&Measurement], figures: &[Figure]) -> String {
    let mut header = vec!["case".to_owned(), "`millstream-bench`".to_owned()];
    header.extend(figures.iter().map(|figure| figure.title().to_owned()));
    header.extend(["target".to_owned(), "result".to_owned()]);
    let row = |it: &&Measurement| {
        let mut cells = vec![it.entry.title.to_owned(), format!("`{}`", it.entry.command)];
        let cell =
            |figure: &Figure| it.outcome.as_ref().ok().and_then(|outcome| Some(cell(outcome.row(*figure)?)));
        cells.extend(figures.iter().map(|figure| cell(figure).unwrap_or_else(none)));
        cells.push(target::asked(it.entry.targets));
        cells.push(verdict(it));
        cells
    };
    table(&header, of.iter().map(row))
}

fn verdict(of: &Measurement) -> String {
    match &of.outcome {
        Ok(outcome) => match target::verdict(of.entry.targets, outcome) {
            missed if missed.starts_with("missed") => format!("**{missed}**"),
            verdict => verdict,
        },
        Err(why) => format!("**failed: {}**", format!("{why:#}").replace(['|', '\n'], " ")),
    }
}

/// Formats a cell, `1,234 · **0.95** (0.90..0.99)`: the value of Millstream, the ratio, its minimum and maximum.
fn cell(row: &Row) -> String {
    match ratio(row) {
        Some(ratio) => format!("{} · {ratio}", number(row.ours.median)),
        None => number(row.ours.median),
    }
}

fn ratio(row: &Row) -> Option<String> {
    let it = row.ratio.as_ref()?;
    Some(format!("**{:.2}** ({:.2}..{:.2})", it.median, it.min, it.max))
}

fn none() -> String {
    "–".to_owned()
}

/// Formats the ratios of all compared cases.
fn ratios(results: &Results) -> String {
    let compared: Vec<_> = results.measurements.iter().filter(|it| it.entry.baseline).collect();
    let all = [&THROUGHPUT[..3], &LATENCY[..2], &[Figure::Bytes]].concat();
    let row_of =
        |it: &Measurement, figure| it.outcome.as_ref().ok().and_then(|outcome| outcome.row(figure).cloned());
    let in_use = |figure: &Figure| compared.iter().any(|it| row_of(it, *figure).is_some());
    let shown: Vec<Figure> = all.into_iter().filter(in_use).collect();
    let mut header = vec!["case".to_owned(), "`millstream-bench`".to_owned()];
    header.extend(shown.iter().map(|figure| figure.short().to_owned()));
    let row = |it: &&Measurement| {
        let mut cells = vec![it.entry.title.to_owned(), format!("`{}`", it.entry.command)];
        let cell = |figure: &Figure| row_of(it, *figure).and_then(|row| ratio(&row)).unwrap_or_else(none);
        cells.extend(shown.iter().map(cell));
        if it.outcome.is_err() {
            cells.truncate(2);
            cells.resize(2 + shown.len(), verdict(it));
        }
        cells
    };
    format!("\n{}", table(&header, compared.iter().map(row)))
}

/// Formats the factors by which the cost of a message grows from the smallest to the largest point.
fn factors(growths: &[Growth<'_>]) -> String {
    let header = ["what there is more of", "from", "to", "it costs", "a logarithm would cost", "result"];
    let row = |it: &Growth<'_>| {
        let (from, to) = it.ends();
        let factor = |figure: &Figure| Some(format!("{} {:.2}×", figure.short(), it.factor(*figure)?));
        vec![
            it.series.title().to_owned(),
            HumanCount(from).to_string(),
            HumanCount(to).to_string(),
            it.series.costs().iter().filter_map(factor).collect::<Vec<_>>().join(", "),
            format!("{:.2}×", it.logarithmic()),
            if it.met() { "met" } else { "**missed**" }.to_owned(),
        ]
    };
    table(&header.map(str::to_owned), growths.iter().map(row))
}

/// Formats the cost at each point.
fn points(of: &Growth<'_>) -> String {
    let shown = match of.series {
        Series::Members => &IDLE[..],
        _ => &THROUGHPUT,
    };
    let mut header = vec![of.series.title().to_owned()];
    header.extend(shown.iter().map(|figure| figure.title().to_owned()));
    let row = |(at, comparison): &(u64, &Comparison)| {
        let mut cells = vec![HumanCount(*at).to_string()];
        cells.extend(shown.iter().map(|figure| comparison.row(*figure).map_or_else(none, cell)));
        cells
    };
    table(&header, of.points.iter().map(row))
}

fn table(header: &[String], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(header);
    text += &format!("|{}\n", "---|".repeat(header.len()));
    for row in rows {
        text += &line(&row);
    }
    text
}
