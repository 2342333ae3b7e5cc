//! The room of a worker: one for each task that may be held, and who gets one that becomes free.
//!
//! Tasks that wait for limits have none. When one of them has its units it comes first: units that nobody uses keep others from working.
//! Next are those that had units for too long and gave them back, and then who claims more tasks. Among equals who has waited longest.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// What a room is wanted for: the first that is there comes first.
#[derive(Clone, Copy, Debug)]
pub(in crate::worker) enum For {
    /// A task that has what it needs of limits.
    Granted,
    /// A task that asks for it.
    Asking,
    /// To claim tasks.
    Claiming,
}

/// All rooms of a worker.
#[derive(Debug)]
pub(in crate::worker) struct Rooms(Mutex<State>);

#[derive(Debug)]
struct State {
    free: usize,
    /// Who waits, by what for.
    waiting: [VecDeque<oneshot::Sender<Room>>; 3],
}

/// A room. Dropping it passes it on.
#[derive(Debug)]
pub(in crate::worker) struct Room(Option<Arc<Rooms>>);

impl Rooms {
    pub(in crate::worker) fn new(rooms: usize) -> Arc<Self> {
        let waiting = [VecDeque::new(), VecDeque::new(), VecDeque::new()];
        Arc::new(Self(Mutex::new(State { free: rooms, waiting })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many are free.
    pub(in crate::worker) fn free(&self) -> usize {
        self.state().free
    }

    /// Takes one that is free. Where somebody waits, none is.
    pub(in crate::worker) fn try_take(self: &Arc<Self>) -> Option<Room> {
        let mut state = self.state();
        state.free = state.free.checked_sub(1)?;
        Some(Room(Some(self.clone())))
    }

    /// Waits for one. Cancel safe.
    pub(in crate::worker) async fn take(self: &Arc<Self>, wanted: For) -> Room {
        let room = {
            let mut state = self.state();
            if let Some(free) = state.free.checked_sub(1) {
                state.free = free;
                return Room(Some(self.clone()));
            }
            let (tell, room) = oneshot::channel();
            let line = &mut state.waiting[wanted as usize];
            // Those that gave up.
            line.retain(|one| !one.is_closed());
            line.push_back(tell);
            room
        };
        match room.await {
            Ok(room) => room,
            // Its sender is dropped with `self` alone.
            Err(_) => std::future::pending().await,
        }
    }

    fn pass_on(self: Arc<Self>) {
        loop {
            let mut state = self.state();
            let Some(next) = state.waiting.iter_mut().find_map(VecDeque::pop_front) else {
                state.free += 1;
                return;
            };
            drop(state);
            match next.send(Room(Some(self.clone()))) {
                Ok(()) => return,
                // It gave up. What comes back is passed on here.
                Err(mut room) => drop(room.0.take()),
            }
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(rooms) = self.0.take() {
            rooms.pass_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn who_has_units_comes_first_and_who_claims_last() {
        let rooms = Rooms::new(2);
        let (first, second) = (rooms.try_take().expect("free"), rooms.try_take().expect("free"));
        assert!(rooms.try_take().is_none());
        let mut claims = Box::pin(rooms.take(For::Claiming));
        let mut asks = Box::pin(rooms.take(For::Asking));
        let mut granted = Box::pin(rooms.take(For::Granted));
        let mut gives_up = Box::pin(rooms.take(For::Granted));
        assert!(claims.as_mut().now_or_never().is_none() && asks.as_mut().now_or_never().is_none());
        assert!(granted.as_mut().now_or_never().is_none() && gives_up.as_mut().now_or_never().is_none());
        drop(first);
        let third = granted.as_mut().now_or_never().expect("it has units");
        assert!(asks.as_mut().now_or_never().is_none());
        // One that gives up after it was given a room passes it on.
        drop(second);
        drop(gives_up);
        let fourth = asks.as_mut().now_or_never().expect("the next one");
        drop((third, fourth));
        let fifth = claims.as_mut().now_or_never().expect("the last one");
        assert_eq!(rooms.free(), 1);
        drop(fifth);
        assert_eq!(rooms.free(), 2);
    }
}
