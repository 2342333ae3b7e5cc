//! Metadata of a trigger: what a `ScaledObject` says about the group that it follows.

use std::fmt::Display;
use std::num::NonZeroU32;
use std::str::FromStr;

use millstream_core::{Error, ErrorKind, GroupName, Result, TopicName};

const TOPIC: &str = "topic";
const GROUP: &str = "group";
const TARGET: &str = "targetValue";
const ACTIVATION: &str = "activationTargetValue";

/// Trigger of a `ScaledObject`: a group of a topic, and the backlog from which on it is scaled.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trigger {
    /// The topic: `topic`.
    pub topic: TopicName,
    /// The group: `group`.
    pub group: GroupName,
    /// Backlog for each replica: `targetValue`. KEDA aims at the backlog divided by it.
    pub target: NonZeroU32,
    /// Backlog above which the first replica is started: `activationTargetValue`. Default: 0, so one message is enough.
    pub activation: u64,
}

impl Trigger {
    /// Parses the metadata of a trigger. Keys that it does not know are ignored: KEDA adds some of its own.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] with the key that is missing or wrong.
    pub fn from_metadata<K: AsRef<str>, V: AsRef<str>>(
        metadata: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self> {
        let (mut topic, mut group, mut target, mut activation) = (None, None, None, None);
        for (key, value) in metadata {
            let value = value.as_ref();
            match key.as_ref() {
                TOPIC => topic = Some(parse(TOPIC, value, "a name of a topic")?),
                GROUP => group = Some(parse(GROUP, value, "a name of a group")?),
                TARGET => target = Some(parse(TARGET, value, "a number of messages from 1 to 4294967295")?),
                ACTIVATION => activation = Some(parse(ACTIVATION, value, "a number of messages")?),
                _ => {}
            }
        }
        Ok(Self {
            topic: topic.ok_or_else(|| missing(TOPIC))?,
            group: group.ok_or_else(|| missing(GROUP))?,
            target: target.ok_or_else(|| missing(TARGET))?,
            activation: activation.unwrap_or(0),
        })
    }
}

fn missing(key: &str) -> Error {
    let text = format!(
        "the metadata of the trigger lack {key}: needed are {TOPIC}, {GROUP} and {TARGET}; {ACTIVATION} is optional"
    );
    Error::new(ErrorKind::InvalidConfig, text)
}

fn parse<T: FromStr<Err: Display>>(key: &str, value: &str, wanted: &str) -> Result<T> {
    value.parse().map_err(|error: T::Err| {
        let text = format!("{key} of the trigger is {value:?}, not {wanted}: {error}");
        Error::new(ErrorKind::InvalidConfig, text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_name_a_group_and_a_target() {
        let all = [
            ("topic", "orders"),
            ("group", "billing"),
            ("targetValue", "100"),
            ("scalerAddress", "scaler:9466"),
        ];
        let trigger = Trigger::from_metadata(all).expect("whole");
        assert_eq!((trigger.topic.as_str(), trigger.group.as_str()), ("orders", "billing"));
        assert_eq!((trigger.target.get(), trigger.activation), (100, 0));
        let more = all.into_iter().chain([("activationTargetValue", "7")]);
        assert_eq!(Trigger::from_metadata(more).expect("whole").activation, 7);
        for key in ["topic", "group", "targetValue"] {
            let error = Trigger::from_metadata(all.into_iter().filter(|it| it.0 != key)).expect_err(key);
            assert!(error.to_string().contains(&format!("lack {key}:")), "{error}");
            let wrong = all.map(|it| if it.0 == key { (key, "0 0") } else { it });
            let error = Trigger::from_metadata(wrong).expect_err(key);
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
            assert!(error.to_string().contains(&format!("{key} of the trigger is \"0 0\"")), "{error}");
        }
        assert!(Trigger::from_metadata([("targetValue", "0")]).is_err());
    }
}
