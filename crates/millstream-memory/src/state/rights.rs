//! The right under which a message is handled, whatever it is.

use millstream_core::log::{ProgressRight, Source};
use millstream_core::{Error, ErrorKind, Result};

use super::State;
use crate::results::Results;
use crate::steps::StepTable;

impl State {
    /// Returns the steps of the place of a message, if the right to it is not lost.
    pub(crate) fn steps_under<'a>(&'a mut self, right: &'a ProgressRight) -> Result<&'a mut StepTable> {
        self.results_under(right)?;
        Ok(match right {
            ProgressRight::Owner(lease) => {
                let (topic_partition, group) = lease.partition()?;
                &mut self.partition(topic_partition).group(group).steps
            }
            ProgressRight::Consumer { member, partition, .. } => {
                &mut self.partition(&member.partition(*partition)).group(&member.group).steps
            }
            ProgressRight::Worker { shard, .. } => &mut self.shard(shard).steps,
        })
    }

    /// Returns the results of the place of a message, if the right to it is not lost.
    pub(crate) fn results_under<'a>(&'a mut self, right: &'a ProgressRight) -> Result<&'a mut Results> {
        let lost = |what: String| Error::new(ErrorKind::Fenced, format!("{what} is not ours any more"));
        match right {
            ProgressRight::Owner(lease) => Ok(&mut self.owned(lease)?.0.results),
            ProgressRight::Consumer { member, partition, receipt } => {
                let topic_partition = member.partition(*partition);
                let place = self.partition(&topic_partition);
                let group = place.groups.get(&member.group);
                let cursor = group.and_then(|group| match receipt.source {
                    Source::Log => group.cursor.as_ref(),
                    Source::Retry => Some(&group.retry_cursor),
                });
                let pending = cursor.and_then(|cursor| cursor.pending.get(&receipt.id));
                if pending.is_none_or(|pending| pending.by.as_ref() != Some(&member.consumer)) {
                    return Err(lost(format!("entry {} of {topic_partition}", receipt.id)));
                }
                Ok(&mut place.results)
            }
            ProgressRight::Worker { shard, task, token } => {
                let place = self.shard(shard);
                if place.timetable.claimed.get(task).is_none_or(|claim| claim.token != *token) {
                    return Err(lost(format!("task {task} of {shard}")));
                }
                Ok(&mut place.results)
            }
        }
    }
}
