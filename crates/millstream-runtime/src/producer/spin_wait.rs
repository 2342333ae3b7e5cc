//! Whether a wait for an answer is begun awake.
//!
//! To put a core to sleep and wake it up again can take as long as a request, on a virtual machine above all. So where many
//! wait for the answer, it is looked for a few times more before: as long as that pays.

use std::future::pending;

use tokio::task::yield_now;

/// How often an answer is looked for, with whatever else there is to do done in between: 100 to 200 µs if there is nothing.
const LOOKS: u32 = 200;
/// For so many waits none is begun awake after one that was in vain: the server is slower, or has no core to itself.
const REST: u32 = 64;

#[derive(Default)]
pub(super) struct SpinWait {
    /// Waits to come that are asleep from the beginning.
    rest: u32,
}

/// One wait.
pub(super) struct Spin {
    awake: bool,
    looks: u32,
}

impl SpinWait {
    /// `worthwhile`: whether many wait for what is waited for.
    pub(super) fn begin(&mut self, worthwhile: bool) -> Spin {
        let awake = worthwhile && self.rest == 0;
        self.rest = self.rest.saturating_sub(u32::from(worthwhile));
        Spin { awake, looks: if awake { LOOKS } else { 0 } }
    }

    /// The wait is over.
    pub(super) fn end(&mut self, watch: &Spin) {
        if watch.awake && watch.looks == 0 {
            self.rest = REST;
        }
    }
}

impl Spin {
    /// Never ends: whoever waits is woken to look for what it waits for.
    pub(super) async fn keep(&mut self) {
        while self.looks > 0 {
            self.looks -= 1;
            yield_now().await;
        }
        pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// Looks so often, and whether the wait was awake.
    async fn wait(spin_wait: &mut SpinWait, worthwhile: bool, looks: u32) -> bool {
        let mut watch = spin_wait.begin(worthwhile);
        let awake = watch.awake;
        {
            let mut keep = std::pin::pin!(watch.keep());
            for _ in 0..looks {
                assert!(keep.as_mut().now_or_never().is_none(), "it never ends");
            }
        }
        spin_wait.end(&watch);
        awake
    }

    #[tokio::test]
    async fn waits_are_begun_awake_as_long_as_that_pays() {
        let mut spin_wait = SpinWait::default();
        for _ in 0..10 {
            assert!(wait(&mut spin_wait, true, 5).await, "answered soon");
            assert!(!wait(&mut spin_wait, false, 5).await, "nobody would gain much");
        }
        assert!(wait(&mut spin_wait, true, LOOKS + 1).await);
        for _ in 0..REST {
            assert!(!wait(&mut spin_wait, true, 5).await, "it was in vain");
        }
        assert!(wait(&mut spin_wait, true, 5).await, "tried again");
    }
}
