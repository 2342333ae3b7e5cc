//! Takes the notes of members that ended to their batches.
//!
//! A note is removed only after its batch has the end of the member, and a batch takes the same end again without an effect: so a crash in between
//! costs one more request and nothing else. Several clients may work on the notes of one place.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use millstream_core::batches::{BatchId, BatchNote, EndedMember, MAX_ENDS, Noted};
use millstream_core::event::Observer;
use millstream_core::sorted::SortedMap;
use millstream_core::{Backend, Capability, Error, ErrorKind, MessageId, Place, Result, WorkId};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::monitor::{LoopMonitor, Scope};
use crate::panics::catch_panic;

/// How often who works on a place looks for notes that others have left: of a process that ended before it had taken them away, or of a
/// batch that was sealed elsewhere.
pub const LOOK_EVERY: Duration = Duration::from_secs(300);

/// Pause after a failure that does not pass by itself: a missing right, or a key that holds something else.
const REFUSED: Duration = Duration::from_secs(300);

/// Batches that are asked at the same time.
const AT_ONCE: usize = 8;

/// Takes notes to their batches, in tasks of its own. When it is dropped, they end what they have begun; what fails then is left to others.
pub struct NoteForwarder {
    shared: Arc<Shared>,
    _end: DropGuard,
}

struct Shared {
    backend: Backend,
    observer: Arc<dyn Observer>,
    /// Places that are worked on, and whether there may be more by now.
    busy: Mutex<HashMap<Place, bool>>,
    /// Batches that have refused their notes, until when they are not asked again: others go on meanwhile.
    refusing: Mutex<HashMap<BatchId, Instant>>,
    /// Notified when nothing is worked on any more.
    idle: Notify,
    end: CancellationToken,
}

impl NoteForwarder {
    /// Creates one; `None` if the backend has no batches.
    #[must_use]
    pub fn of(backend: &Backend, observer: &Arc<dyn Observer>) -> Option<Self> {
        let end = CancellationToken::new();
        backend.supports(Capability::Batches).then(|| Self {
            _end: end.clone().drop_guard(),
            shared: Arc::new(Shared {
                backend: backend.clone(),
                observer: observer.clone(),
                busy: Mutex::default(),
                refusing: Mutex::default(),
                idle: Notify::new(),
                end,
            }),
        })
    }

    /// Says that there are notes at a place, or that there may be.
    pub fn wake(&self, place: impl Into<Place>) {
        Shared::wake(&self.shared, place.into());
    }

    /// Waits until all notes that it knows of are taken away, but not longer than this: others find the rest.
    pub async fn finish(&self, within: Duration) {
        let idle = async {
            loop {
                let mut idle = std::pin::pin!(self.shared.idle.notified());
                // Before the look: what ends behind it is not missed.
                idle.as_mut().enable();
                if self.shared.busy().is_empty() {
                    return;
                }
                idle.await;
            }
        };
        // Whoever has the place next finds them.
        let _ = timeout(within, idle).await;
    }
}

impl Shared {
    fn busy(&self) -> MutexGuard<'_, HashMap<Place, bool>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(shared: &Arc<Self>, place: Place) {
        if let Some(more) = shared.busy().get_mut(&place) {
            *more = true;
            return;
        }
        shared.busy().insert(place.clone(), false);
        let shared = shared.clone();
        tokio::spawn(async move {
            Self::work(&shared, &place).await;
            shared.idle.notify_waiters();
        });
    }

    async fn work(shared: &Arc<Self>, place: &Place) {
        let scope = match place {
            Place::Partition(topic_partition) => Scope::Partition(topic_partition.clone()),
            Place::Shard(shard) => Scope::Shard(shard.clone()),
        };
        let monitor = LoopMonitor::unlisted("forward_notes", scope);
        loop {
            let refuses = |batch: &BatchId| shared.refuses(batch);
            let passed = catch_panic(async { Ok(pass(&shared.backend, place, refuses).await) }).await;
            let Passed { parents, refused, failed } =
                passed.unwrap_or_else(|error| Passed { failed: Some(error), ..Passed::default() });
            // Their notes are at the batches that have left them.
            parents.into_iter().for_each(|parent| Self::wake(shared, parent));
            for (batch, error) in refused {
                tracing::warn!(%place, %batch, %error, "a batch refuses the ends of its members: it is asked again in five minutes");
                shared.refusing().insert(batch, Instant::now() + REFUSED);
            }
            let Some(error) = failed else {
                monitor.succeeded(&*shared.observer);
                let mut busy = shared.busy();
                match busy.get_mut(place) {
                    Some(more) if *more => *more = false,
                    // Under the lock: a call behind this begins anew.
                    _ => {
                        busy.remove(place);
                        return;
                    }
                }
                continue;
            };
            let pause = monitor.failed(&error, &*shared.observer);
            tokio::select! {
                biased;
                () = shared.end.cancelled() => {
                    shared.busy().remove(place);
                    return;
                }
                () = sleep(if error.is_transient() { pause } else { REFUSED }) => {}
            }
        }
    }

    fn refusing(&self) -> MutexGuard<'_, HashMap<BatchId, Instant>> {
        self.refusing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuses(&self, batch: &BatchId) -> bool {
        let mut refusing = self.refusing();
        let now = Instant::now();
        refusing.retain(|_, until| *until > now);
        refusing.contains_key(batch)
    }
}

