//! The limit of label sets, labels of one's own, and what is not there any more.

mod support;

use millstream_core::health::{ConsumerState, TopicHealth};
use millstream_core::{Event, Observer};
use millstream_metrics::MetricsConfig;

use support::{Puppet, group, metrics, tp, value};

#[test]
fn what_is_over_the_limit_is_counted_together() {
    let metrics = metrics(&MetricsConfig::default().max_series(3));
    let group = group("g");
    for partition in 0..10 {
        let tp = tp("t", partition);
        metrics.observe(&Event::Fetched {
            topic_partition: &tp,
            group: &group,
            messages: 1 + partition as usize,
            pending: partition % 2 == 1,
        });
    }
    let text = metrics.render();
    let delivered = |partition: &str| {
        value(
            &text,
            &format!("millstream_delivered_total{{topic=\"t\",partition=\"{partition}\",group=\"g\"}}"),
        )
    };
    assert_eq!([delivered("0"), delivered("2"), delivered("3")], [Some(1.0), Some(3.0), None]);
    let other = "{topic=\"other\",partition=\"other\",group=\"other\"}";
    assert_eq!(value(&text, &format!("millstream_delivered_total{other}")), Some(49.0), "4 to 10:\n{text}");
    assert_eq!(value(&text, &format!("millstream_reclaimed_total{other}")), Some(28.0), "4, 6, 8 and 10");
    let over = value(&text, "millstream_series_over_limit_total{metric=\"millstream_delivered_total\"}");
    assert_eq!(over, Some(7.0));
}

#[test]
fn gauges_over_the_limit_are_left_out() {
    let metrics = metrics(&MetricsConfig::default().max_series(2));
    for member in ["a", "b", "c"] {
        Puppet::new("g", member, ConsumerState::Running).start(&metrics);
    }
    let text = metrics.render();
    let ready = |member: &str| {
        value(&text, &format!("millstream_consumer_ready{{group=\"g\",consumer=\"{member}\"}}"))
    };
    assert_eq!([ready("a"), ready("b"), ready("c"), ready("other")], [Some(1.0), Some(1.0), None, None]);
    assert!(text.contains("millstream_series_over_limit_total{metric=\"millstream_consumer_ready\"} 1"));
}

#[test]
fn labels_of_ones_own_are_on_every_series() {
    let metrics = metrics(&MetricsConfig::default().label("service", "a \"b\"\\ü\nc"));
    let topic = "t".parse().expect("name");
    metrics.observe(&Event::Produced { topic: &topic, messages: 7 });
    Puppet::new("g", "m", ConsumerState::Joining).start(&metrics);
    let text = metrics.render();
    let label = "service=\"a \\\"b\\\"\\\\ü\\nc\"";
    assert!(text.contains(&format!("millstream_produced_total{{topic=\"t\",{label}}} 7")), "{text}");
    let series = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    for line in series {
        assert!(line.contains(label), "{line}");
    }
}

#[test]
fn what_is_gone_is_not_a_number() {
    let metrics = metrics(&MetricsConfig::default());
    let puppet = Puppet::new("g", "m", ConsumerState::Running);
    puppet.start(&metrics);
    puppet.set(|health| {
        health.in_flight = 5;
        health.topics.push(TopicHealth::new("t".parse().expect("name")));
    });
    let owned = "millstream_partitions_owned{topic=\"t\",group=\"g\",consumer=\"m\"}";
    let in_flight = "millstream_in_flight{group=\"g\",consumer=\"m\"}";
    let text = metrics.render();
    assert_eq!((value(&text, owned), value(&text, in_flight)), (Some(0.0), Some(5.0)));
    puppet.set(|health| health.topics.clear());
    let text = metrics.render();
    assert!(value(&text, owned).is_some_and(f64::is_nan), "{text}");
    assert_eq!(value(&text, in_flight), Some(5.0));

    puppet.set(|health| health.state = ConsumerState::Ended);
    let live = "millstream_consumer_live{group=\"g\",consumer=\"m\"}";
    assert_eq!(value(&metrics.render(), live), Some(0.0), "nobody asked it to end");
    puppet.set(|health| health.asked_to_end = true);
    let text = metrics.render();
    assert!(value(&text, live).is_some_and(f64::is_nan) && value(&text, in_flight).is_some_and(f64::is_nan));
    assert!(metrics.observer().consumers().is_empty());
}
