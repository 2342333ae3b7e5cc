//! The dashboard, the alerts and the page on metrics are about metrics that there are, with labels that these have.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use crate::{Kind, Metric, table};

/// Labels of the process that is scraped.
const OF_TARGET: [&str; 3] = ["job", "namespace", "instance"];

pub(super) fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The queries of the dashboard.
fn of_dashboard() -> Vec<String> {
    fn walk(value: &serde_json::Value, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(map) => {
                for (key, value) in map {
                    match value {
                        serde_json::Value::String(text) if ["expr", "definition"].contains(&&**key) => {
                            found.push(text.clone());
                        }
                        value => walk(value, found),
                    }
                }
            }
            serde_json::Value::Array(list) => list.iter().for_each(|value| walk(value, found)),
            _ => {}
        }
    }
    let dashboard = serde_json::from_str(&read("docs/observability/grafana.json")).expect("JSON");
    let mut found = Vec::new();
    walk(&dashboard, &mut found);
    found
}

/// The queries of the alerts: what stands behind `expr:`, on one line or folded below it.
fn of_alerts() -> Vec<String> {
    let text = read("docs/observability/alerts.yml");
    let mut queries: Vec<String> = Vec::new();
    let mut folded = None;
    for line in text.lines() {
        let depth = line.len() - line.trim_start().len();
        if let Some(query) = line.trim_start().strip_prefix("expr: ") {
            folded = (query == ">-").then_some(depth);
            queries.push(if folded.is_some() { String::new() } else { query.to_owned() });
        } else if folded.is_some_and(|at| depth > at) {
            let _ = write!(queries.last_mut().expect("begun"), " {}", line.trim());
        } else {
            folded = None;
        }
    }
    let alerts = text.lines().filter(|line| line.trim_start().starts_with("- alert: ")).count();
    assert_eq!(queries.len(), alerts, "each alert has a query");
    queries
}

/// The metric that a name in a query means: of a histogram its parts.
fn metric(name: &str) -> Option<&'static Metric> {
    table::ALL.iter().find(|metric| match metric.kind {
        Kind::Histogram => {
            name.strip_prefix(metric.name).is_some_and(|part| ["_bucket", "_sum", "_count"].contains(&part))
        }
        _ => metric.name == name,
    })
}

fn words(query: &str) -> impl Iterator<Item = (usize, &str)> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    query.split(move |c| !word(c)).filter(|word| !word.is_empty()).map(|word| {
        let at = word.as_ptr() as usize - query.as_ptr() as usize;
        (at, word)
    })
}

/// What is wrong with a query: names that there are not, selectors and groupings by labels that its metrics do not have.
fn problems(query: &str) -> Vec<String> {
    let mut problems = Vec::new();
    // With those that Prometheus adds to where a series comes from.
    let mut labels: BTreeSet<&str> = ["le"].into_iter().chain(OF_TARGET).collect();
    let mut any = false;
    for (at, name) in words(query).filter(|(_, word)| word.starts_with("millstream_")) {
        any = true;
        let Some(metric) = metric(name) else {
            problems.push(format!("no metric {name}"));
            continue;
        };
        labels.extend(metric.labels);
        let Some(selector) = query[at + name.len()..].strip_prefix('{') else { continue };
        let selector = selector.split('}').next().unwrap_or_default();
        for part in selector.split(',') {
            let label = part.split(['=', '!', '~']).next().unwrap_or_default().trim();
            if !metric.labels.contains(&label) && !OF_TARGET.contains(&label) {
                problems.push(format!("{name} has no label {label:?}"));
            }
        }
    }
    if !any {
        problems.push("about no metric of ours".into());
    }
    for part in query.split("by (").skip(1).chain(query.split("on (").skip(1)) {
        for label in part.split(')').next().unwrap_or_default().split(',').map(str::trim) {
            if !labels.contains(label) {
                problems.push(format!("grouped by {label:?}, which none of the metrics has"));
            }
        }
    }
    problems
}

#[test]
fn the_dashboard_asks_for_what_there_is() {
    let queries = of_dashboard();
    assert!(queries.len() > 40, "{} queries", queries.len());
    let wrong: Vec<_> =
        queries.iter().map(|query| (query, problems(query))).filter(|(_, it)| !it.is_empty()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn the_alerts_ask_for_what_there_is() {
    let queries = of_alerts();
    assert!(queries.len() > 15, "{} queries", queries.len());
    let wrong: Vec<_> =
        queries.iter().map(|query| (query, problems(query))).filter(|(_, it)| !it.is_empty()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Two environments may have topics of the same names: no query adds them up.
#[test]
fn nothing_is_added_over_environments() {
    let kept = |query: &String, labels: &[&str]| {
        query.split("by (").skip(1).all(|part| {
            let part = part.split(')').next().unwrap_or_default();
            labels.iter().all(|label| part.split(',').any(|it| it.trim() == *label))
        })
    };
    let alerts: Vec<_> =
        of_alerts().into_iter().filter(|query| !kept(query, &["job", "namespace"])).collect();
    assert!(alerts.is_empty(), "{alerts:#?}");
    let selected = |query: &String| {
        let metrics = query.matches("millstream_").count();
        let of_panel = query.matches("namespace=~\"$namespace\"").count() == metrics;
        of_panel || query.starts_with("label_values(millstream_sample_age_seconds")
    };
    let dashboard: Vec<_> = of_dashboard().into_iter().filter(|query| !selected(query)).collect();
    assert!(dashboard.is_empty(), "{dashboard:#?}");
}

/// Whoever follows an alert looks at the dashboard for what led to it.
#[test]
fn the_dashboard_has_every_metric_of_the_alerts() {
    let names = |queries: &[String]| -> BTreeSet<String> {
        let all = queries.iter().flat_map(|query| words(query));
        all.map(|(_, word)| word.to_owned()).filter(|word| word.starts_with("millstream_")).collect()
    };
    let (alerts, dashboard) = (names(&of_alerts()), names(&of_dashboard()));
    let missing: Vec<_> = alerts.difference(&dashboard).collect();
    assert!(missing.is_empty(), "the dashboard does not show {missing:?}");
}

#[test]
fn a_query_for_what_there_is_not_is_found() {
    for (query, expected) in [
        ("sum(millstream_lagg)", "no metric millstream_lagg"),
        ("sum(millstream_handler_seconds)", "no metric millstream_handler_seconds"),
        ("rate(millstream_acked_total{queue=\"x\"}[5m])", "millstream_acked_total has no label \"queue\""),
        ("sum by (topic, colour) (millstream_lag)", "grouped by \"colour\", which none of the metrics has"),
        ("up == 0", "about no metric of ours"),
    ] {
        assert_eq!(problems(query), [expected], "{query}");
    }
}

#[test]
fn every_alert_is_explained() {
    let (alerts, page) = (read("docs/observability/alerts.yml"), read("docs/guides/metrics.md"));
    let names = alerts.lines().filter_map(|line| line.trim_start().strip_prefix("- alert: "));
    let missing: Vec<_> = names.filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/guides/metrics.md says nothing of {missing:?}");
}
