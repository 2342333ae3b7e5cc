//! Topics as a whole: created, changed, deleted.

use millstream_core::topic::TopicChange;
use millstream_core::{Error, ErrorKind, GroupName, Result, TopicName, TopicSpec};

use crate::Admin;

/// Whether something is deleted that is still in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InUse {
    /// Then it is refused, and nothing is done. The default.
    #[default]
    Refuse,
    /// It is deleted all the same. Who uses it is told by the first request that fails; what it writes after that may
    /// stay behind.
    Force,
}

impl Admin {
    /// All topics, by name.
    ///
    /// # Errors
    /// Transient ones.
    pub async fn topics(&self) -> Result<Vec<TopicName>> {
        self.backend.catalog.topics().await
    }

    /// A topic as it is stored. [`stats`](Self::stats) says how it stands.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Unsupported`] if a newer version made it; transient ones.
    pub async fn topic(&self, name: &TopicName) -> Result<TopicSpec> {
        self.backend.catalog.topic(name).await
    }

    /// Creates a topic unless it is there, and gives it back as it is stored: the first settings win.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for settings that make no sense; transient ones.
    pub async fn create_topic(&self, spec: &TopicSpec) -> Result<TopicSpec> {
        self.backend.catalog.create_topic(spec).await
    }

    /// Gives a topic more partitions, and all of its groups a place on the new ones; see the ordering guide for what
    /// that does to keys.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::InvalidConfig`] for fewer partitions than it has, or too many; transient
    /// ones.
    pub async fn expand_topic(&self, name: &TopicName, partitions: u32) -> Result<TopicSpec> {
        let stored = self.backend.catalog.topic(name).await?;
        if partitions < stored.partitions {
            let why = format!("topic {name} has {} partitions and cannot have fewer", stored.partitions);
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        self.backend.catalog.expand(name, partitions).await
    }

    /// Changes retention or bound of a topic. Consumers and producers that run go by it within a minute.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::InvalidConfig`] for a setting that makes no sense: nothing was changed;
    /// transient ones.
    pub async fn alter_topic(&self, name: &TopicName, change: &TopicChange) -> Result<TopicSpec> {
        self.backend.catalog.alter_topic(name, change).await
    }

    /// Deletes a topic with everything that is kept for it: nothing is left behind, and nobody else's keys are touched.
    /// Stop its producers first: nobody knows of them, and one that goes on brings the log back.
    ///
    /// Forced, it also goes if its settings make no sense, or if nobody can say who consumes it. All that stands under one
    /// of its names goes, whatever it holds; only where the settings, the list of partitions or of groups, or a log is of a
    /// foreign type, nothing can be done before that key is renamed.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Exists`] if somebody consumes it, unless it is forced: who, is said, and
    /// nothing was done. [`ErrorKind::Protocol`] and [`ErrorKind::WrongType`] if that cannot be found out, unless it is
    /// forced. [`ErrorKind::Unsupported`] if a newer version made it. Transient ones, after which it can be asked again.
    pub async fn delete_topic(&self, name: &TopicName, in_use: InUse) -> Result<()> {
        if in_use == InUse::Refuse {
            let spec = match self.backend.catalog.topic(name).await {
                // Stopped half-way before: the rest is still to be done.
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                other => Some(other.map_err(unknown)?),
            };
            if let Some(spec) = spec {
                for group in self.backend.catalog.groups(name).await? {
                    self.refuse_in_use(&spec, &group).await?;
                }
            }
        }
        if self.backend.catalog.delete_topic(name).await? {
            Ok(())
        } else {
            Err(crate::admin::not_found(name))
        }
    }

    /// Fails if somebody lives in a group, or has a partition of it.
    pub(crate) async fn refuse_in_use(&self, spec: &TopicSpec, group: &GroupName) -> Result<()> {
        let users = self.users(spec, group).await.map_err(unknown)?;
        if users.is_empty() {
            return Ok(());
        }
        let who = users.join(", ");
        let why =
            format!("group {group} of topic {} is in use by {who}: stop them first, or force it", spec.name);
        Err(Error::new(ErrorKind::Exists, why))
    }

    /// The names of those who live in a group or have a partition of it, in order and once each.
    pub(crate) async fn users(&self, spec: &TopicSpec, group: &GroupName) -> Result<Vec<String>> {
        let roster = self.backend.members.roster(&spec.name, group).await?;
        let mut users: Vec<String> = roster.living().map(|member| member.id.to_string()).collect();
        let owners = self.backend.inspect.owners(spec, group).await?;
        users.extend(owners.into_iter().filter_map(|owner| Some(owner.holder?.owner)));
        users.sort_unstable();
        users.dedup();
        Ok(users)
    }
}

/// Why it is not known who uses something.
fn unknown(error: Error) -> Error {
    match error.kind() {
        ErrorKind::WrongType | ErrorKind::Protocol => {
            error.during("it cannot be found out who uses it, so it has to be forced")
        }
        _ => error,
    }
}
