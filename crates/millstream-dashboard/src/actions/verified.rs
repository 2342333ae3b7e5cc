//! Verifications of topics: they run as actions, and their last results are kept for the pages.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use millstream::admin::{Admin, Fault, Loss, Repaired, Verdict, Verified, VerifyOptions};
use millstream::{Error, ErrorKind, Timestamp, TopicName};

use super::Action;

/// Maximum number of topics whose result is kept.
const TOPICS: usize = 256;
/// Number of findings of each fault that are kept: of others there is the number alone.
pub(crate) const KEPT: usize = 10;
/// Time between two updates of the progress.
const PROGRESS: Duration = Duration::from_millis(250);

/// Findings of one fault.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    pub(crate) count: u64,
    /// Those that are not there any more after a repair.
    pub(crate) repaired: u64,
    pub(crate) first: Vec<Verdict>,
}

/// Result of a verification.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) at: Timestamp,
    pub(crate) user: String,
    pub(crate) is_repair: bool,
    pub(crate) is_sound: bool,
    pub(crate) is_repaired: bool,
    /// Whether it ended before everything was examined.
    pub(crate) is_cut: bool,
    pub(crate) examined: u64,
    pub(crate) lost: Loss,
    pub(crate) faults: BTreeMap<Fault, Found>,
}

impl Outcome {
    fn of(verified: Verified, action: &Action, is_repair: bool) -> Self {
        let mut outcome = Self {
            at: Timestamp::from(SystemTime::now()),
            user: action.user.clone(),
            is_repair,
            is_sound: verified.is_sound(),
            is_repaired: verified.is_repaired(),
            is_cut: verified.cut,
            examined: verified.looked_at,
            lost: verified.lost(),
            faults: BTreeMap::new(),
        };
        for verdict in verified.verdicts {
            let found = outcome.faults.entry(verdict.finding.fault).or_default();
            found.count += 1;
            found.repaired += u64::from(matches!(verdict.repaired, Repaired::Yes | Repaired::Gone));
            if found.first.len() < KEPT {
                found.first.push(verdict);
            }
        }
        outcome
    }

    pub(crate) fn findings(&self) -> u64 {
        self.faults.values().map(|found| found.count).sum()
    }
}

/// Last result of each topic, of this process.
#[derive(Debug, Default)]
pub(crate) struct Verifications(Mutex<BTreeMap<TopicName, Arc<Outcome>>>);

impl Verifications {
    fn all(&self) -> std::sync::MutexGuard<'_, BTreeMap<TopicName, Arc<Outcome>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn last(&self, topic: &TopicName) -> Option<Arc<Outcome>> {
        self.all().get(topic).cloned()
    }

    pub(crate) fn forget(&self, topic: &TopicName) {
        self.all().remove(topic);
    }

    fn keep(&self, topic: &TopicName, outcome: Outcome) {
        let mut all = self.all();
        all.insert(topic.clone(), Arc::new(outcome));
        if all.len() > TOPICS
            && let Some(oldest) = all.iter().min_by_key(|(_, it)| it.at).map(|(topic, _)| topic.clone())
        {
            all.remove(&oldest);
        }
    }

    /// Verifies a topic until it ends or the action is cancelled, and keeps the result. A verification that is cancelled has none:
    /// repairs that were made until then stay.
    ///
    /// # Errors
    /// Those of `Admin::verify`.
    pub(crate) async fn run(
        &self,
        admin: Admin,
        topic: &TopicName,
        is_repair: bool,
        action: &Action,
    ) -> millstream::Result<()> {
        let progress = Arc::new(AtomicU64::new(0));
        let options =
            VerifyOptions { repair: is_repair, progress: Some(progress.clone()), ..VerifyOptions::default() };
        let of = topic.clone();
        // The compiler cannot prove that this future may move between threads, so it stays on one.
        let runtime = tokio::runtime::Handle::current();
        let (cancel, is_over) = (action.cancel.clone(), tokio_util::sync::CancellationToken::new());
        let (over, guard) = (is_over.clone(), is_over.clone().drop_guard());
        let verifying = tokio::task::spawn_blocking(move || {
            runtime.block_on(async {
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => None,
                    // Nobody waits for it.
                    () = over.cancelled() => None,
                    verified = admin.verify(&of, options) => Some(verified),
                }
            })
        });
        tokio::pin!(verifying);
        let verified = loop {
            tokio::select! {
                biased;
                verified = &mut verifying => break verified,
                () = tokio::time::sleep(PROGRESS) => action.examined(progress.load(Ordering::Relaxed)),
            }
        };
        drop(guard);
        action.examined(progress.load(Ordering::Relaxed));
        let verified = verified.map_err(|error| Error::new(ErrorKind::Unavailable, error.to_string()))?;
        let Some(verified) = verified.transpose()? else { return Ok(()) };
        let outcome = Outcome::of(verified, action, is_repair);
        let repaired = outcome.faults.values().map(|found| found.repaired).sum();
        action.set(repaired, 0);
        action.examined(outcome.examined);
        let findings = outcome.findings();
        action.note(format!("{findings} {}", if findings == 1 { "finding" } else { "findings" }));
        self.keep(topic, outcome);
        Ok(())
    }
}
