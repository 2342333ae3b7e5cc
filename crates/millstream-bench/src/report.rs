//! The results: a table for people, or one JSON object.

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::HumanFloatCount;
use serde_json::{Map, Value, json};

use crate::about::About;
use crate::statistics::{Comparison, Row, Spread};

/// Formats one object: the conditions, and a list of cases with their figures.
pub(crate) fn json(about: &About, comparisons: &[Comparison]) -> Result<String> {
    let case = |it: &Comparison| json!({ "case": it.case, "figures": figures(it) });
    let mut object = serde_json::to_value(about)?;
    object["cases"] = comparisons.iter().map(case).collect();
    Ok(serde_json::to_string(&object)?)
}

/// Returns the figures of a case by their names, with the values of each run.
pub(crate) fn figures(of: &Comparison) -> Map<String, Value> {
    let spread =
        |of: &Spread| json!({ "median": of.median, "min": of.min, "max": of.max, "values": of.values });
    let figure = |row: &Row| {
        let mut figure = json!({ "ours": spread(&row.ours) });
        if let Some(bare) = &row.bare {
            figure["bare"] = spread(bare);
        }
        if let Some(ratio) = &row.ratio {
            figure["ratio"] = spread(ratio);
        }
        (row.figure.name().to_owned(), figure)
    };
    of.rows.iter().map(figure).collect()
}

/// Formats a table per case: medians, and the ratio with its spread.
pub(crate) fn table(about: &About, comparisons: &[Comparison]) -> String {
    let mut text = about.line() + "\n";
    if about.debug_build {
        text += DEBUG_BUILD;
    }
    for comparison in comparisons {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let compared = comparison.rows.iter().any(|row| row.bare.is_some());
        let mut header = vec!["", "millstream"];
        if compared {
            header.extend([if about.tls == Some(true) { "plain" } else { "bare" }, "ratio", "min..max"]);
        }
        table.set_header(header);
        for row in &comparison.rows {
            let mut cells = vec![row.figure.title().to_owned(), number(row.ours.median)];
            if let Some(bare) = &row.bare {
                cells.push(number(bare.median));
            }
            if let Some(ratio) = &row.ratio {
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

/// The warning for figures of a debug build.
pub(crate) const DEBUG_BUILD: &str = "a debug build: these figures say nothing about speed\n";

/// Formats three significant digits, or all digits of a larger number, in groups of three.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{:.0}", HumanFloatCount(value)),
        10.0.. => format!("{value:.1}"),
        0.1.. => format!("{value:.2}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_mean_something() {
        let cases = [
            (1_234_567.8, "1,234,568"),
            (528_505.0, "528,505"),
            (100.0, "100"),
            (-1_234.0, "-1,234"),
            (12.34, "12.3"),
            (1.234, "1.23"),
            (0.0123, "0.012"),
            (0.0, "0"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
    }
}
