//! The file of a group's positions.

use std::collections::BTreeMap;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::{MessageId, Partition, TopicName};

/// Parses positions of partitions: a line of topic, partition and id for each, as [`group_positions`](crate::Admin::group_positions) has
/// them and `millstream group positions` prints them, such as `orders,0,1700000000000-0`. Empty lines are skipped.
///
/// # Errors
/// [`ErrorKind::InvalidConfig`], which names the line: it is none, of another topic, or of a partition that was there; or there is no
/// line.
pub fn parse_positions(topic: &TopicName, text: &str) -> Result<BTreeMap<Partition, MessageId>> {
    let mut positions = BTreeMap::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let fail = |why: String| {
            let why = format!("line {} of the positions: {why}", at + 1);
            Err(Error::new(ErrorKind::InvalidConfig, why))
        };
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [of, partition, id] = fields[..] else {
            return fail(format!("{line:?} is not a topic, a partition and a position"));
        };
        if of != topic.as_str() {
            return fail(format!("it is of topic {of:?}, not of {topic}"));
        }
        let Ok(partition) = partition.parse() else {
            return fail(format!("{partition:?} is no partition"));
        };
        let Ok(id) = id.parse() else {
            return fail(format!("{id:?} is no position, such as 1700000000000-0"));
        };
        if positions.insert(Partition(partition), id).is_some() {
            return fail(format!("partition {partition} is there twice"));
        }
    }
    match positions.is_empty() {
        true => Err(Error::new(ErrorKind::InvalidConfig, "the positions are empty")),
        false => Ok(positions),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_lines_of_one_topic() {
        let topic = &"orders".parse().expect("a name");
        let parsed = parse_positions(topic, "orders,0,5-1\n\n orders, 7 ,9-0\r\n").expect("positions");
        let id = |text: &str| text.parse().expect("an id");
        assert_eq!(parsed, BTreeMap::from([(Partition(0), id("5-1")), (Partition(7), id("9-0"))]));
        for (wrong, why) in [
            ("", "empty"),
            ("orders,0", "line 1 of the positions: \"orders,0\" is not"),
            ("orders,0,1-0\nmails,1,1-0", "line 2 of the positions: it is of topic \"mails\""),
            ("orders,x,1-0", "\"x\" is no partition"),
            ("orders,-1,1-0", "\"-1\" is no partition"),
            ("orders,0,here", "\"here\" is no position"),
            ("orders,0,1-0\norders,0,2-0", "partition 0 is there twice"),
            ("orders,0,1-0,2-0", "is not a topic"),
        ] {
            let error = parse_positions(topic, wrong).expect_err(wrong).to_string();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