/// Takes the notes of a place to their batches, once, for a batch that has just ended.
///
/// # Errors
/// The first one: notes that it concerns stay.
pub(super) async fn forward(backend: &Backend, place: &Place) -> Result<()> {
    let Passed { failed, mut refused, .. } = pass(backend, place, |_| false).await;
    failed.or(refused.pop().map(|(_, error)| error)).map_or(Ok(()), Err)
}

/// What came of taking all notes of a place to their batches.
#[derive(Default)]
struct Passed {
    /// Places where batches have left notes for their own.
    parents: Vec<Place>,
    /// Batches that take nothing, for a reason that does not pass by itself: a right is missing, or a key holds something else.
    refused: Vec<(BatchId, Error)>,
    /// The first other error: the notes that it concerns stay.
    failed: Option<Error>,
}

async fn pass(backend: &Backend, place: &Place, refuses: impl Fn(&BatchId) -> bool) -> Passed {
    let (mut passed, mut after) = (Passed::default(), None);
    loop {
        let notes = match backend.batches() {
            Ok(role) => role.notes(place, after, MAX_ENDS).await,
            Err(error) => Err(error),
        };
        let notes = match notes {
            Ok(notes) => notes,
            Err(error) => {
                passed.failed = passed.failed.or(Some(error));
                return passed;
            }
        };
        let Some(last) = notes.last() else { return passed };
        after = Some(last.id);
        let is_last = notes.len() < MAX_ENDS;
        pass_some(backend, place, notes, &refuses, &mut passed).await;
        if is_last {
            return passed;
        }
    }
}

async fn pass_some(
    backend: &Backend,
    place: &Place,
    notes: Vec<BatchNote>,
    refuses: &impl Fn(&BatchId) -> bool,
    passed: &mut Passed,
) {
    let Ok(role) = backend.batches() else { return };
    let mut of_batches: SortedMap<BatchId, (Vec<MessageId>, Vec<EndedMember>)> = SortedMap::default();
    let mut forgotten = Vec::new();
    for BatchNote { id, said } in notes {
        match said {
            Some(Noted::Ended(batch, _)) if refuses(&batch) => {}
            Some(Noted::Ended(batch, member)) => {
                let (ids, ended) = of_batches.get_or_insert_with(batch, Default::default);
                ids.push(id);
                ended.push(member);
            }
            Some(Noted::Complete(waiting, name)) => match signal(backend, &waiting, &name).await {
                Ok(()) => forgotten.push(id),
                Err(error) if error.is_transient() || error.kind() == ErrorKind::Unconfirmed => {
                    passed.failed = passed.failed.take().or(Some(error));
                }
                // Its note stays, and others are taken on.
                Err(error) => {
                    tracing::warn!(%waiting, name, %error, "a message that waits for a step cannot be signalled: it is tried again later");
                }
            },
            None => {
                tracing::warn!(%place, %id, "a note about a member of a batch cannot be read, and is dropped");
                forgotten.push(id);
            }
        }
    }
    // Several at a time, so that one whose server hangs holds up few.
    let ended = stream::iter(of_batches).map(|(batch, notes)| {
        let role = role.clone();
        async move {
            let (notes, ends) = notes;
            let ended = role.end_members(&batch, &ends).await;
            (batch, notes, ended)
        }
    });
    let mut ended = std::pin::pin!(ended.buffered(AT_ONCE));
    while let Some((batch, notes, ended)) = ended.next().await {
        match ended {
            Ok(ended) => {
                if ended.is_none() {
                    tracing::debug!(%place, %batch, members = notes.len(), "members ended of a batch that is gone");
                }
                if ended == Some(true) {
                    passed.parents.push(batch.place.into());
                }
                forgotten.extend(notes);
            }
            Err(error) if error.is_transient() || error.kind() == ErrorKind::Unconfirmed => {
                passed.failed = passed.failed.take().or(Some(error));
            }
            Err(error) => passed.refused.push((batch, error)),
        }
    }
    if let Err(error) = role.forget(place, &forgotten).await {
        passed.failed = passed.failed.take().or(Some(error));
    }
}

/// Signals the message or task that waits for a batch. One that is gone, or has the signal, needs none.
async fn signal(backend: &Backend, waiting: &WorkId, name: &str) -> Result<()> {
    match backend.steps()?.signal(waiting, name, Bytes::new()).await {
        Ok(signalled) => {
            tracing::debug!(%waiting, name, ?signalled, "a step has ended");
            Ok(())
        }
        // Nobody handles it any more.
        Err(error) if matches!(error.kind(), ErrorKind::GroupMissing | ErrorKind::InvalidName) => {
            tracing::warn!(%waiting, name, %error, "a message that waits for a step cannot be signalled");
            Ok(())
        }
        Err(error) => Err(error),
    }
}
