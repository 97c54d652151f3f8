//! The negotiation: options of a client, and the server's answers.

use bytes::{BufMut, BytesMut};
use skytether_volume::DeviceInfo;
use skytether_volume::device::{LOGICAL, PHYSICAL};

use crate::wire::{InfoRequest, MetaRequest, NAME_MOST, PAYLOAD_MOST, handshake, info, option, put_option_reply, reply, transmission};

/// The one metadata context: which ranges are mapped.
pub const ALLOCATION: &str = "base:allocation";

/// The number that stands before extents of [`ALLOCATION`].
pub const ALLOCATION_ID: u32 = 1;

/// An export as clients see it.
#[derive(Debug, Clone)]
pub struct Export {
    /// By which clients choose it.
    pub name: String,
    /// What its device says.
    pub info: DeviceInfo,
}

/// What a client has chosen so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Negotiation {
    /// Whether replies are structured.
    pub structured: bool,
    no_zeroes: bool,
    /// The place of the export whose allocation the client wants to know.
    allocation_of: Option<usize>,
}

/// How the negotiation goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// With the next option.
    Option,
    /// With requests.
    Transmission {
        /// The place of the chosen export.
        export: usize,
        /// Whether block status has `base:allocation`.
        allocation: bool,
    },
    /// The connection ends, after what was answered.
    Close,
}

impl Negotiation {
    /// With the client's flags. `None` where it has one that the server did not offer.
    #[must_use]
    pub fn new(client_flags: u32) -> Option<Self> {
        let known = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        (client_flags & !known == 0).then(|| Self { no_zeroes: client_flags & u32::from(handshake::NO_ZEROES) != 0, ..Self::default() })
    }

