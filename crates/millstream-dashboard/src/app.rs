//! State of all routes.

use std::sync::Arc;

use millstream::crates::core::QueueName;
use millstream::{Millstream, TopicName};

use crate::access::{Access, Permission};
use crate::actions::Actions;
use crate::actions::verified::Verifications;
use crate::audit::Audit;
use crate::auth::Auth;
use crate::log_ins::LogIns;
use crate::reading::Reading;
use crate::redaction::{Origin, Redaction};

/// Function that returns what is hidden of a place.
pub(crate) type Redact = Box<dyn Fn(Origin<'_>) -> Redaction + Send + Sync>;

/// State of all routes.
pub(crate) struct App {
    pub(crate) mq: Millstream,
    pub(crate) auth: Auth,
    pub(crate) log_ins: LogIns,
    /// Most that any user may do.
    pub(crate) at_most: Permission,
    pub(crate) redact: Redact,
    pub(crate) origins: Vec<String>,
    pub(crate) reading: Arc<Reading>,
    pub(crate) audit: Arc<Audit>,
    pub(crate) actions: Actions,
    pub(crate) verifications: Verifications,
}

impl App {
    /// Reduces the rights of a user to what anybody may do here.
    pub(crate) fn limited(&self, access: Access) -> Access {
        access.at_most(self.at_most)
    }

    pub(crate) fn hidden_in_topic(&self, topic: &TopicName) -> Redaction {
        (self.redact)(Origin::Topic(topic))
    }

    pub(crate) fn hidden_in_queue(&self, queue: &QueueName) -> Redaction {
        (self.redact)(Origin::Queue(queue))
    }
}
