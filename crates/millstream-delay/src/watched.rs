//! The loops of a promoter that owns nothing, as others may look at them.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use millstream_core::event::{Event, Observer};
use millstream_core::health::{Failure, LoopHealth, LoopsCheck};
use millstream_core::{Place, TopicName};

use crate::trouble::Trouble;

/// All loops of one promoter, for as long as it is kept.
#[derive(Debug)]
pub(crate) struct Watched(Arc<Loops>);

#[derive(Debug)]
struct Loops {
    topic: TopicName,
    troubles: Mutex<Vec<Trouble>>,
}

/// What outlives the promoter has nothing to say.
struct Check(Weak<Loops>);

impl Watched {
    pub(crate) fn new(topic: TopicName) -> Self {
        Self(Arc::new(Loops { topic, troubles: Mutex::default() }))
    }

    /// A loop begins.
    pub(crate) fn begin(&self, operation: &'static str, place: Option<Place>) -> Trouble {
        let trouble = Trouble::new(operation, place);
        self.0.troubles.lock().unwrap_or_else(PoisonError::into_inner).push(trouble.clone());
        trouble
    }

    pub(crate) fn tell(&self, observer: &dyn Observer) {
        let loops: Arc<dyn LoopsCheck> = Arc::new(Check(Arc::downgrade(&self.0)));
        observer.observe(&Event::LoopsStarted { group: None, loops: &loops });
    }
}

impl LoopsCheck for Check {
    fn loops(&self) -> Vec<LoopHealth> {
        let Some(loops) = self.0.upgrade() else { return Vec::new() };
        let of = |trouble: &Trouble| {
            let mark = trouble.mark();
            let partition = match &mark.place {
                Some(Place::Partition(topic_partition)) => Some(topic_partition.partition),
                _ => None,
            };
            let mut health = LoopHealth::new(mark.operation, loops.topic.clone(), partition);
            health.last_progress = mark.last.elapsed();
            health.failing = mark.failing.map(|(since, error)| Failure { lasts: since.elapsed(), error });
            health.stalled = mark.stalled;
            health
        };
        loops.troubles.lock().unwrap_or_else(PoisonError::into_inner).iter().map(of).collect()
    }
}