    /// Answers one option into `out`.
    pub fn answer(&mut self, exports: &[Export], number: u32, payload: &[u8], out: &mut BytesMut) -> Next {
        let refuse = |out: &mut BytesMut, kind: u32, why: &str| {
            put_option_reply(out, number, kind, why.as_bytes());
            Next::Option
        };
        match number {
            option::EXPORT_NAME => {
                // There is no other way to refuse this option than to close.
                let Some(at) = std::str::from_utf8(payload).ok().and_then(|name| find(exports, name)) else { return Next::Close };
                out.put_u64(exports[at].info.size);
                out.put_u16(self.flags(&exports[at].info));
                if !self.no_zeroes {
                    out.put_bytes(0, 124);
                }
                self.transmit(at)
            }
            option::ABORT => {
                put_option_reply(out, number, reply::ACK, &[]);
                Next::Close
            }
            option::LIST if payload.is_empty() => {
                for export in exports {
                    put_option_reply(out, number, reply::SERVER, &with_len(&export.name));
                }
                put_option_reply(out, number, reply::ACK, &[]);
                Next::Option
            }
            option::LIST => refuse(out, reply::ERR_INVALID, "LIST has no payload"),
            option::STARTTLS => refuse(out, reply::ERR_POLICY, "this server speaks NBD without TLS"),
            option::INFO | option::GO => {
                let Some(request) = InfoRequest::parse(payload) else { return refuse(out, reply::ERR_INVALID, "the payload is malformed") };
                let Some(at) = find(exports, &request.name) else { return refuse(out, reply::ERR_UNKNOWN, "there is no such export") };
                self.describe(&exports[at], number, &request.wanted, out);
                put_option_reply(out, number, reply::ACK, &[]);
                if number == option::GO { self.transmit(at) } else { Next::Option }
            }
            option::STRUCTURED_REPLY if payload.is_empty() => {
                self.structured = true;
                put_option_reply(out, number, reply::ACK, &[]);
                Next::Option
            }
            option::STRUCTURED_REPLY => refuse(out, reply::ERR_INVALID, "STRUCTURED_REPLY has no payload"),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                let sets = number == option::SET_META_CONTEXT;
                if sets {
                    self.allocation_of = None;
                }
                if !self.structured {
                    return refuse(out, reply::ERR_INVALID, "metadata contexts need structured replies");
                }
                let Some(request) = MetaRequest::parse(payload) else { return refuse(out, reply::ERR_INVALID, "the payload is malformed") };
                let Some(at) = find(exports, &request.name) else { return refuse(out, reply::ERR_UNKNOWN, "there is no such export") };
                // A name space is a question of LIST, and so is the absence of queries.
                let lists = !sets && (request.queries.is_empty() || request.queries.iter().any(|query| query == "base:"));
                if lists || request.queries.iter().any(|query| query == ALLOCATION) {
                    let mut context = if sets { ALLOCATION_ID } else { 0 }.to_be_bytes().to_vec();
                    context.extend_from_slice(ALLOCATION.as_bytes());
                    put_option_reply(out, number, reply::META_CONTEXT, &context);
                    self.allocation_of = if sets { Some(at) } else { self.allocation_of };
                }
                put_option_reply(out, number, reply::ACK, &[]);
                Next::Option
            }
            _ => refuse(out, reply::ERR_UNSUP, "this server does not know the option"),
        }
    }

    fn transmit(&self, export: usize) -> Next {
        Next::Transmission { export, allocation: self.allocation_of == Some(export) }
    }

    fn describe(&self, export: &Export, number: u32, wanted: &[u16], out: &mut BytesMut) {
        let mut payload = BytesMut::new();
        payload.put_u16(info::EXPORT);
        payload.put_u64(export.info.size);
        payload.put_u16(self.flags(&export.info));
        put_option_reply(out, number, reply::INFO, &payload);
        if wanted.contains(&info::NAME) {
            payload.clear();
            payload.put_u16(info::NAME);
            payload.put_slice(export.name.as_bytes());
            put_option_reply(out, number, reply::INFO, &payload);
        }
        payload.clear();
        payload.put_u16(info::BLOCK_SIZE);
        // Other places and lengths work as well, at the cost of a read and a comparison.
        payload.put_u32(LOGICAL);
        payload.put_u32(PHYSICAL);
        payload.put_u32(PAYLOAD_MOST);
        put_option_reply(out, number, reply::INFO, &payload);
    }

    fn flags(&self, info: &DeviceInfo) -> u16 {
        // What a device acknowledged is seen, and flushed, on all connections: so CAN_MULTI_CONN is true.
        let always = transmission::HAS_FLAGS | transmission::SEND_FLUSH | transmission::SEND_FUA | transmission::CAN_MULTI_CONN | transmission::SEND_CACHE;
        let changes = transmission::SEND_TRIM | transmission::SEND_WRITE_ZEROES | transmission::SEND_FAST_ZERO;
        let one_chunk = if self.structured { transmission::SEND_DF } else { 0 };
        always | one_chunk | if info.read_only { transmission::READ_ONLY } else { changes }
    }
}

/// The place of the export `name`. The empty name means the only export, if there is one.
fn find(exports: &[Export], name: &str) -> Option<usize> {
    if name.len() > NAME_MOST {
        return None;
    }
    let named = exports.iter().position(|export| export.name == name);
    named.or_else(|| (name.is_empty() && exports.len() == 1).then_some(0))
}

fn with_len(name: &str) -> Vec<u8> {
    let mut bytes = u32::try_from(name.len()).unwrap_or(0).to_be_bytes().to_vec();
    bytes.extend_from_slice(name.as_bytes());
    bytes
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use skytether_volume::BlockDevice;
    use skytether_volume::memory::MemoryDevice;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_options_are_answered(flags in 0_u32..8, options in prop::collection::vec((0_u32..14, prop::collection::vec(0_u8..4, 0..60)), 0..20)) {
            let exports = ["", "a", "b"].map(|name| Export { name: name.into(), info: MemoryDevice::new(name, 1 << 20).info() });
            let Some(mut negotiation) = Negotiation::new(flags) else {
                prop_assert!(flags > 3);
                return Ok(());
            };
            let mut out = BytesMut::new();
            for (number, payload) in options {
                out.clear();
                match negotiation.answer(&exports, number, &payload, &mut out) {
                    Next::Option => prop_assert!(!out.is_empty()),
                    Next::Transmission { export, .. } => prop_assert!(export < exports.len()),
                    Next::Close => prop_assert!(number == option::ABORT || number == option::EXPORT_NAME),
                }
                prop_assert!(out.len() < 1000);
            }
        }
    }
}
