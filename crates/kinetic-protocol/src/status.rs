//! How a command ended: [`Status`] on the wire, [`Refusal`] as an error.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use skytether_common::{Error, Kind};

use crate::kinds::StatusCode;

/// How a command ended.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct Status {
    /// The code.
    #[prost(enumeration = "StatusCode", optional, tag = "1")]
    pub code: Option<i32>,
    /// A text for people, usually UTF-8.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub status_message: Option<Bytes>,
    /// More of it; for programs: see [`crate::program::ProgramResult`].
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub detailed_message: Option<Bytes>,
}

impl Status {
    /// A status without a text.
    #[must_use]
    pub fn of(code: StatusCode) -> Status {
        Status { code: Some(code.into()), ..Status::default() }
    }

    /// The text for people. Bytes that are not UTF-8 become replacement characters.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.status_message())
    }
}

/// Why a command is not done. A server sends it as a status; a client makes one of a status, and an [`Error`] of that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The code.
    pub code: StatusCode,
    /// The text, for people.
    pub text: String,
}

impl Refusal {
    /// A refusal.
    #[must_use]
    pub fn new(code: StatusCode, text: impl Into<String>) -> Refusal {
        Refusal { code, text: text.into() }
    }

    /// A refusal with [`StatusCode::InvalidRequest`].
    #[must_use]
    pub fn invalid(text: impl Into<String>) -> Refusal {
        Refusal::new(StatusCode::InvalidRequest, text)
    }

    /// The status that says so.
    #[must_use]
    pub fn status(&self) -> Status {
        let text = (!self.text.is_empty()).then(|| Bytes::from(self.text.clone()));
        Status { status_message: text, ..Status::of(self.code) }
    }

    /// What a status says: nothing is wrong, or why the command is not done.
    ///
    /// # Errors
    /// The refusal, unless the code is [`StatusCode::Success`]. An absent or unknown code is
    /// [`StatusCode::Invalid`].
    pub fn check(status: Option<&Status>) -> Result<(), Refusal> {
        let Some(status) = status else { return Err(Refusal::new(StatusCode::Invalid, "the response has no status")) };
        match status.code() {
            StatusCode::Success => Ok(()),
            StatusCode::Invalid if status.code.is_some_and(|code| code != -1) => {
                Err(Refusal::new(StatusCode::Invalid, format!("status {}: {}", status.code.unwrap_or(-1), status.text())))
            }
            code => Err(Refusal::new(code, status.text())),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text.as_str() {
            "" => write!(f, "{}", self.code),
            text => write!(f, "{}: {text}", self.code),
        }
    }
}

impl std::error::Error for Refusal {}

impl StatusCode {
    /// What a client can do about this code.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            StatusCode::NotFound => Kind::NotFound,
            StatusCode::VersionMismatch | StatusCode::VersionFailure => Kind::Conflict,
            StatusCode::DataError | StatusCode::PermDataError => Kind::Corrupt,
            StatusCode::ServiceBusy
            | StatusCode::Expired
            | StatusCode::RemoteConnectionError
            | StatusCode::DeviceLocked
            | StatusCode::ConnectionTerminated
            | StatusCode::NotAttempted
            | StatusCode::InternalError
            | StatusCode::Hibernate
            | StatusCode::Shutdown => Kind::Unavailable,
            StatusCode::NoSpace => Kind::Exhausted,
            StatusCode::NoSuchHmacAlgorithm | StatusCode::Invalid => Kind::Unsupported,
            // No failures: a caller that makes an error of them is wrong.
            StatusCode::Success | StatusCode::ExecuteComplete => Kind::Internal,
            StatusCode::HmacFailure
            | StatusCode::NotAuthorized
            | StatusCode::HeaderRequired
            | StatusCode::InvalidRequest
            | StatusCode::NestedOperationErrors
            | StatusCode::DeviceAlreadyUnlocked
            | StatusCode::InvalidBatch
            | StatusCode::InvalidExecute => Kind::Invalid,
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Error::new(refusal.code.kind(), format!("the drive answers {refusal}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_refusal_say_the_same() {
        let refusal = Refusal::new(StatusCode::VersionMismatch, "the stored version is 3");
        assert_eq!(Refusal::check(Some(&refusal.status())), Err(refusal.clone()));
        assert_eq!(Error::from(refusal.clone()).kind(), Kind::Conflict);
        assert_eq!(Error::from(refusal).to_string(), "the drive answers VERSION_MISMATCH: the stored version is 3");
        let silent = Refusal::new(StatusCode::NotFound, "");
        assert_eq!((silent.status().status_message, silent.to_string().as_str()), (None, "NOT_FOUND"));
    }

    #[test]
    fn only_success_is_no_refusal() {
        assert_eq!(Refusal::check(Some(&Status::of(StatusCode::Success))), Ok(()));
        for code in StatusCode::ALL.iter().filter(|code| **code != StatusCode::Success) {
            assert_eq!(Refusal::check(Some(&Status::of(*code))).unwrap_err().code, *code);
        }
        assert_eq!(Refusal::check(None).unwrap_err().code, StatusCode::Invalid);
    }

    #[test]
    fn unknown_status_is_named_by_its_number() {
        let refusal = Refusal::check(Some(&Status { code: Some(77), ..Status::default() })).unwrap_err();
        assert_eq!((refusal.code, refusal.text.as_str()), (StatusCode::Invalid, "status 77: "));
        assert_eq!(refusal.code.kind(), Kind::Unsupported);
    }

    #[test]
    fn status_text_need_not_be_utf8() {
        let status = Status { status_message: Some(Bytes::from_static(b"key \xff")), ..Status::of(StatusCode::NotFound) };
        assert_eq!(status.text(), "key \u{fffd}");
        let bytes = prost::Message::encode_to_vec(&status);
        assert_eq!(bytes, [0x08, 7, 0x12, 5, b'k', b'e', b'y', b' ', 0xff]);
        assert_eq!(<Status as prost::Message>::decode(&bytes[..]), Ok(status));
    }
}
