//! Calls of the kernel that no library has in a safe form: FIEMAP, a file's extended flags, SG_IO.

use std::os::fd::{AsRawFd, BorrowedFd};

use skytether_common::{Error, Result};

/// What FIEMAP says of an extent (`linux/fiemap.h`).
pub mod flag {
    /// The last extent of the file.
    pub const LAST: u32 = 0x1;
    /// The place is not known.
    pub const UNKNOWN: u32 = 0x2;
    /// Not on the device yet.
    pub const DELALLOC: u32 = 0x4;
    /// Compressed, for example.
    pub const ENCODED: u32 = 0x8;
    /// Encrypted.
    pub const DATA_ENCRYPTED: u32 = 0x80;
    /// Not at a block's begin.
    pub const NOT_ALIGNED: u32 = 0x100;
    /// Inside metadata.
    pub const DATA_INLINE: u32 = 0x200;
    /// Inside a block with others.
    pub const DATA_TAIL: u32 = 0x400;
    /// Allocated, reads as zeros whatever the device has there.
    pub const UNWRITTEN: u32 = 0x800;
    /// Other files have it, too.
    pub const SHARED: u32 = 0x2000;
}

/// Extents that one call asks for.
const PAGE: usize = 512;

/// Write what is cached before the answer.
const SYNC: u32 = 1;

const FS_IOC_FIEMAP: libc::c_ulong = 0xC020_660B;
const FS_IOC_FSGETXATTR: libc::c_ulong = 0x801C_581F;
const XFLAG_REALTIME: u32 = 1;

/// An extent as the kernel gives it, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct RawExtent {
    /// The first byte within the file.
    pub logical: u64,
    /// The first byte on the file system's device.
    pub physical: u64,
    /// The length.
    pub length: u64,
    pub(crate) reserved64: [u64; 2],
    /// See [`flag`].
    pub flags: u32,
    pub(crate) reserved: [u32; 3],
}

impl RawExtent {
    /// An extent with these fields.
    #[must_use]
    pub fn new(logical: u64, physical: u64, length: u64, flags: u32) -> Self {
        Self { logical, physical, length, flags, ..Self::default() }
    }
}

#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; PAGE],
}

/// All extents of a file, at most `most`.
///
/// # Errors
/// `Unsupported` where the file system has no FIEMAP, `Exhausted` for more extents.
pub fn extents(file: BorrowedFd<'_>, most: usize) -> Result<Vec<RawExtent>> {
    let mut found: Vec<RawExtent> = Vec::new();
    let mut request = Box::new(Request { start: 0, length: 0, flags: 0, mapped: 0, count: 0, reserved: 0, extents: [RawExtent::default(); PAGE] });
    let mut start = 0;
    loop {
        (request.start, request.length, request.flags, request.mapped, request.count) = (start, u64::MAX - start, SYNC, 0, PAGE as u32);
        // SAFETY: the request is a `struct fiemap` with room for `count` extents, which the kernel fills at most.
        #[allow(unsafe_code)]
        let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut *request) };
        if result != 0 {
            let cause = std::io::Error::last_os_error();
            return Err(match cause.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EBADR | libc::EINVAL) => {
                    Error::unsupported("the file system can't tell the places of a file (FIEMAP)")
                }
                _ => Error::unavailable("the places of a file could not be asked for (FIEMAP)"),
            }
            .with_source(cause));
        }
        let page = &request.extents[..(request.mapped as usize).min(PAGE)];
        found.extend_from_slice(page);
        if found.len() > most {
            return Err(Error::exhausted(format!("the file lies in more than {most} extents; copy it to a file that is less fragmented")));
        }
        match page.last() {
            Some(last) if last.flags & flag::LAST == 0 && last.length > 0 => start = last.logical.saturating_add(last.length),
            _ => return Ok(found),
        }
    }
}

/// Whether the file lies on the real-time device of an XFS file system.
#[must_use]
pub fn is_realtime(file: BorrowedFd<'_>) -> bool {
    // `struct fsxattr`: flags, and 24 bytes more.
    let mut attributes = [0u32; 7];
    // SAFETY: the kernel fills the 28 bytes of the structure.
    #[allow(unsafe_code)]
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FSGETXATTR as _, attributes.as_mut_ptr()) };
    result == 0 && attributes[0] & XFLAG_REALTIME != 0
}
