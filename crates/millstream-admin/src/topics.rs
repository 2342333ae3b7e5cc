//! Topics as a whole: creating, changing and deleting them.

mod emptiness;
#[cfg(feature = "packing")]
mod train;
mod trim;

use millstream_core::topic::TopicChange;
use millstream_core::{Error, ErrorKind, GroupName, Result, TopicName, TopicSpec};

use crate::Admin;

pub use emptiness::Emptiness;
#[cfg(feature = "packing")]
pub use train::{PackedSize, Trained, Training};
pub use trim::{LostPreview, PartitionTrimmed, TrimPreview};

/// What to do when something is to be deleted that is still in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InUse {
    /// Refuses, and changes nothing. The default.
    #[default]
    Refuse,
    /// Deletes it all the same. Its users receive an error with their next request; what they write after that may be
    /// left behind.
    Force,
}

impl Admin {
    /// Returns all topics, by name.
    ///
    /// # Errors
    /// Transient ones.
    pub async fn topics(&self) -> Result<Vec<TopicName>> {
        self.backend.catalog().topics().await
    }

    /// Returns a topic as stored. [`stats`](Self::stats) returns its current state.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Unsupported`] if a newer version made it; transient ones.
    pub async fn topic(&self, name: &TopicName) -> Result<TopicSpec> {
        self.backend.catalog().topic(name).await
    }

    /// Creates a topic unless it exists, and returns it as stored: an existing topic keeps its settings.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for invalid settings; transient ones.
    pub async fn create_topic(&self, spec: &TopicSpec) -> Result<TopicSpec> {
        self.backend.catalog().create_topic(spec).await
    }

    /// Adds partitions to a topic, and creates its groups on the new ones. See the ordering guide for the effect on keys.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::InvalidConfig`] for fewer partitions than the topic has, or too many;
    /// transient ones.
    pub async fn expand_topic(&self, name: &TopicName, partitions: u32) -> Result<TopicSpec> {
        let stored = self.backend.catalog().topic(name).await?;
        if partitions < stored.partitions {
            let why = format!("topic {name} has {} partitions and cannot have fewer", stored.partitions);
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        self.backend.catalog().expand(name, partitions).await
    }

    /// Changes retention or bound of a topic. Running consumers and producers apply the change within a minute.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::InvalidConfig`] for an invalid setting, in which case nothing is changed;
    /// transient ones.
    pub async fn alter_topic(&self, name: &TopicName, change: &TopicChange) -> Result<TopicSpec> {
        self.backend.catalog().alter_topic(name, change).await
    }

    /// Deletes a topic with all its data: nothing is left behind, and no other keys are touched. Stop its producers
    /// first: they are not registered anywhere, and one that continues creates the log again.
    ///
    /// With [`InUse::Force`] it is also deleted if its settings are invalid, or if its consumers cannot be determined.
    /// All keys under its names are deleted, whatever they hold. But if the settings, the list of partitions or of
    /// groups, or a log has a wrong type, nothing can be done until that key is renamed.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]. [`ErrorKind::Exists`] if it has consumers, unless forced: the message names them, and
    /// nothing was changed. [`ErrorKind::Protocol`] and [`ErrorKind::WrongType`] if its consumers cannot be determined,
    /// unless forced. [`ErrorKind::Unsupported`] if a newer version created it. Transient ones, after which the call
    /// can be repeated.
    pub async fn delete_topic(&self, name: &TopicName, in_use: InUse) -> Result<()> {
        if in_use == InUse::Refuse {
            let spec = match self.backend.catalog().topic(name).await {
                // An earlier deletion was interrupted: the rest is still to be deleted.
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                other => Some(other.map_err(unknown)?),
            };
            if let Some(spec) = spec {
                for group in self.backend.catalog().groups(name).await? {
                    self.refuse_in_use(&spec, &group).await?;
                }
            }
        }
        if self.backend.catalog().delete_topic(name).await? {
            Ok(())
        } else {
            Err(crate::admin::not_found(name))
        }
    }

    /// Fails if a group has live members, or an owner of a partition.
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

    /// Returns the names of a group's live members and of the owners of its partitions, sorted and without duplicates.
    pub(crate) async fn users(&self, spec: &TopicSpec, group: &GroupName) -> Result<Vec<String>> {
        let roster = self.backend.members().roster(&spec.name, group).await?;
        let mut users: Vec<String> = roster.living().map(|member| member.id.to_string()).collect();
        let owners = self.backend.inspect()?.owners(spec, group).await?;
        if let Some(reason) = owners.iter().find_map(|owner| owner.unreadable.clone()) {
            return Err(Error::new(ErrorKind::WrongType, reason).at(&spec.name));
        }
        users.extend(owners.into_iter().filter_map(|owner| Some(owner.holder?.owner)));
        users.sort_unstable();
        users.dedup();
        Ok(users)
    }
}

/// Error for a group whose users cannot be determined.
fn unknown(error: Error) -> Error {
    match error.kind() {
        ErrorKind::WrongType | ErrorKind::Protocol => {
            error.during("its users cannot be determined, so it has to be forced")
        }
        _ => error,
    }
}
