//! The README and the guides, compiled and run as doctests.

#[doc = include_str!("../../README.md")]
mod readme {}

#[doc = include_str!("../../docs/guides/consume.md")]
mod consume {}

#[doc = include_str!("../../docs/guides/idempotency.md")]
mod idempotency {}

#[doc = include_str!("../../docs/guides/dead-letters.md")]
mod dead_letters {}

#[doc = include_str!("../../docs/guides/groups.md")]
mod groups {}

#[doc = include_str!("../../docs/guides/ordering.md")]
mod ordering {}

#[doc = include_str!("../../docs/guides/pack.md")]
mod pack {}

#[doc = include_str!("../../docs/guides/control.md")]
mod control {}

#[doc = include_str!("../../docs/guides/delayed.md")]
mod delayed {}

#[doc = include_str!("../../docs/guides/delay-queue.md")]
mod delay_queue {}

#[doc = include_str!("../../docs/guides/extend.md")]
mod extend {}

#[doc = include_str!("../../docs/guides/admin.md")]
mod admin {}

#[doc = include_str!("../../docs/guides/metrics.md")]
mod metrics {}

#[doc = include_str!("../../docs/guides/tracing.md")]
mod tracing {}

#[doc = include_str!("../../docs/guides/deploy.md")]
mod deploy {}

#[doc = include_str!("../../docs/guides/outbox.md")]
mod outbox {}

#[doc = include_str!("../../docs/guides/batches.md")]
mod batches {}
#[doc = include_str!("../../docs/guides/steps.md")]
mod steps {}

#[doc = include_str!("../../docs/guides/limits.md")]
mod limits {}

#[doc = include_str!("../../docs/guides/fairness.md")]
mod fairness {}
#[doc = include_str!("../../docs/guides/requests.md")]
mod requests {}
#[doc = include_str!("../../docs/guides/priorities.md")]
mod priorities {}

#[doc = include_str!("../../docs/guides/locks.md")]
mod locks {}

#[doc = include_str!("../../docs/guides/handlers.md")]
mod handlers {}

#[doc = include_str!("../../docs/guides/produce.md")]
mod produce {}

#[doc = include_str!("../../docs/guides/test.md")]
mod test {}

#[doc = include_str!("../../docs/guides/tune.md")]
mod tune {}

#[doc = include_str!("../../docs/guides/secure.md")]
mod secure {}

#[doc = include_str!("../../docs/guides/tutorial.md")]
mod tutorial {}

#[doc = include_str!("../../docs/guides/recipes.md")]
mod recipes {}
