//! What came of it: a table for people, or one JSON object.

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::args::{Aof, Common};
use super::statistics::{Comparison, Spread};

/// What has to be known beside the figures.
#[derive(Clone, Debug, Serialize)]
pub(super) struct About {
    /// Name and version of the server.
    server: String,
    /// Whether it was started for this.
    private: bool,
    /// How it writes its append-only file; not known of a server of others.
    aof: Option<&'static str>,
    millstream: &'static str,
    /// How many CPUs this machine lets us use.
    cpus: usize,
    /// Built without optimisation, and so worth nothing.
    debug_build: bool,
    payload_bytes: u32,
    runs: u32,
}

impl About {
    pub(super) fn new(server: String, common: &Common) -> Self {
        let aof = match common.aof {
            Aof::No => "no",
            Aof::Everysec => "everysec",
            Aof::Always => "always",
        };
        Self {
            server,
            private: common.url.is_none(),
            aof: common.url.is_none().then_some(aof),
            millstream: env!("CARGO_PKG_VERSION"),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            debug_build: cfg!(debug_assertions),
            payload_bytes: common.payload,
            runs: common.runs,
        }
    }
}

/// One object: what has to be known, and a list of cases with their figures.
pub(super) fn json(about: &About, comparisons: &[Comparison]) -> Result<String> {
    let spread = |of: Spread| json!({ "median": of.median, "min": of.min, "max": of.max });
    let cases: Vec<Value> = comparisons
        .iter()
        .map(|comparison| {
            let figures: Map<String, Value> = comparison
                .rows
                .iter()
                .map(|row| {
                    let mut figure = json!({ "ours": spread(row.ours) });
                    if let Some(bare) = row.bare {
                        figure["bare"] = spread(bare);
                    }
                    if let Some(ratio) = row.ratio {
                        figure["ratio"] = spread(ratio);
                    }
                    (row.figure.name().to_owned(), figure)
                })
                .collect();
            json!({ "case": comparison.case, "figures": figures })
        })
        .collect();
    let mut object = serde_json::to_value(about)?;
    object["cases"] = Value::Array(cases);
    Ok(serde_json::to_string(&object)?)
}

/// A table per case: medians, and the ratio with its spread.
pub(super) fn table(about: &About, comparisons: &[Comparison]) -> String {
    let mut text = format!(
        "{}{}, {} CPUs, payloads of {} bytes, medians of {} runs\n",
        about.server,
        about.aof.map(|aof| format!(", append-only file: {aof}")).unwrap_or_default(),
        about.cpus,
        about.payload_bytes,
        about.runs,
    );
    if about.debug_build {
        text += "a debug build: these figures say nothing about speed\n";
    }
    for comparison in comparisons {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let compared = comparison.rows.iter().any(|row| row.bare.is_some());
        let mut header = vec!["", "millstream"];
        if compared {
            header.extend(["bare", "ratio", "min..max"]);
        }
        table.set_header(header);
        for row in &comparison.rows {
            let mut cells = vec![row.figure.title().to_owned(), number(row.ours.median)];
            if let Some(bare) = row.bare {
                cells.push(number(bare.median));
            }
            if let Some(ratio) = row.ratio {
                cells.push(format!("{:.2}", ratio.median));
                cells.push(format!("{:.2}..{:.2}", ratio.min, ratio.max));
            }
            table.add_row(cells);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        text += &format!("\n{}\n{table}\n", comparison.case);
    }
    text.truncate(text.trim_end().len());
    text
}

/// Three or four digits that mean something.
fn number(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
