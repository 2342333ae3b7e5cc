//! The tables of names: on the page, and among themselves.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use millstream_core::span::OperationKind;

use crate::otel::semconv::{ATTRIBUTES, Instrument, SCHEMA_URL, operation_type, span_kind};
use crate::tests::observability::read;

const PAGE: &str = "docs/guides/tracing.md";

/// The tables as the page has them.
fn rendered() -> String {
    let mut text = "\n| span | kind | `messaging.operation.type` |\n|---|---|---|\n".to_owned();
    for kind in OperationKind::ALL {
        let (own, other) = (span_kind(kind, false), span_kind(kind, true));
        let but = if own == other {
            String::new()
        } else {
            format!(", or {other:?} if the message has a context already or is passed on")
        };
        let _ = writeln!(
            text,
            "| `{} {{destination}}` | {own:?}{but} | `{}` |",
            kind.as_str(),
            operation_type(kind)
        );
    }
    text.push_str("\n| attribute | spans | metrics | value |\n|---|---|---|---|\n");
    for row in ATTRIBUTES {
        let all = |is_all: bool, names: Vec<&str>| if is_all { "all".to_owned() } else { names.join(", ") };
        let spans = all(row.spans == OperationKind::ALL, row.spans.iter().map(|it| it.as_str()).collect());
        let short = |it: &Instrument| it.name().strip_prefix("messaging.").expect("the prefix");
        let metrics = all(row.metrics == Instrument::ALL, row.metrics.iter().map(short).collect());
        let _ = writeln!(text, "| `{}` | {spans} | {metrics} | {} |", row.name, row.help);
    }
    text.push_str("\n| metric | unit | description |\n|---|---|---|\n");
    for metric in Instrument::ALL {
        let _ = writeln!(text, "| `{}` | `{}` | {} |", metric.name(), metric.unit(), metric.help());
    }
    text.push('\n');
    text
}

#[test]
fn the_page_has_the_tables_and_the_version() {
    let page = read(PAGE);
    let table = page.split("<!-- table -->").nth(1).expect("the tables stand between two <!-- table -->");
    if table != rendered() {
        println!("{}", rendered());
        panic!("{PAGE} has other tables than the code: put in those that are printed above");
    }
    assert!(page.contains(SCHEMA_URL), "{PAGE} does not name {SCHEMA_URL}");
}

#[test]
fn names_are_those_of_the_conventions_or_in_our_namespace() {
    let mut names = BTreeSet::new();
    for row in ATTRIBUTES {
        assert!(names.insert(row.name), "{} is there twice", row.name);
        assert!(!row.spans.is_empty() && row.help.ends_with('.'), "{}", row.name);
        // Nothing that grows with the number of messages.
        let is_of_a_message = row.name.contains(".message.");
        assert!(!is_of_a_message || row.metrics.is_empty(), "{} on a metric", row.name);
    }
    // docs/messaging of the version that SCHEMA_URL names.
    let conventions = [
        "error.type",
        "messaging.batch.message_count",
        "messaging.consumer.group.name",
        "messaging.destination.name",
        "messaging.destination.partition.id",
        "messaging.message.body.size",
        "messaging.message.id",
        "messaging.operation.name",
        "messaging.operation.type",
        "messaging.system",
        "server.address",
        "server.port",
    ];
    for name in names {
        let is_ours = name.starts_with("messaging.millstream.");
        assert!(is_ours || conventions.contains(&name), "{name}");
    }
}
