//! The frame of a handler: what it has of steps while it runs, and the end of its run when it waits.
//!
//! A handler that waits for days is dropped: its future is polled no further. It stands inside of everything else around a handler, so that layers and markers
//! see an ordinary end of the attempt.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::{Inner, Parked};

thread_local! {
    /// The frame of the handler that this thread polls.
    static CURRENT: RefCell<Frame> = const { RefCell::new(Frame::Outside) };
}

/// What is known of the handler that is polled.
#[derive(Default)]
enum Frame {
    /// No handler is: a task that it has spawned, or the loop of a user who pulls messages.
    #[default]
    Outside,
    /// One is, with its steps once it has asked for them.
    Inside(Option<Arc<Inner>>),
}

/// Puts the frame back that was there before, also if the handler panics.
struct Entered<'a> {
    steps: &'a mut Slot,
    before: Frame,
}

impl<'a> Entered<'a> {
    fn enter(steps: &'a mut Slot) -> Self {
        let before = CURRENT.replace(Frame::Inside(steps.take()));
        Self { steps, before }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Frame::Inside(steps) = CURRENT.replace(std::mem::take(&mut self.before)) {
            *self.steps = steps;
        }
    }
}

/// The steps of one run of a handler, once it has asked for them.
pub(crate) type Slot = Option<Arc<Inner>>;

/// Calls the function that makes the future of a handler: it may ask for steps already.
pub(crate) fn entered<T>(slot: &mut Slot, call: impl FnOnce() -> T) -> T {
    let _entered = Entered::enter(slot);
    call()
}

/// Runs a handler until it returns, or waits: then returns the wait.
pub(crate) async fn framed<T>(handler: impl Future<Output = T>, mut slot: Slot) -> Result<T, Box<Parked>> {
    let mut handler = pin!(handler);
    poll_fn(|cx| {
        let polled = entered(&mut slot, || handler.as_mut().poll(cx));
        match (polled, slot.as_deref()) {
            (Poll::Pending, Some(steps)) => match steps.take_parked() {
                Some(parked) => Poll::Ready(Err(parked)),
                None => Poll::Pending,
            },
            (polled, _) => polled.map(Ok),
        }
    })
    .await
}

/// Returns the steps of the handler that is polled, if they are those of this message; creates them otherwise.
pub(super) fn of_current(
    is_same: impl Fn(&Inner) -> bool,
    create: impl FnOnce() -> Arc<Inner>,
) -> Arc<Inner> {
    CURRENT.with_borrow_mut(|frame| match frame {
        Frame::Inside(Some(steps)) if is_same(steps) => steps.clone(),
        Frame::Inside(steps @ None) => steps.insert(create()).clone(),
        _ => create(),
    })
}

/// Whether the handler that is polled is the one of these steps: only then its run ends when it waits.
pub(super) fn is_current(steps: &Arc<Inner>) -> bool {
    CURRENT.with_borrow(|frame| matches!(frame, Frame::Inside(Some(current)) if Arc::ptr_eq(current, steps)))
}
