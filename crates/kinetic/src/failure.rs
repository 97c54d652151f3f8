//! Why a call to a drive did not succeed, and whether the drive may have done it all the same.

use skytether_common::{Error, Kind};
use skytether_kinetic_protocol::{Refusal, StatusCode};

/// Why a call did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The drive refuses. It did nothing, unless [`Failure::is_unknown`].
    #[error("the drive answers {0}")]
    Refused(Refusal),
    /// There is no answer that can be used.
    #[error("{text}")]
    Lost {
        /// What a caller can do.
        kind: Kind,
        /// What happened.
        text: String,
        /// Whether the request may have reached the drive: a write may have been done.
        sent: bool,
    },
}

/// The result of a call to a drive.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A request that did not leave this machine.
    pub(crate) fn unsent(kind: Kind, text: impl Into<String>) -> Failure {
        Failure::Lost { kind, text: text.into(), sent: false }
    }

    /// The same loss, as it is for a request that was sent or not.
    pub(crate) fn lost(kind: Kind, text: impl Into<String>, sent: bool) -> Failure {
        Failure::Lost { kind, text: text.into(), sent }
    }

    /// The drive's status code, if it answered.
    #[must_use]
    pub fn code(&self) -> Option<StatusCode> {
        match self {
            Failure::Refused(refusal) => Some(refusal.code),
            Failure::Lost { .. } => None,
        }
    }

    /// Whether the drive may have done what it was asked: the answer is missing, or is one that a drive also gives when
    /// it fails in the middle.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        match self {
            Failure::Lost { sent, .. } => *sent,
            Failure::Refused(refusal) => matches!(
                refusal.code,
                StatusCode::InternalError | StatusCode::Expired | StatusCode::Shutdown | StatusCode::ConnectionTerminated | StatusCode::Invalid
            ),
        }
    }

    /// Whether another connection may help.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            Failure::Lost { kind, .. } => *kind == Kind::Unavailable,
            // The drive says good-bye, or its cluster version is not the one that it told when we connected.
            Failure::Refused(refusal) => matches!(refusal.code, StatusCode::ConnectionTerminated | StatusCode::VersionFailure),
        }
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::Refused(refusal)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        match failure {
            // No data changed: the same call will be right after the next connection.
            Failure::Refused(refusal) if refusal.code == StatusCode::VersionFailure => {
                Error::unavailable(format!("the drive answers {refusal}: its cluster version has changed; try again"))
            }
            Failure::Refused(refusal) => refusal.into(),
            Failure::Lost { kind, text, .. } => Error::new(kind, text),
        }
    }
}
