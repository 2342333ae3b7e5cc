//! Fairness: which of the tenants whose messages wait is served next.

mod tenants;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use millstream_core::error::Problems;
use millstream_core::panics::{UserCode, catch};
use millstream_core::{Envelope, Observer};

pub use tenants::{TenantId, TenantView, Tenants};

/// Largest weight of a tenant.
pub const MAX_WEIGHT: u32 = 1_000;
/// Largest cost of a message.
pub const MAX_COST: u64 = 1_000_000_000;
/// Most messages of one partition that may be read ahead.
pub const MAX_READ_AHEAD: usize = 1_000_000;

type TenantOf = Arc<dyn Fn(&Envelope) -> Option<Bytes> + Send + Sync>;
type WeightOf = Arc<dyn Fn(&[u8]) -> u32 + Send + Sync>;
type CostOf = Arc<dyn Fn(&Envelope) -> u64 + Send + Sync>;

/// Fairness between tenants: of those whose messages wait in a partition, the one is next that has had the least handler time for its weight.
///
/// One tenant that floods a topic does not delay the others: a message of another one starts with the next handler that is free. A tenant
/// that is alone gets everything. Order per key holds, as messages of a key are never at work at the same time.
///
/// ```
/// use millstream_engine::Fairness;
///
/// let fairness = Fairness::by_header("x-tenant").weight(|tenant| if tenant == b"gold" { 3 } else { 1 });
/// # let _ = fairness;
/// ```
#[derive(Clone)]
#[must_use = "fairness does nothing until a consumer has it"]
pub struct Fairness {
    tenant: TenantOf,
    weight: Option<WeightOf>,
    cost: Option<CostOf>,
    read_ahead: usize,
}

impl Fairness {
    /// Creates fairness between the tenants that `tenant` returns. Messages for which it returns `None`, or panics, are those of one more
    /// tenant, whose name is empty.
    pub fn new(tenant: impl Fn(&Envelope) -> Option<Bytes> + Send + Sync + 'static) -> Self {
        Self { tenant: Arc::new(tenant), weight: None, cost: None, read_ahead: 100_000 }
    }

    /// Creates fairness between the values of a header. Messages without it are those of one more tenant.
    pub fn by_header(header: impl Into<String>) -> Self {
        let header = header.into();
        Self::new(move |message| message.headers.get(&header).cloned())
    }

    /// Creates fairness between the keys of messages. Messages without a key are those of one more tenant.
    pub fn by_key() -> Self {
        Self::new(|message| message.key.clone())
    }

    /// Sets the weight of a tenant, from 1 to 1,000: one of weight 3 gets three times the handler time of one of weight 1, while both have
    /// messages that wait. Others count as the nearest. It is asked when a message of a tenant comes that has none. Default: 1.
    pub fn weight(mut self, weight: impl Fn(&[u8]) -> u32 + Send + Sync + 'static) -> Self {
        self.weight = Some(Arc::new(weight));
        self
    }

    /// Counts this cost of a message, in any unit, instead of the time that its handler takes: 1 to 1,000,000,000. Others count as the nearest.
    pub fn cost(mut self, cost: impl Fn(&Envelope) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Arc::new(cost));
        self
    }

    /// Sets how many messages of a partition may be read and wait, 1 to 1,000,000: a tenant that floods it by more delays the others until
    /// its first ones are handled. They stay pending on the server, and do not count towards the prefetch. Default: 100,000.
    pub fn read_ahead(mut self, messages: usize) -> Self {
        self.read_ahead = messages;
        self
    }

    /// Returns how many messages of a partition may be read and wait.
    #[must_use]
    pub fn most_read(&self) -> usize {
        self.read_ahead
    }

    /// Checks the settings.
    pub fn check(&self, problems: &mut Problems) {
        problems.require((1..=MAX_READ_AHEAD).contains(&self.read_ahead), || {
            format!("read_ahead is {}, 1 to {MAX_READ_AHEAD} are allowed", self.read_ahead)
        });
    }

    /// Returns the tenant of a message, and its cost if costs are counted. The observer receives panics.
    #[must_use]
    pub fn of(&self, message: &Envelope, observer: &dyn Observer) -> (Bytes, Option<u64>) {
        let asked = catch(UserCode::Fairness, || {
            let cost = self.cost.as_ref().map(|cost| cost(message).clamp(1, MAX_COST));
            ((self.tenant)(message).unwrap_or_default(), cost)
        });
        asked.unwrap_or_else(|panicked| {
            observer.observe(&panicked.event());
            self.of_nobody()
        })
    }

    /// Returns the same of what is no message.
    #[must_use]
    pub fn of_nobody(&self) -> (Bytes, Option<u64>) {
        (Bytes::new(), self.cost.as_ref().map(|_| 1))
    }

    /// Returns the weight of a tenant. The observer receives panics.
    #[must_use]
    pub fn weight_of(&self, tenant: &[u8], observer: &dyn Observer) -> u32 {
        let Some(weight) = &self.weight else { return 1 };
        let asked = catch(UserCode::Fairness, || weight(tenant));
        let weight = asked.unwrap_or_else(|panicked| {
            observer.observe(&panicked.event());
            1
        });
        weight.clamp(1, MAX_WEIGHT)
    }
}

impl fmt::Debug for Fairness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fairness").field("read_ahead", &self.read_ahead).finish_non_exhaustive()
    }
}
