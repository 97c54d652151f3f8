//! Requests of the transmission phase over a device.

use bytes::{BufMut, Bytes, BytesMut};
use skytether_common::{Error, Kind};
use skytether_volume::device::LOGICAL;
use skytether_volume::{BlockDevice, Durability, Extent, Zeros};

use crate::negotiation::ALLOCATION_ID;
use crate::places;
use crate::wire::{NAME_MOST, PAYLOAD_MOST, Request, chunk, command, errno, flag, put_chunk, put_simple_reply, state};

/// Reads of at least this length are looked through for holes, which need not be sent.
const SPARSE: u32 = 64 << 10;

/// Extents in one answer.
const EXTENTS: usize = 4096;

/// What the client has chosen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    /// Replies are structured.
    pub(crate) structured: bool,
    /// Block status has `base:allocation`.
    pub(crate) allocation: bool,
}

/// A request that failed: a number for the client's system and a text for its log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    number: u32,
    text: String,
}

impl Failed {
    pub(crate) fn new(number: u32, text: impl Into<String>) -> Self {
        Self { number, text: text.into() }
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        let number = match error.kind() {
            Kind::Invalid => errno::EINVAL,
            Kind::Conflict => errno::EPERM,
            Kind::Exhausted => errno::ENOSPC,
            Kind::Unsupported => errno::ENOTSUP,
            Kind::NotFound | Kind::Corrupt | Kind::Unavailable | Kind::Internal => errno::EIO,
        };
        Self::new(number, error.to_string())
    }
}

/// The pieces of a reply, in their order.
pub(crate) type Pieces = Vec<Bytes>;

/// Carries out a request, whose `payload` is that of a write. The reply as bytes.
pub(crate) async fn run(device: &dyn BlockDevice, request: Request, payload: Bytes, form: Form) -> Pieces {
    let done = carry_out(device, request, payload, form).await;
    done.unwrap_or_else(|failed| refuse(request.cookie, &failed, form))
}

/// The reply of a request that failed.
pub(crate) fn refuse(cookie: u64, failed: &Failed, form: Form) -> Pieces {
    let mut out = BytesMut::new();
    if form.structured {
        let text = &failed.text.as_bytes()[..failed.text.floor_char_boundary(NAME_MOST)];
        put_chunk(&mut out, cookie, chunk::DONE, chunk::ERROR, 6 + text.len() as u32);
        out.put_u32(failed.number);
        out.put_u16(text.len() as u16);
        out.put_slice(text);
    } else {
        put_simple_reply(&mut out, cookie, failed.number);
    }
    vec![out.freeze()]
}

async fn carry_out(device: &dyn BlockDevice, request: Request, payload: Bytes, form: Form) -> Result<Pieces, Failed> {
    check(device, &request)?;
    let (at, len) = (request.at, request.len);
    let durability = if request.flags & flag::FUA == 0 { Durability::Cached } else { Durability::Durable };
    match request.command {
        command::READ if len == 0 => {}
        command::READ if form.structured => return read_sparse(device, request).await,
        command::READ => {
            let mut out = BytesMut::new();
            put_simple_reply(&mut out, request.cookie, 0);
            return Ok(vec![out.freeze(), places::read(device, at, len).await?]);
        }
        command::WRITE => places::write(device, at, payload, durability).await?,
        command::FLUSH => device.flush().await?,
        command::TRIM => {
            // Parts of blocks keep their content: a trim may do less than it says.
            let unit = u64::from(LOGICAL);
            let (from, end) = (at.next_multiple_of(unit), at + u64::from(len));
            let end = end - end % unit;
            if end > from {
                device.zero(from, end - from, Zeros::Unmapped, durability).await?;
            }
        }
        command::WRITE_ZEROES => {
            let how = if request.flags & flag::NO_HOLE == 0 { Zeros::Unmapped } else { Zeros::Mapped };
            if how == Zeros::Mapped && request.flags & flag::FAST_ZERO != 0 {
                return Err(Failed::new(errno::ENOTSUP, "mapped zeros are no faster than a write"));
            }
            places::zero(device, at, len.into(), how, durability).await?;
        }
        // A hint: nothing is lost by ignoring it, and reading ahead would take memory from others.
        command::CACHE => {}
        command::BLOCK_STATUS => return block_status(device, request, form).await,
        _ => return Err(Failed::new(errno::EINVAL, "this server does not know the request")),
    }
    let mut out = BytesMut::new();
    if form.structured {
        put_chunk(&mut out, request.cookie, chunk::DONE, chunk::NONE, 0);
    } else {
        put_simple_reply(&mut out, request.cookie, 0);
    }
    Ok(vec![out.freeze()])
}

