//! The limit of label sets, labels of one's own, and what is not there any more.

use millstream_core::health::{ConsumerState, TopicHealth};
use millstream_core::{Event, Observer};

use super::support::{Puppet, group, metrics, tp, value};
use crate::MetricsConfig;

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
        Puppet::of("t", "g", member, ConsumerState::Running).start(&metrics);
    }
    let text = metrics.render();
    let ready = |member: &str| {
        let labels = format!("topic=\"t\",group=\"g\",consumer=\"{member}\"");
        value(&text, &format!("millstream_consumer_ready{{{labels}}}"))
    };
    assert_eq!([ready("a"), ready("b"), ready("c"), ready("other")], [Some(1.0), Some(1.0), None, None]);
    assert!(text.contains("millstream_series_over_limit_total{metric=\"millstream_consumer_ready\"} 1"));
}

#[test]
fn labels_of_ones_own_are_on_every_series() {
    let metrics = metrics(&MetricsConfig::default().label("service", "a \"b\"\\ü\nc"));
    metrics.observe(&Event::Produced { topic_partition: &tp("t", 0), messages: 7 });
    Puppet::of("t", "g", "m", ConsumerState::Joining).start(&metrics);
    let text = metrics.render();
    let label = "service=\"a \\\"b\\\"\\\\ü\\nc\"";
    assert!(
        text.contains(&format!("millstream_produced_total{{topic=\"t\",partition=\"0\",{label}}} 7")),
        "{text}"
    );
    let series = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    for line in series {
        assert!(line.contains(label), "{line}");
    }
}

#[test]
fn what_is_gone_is_not_a_number() {
    let metrics = metrics(&MetricsConfig::default());
    let puppet = Puppet::of("t", "g", "m", ConsumerState::Running);
    puppet.start(&metrics);
    puppet.set(|health| {
        health.running_handlers = 5;
        health.topics.push(TopicHealth::new("u".parse().expect("name")));
    });
    let of = |metric: &str, topic: &str| {
        let labels = format!("topic=\"{topic}\",group=\"g\",consumer=\"m\"");
        value(&metrics.render(), &format!("millstream_{metric}{{{labels}}}"))
    };
    let running = || value(&metrics.render(), "millstream_handlers_running{group=\"g\",consumer=\"m\"}");
    assert_eq!((of("partitions_owned", "u"), running()), (Some(0.0), Some(5.0)));
    puppet.set(|health| drop(health.topics.pop()));
    assert!(of("partitions_owned", "u").is_some_and(f64::is_nan), "{}", metrics.render());
    assert_eq!((of("partitions_owned", "t"), running()), (Some(0.0), Some(5.0)));

    puppet.set(|health| health.state = ConsumerState::Ended);
    assert_eq!(of("consumer_live", "t"), Some(0.0), "nobody asked it to end");
    puppet.set(|health| health.asked_to_end = true);
    assert!(of("consumer_live", "t").is_some_and(f64::is_nan) && running().is_some_and(f64::is_nan));
    assert!(metrics.observer().consumers().is_empty());
}

#[test]
fn consumers_of_one_name_do_not_wipe_each_other_out() {
    let metrics = metrics(&MetricsConfig::default());
    let all = [("orders", "billing"), ("mails", "billing"), ("orders", "audit"), ("orders", "billing")];
    let puppets = all.map(|(topic, group)| Puppet::of(topic, group, "web", ConsumerState::Running));
    for (nth, puppet) in (1..).zip(&puppets) {
        puppet.set(|health| (health.running_handlers, health.topics[0].in_flight) = (nth, 10 * nth));
        puppet.start(&metrics);
    }
    let of = |metric: &str, topic: &str, group: &str| {
        let labels = format!("topic=\"{topic}\",group=\"{group}\",consumer=\"web\"");
        value(&metrics.render(), &format!("millstream_{metric}{{{labels}}}"))
    };
    for _ in 0..3 {
        let in_flight = all[..3].iter().map(|(topic, group)| of("in_flight", topic, group).expect("there"));
        assert_eq!(in_flight.collect::<Vec<_>>(), [50.0, 20.0, 30.0], "those of one name are added up");
    }
    let running = |group: &str| {
        let labels = format!("group=\"{group}\",consumer=\"web\"");
        value(&metrics.render(), &format!("millstream_handlers_running{{{labels}}}"))
    };
    assert_eq!([running("billing"), running("audit")], [Some(7.0), Some(3.0)]);
    puppets[3].set(|health| health.state = ConsumerState::Fenced);
    assert_eq!(of("consumer_live", "orders", "billing"), Some(0.0), "the worst of them says it");
    assert_eq!(of("consumer_live", "mails", "billing"), Some(1.0));
    // The process has started it again: it is well from now on.
    puppets[0].set(|health| (health.state, health.asked_to_end) = (ConsumerState::Ended, true));
    let again = Puppet::of("orders", "billing", "web", ConsumerState::Running);
    again.start(&metrics);
    assert_eq!(of("consumer_live", "orders", "billing"), Some(1.0));
    assert_eq!(metrics.observer().consumers().len(), 3);
}

#[test]
fn who_starts_and_stops_many_consumers_has_room_for_the_next() {
    let metrics = metrics(&MetricsConfig::default().max_series(3));
    for nth in 0..20 {
        let name = format!("m-{nth}");
        let puppet = Puppet::of("t", "g", &name, ConsumerState::Running);
        puppet.start(&metrics);
        let text = metrics.render();
        let labels = format!("topic=\"t\",group=\"g\",consumer=\"{name}\"");
        assert_eq!(value(&text, &format!("millstream_consumer_ready{{{labels}}}")), Some(1.0), "{name}");
        puppet.set(|health| (health.state, health.asked_to_end) = (ConsumerState::Ended, true));
    }
    assert!(!metrics.render().contains("millstream_series_over_limit_total{"));
}
