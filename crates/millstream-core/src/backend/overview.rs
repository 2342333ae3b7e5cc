//! Overviews of topics, from whichever roles a backend has.

use crate::backend::Backend;
use crate::catalog::Start;
use crate::error::{Error, Result};
use crate::inspect::{GroupOverview, LogState, Overview, OverviewQuery, Range, Stream};
use crate::name::TopicName;
use crate::topic::TopicPartition;

/// The state of topics.
impl Backend {
    /// Reads the state of topics, in their order. A backend that has [`Inspect::overview`](crate::Inspect::overview) takes a
    /// few requests for all of them; with any other, the roles are asked for one part after the other.
    ///
    /// # Errors
    /// Of each topic its own: [`ErrorKind::NotFound`](crate::ErrorKind::NotFound); errors of reading its settings; transient
    /// ones.
    pub async fn overview(&self, topics: &[TopicName], query: &OverviewQuery) -> Vec<Result<Overview>> {
        if let Ok(inspect) = self.inspect()
            && let Some(all) = inspect.overview(topics, query).await
        {
            return all;
        }
        let mut all = Vec::with_capacity(topics.len());
        for topic in topics {
            all.push(self.overview_by_parts(topic, query).await);
        }
        all
    }

    async fn log_state(&self, tp: &TopicPartition) -> Result<LogState> {
        let length = self.catalog().count(tp, Start::Earliest, None, u64::MAX).await?;
        let Ok(inspect) = self.inspect() else { return Ok(LogState::new(length, None, None)) };
        let end = async |newest_first| {
            let page = inspect.entries(tp, &Stream::Log, Range { newest_first, ..Range::ALL }, 1).await?;
            Ok::<_, Error>(page.items.first().map(|entry| entry.id))
        };
        Ok(LogState::new(length, end(false).await?, end(true).await?))
    }

    /// Reads the same of one topic, asking the roles for one part after the other.
    ///
    /// # Errors
    /// As [`overview`](Self::overview).
    pub async fn overview_by_parts(&self, topic: &TopicName, query: &OverviewQuery) -> Result<Overview> {
        let catalog = self.catalog();
        let mut overview = Overview::new(catalog.topic(topic).await?);
        for tp in overview.topic.iter() {
            overview.logs.push(lasting(self.log_state(&tp).await)?);
            overview.delayed.push(lasting(self.schedule().waiting(&tp.into()).await)?);
        }
        let groups = match &query.group {
            Some(group) => vec![group.clone()],
            None => lasting(catalog.groups(topic).await)?.unwrap_or_else(|error| {
                overview.unlisted = Some(error);
                Vec::new()
            }),
        };
        for group in groups {
            let partitions = lasting(catalog.survey(&overview.topic, &group).await)?;
            let roster = lasting(self.members().roster(topic, &group).await)?;
            let state = lasting(catalog.group_state(topic, &group).await)?;
            let owners = match (query.owners, self.inspect()) {
                (true, Ok(inspect)) => Some(lasting(inspect.owners(&overview.topic, &group).await)?),
                (true, Err(error)) => Some(Err(error)),
                (false, _) => None,
            };
            let members = roster.map(|roster| roster.living().count());
            overview.groups.push(GroupOverview { group, partitions, members, state, owners });
        }
        if query.pins {
            overview.pins = Some(lasting(catalog.pins(&overview.topic).await)?);
        }
        Ok(overview)
    }
}

/// Separates errors: a transient one fails the whole call, any other is the result of this part only.
fn lasting<T>(read: Result<T>) -> Result<Result<T>> {
    match read {
        Err(error) if error.is_transient() => Err(error),
        other => Ok(other),
    }
}
