//! An operator's questions about many topics.

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use millstream::admin::{Browse, Filter, VerifyOptions};
use millstream::metrics::{Metrics, Sampler, SamplerConfig};
use millstream::{GroupName, Millstream, Record, Start, Topic, TopicName};

use super::GROUP;
use crate::args::{Operate, Question};
use crate::measure::{Measured, Stage};
use crate::work::NEEDLE;

/// Number of topics that are asked for at once, as in the commands.
const AT_ONCE: usize = 8;

/// Number of topics of which the lag is asked for together, as in the commands.
const TOGETHER: usize = 64;

/// Number of topics that are filled at once.
const FILLED_AT_ONCE: usize = 32;

/// Number of messages that are sent at once, by all topics together.
const PORTION: u64 = 50_000;

/// Stores what the question is about: topics with a group and messages, or one topic with a message to find.
pub(crate) async fn fill_topics(stage: &Stage, of: &Operate, question: Question) -> Result<()> {
    let mq = stage.connect().await?;
    let topics = if question == Question::Find { 1 } else { of.topics };
    let filled = stream::iter(0..topics).map(|number| fill_topic(&mq, stage, of, number));
    filled.buffer_unordered(FILLED_AT_ONCE).try_collect::<()>().await?;
    if question == Question::Find {
        let producer = mq.producer(topic(of, 0)).await?;
        producer.send(&Bytes::from_static(NEEDLE.as_bytes())).await?;
    }
    Ok(())
}

fn topic(of: &Operate, number: u32) -> Topic<Bytes> {
    Topic::raw("bench").named(format!("bench-{number:05}")).partitions(of.partitions)
}

async fn fill_topic(mq: &Millstream, stage: &Stage, of: &Operate, number: u32) -> Result<()> {
    let producer = mq.producer(topic(of, number)).await?;
    let name: TopicName = topic(of, number).spec()?.name;
    mq.admin().create_group(&name, &GroupName::new(GROUP)?, Start::Earliest).await?;
    let (mut left, all) = (of.messages * u64::from(of.partitions), &stage.payload);
    while left > 0 {
        let now = left.min(PORTION);
        for sent in producer.send_all((0..now).map(|_| Record::new(all))).await {
            sent?;
        }
        left -= now;
    }
    producer.close().await;
    Ok(())
}

/// Answers the question.
pub(crate) async fn operate(stage: &Stage, of: &Operate, question: Question) -> Result<Measured> {
    let mq = stage.connect().await?;
    let admin = &mq.admin();
    let meter = stage.meter().await?;
    // As each command begins.
    let all = admin.topics().await?;
    let topics = stream::iter(all.clone());
    match question {
        Question::Lag => {
            let mut surveys = Vec::with_capacity(all.len());
            for some in all.chunks(TOGETHER) {
                surveys
                    .extend(admin.surveys(some).await.into_iter().collect::<millstream::Result<Vec<_>>>()?);
            }
            let expected = of.messages * u64::from(of.partitions);
            let lags = surveys.iter().flat_map(|survey| &survey.groups);
            let right = lags.filter(|(_, stats)| matches!(stats, Ok(it) if it.totals.lag == Some(expected)));
            ensure!(right.count() == of.topics as usize, "a lag is wrong");
        }
        Question::Memory => {
            let memory = topics.map(|topic| async move { admin.memory(&topic).await });
            memory.buffered(AT_ONCE).try_collect::<Vec<_>>().await?;
        }
        Question::Verify => {
            let verified =
                topics.map(|topic| async move { admin.verify(&topic, VerifyOptions::default()).await });
            let verified: Vec<_> = verified.buffered(AT_ONCE).try_collect().await?;
            ensure!(verified.iter().all(millstream::admin::Verified::is_sound), "a topic is not sound");
        }
        Question::Scrape => {
            let metrics = Metrics::new()?;
            let config = SamplerConfig::default();
            Sampler::new(mq.backend().clone(), metrics.observer(), config)?.run_once().await?;
            ensure!(metrics.render().contains("millstream_lag"), "there is no lag");
        }
        Question::Find => {
            let name = topic(of, 0).spec()?.name;
            let needle = Filter { payload: Some(Bytes::from_static(NEEDLE.as_bytes())), ..Filter::default() };
            // One more than there is, so that all messages are examined.
            let browse = Browse { limit: 2, ..Browse::default() };
            let found = admin.find(&name, &browse, &needle, u64::MAX).await?;
            let all = of.messages * u64::from(of.partitions) + 1;
            ensure!((found.messages.len(), found.looked_at) == (1, all), "looked at {}", found.looked_at);
        }
    }
    meter.stop_answer().await
}
