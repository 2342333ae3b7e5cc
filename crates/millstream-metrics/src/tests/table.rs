//! The table of metrics keeps to the conventions.

use std::collections::BTreeSet;

use crate::{Kind, table};

/// `OpenMetrics` names a family of counters without `_total`, so a gauge of that name would be the same family.
#[test]
fn no_two_metrics_are_one_family() {
    let mut families = BTreeSet::new();
    for metric in table::ALL {
        let family = metric.name.strip_suffix("_total").unwrap_or(metric.name);
        assert!(families.insert(family), "two metrics are of the family {family}");
    }
}

#[test]
fn names_labels_and_texts_keep_to_the_conventions() {
    let mut names = BTreeSet::new();
    for metric in table::ALL {
        let name = metric.name;
        assert!(names.insert(name), "{name} is there twice");
        let rest = name.strip_prefix("millstream_").expect("our prefix");
        assert!(rest.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
        assert_eq!(metric.kind == Kind::Counter, name.ends_with("_total"), "{name}");
        let unit = name.ends_with("_seconds") || name.ends_with("_messages");
        assert_eq!(metric.kind == Kind::Histogram, unit && metric.kind != Kind::Gauge, "{name}");
        assert!(!name.contains("_ms") && !name.contains("millis"), "{name}: base units");
        assert!(metric.help.ends_with('.') && metric.help.starts_with(char::is_alphanumeric), "{name}");
        assert!(metric.buckets().windows(2).all(|pair| pair[0] < pair[1]), "{name}");
        assert_eq!(metric.kind == Kind::Histogram, !metric.buckets().is_empty(), "{name}");
        for label in metric.labels {
            assert!(!["le", "quantile", "instance", "job"].contains(label), "{name}: {label} is taken");
        }
    }
}
