//! Requests for snapshots of logs and their groups: calls of the script `look`.

use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::topic::TopicPartition;

use crate::backend::RedisBackend;
use crate::scripts::script;
use crate::snapshots::look::{Answer, Look, read};
use millstream_core::pages::{PageSizer, STEP_BYTES};

/// Number of partitions in the first request, since their entries may be large.
const FIRST: usize = 16;

impl RedisBackend {
    /// Takes a snapshot of each of these partitions.
    pub(super) async fn look_at(&self, partitions: &[TopicPartition]) -> Result<Vec<Look>> {
        self.look(partitions, "").await?.into_iter().collect()
    }

    /// Takes the same snapshots, and identifies the server.
    pub(super) async fn look_and_ask_who(&self, partitions: &[TopicPartition]) -> Result<Vec<Look>> {
        self.look(partitions, "1").await?.into_iter().collect()
    }

    /// Takes the same snapshots, each with an error of its own if its log has a wrong type.
    pub(super) async fn look_at_each(&self, partitions: &[TopicPartition]) -> Result<Vec<Result<Look>>> {
        self.look(partitions, "1").await
    }

    async fn look(&self, partitions: &[TopicPartition], who: &str) -> Result<Vec<Result<Look>>> {
        let (mut looks, mut rest) = (Vec::with_capacity(partitions.len()), partitions);
        // The script copies bodies to read ids. Where bodies are large, few partitions go into one request, since the
        // server works on a request without a break.
        let mut pages = PageSizer::new(STEP_BYTES, FIRST);
        while !rest.is_empty() {
            let (some, later) = rest.split_at(pages.count(rest.len()));
            let answers = self.look_once(some, who, "").await;
            let mut copied = 0;
            for (answer, tp) in answers.into_iter().zip(some) {
                match answer {
                    Ok(Answer { mut look, more, bytes }) => {
                        if more {
                            self.look_on(tp, &mut look).await?;
                        }
                        looks.push(Ok(look));
                        copied += bytes;
                    }
                    Err(error) if error.kind() == ErrorKind::WrongType => looks.push(Err(error)),
                    Err(error) => return Err(error),
                }
            }
            pages.came(some.len(), copied, Duration::ZERO);
            rest = later;
        }
        Ok(looks)
    }

    /// Adds the groups that an answer left out.
    async fn look_on(&self, tp: &TopicPartition, look: &mut Look) -> Result<()> {
        loop {
            let after = look.groups.last().map(|group| group.name.clone()).unwrap_or_default();
            let Some(Answer { look: next, more, .. }) =
                self.look_once(std::slice::from_ref(tp), "", &after).await.pop().transpose()?
            else {
                return Ok(());
            };
            // The log or groups may have been deleted meanwhile.
            let over = !more || next.groups.is_empty();
            look.groups.extend(next.groups);
            if over {
                return Ok(());
            }
        }
    }

    async fn look_once(
        &self,
        partitions: &[TopicPartition],
        who: &str,
        after: impl AsRef<[u8]>,
    ) -> Vec<Result<Answer>> {
        let calls = partitions.iter().map(|tp| {
            let log = self.inner.keys.log(tp);
            self.inner.scripts.look.call([&log]).arg(who).arg(after.as_ref())
        });
        let answers = script::run(&self.inner.pool, calls.collect()).await;
        let looks = answers.into_iter().zip(partitions).map(|(answer, tp)| {
            answer.and_then(read).map_err(|error: Error| error.during(format_args!("look at {tp}")).at(tp))
        });
        looks.collect()
    }
}
