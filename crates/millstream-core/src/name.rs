//! Validated names: the parts of keys that users choose.
//!
//! The rule is the same for all names: 1 to 128 characters of `A-Z a-z 0-9 . _ -`, in the name of a lock also
//! `: / @ + = , #`, in that of a group also `~`. It excludes every character with a
//! meaning in a Redis key, a hash tag, an ACL pattern or a metrics label (`{ } : * ?`, spaces, control characters), so
//! that no name can move a key to another slot, leave its prefix, or collide with another pair of names. Nothing new may be named
//! `.` or `..`.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use crate::error::{Error, ErrorKind, Location, Result};

/// Longest name, in bytes (all allowed characters are one byte long).
pub const MAX_NAME_LEN: usize = 128;

/// Characters that the name of a lock may contain beside those of all names. It stands at the end of a key, behind the
/// hash tag, so a colon in it cannot be mistaken.
const IN_LOCKS: &str = ":/@+=,#";

/// Character between the name of a group and that of an instance which is a group of its own.
const OF_INSTANCE: &str = "~";

fn check(what: &str, name: &str, also: &str) -> Result<()> {
    let error = |why: String| Err(Error::new(ErrorKind::InvalidName, format!("{what} name {why}")));
    if name.is_empty() {
        return error("is empty".into());
    }
    if name.len() > MAX_NAME_LEN {
        return error(format!("is {} bytes long, at most {MAX_NAME_LEN} are allowed", name.len()));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') || also.contains(c);
    match name.chars().find(|c| !allowed(*c)) {
        Some(c) => {
            let also: String = also.chars().flat_map(|c| [' ', c]).collect();
            error(format!("{name:?} contains {c:?}, only A-Z a-z 0-9 . _ -{also} are allowed"))
        }
        None => Ok(()),
    }
}

fn check_new(what: &str, name: &str) -> Result<()> {
    if !matches!(name, "." | "..") {
        return Ok(());
    }
    let why = format!("{what} name {name:?} is a step in a path: nothing new may have it");
    Err(Error::new(ErrorKind::InvalidName, why))
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        name!($(#[$doc])* $name, $what, "");
    };
    ($(#[$doc:meta])* $name:ident, $what:literal, $also:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `name` against the rule of [this module](self).
            ///
            /// # Errors
            /// [`ErrorKind::InvalidName`] with the reason.
            pub fn new(name: impl AsRef<str>) -> Result<Self> {
                check($what, name.as_ref(), $also)?;
                Ok(Self(Arc::from(name.as_ref())))
            }

            /// Checks the name of something that does not exist yet: `.` and `..` are taken out of addresses by browsers and
            /// proxies, as steps in a path. What has such a name already keeps it.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidName`] for these two.
            pub fn check_new(&self) -> Result<()> {
                check_new($what, &self.0)
            }

            /// Returns the name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = Error;
            fn from_str(name: &str) -> Result<Self> {
                Self::new(name)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

name!(
    /// Name of a topic.
    TopicName,
    "topic"
);
name!(
    /// Name of a consumer group. Groups are independent of each other: each gets every message.
    ///
    /// `cache~7` is the name of a [group of one instance](GroupName::of_instance).
    GroupName,
    "group",
    OF_INSTANCE
);
name!(
    /// Name of one instance of a consumer within its group.
    MemberId,
    "member"
);
name!(
    /// Name of a limit: what it counts, such as `tenant`.
    LimitName,
    "limit"
);
name!(
    /// Name of a delay queue.
    QueueName,
    "queue"
);
name!(
    /// Name of a lock: `invoice:42`. Any number of names can be in use; a lock that nobody holds leaves nothing behind.
    LockName,
    "lock",
    IN_LOCKS
);
name!(
    /// Prefix of all keys, so that tenants or environments can share one server: `shop:stream:topic:…`.
    Namespace,
    "namespace"
);

/// Group of all tasks of a queue. No group of a topic can have this name, so their operations never meet.
const OF_TASKS: &str = "@tasks";

impl GroupName {
    /// Returns the group in the place of which a delay queue handles its tasks: in their operations, and in what layers see. It is
    /// `@tasks`, which no group of a topic can be named.
    #[must_use]
    pub fn of_tasks() -> Self {
        static OF_ALL: LazyLock<Arc<str>> = LazyLock::new(|| Arc::from(OF_TASKS));
        Self(OF_ALL.clone())
    }

    /// Returns the name of the group of one instance of this group: `cache~7`. Each instance has a group of its own, so each gets
    /// every message. Such a group keeps no entry from being dropped: what it has not read or settled by then is lost to it, and
    /// counted.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for the name of an instance that is none, or is too long together with that of the group.
    pub fn of_instance(&self, instance: &str) -> Result<Self> {
        check("instance", instance, "")?;
        Self::new(format!("{self}{OF_INSTANCE}{instance}"))
    }

    /// Returns whether it is the group of one [instance](Self::of_instance), which keeps no entries.
    #[must_use]
    pub fn is_instance(&self) -> bool {
        self.0.contains(OF_INSTANCE)
    }
}

impl TopicName {
    /// Returns the name of a queue in the place of a topic: in the operations of its tasks, and in what layers see.
    #[must_use]
    pub fn of_queue(queue: &QueueName) -> Self {
        Self(queue.0.clone())
    }

    /// Name of the topic in which dashboards record what their users do, unless they are given another one.
    pub const AUDIT: &str = "millstream-audit";

    /// Returns whether it is the name of an audit log of dashboards: [`AUDIT`](Self::AUDIT), or one that begins with it and a
    /// hyphen. So each program knows an audit log, also if the dashboard is another process.
    #[must_use]
    pub fn is_audit(&self) -> bool {
        self.as_str().strip_prefix(Self::AUDIT).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    /// Checks that messages may be sent to this topic. They may not to an [audit log](Self::is_audit): only dashboards write
    /// there, so whoever reads it can believe it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for such a topic.
    pub fn check_target(&self) -> Result<()> {
        if !self.is_audit() {
            return Ok(());
        }
        let why = format!("topic {self} is the audit log of dashboards: nothing else may be sent to it");
        Err(Error::new(ErrorKind::InvalidName, why))
    }
}

impl From<&TopicName> for Location {
    fn from(topic: &TopicName) -> Self {
        Self { topic: topic.0.clone(), partition: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_means_something_in_a_key_is_refused() {
        for bad in ["", "a:b", "a{b}", "a b", "a*", "a\0", "ü", "a\n", "x/y"] {
            let error = TopicName::new(bad).expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::InvalidName);
        }
        assert!(GroupName::new("a".repeat(MAX_NAME_LEN)).is_ok());
        let error = GroupName::new("a".repeat(MAX_NAME_LEN + 1)).expect_err("too long");
        assert_eq!(error.to_string(), "group name is 129 bytes long, at most 128 are allowed");
    }

    #[test]
    fn steps_of_a_path_are_names_of_nothing_new() {
        for (name, is_new) in
            [(".", false), ("..", false), ("...", true), (".a", true), ("a.", true), ("-", true)]
        {
            let checked = [
                TopicName::new(name).expect("a name").check_new(),
                GroupName::new(name).expect("a name").check_new(),
                QueueName::new(name).expect("a name").check_new(),
            ];
            let expected = if is_new { Ok(()) } else { Err(ErrorKind::InvalidName) };
            assert_eq!(checked.map(|it| it.map_err(|error| error.kind())), [expected; 3], "{name}");
        }
    }

    #[test]
    fn a_lock_may_have_a_name_in_parts() {
        for good in ["invoice:42", "eu/orders", "a@b", "x=1,y=2", "a+b#c"] {
            assert_eq!(LockName::new(good).expect(good).as_str(), good);
        }
        for bad in ["", "a{b}", "a b", "a*", "a?", "[a]", "a\\", "\u{fc}"] {
            let error = LockName::new(bad).expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::InvalidName);
        }
    }

    #[test]
    fn the_group_of_an_instance_shows_in_its_name() {
        let cache = GroupName::new("cache").expect("a name");
        let of_one = cache.of_instance("pod-7").expect("a name");
        assert_eq!(
            (of_one.as_str(), of_one.is_instance(), cache.is_instance()),
            ("cache~pod-7", true, false)
        );
        assert_eq!(GroupName::new("cache~pod-7").expect("a name"), of_one);
        for bad in ["", "a~b", "a:b", &"a".repeat(MAX_NAME_LEN - 5)] {
            assert!(cache.of_instance(bad).is_err(), "{bad}");
        }
        assert!(TopicName::new("a~b").is_err() && MemberId::new("a~b").is_err());
    }

    #[test]
    fn the_audit_log_is_no_target() {
        let names = [
            ("millstream-audit", false),
            ("millstream-audit-shop", false),
            ("millstream-audits", true),
            ("audit", true),
        ];
        for (name, is_target) in names {
            let checked = TopicName::new(name).expect("a name").check_target();
            let expected = if is_target { Ok(()) } else { Err(ErrorKind::InvalidName) };
            assert_eq!(checked.map_err(|error| error.kind()), expected, "{name}");
        }
    }

    #[test]
    fn the_error_names_the_character() {
        let error = TopicName::new("orders:eu").expect_err("a colon");
        assert_eq!(
            error.to_string(),
            "topic name \"orders:eu\" contains ':', only A-Z a-z 0-9 . _ - are allowed"
        );
    }

    proptest! {
        #[test]
        fn a_name_is_kept_as_it_is(name in "[A-Za-z0-9._-]{1,128}") {
            let topic = TopicName::new(&name).expect("valid");
            prop_assert_eq!(topic.as_str(), name.as_str());
        }
    }
}
