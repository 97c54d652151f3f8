//! Errors as gRPC statuses and back.

use skytether_common::{Error, Kind};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// Metadata key of a status: the [`Kind`] in words.
const KIND_KEY: &str = "skytether-kind";

/// Statuses travel in HTTP headers, which are small.
const MAX_TEXT: usize = 4096;

const KINDS: [(Kind, Code); 8] = [
    (Kind::Invalid, Code::InvalidArgument),
    (Kind::NotFound, Code::NotFound),
    (Kind::Conflict, Code::Aborted),
    (Kind::Corrupt, Code::DataLoss),
    (Kind::Unavailable, Code::Unavailable),
    (Kind::Exhausted, Code::ResourceExhausted),
    (Kind::Unsupported, Code::Unimplemented),
    (Kind::Internal, Code::Internal),
];

/// The status that carries `error`: its kind as code and in the metadata, its whole text as the message.
#[must_use]
pub fn to_status(error: &Error) -> Status {
    let code = KINDS.iter().find(|(kind, _)| *kind == error.kind()).map_or(Code::Internal, |(_, code)| *code);
    let mut text = error.full_text();
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|&n| text.is_char_boundary(n)).unwrap_or(0);
        text.truncate(end);
        text.push_str(" ...");
    }
    let mut status = Status::new(code, text);
    status.metadata_mut().insert(KIND_KEY, MetadataValue::from_static(error.kind().as_str()));
    status
}

/// The kind and text that `status` carries. A status that no CSE wrote comes from the connection itself: the other side is gone or
/// is something else.
#[must_use]
pub fn from_status(status: &Status) -> Error {
    let said = status.metadata().get(KIND_KEY).and_then(|v| v.to_str().ok());
    if let Some((kind, _)) = said.and_then(|word| KINDS.iter().find(|(kind, _)| kind.as_str() == word)) {
        return Error::new(*kind, status.message());
    }
    let text = if status.message().is_empty() { status.code().description() } else { status.message() };
    match status.code() {
        // tonic refuses messages over its limit with this code, on either side.
        Code::OutOfRange => Error::exhausted(text),
        Code::Unimplemented => Error::unsupported(text),
        Code::Unauthenticated | Code::PermissionDenied => Error::invalid(text),
        _ => Error::unavailable(text),
    }
}

/// Whether no CSE wrote `status`, but the connection to it failed.
#[must_use]
pub fn of_connection(status: &Status) -> bool {
    !status.metadata().contains_key(KIND_KEY)
        && !matches!(status.code(), Code::OutOfRange | Code::Unimplemented | Code::Unauthenticated | Code::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_the_way() {
        for (kind, _) in KINDS {
            let back = from_status(&to_status(&Error::new(kind, "drive-1: Zählung of \"x\"\nfailed")));
            assert_eq!(back.kind(), kind);
            assert_eq!(back.message(), "drive-1: Zählung of \"x\"\nfailed");
        }
    }

    #[test]
    fn a_status_of_the_connection_means_unavailable() {
        for code in [Code::Unknown, Code::Cancelled, Code::Internal, Code::Unavailable, Code::DeadlineExceeded] {
            assert_eq!(from_status(&Status::new(code, "h2 protocol error")).kind(), Kind::Unavailable);
        }
        assert_eq!(from_status(&Status::new(Code::OutOfRange, "too large")).kind(), Kind::Exhausted);
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let text = "ä".repeat(5000);
        let status = to_status(&Error::invalid(text));
        assert!(status.message().len() <= MAX_TEXT + 4);
        assert!(status.message().ends_with("ä ..."));
    }
}
