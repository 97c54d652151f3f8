//! Targets for NBD: the options of a client, and the requests after them.

use bytes::BytesMut;
use skytether_nbd::negotiation::{Export, Negotiation, Next};
use skytether_nbd::wire::{OPTION_LEN, OPTION_MOST, OptionHead, REQUEST_LEN, Request, command, flag, option};
use skytether_volume::DeviceInfo;
use uuid::Uuid;

fn exports() -> Vec<Export> {
    let info = |name: &str| DeviceInfo { name: name.into(), id: Uuid::from_u128(1), size: 1 << 30, extent: 1 << 20, read_only: name == "b" };
    ["a", "b", ""].map(|name| Export { name: name.into(), info: info(name) }).to_vec()
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

fn said(flags: u32, options: &[(u32, Vec<u8>)], requests: &[Request]) -> Vec<u8> {
    let mut bytes = flags.to_be_bytes().to_vec();
    for (number, payload) in options {
        bytes.extend_from_slice(&[&b"IHAVEOPT"[..], &number.to_be_bytes(), &(payload.len() as u32).to_be_bytes(), payload].concat());
    }
    requests.iter().for_each(|request| bytes.extend_from_slice(&request.encode()));
    bytes
}

pub(crate) fn dialogues() -> Vec<Vec<u8>> {
    let go = [text("a"), vec![0, 2, 0, 1, 0, 3]].concat();
    let contexts = [text("a"), vec![0, 0, 0, 2], text("base:allocation"), text("base:")].concat();
    let read = Request { flags: flag::DF, command: command::READ, cookie: 7, at: 4096, len: 512 };
    let status = Request { flags: flag::REQ_ONE, command: command::BLOCK_STATUS, cookie: 8, at: 0, len: 1 << 30 };
    vec![
        said(3, &[(option::STRUCTURED_REPLY, vec![]), (option::SET_META_CONTEXT, contexts.clone()), (option::GO, go.clone())], &[read, status]),
        said(1, &[(option::LIST, vec![]), (option::STARTTLS, vec![]), (option::INFO, go), (option::EXPORT_NAME, b"b".to_vec())], &[read]),
        said(3, &[(option::STRUCTURED_REPLY, vec![]), (option::LIST_META_CONTEXT, contexts), (option::EXPORT_NAME, vec![])], &[status]),
    ]
}

/// What a client says to its end. Whether it came to requests.
pub(crate) fn negotiate(data: &[u8]) -> bool {
    let exports = exports();
    let Some((flags, mut rest)) = data.split_first_chunk::<4>() else { return false };
    let Some(mut negotiation) = Negotiation::new(u32::from_be_bytes(*flags)) else { return false };
    let mut out = BytesMut::new();
    loop {
        let Some((head, after)) = rest.split_first_chunk::<OPTION_LEN>() else { return false };
        let Some(head) = OptionHead::parse(head).filter(|head| head.len <= OPTION_MOST) else { return false };
        let Some((payload, after)) = after.split_at_checked(head.len as usize) else { return false };
        rest = after;
        out.clear();
        let next = negotiation.answer(&exports, head.option, payload, &mut out);
        assert!(out.len() < 1000, "{} bytes of answer", out.len());
        match next {
            Next::Option => assert!(!out.is_empty()),
            Next::Close => return false,
            Next::Transmission { export, allocation } => {
                assert!(export < exports.len() && (!allocation || negotiation.structured));
                break;
            }
        }
    }
    while let Some((head, after)) = rest.split_first_chunk::<REQUEST_LEN>() {
        let Some(request) = Request::parse(head) else { break };
        assert_eq!(request.encode(), *head);
        rest = after;
    }
    true
}
