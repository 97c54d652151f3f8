//! libcephfs, opened at run time as librados is.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use skytether_common::Result;

use crate::library::{Handle, load, symbols};

/// Names another file than the loader's own.
const FILE_VARIABLE: &str = "SKYTETHER_LIBCEPHFS";

/// The name has been the same since 2018.
const FILE: &str = "libcephfs.so.2";

type Text = *const c_char;

symbols! {
    /// The functions of libcephfs that are used, as in `cephfs/libcephfs.h`.
    CephFs "ceph_"
    create_from_rados: fn(*mut Handle, Handle) -> c_int;
    select_filesystem: fn(Handle, Text) -> c_int;
    mount: fn(Handle, Text) -> c_int;
    unmount: fn(Handle) -> c_int;
    release: fn(Handle) -> c_int;
    opendir: fn(Handle, Text, *mut Handle) -> c_int;
    readdirplus_r: fn(Handle, Handle, *mut libc::dirent, *mut Statx, c_uint, c_uint, *mut *mut c_void) -> c_int;
    closedir: fn(Handle, Handle) -> c_int;
    statx: fn(Handle, Text, *mut Statx, c_uint, c_uint) -> c_int;
    open: fn(Handle, Text, c_int, libc::mode_t) -> c_int;
    open_layout: fn(Handle, Text, c_int, libc::mode_t, c_int, c_int, c_int, Text) -> c_int;
    close: fn(Handle, c_int) -> c_int;
    fstatx: fn(Handle, c_int, *mut Statx, c_uint, c_uint) -> c_int;
    fgetxattr: fn(Handle, c_int, Text, *mut c_void, usize) -> c_int;
    write: fn(Handle, c_int, Text, i64, i64) -> c_int;
    fsync: fn(Handle, c_int, c_int) -> c_int;
    mkdirs: fn(Handle, Text, libc::mode_t) -> c_int;
    rename: fn(Handle, Text, Text) -> c_int;
    unlink: fn(Handle, Text) -> c_int;
}

/// `struct ceph_statx`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Statx {
    pub(super) mask: u32,
    pub(super) blksize: u32,
    pub(super) nlink: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mode: u16,
    pub(super) ino: u64,
    pub(super) size: u64,
    pub(super) blocks: u64,
    pub(super) dev: u64,
    pub(super) rdev: u64,
    pub(super) atime: libc::timespec,
    pub(super) ctime: libc::timespec,
    pub(super) mtime: libc::timespec,
    pub(super) btime: libc::timespec,
    pub(super) version: u64,
}

impl Statx {
    pub(super) fn zeroed() -> Self {
        let time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        Self {
            mask: 0,
            blksize: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            mode: 0,
            ino: 0,
            size: 0,
            blocks: 0,
            dev: 0,
            rdev: 0,
            atime: time,
            ctime: time,
            mtime: time,
            btime: time,
            version: 0,
        }
    }
}

/// libcephfs, opened by the first caller and never closed.
pub(super) fn library() -> Result<&'static CephFs> {
    static OPENED: OnceLock<CephFs> = OnceLock::new();
    if let Some(library) = OPENED.get() {
        return Ok(library);
    }
    let (handle, file) = load(FILE_VARIABLE, FILE, "libcephfs2")?;
    let library = CephFs::resolve(handle, &file)?;
    Ok(OPENED.get_or_init(|| library))
}