/// Refuses flags that the request does not have, and ranges beyond the end.
fn check(device: &dyn BlockDevice, request: &Request) -> Result<(), Failed> {
    let (known, changes) = match request.command {
        command::READ => (flag::FUA | flag::DF, false),
        command::WRITE | command::TRIM => (flag::FUA, true),
        command::WRITE_ZEROES => (flag::FUA | flag::NO_HOLE | flag::FAST_ZERO, true),
        command::FLUSH | command::CACHE => (flag::FUA, false),
        command::BLOCK_STATUS => (flag::FUA | flag::REQ_ONE, false),
        _ => return Ok(()),
    };
    if request.flags & !known != 0 {
        return Err(Failed::new(errno::EINVAL, format!("the request has flags {:#x} that it can't have", request.flags & !known)));
    }
    let info = device.info();
    if changes && info.read_only {
        return Err(Failed::new(errno::EPERM, format!("{}: it is read-only", info.name)));
    }
    if request.command == command::FLUSH {
        return Ok(());
    }
    if request.command == command::READ && request.len > PAYLOAD_MOST {
        return Err(Failed::new(errno::EINVAL, format!("{}: a read of {} bytes is longer than {PAYLOAD_MOST}", info.name, request.len)));
    }
    if request.at.checked_add(request.len.into()).is_none_or(|end| end > info.size) {
        let number = if changes { errno::ENOSPC } else { errno::EINVAL };
        return Err(Failed::new(number, format!("{}: {} bytes at {} go beyond its end at {}", info.name, request.len, request.at, info.size)));
    }
    Ok(())
}

/// The chunks of a read: data, and holes without their zeros.
async fn read_sparse(device: &dyn BlockDevice, request: Request) -> Result<Pieces, Failed> {
    let whole = Extent { at: request.at, len: request.len.into(), mapped: true };
    let may_split = request.len >= SPARSE && request.flags & flag::DF == 0;
    let mut extents = if may_split { extents(device, request.at, request.len).await? } else { vec![whole] };
    // The list may be incomplete.
    let end = request.at + u64::from(request.len);
    match extents.last().map(|last| last.at + last.len) {
        Some(last) if last < end => extents.push(Extent { at: last, len: end - last, mapped: true }),
        Some(_) => {}
        None => extents.push(whole),
    }
    let (mut pieces, last) = (Pieces::new(), extents.len() - 1);
    for (number, extent) in extents.into_iter().enumerate() {
        let mut head = BytesMut::new();
        let flags = if number == last { chunk::DONE } else { 0 };
        // All extents are parts of a range with a length of 32 bits.
        let len = extent.len as u32;
        if extent.mapped {
            let data = places::read(device, extent.at, len).await?;
            put_chunk(&mut head, request.cookie, flags, chunk::OFFSET_DATA, 8 + len);
            head.put_u64(extent.at);
            pieces.extend([head.freeze(), data]);
        } else {
            put_chunk(&mut head, request.cookie, flags, chunk::OFFSET_HOLE, 12);
            head.put_u64(extent.at);
            head.put_u32(len);
            pieces.push(head.freeze());
        }
    }
    Ok(pieces)
}

async fn block_status(device: &dyn BlockDevice, request: Request, form: Form) -> Result<Pieces, Failed> {
    if !form.allocation || request.len == 0 {
        let text = "block status needs the context base:allocation of this export, and a length";
        return Err(Failed::new(errno::EINVAL, text));
    }
    let most = if request.flags & flag::REQ_ONE == 0 { EXTENTS } else { 1 };
    let extents = extents(device, request.at, request.len).await?;
    let count = extents.len().min(most);
    let mut out = BytesMut::new();
    put_chunk(&mut out, request.cookie, chunk::DONE, chunk::BLOCK_STATUS, 4 + 8 * count as u32);
    out.put_u32(ALLOCATION_ID);
    for extent in extents.into_iter().take(count) {
        out.put_u32(extent.len as u32);
        out.put_u32(if extent.mapped { 0 } else { state::HOLE | state::ZERO });
    }
    Ok(vec![out.freeze()])
}

/// What is mapped of exactly the range, or of its beginning.
async fn extents(device: &dyn BlockDevice, at: u64, len: u32) -> Result<Vec<Extent>, Failed> {
    let (from, around) = places::around(at, len.into());
    let end = at + u64::from(len);
    let found = device.extents(from, around).await?;
    let clipped = found.into_iter().filter_map(|extent| {
        let (from, to) = (extent.at.max(at), (extent.at + extent.len).min(end));
        (to > from).then(|| Extent { at: from, len: to - from, mapped: extent.mapped })
    });
    Ok(clipped.collect())
}
