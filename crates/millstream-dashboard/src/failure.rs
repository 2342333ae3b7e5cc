//! Why a request was not answered, as a page.

use axum::http::StatusCode;
use millstream::{Error, ErrorKind};

use crate::actions::Refused;
use crate::view::cell::Tone;
use crate::view::{Page, Part};

/// Reason of a failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: StatusCode,
    pub(crate) why: String,
    /// Name of the field that is to be changed, if it is one.
    pub(crate) field: Option<String>,
}

impl Failure {
    pub(crate) fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self { status, why: why.into(), field: None }
    }

    /// Names the field that is to be changed.
    pub(crate) fn of(self, field: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..self }
    }

    pub(crate) fn invalid(why: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, why)
    }

    pub(crate) fn forbidden(why: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, why)
    }

    pub(crate) fn missing(why: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, why)
    }

    /// The page that shows it.
    pub(crate) fn page(&self) -> Page {
        let title = match self.status {
            StatusCode::NOT_FOUND => "Not found",
            StatusCode::FORBIDDEN => "Not allowed",
            StatusCode::BAD_REQUEST => "Not valid",
            StatusCode::CONFLICT => "Not done",
            _ => "Not available",
        };
        let mut page = Page::new(title).with(Part::notice(Tone::Bad, self.why.as_str()));
        page.status = self.status;
        page
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::InvalidConfig | ErrorKind::InvalidName => StatusCode::BAD_REQUEST,
            ErrorKind::Exists | ErrorKind::Fenced | ErrorKind::Deleted => StatusCode::CONFLICT,
            ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
            _ if error.is_transient() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string())
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        let why = match refused {
            Refused::TooMany(running) => {
                format!("{running} actions are running: wait for one of them, or cancel it")
            }
            Refused::NotRecorded(error) => {
                format!("nothing was changed, since the audit log cannot be written: {error}")
            }
        };
        Self::new(StatusCode::SERVICE_UNAVAILABLE, why)
    }
}
