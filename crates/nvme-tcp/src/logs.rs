//! Pages of logs.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::command::{Command, Status, admin, io};
use crate::identify::ERRORS;
use crate::page::Page;

/// Identifiers of pages.
pub mod page {
    /// Failed commands, the newest first.
    pub const ERRORS: u8 = 0x01;
    /// Counters and health.
    pub const HEALTH: u8 = 0x02;
    /// Versions of firmware.
    pub const FIRMWARE: u8 = 0x03;
    /// Namespaces that changed.
    pub const CHANGED: u8 = 0x04;
    /// Commands, and what they change.
    pub const EFFECTS: u8 = 0x05;
    /// Subsystems and their addresses.
    pub const DISCOVERY: u8 = 0x70;
    /// What EXEC can do (vendor).
    pub const EXEC: u8 = 0xC0;
}

/// The page, and its bytes, that a Get Log Page wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// The page ([`page`]).
    pub page: u8,
    /// The first byte.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

impl Wanted {
    /// Reads it.
    #[must_use]
    pub fn of(command: &Command) -> Self {
        let words = u64::from(command.word(10) >> 16) | u64::from(command.word(11) & 0xffff) << 16;
        Self { page: command.word(10) as u8, offset: command.double(12), len: (words + 1) * 4 }
    }

    /// These bytes of `page`; beyond its end are zeros.
    ///
    /// # Errors
    /// `INVALID_FIELD` where the first byte is beyond the end or no multiple of 4, or it is longer than `most`.
    pub fn cut(&self, page: &Bytes, most: u32) -> Result<Bytes, Status> {
        if !self.offset.is_multiple_of(4) || self.offset > page.len() as u64 || self.len > u64::from(most) {
            return Err(Status::INVALID_FIELD);
        }
        let rest = page.slice(self.offset as usize..);
        let len = self.len as usize;
        if rest.len() >= len {
            return Ok(rest.slice(..len));
        }
        let mut padded = rest.to_vec();
        padded.resize(len, 0);
        Ok(padded.into())
    }
}

/// What all controllers of a door have done since its start.
#[derive(Debug, Default)]
pub struct Counters {
    /// Blocks of 512 bytes.
    pub blocks_read: AtomicU64,
    /// Blocks of 512 bytes.
    pub blocks_written: AtomicU64,
    /// Read and compare commands.
    pub reads: AtomicU64,
    /// Write commands.
    pub writes: AtomicU64,
    /// Damage that was found.
    pub media_errors: AtomicU64,
    /// Failed commands.
    pub errors: AtomicU64,
}

impl Counters {
    /// The page [`page::HEALTH`].
    #[must_use]
    pub fn page(&self) -> Bytes {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // In thousands of blocks, rounded up.
        let thousands = |counter: &AtomicU64| of(counter).div_ceil(1000);
        // 300 K is no measurement: it is the temperature of what has none.
        Page::new(512)
            .u16(1, 300)
            .u8(3, 100)
            .u64(32, thousands(&self.blocks_read))
            .u64(48, thousands(&self.blocks_written))
            .u64(64, of(&self.reads))
            .u64(80, of(&self.writes))
            .u64(160, of(&self.media_errors))
            .u64(176, of(&self.errors))
            .finish()
    }
}

/// A failed command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// Counted from 1.
    pub number: u64,
    /// Its queue.
    pub queue: u16,
    /// Its identifier.
    pub command: u16,
    /// Its status.
    pub status: Status,
    /// Its first block, where it had one.
    pub block: u64,
    /// Its namespace.
    pub namespace: u32,
}

/// The page [`page::ERRORS`].
#[must_use]
pub fn errors<'a>(newest_first: impl Iterator<Item = &'a Failure>) -> Bytes {
    let put = |page: Page, (place, failure): (usize, &Failure)| {
        let at = 64 * place;
        // No field of the command is named as the wrong one.
        page.u64(at, failure.number)
            .u16(at + 8, failure.queue)
            .u16(at + 10, failure.command)
            .u16(at + 12, failure.status.field())
            .u16(at + 14, 0xffff)
            .u64(at + 16, failure.block)
            .u32(at + 24, failure.namespace)
            .u8(at + 29, TCP)
    };
    newest_first.take(ERRORS).enumerate().fold(Page::new(64 * ERRORS), put).finish()
}

/// The page [`page::FIRMWARE`]: one slot.
#[must_use]
pub fn firmware() -> Bytes {
    Page::new(512).u8(0, 1).text(8, 8, env!("CARGO_PKG_VERSION"), b' ').finish()
}

/// The page [`page::EFFECTS`].
#[must_use]
pub fn effects(is_discovery: bool, has_exec: bool) -> Bytes {
    // Supported; changes content of blocks.
    const SUPPORTED: u32 = 1;
    const CHANGES: u32 = 1 << 1 | SUPPORTED;
    let known = [admin::GET_LOG_PAGE, admin::IDENTIFY, admin::SET_FEATURES, admin::GET_FEATURES, admin::ASYNC_EVENT, admin::KEEP_ALIVE, admin::ABORT];
    let page = known.into_iter().fold(Page::new(4096), |page, opcode| page.u32(4 * usize::from(opcode), SUPPORTED));
    if is_discovery {
        return page.finish();
    }
    let mut of_io = vec![
        (io::FLUSH, SUPPORTED),
        (io::READ, SUPPORTED),
        (io::COMPARE, SUPPORTED),
        (io::VERIFY, SUPPORTED),
        (io::WRITE, CHANGES),
        (io::WRITE_ZEROES, CHANGES),
        (io::DATASET_MANAGEMENT, CHANGES),
    ];
    if has_exec {
        // It may write output objects.
        of_io.extend([(io::EXEC_OUT, CHANGES), (io::EXEC_IN, SUPPORTED)]);
    }
    of_io.into_iter().fold(page, |page, (opcode, effects)| page.u32(1024 + 4 * usize::from(opcode), effects)).finish()
}

/// The transport type of TCP.
const TCP: u8 = 3;

/// The page [`page::DISCOVERY`]: one subsystem at `host` and `port`.
#[must_use]
pub fn discovery(subsystem: &str, host: &str, port: &str) -> Bytes {
    let is_six = host.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6());
    let entry = Page::new(1024)
        .u8(0, TCP)
        // IPv4 is 1, IPv6 is 2.
        .u8(1, if is_six { 2 } else { 1 })
        // A subsystem with namespaces.
        .u8(2, 2)
        // No secure channel.
        .u8(3, 2)
        .u16(4, 1)
        // Controllers are made as hosts come.
        .u16(6, 0xffff)
        .u16(8, 32)
        .text(32, 32, port, b' ')
        .text(256, 256, subsystem, 0)
        .text(512, 256, host, b' ')
        .finish();
    Page::new(2048).u64(0, 1).u64(8, 1).put(1024, &entry).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_cut_and_padded() {
        let page = Bytes::from_static(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let cut = |offset, len| Wanted { page: 1, offset, len }.cut(&page, 100);
        assert_eq!(cut(4, 8), Ok(Bytes::from_static(&[5, 6, 7, 8, 0, 0, 0, 0])));
        assert_eq!(cut(8, 4), Ok(Bytes::from_static(&[0; 4])));
        for (offset, len) in [(12, 4), (2, 4), (0, 104), (u64::MAX - 3, 4)] {
            assert_eq!(cut(offset, len), Err(Status::INVALID_FIELD), "{offset} {len}");
        }
    }
}
