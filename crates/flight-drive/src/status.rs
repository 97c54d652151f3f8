//! Errors as gRPC statuses and back.

use skytether_common::{Error, Kind, Result};
use tokio::sync::mpsc;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::details;

/// Metadata key of a status: the [`Kind`] in a word.
const KIND_KEY: &str = "skytether-kind";

/// Metadata key of a status: the [`Detail`](skytether_common::Detail) as JSON.
const DETAIL_KEY: &str = "skytether-detail-bin";

/// The longest text, in bytes: statuses travel in HTTP headers, which are small.
pub(crate) const MAX_TEXT: usize = 4096;

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

/// The status that carries `error`: its kind as code and in the metadata, its detail in the metadata, its whole text as
/// the message.
#[must_use]
pub fn to_status(error: &Error) -> Status {
    let code = KINDS.iter().find(|(kind, _)| *kind == error.kind()).map_or(Code::Internal, |(_, code)| *code);
    let mut text = error.report();
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|&n| text.is_char_boundary(n)).unwrap_or(0);
        text.truncate(end);
        text.push_str(" ...");
    }
    let mut status = Status::new(code, text);
    status.metadata_mut().insert(KIND_KEY, MetadataValue::from_static(error.kind().as_str()));
    if let Some(detail) = details::encode(error) {
        status.metadata_mut().insert_bin(DETAIL_KEY, MetadataValue::from_bytes(&detail));
    }
    status
}

/// Does `work`, which sends the messages of an answer; its error is the last of them. It stops when the receiver goes.
pub async fn tell<T>(send: &mpsc::Sender<Result<T, Status>>, work: impl Future<Output = Result<()>>) {
    let done = tokio::select! {
        done = work => done,
        () = send.closed() => Ok(()),
    };
    if let Err(error) = done {
        // The receiver may have gone meanwhile.
        let _ = send.send(Err(to_status(&error))).await;
    }
}

/// The kind, text and detail that `status` carries. A status that no CSE wrote comes from the connection itself: the
/// other side is gone or is something else.
#[must_use]
pub fn from_status(status: &Status) -> Error {
    let word = status.metadata().get(KIND_KEY).and_then(|v| v.to_str().ok());
    if let Some(kind) = word.and_then(|word| word.parse::<Kind>().ok()) {
        let detail = status.metadata().get_bin(DETAIL_KEY).and_then(|v| v.to_bytes().ok()).and_then(|json| details::decode(&json));
        return details::with(Error::new(kind, status.message()), detail);
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

/// Whether [`to_status`] wrote `status`, on the other side.
#[must_use]
pub fn is_ours(status: &Status) -> bool {
    status.metadata().contains_key(KIND_KEY)
}

/// Whether no CSE wrote `status`, but the connection to it failed.
#[must_use]
pub fn of_connection(status: &Status) -> bool {
    !is_ours(status) && !matches!(status.code(), Code::OutOfRange | Code::Unimplemented | Code::Unauthenticated | Code::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use skytether_common::Detail;

    use super::*;

    #[test]
    fn a_detail_survives_the_way_with_its_error() {
        for detail in [
            Detail::Fenced { drive: "drive-1".into(), term: u64::MAX },
            Detail::MissingDataset { dataset: "lab.t".parse().unwrap() },
            Detail::MissingColumn { column: "größe \"x\"\n".into() },
            Detail::UnfitValue { cell: 3, value: f64::NEG_INFINITY, total: Some(0.1) },
            Detail::SpillDiskFull,
            Detail::TlsRefused,
        ] {
            let sent = Error::conflict("lab.t: it failed").with_detail(detail.clone()).context("drive-1");
            let back = from_status(&to_status(&sent));
            assert_eq!((back.kind(), back.message(), back.detail()), (Kind::Conflict, "drive-1: lab.t: it failed", Some(&detail)));
            // And on from there.
            assert_eq!(from_status(&to_status(&back.context("host"))).detail(), Some(&detail));
        }
        assert_eq!(from_status(&to_status(&Error::conflict("x"))).detail(), None);
    }

    #[test]
    fn a_detail_that_is_not_known_is_ignored() {
        let long = format!(r#"{{"type":"missing_table","table":"{}"}}"#, "t".repeat(details::MAX_DETAIL));
        let deep = format!("{}{}", "[".repeat(700), "]".repeat(700));
        for json in [r#"{"type":"of_a_newer_version"}"#, r#"{"type":"fenced","drive":7}"#, "{", "", "\u{0}", long.as_str(), deep.as_str()] {
            let mut status = to_status(&Error::conflict("x"));
            status.metadata_mut().insert_bin(DETAIL_KEY, MetadataValue::from_bytes(json.as_bytes()));
            let back = from_status(&status);
            assert_eq!((back.kind(), back.message(), back.detail()), (Kind::Conflict, "x", None), "{json}");
        }
        let mut status = to_status(&Error::conflict("x"));
        let garbled = tonic::metadata::BinaryMetadataValue::try_from(&b"!!"[..]).unwrap();
        status.metadata_mut().insert_bin(DETAIL_KEY, garbled);
        assert_eq!(from_status(&status).detail(), None);
    }

    /// HTTP/2 clients refuse headers of over 16 KiB, and with them the whole status.
    #[test]
    fn the_longest_status_fits_into_headers() {
        let of = |column: String| Error::not_found("€".repeat(5000)).with_detail(Detail::MissingColumn { column });
        let json = serde_json::to_string(&Detail::MissingColumn { column: String::new() }).unwrap();
        let longest = "c".repeat(details::MAX_DETAIL - json.len());
        let status = to_status(&of(longest.clone()));
        assert_eq!(from_status(&status).detail(), Some(&Detail::MissingColumn { column: longest.clone() }));
        let headers = status.into_http::<()>().headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum::<usize>();
        assert!(headers > 12 << 10 && headers <= 16 << 10, "{headers} bytes");
        assert_eq!(from_status(&to_status(&of(longest + "c"))).detail(), None, "it is too long to travel");
    }

    #[test]
    fn both_spellings_of_a_kind_are_read() {
        let mut status = to_status(&Error::not_found("x"));
        assert_eq!(status.metadata().get(KIND_KEY).unwrap(), "not found");
        status.metadata_mut().insert(KIND_KEY, MetadataValue::from_static("not_found"));
        assert_eq!(from_status(&status).kind(), Kind::NotFound);
    }

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
