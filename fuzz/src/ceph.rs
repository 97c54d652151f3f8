//! Requests to the object class in an OSD, and what comes back.

use std::collections::BTreeMap;

use skytether_ceph_protocol::proxy::{Frame, Probe};
use skytether_ceph_protocol::request::{MAX_DEADLINE, deadline};
use skytether_ceph_protocol::{FileFormat, Given, Limits, Object, Outcome, Piece, Receipt, Refusal, Request, Response, Stripe};

pub(crate) fn requests() -> Vec<Vec<u8>> {
    let pieces = vec![Piece { at: 90, bytes: vec![7; 10] }];
    let file = Object::File { format: FileFormat::Parquet, size: 100, at: 40, len: 40, groups: Some(vec![2, 3]), pieces };
    let given = BTreeMap::from([("city/rides/0.data.0".to_owned(), Given { len: 3, digest: [7; 32], bytes: Some(vec![1, 2, 3]) })]);
    let (slice, partitions) = ("city/rides/0.data.0;00000004".to_owned(), BTreeMap::from([("data".to_owned(), "city/rides/0.data.0".to_owned())]));
    let stripe = Object::Stripe(Box::new(Stripe { number: 4, slice, len: 5, crc32c: 9, partitions, given }));
    [stripe, file]
        .map(|object| {
            let tables = BTreeMap::from([("t".to_owned(), vec![1]), ("u".to_owned(), vec![])]);
            let table = ["city", "rides", "data"].map(str::to_owned);
            Request { limits: Limits::default(), object, table, schema: vec![1, 2], plan: vec![3; 40], filters: tables.clone(), tables }.encode()
        })
        .into()
}

/// A request: refused, or within its bounds, and the same when it is written again.
pub(crate) fn request_decode(data: &[u8]) -> bool {
    let begins = deadline(data);
    match Request::decode(data) {
        Ok(request) => {
            assert!(begins.is_ok_and(|time| time == request.limits.deadline && time <= MAX_DEADLINE));
            assert!(request.encode().len() == data.len());
            assert!(Request::decode(&request.encode()).is_ok_and(|again| again == request));
            true
        }
        Err(wrong) => {
            assert!(!wrong.0.is_empty());
            false
        }
    }
}

pub(crate) fn responses() -> Vec<Vec<u8>> {
    let receipt = Receipt { osd: Some(1), engine: "0.1.0".to_owned(), annotation: b"{}".to_vec(), ..Receipt::default() };
    let rows = Response { receipt, outcome: Outcome::Rows(vec![5; 30]) }.encode();
    let refused = Response::refused(None, Refusal::Late, "too late").encode();
    let wants = Response { receipt: Receipt::default(), outcome: Outcome::Wants(vec!["a".to_owned(), "b".to_owned()]) }.encode();
    let mut frames = Vec::new();
    for frame in [Frame::Hello, Frame::Read { at: 7, len: 9 }, Frame::Data(Ok(vec![1; 9])), Frame::Data(Err(-95)), Frame::Done(refused.clone())] {
        // Writing to memory does not fail.
        let _ = frame.write(&mut frames);
    }
    let probe = Probe { osd: None, class: "0.1.0".to_owned(), read: -95, engine: Err("no engine".to_owned()) }.encode();
    vec![rows, refused, wants, frames, probe]
}

/// A response, an answer of a probe, or frames: refused, or the same when it is written again.
pub(crate) fn response_decode(data: &[u8]) -> bool {
    if let Ok(response) = Response::decode(data) {
        assert!(response.encode() == data);
        return true;
    }
    if let Ok(probe) = Probe::decode(data) {
        assert!(Probe::decode(&probe.encode()).is_ok_and(|again| again == probe));
        return true;
    }
    let (mut from, mut any) = (data, false);
    while let Ok(frame) = Frame::read(&mut from) {
        let mut bytes = Vec::new();
        assert!(frame.write(&mut bytes).is_ok() && Frame::read(&mut bytes.as_slice()).is_ok_and(|again| again == frame));
        any = true;
    }
    any && from.is_empty()
}
