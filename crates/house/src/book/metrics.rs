//! The reference of the metrics, from `table.rs`.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};

use crate::tree::read;

const FILE: &str = "crates/millstream-metrics/src/table.rs";

const SOURCES: [(&str, &str); 3] = [
    ("Events", "From events of this process"),
    ("Health", "Health of the consumers and workers of this process"),
    ("Server", "Sampled from the server, the same in every process that samples"),
];

/// A metric.
struct Row<'a> {
    kind: String,
    source: &'a str,
    name: &'a str,
    labels: String,
    help: &'a str,
}

pub(super) fn page() -> Result<String> {
    let source = read(FILE).context(FILE)?;
    let (heads, table) = source.split_once("\ntable! {\n").context("the table of metrics")?;
    let rows: Vec<Row<'_>> = table.split(";\n").filter_map(|row| metric(row, heads)).collect();
    ensure!(rows.len() > 60, "{FILE} is written in another way: {} metrics", rows.len());
    let mut page = "# Metrics\n\nMade from `crates/millstream-metrics/src/table.rs`. How to serve and use them: [the guide](guides/metrics.md).\n"
        .to_owned();
    for (source, title) in SOURCES {
        let _ = write!(page, "\n## {title}\n\n| metric | kind | labels | description |\n|---|---|---|---|\n");
        for Row { kind, name, labels, help, .. } in rows.iter().filter(|row| row.source == source) {
            let _ = writeln!(page, "| `{name}` | {kind} | {labels} | {help} |");
        }
    }
    Ok(page)
}

/// `NAME = Kind Source "name" LABELS, "help"`.
fn metric<'a>(row: &'a str, heads: &str) -> Option<Row<'a>> {
    let (_, row) = row.split_once(" = ")?;
    let mut words = row.splitn(3, ' ');
    let (kind, source) = (words.next()?.to_lowercase(), words.next()?);
    let mut texts = words.next()?.splitn(3, '"').skip(1);
    let (name, rest) = (texts.next()?, texts.next()?);
    let (labels, help) = if rest.trim_start().starts_with('&') {
        let (labels, help) = rest.split_once(']')?;
        (labels.to_owned(), help)
    } else {
        let (name, help) = rest.split_once(',')?;
        let defined = heads.split_once(&format!("const {}: &[&str] = &[", name.trim()))?.1;
        (defined.split(']').next()?.to_owned(), help)
    };
    let labels = labels.split('"').skip(1).step_by(2).collect::<Vec<_>>().join(", ");
    let help = help.split_once('"')?.1.rsplit_once('"')?.0;
    Some(Row { kind, source, name, labels, help })
}

#[cfg(test)]
mod tests {
    use super::metric;

    #[test]
    fn a_metric_is_read_with_its_labels() {
        let heads = "const GROUP: &[&str] = &[\"topic\", \"group\"];";
        let row = metric("    A = Counter Events \"a_total\" GROUP,\n        \"Messages, or `x`.\"", heads)
            .expect("a row");
        assert_eq!((row.kind.as_str(), row.source, row.name), ("counter", "Events", "a_total"));
        assert_eq!((row.labels.as_str(), row.help), ("topic, group", "Messages, or `x`."));
        let row = metric("// Part.\n    B = Gauge Server \"b\" &[\"q\"], \"Help.\"", heads).expect("a row");
        assert_eq!((row.source, row.labels.as_str(), row.help), ("Server", "q", "Help."));
    }
}
