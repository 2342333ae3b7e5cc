//! Who may do what: the answer of the host for each request.

use std::collections::BTreeMap;
use std::fmt;

use millstream::TopicName;

/// What a user may do. Each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Permission {
    /// Look at everything, and change nothing.
    Read,
    /// Also what loses nothing: pause and resume groups, replay dead letters, run retries and tasks now.
    Operate,
    /// Also what loses messages, or handles them again: purge, cancel, reset, edit, and releasing a lock.
    Admin,
}

impl Permission {
    /// Returns the word that the command line and the audit log use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Rights of the user of a request.
///
/// ```
/// use millstream_dashboard::{Access, Permission};
/// # fn example() -> Result<Access, millstream::Error> {
/// // May look at everything, and operate the topic `orders`.
/// let access = Access::read("ann").topic("orders".parse()?, Some(Permission::Operate));
/// # Ok(access)
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Access {
    user: String,
    general: Option<Permission>,
    topics: BTreeMap<TopicName, Option<Permission>>,
}

impl Access {
    /// Returns an access without any right. Single topics can be added.
    #[must_use]
    pub fn none(user: impl Into<String>) -> Self {
        Self { user: user.into(), general: None, topics: BTreeMap::new() }
    }

    /// Returns an access with this right to everything.
    #[must_use]
    pub fn with(user: impl Into<String>, permission: Permission) -> Self {
        Self { general: Some(permission), ..Self::none(user) }
    }

    /// Returns an access that may look at everything.
    #[must_use]
    pub fn read(user: impl Into<String>) -> Self {
        Self::with(user, Permission::Read)
    }

    /// Returns an access with [`Permission::Operate`] to everything.
    #[must_use]
    pub fn operate(user: impl Into<String>) -> Self {
        Self::with(user, Permission::Operate)
    }

    /// Returns an access with [`Permission::Admin`] to everything.
    #[must_use]
    pub fn admin(user: impl Into<String>) -> Self {
        Self::with(user, Permission::Admin)
    }

    /// Sets the right to one topic and its groups, whatever the right to everything is. `None` hides the topic.
    #[must_use]
    pub fn topic(mut self, topic: TopicName, permission: Option<Permission>) -> Self {
        self.topics.insert(topic, permission);
        self
    }

    /// Returns the name of the user, as it is stored in the audit log.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns whether it includes a right to everything that is no topic: queues, locks, the server.
    #[must_use]
    pub fn allows(&self, needed: Permission) -> bool {
        self.general.is_some_and(|has| has >= needed)
    }

    /// Returns whether it includes a right to a topic.
    #[must_use]
    pub fn allows_topic(&self, topic: &TopicName, needed: Permission) -> bool {
        let has = self.topics.get(topic).copied().unwrap_or(self.general);
        has.is_some_and(|has| has >= needed)
    }

    /// Returns whether it includes any right.
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.general.is_some() || self.topics.values().any(Option::is_some)
    }

    /// Returns whether it includes a right to every topic and to everything else.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.general.is_some() && self.topics.values().all(Option::is_some)
    }

    /// Returns the same rights, whoever has them.
    pub(crate) fn anonymous(&self) -> Self {
        Self { user: String::new(), ..self.clone() }
    }

    /// Reduces all rights to at most this one.
    pub(crate) fn at_most(self, most: Permission) -> Self {
        let reduced = |has: Option<Permission>| has.map(|has| has.min(most));
        let topics = self.topics.into_iter().map(|(topic, has)| (topic, reduced(has))).collect();
        Self { general: reduced(self.general), topics, ..self }
    }

    /// Words for what the user may do.
    pub(crate) fn words(&self) -> &'static str {
        match (self.general, self.topics.is_empty()) {
            (Some(permission), true) => permission.as_str(),
            (_, false) => "by topic",
            (None, true) => "nothing",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_to_a_topic_replaces_the_general_one() {
        let (orders, mails): (TopicName, TopicName) =
            ("orders".parse().expect("a name"), "mails".parse().expect("a name"));
        let access = Access::operate("ann").topic(orders.clone(), Some(Permission::Read));
        assert!(
            access.allows_topic(&orders, Permission::Read)
                && !access.allows_topic(&orders, Permission::Operate)
        );
        assert!(
            access.allows_topic(&mails, Permission::Operate)
                && !access.allows_topic(&mails, Permission::Admin)
        );
        let one = Access::none("bob").topic(mails.clone(), Some(Permission::Admin));
        assert!(one.allows_topic(&mails, Permission::Admin) && !one.allows_topic(&orders, Permission::Read));
        assert!(one.is_any() && !one.allows(Permission::Read) && !Access::none("eve").is_any());
        let reduced = one.at_most(Permission::Read);
        assert!(
            reduced.allows_topic(&mails, Permission::Read)
                && !reduced.allows_topic(&mails, Permission::Operate)
        );
        let hidden = Access::admin("ann").topic(orders.clone(), None);
        assert!(!hidden.allows_topic(&orders, Permission::Read));
    }
}
