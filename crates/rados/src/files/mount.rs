//! A CephFS through libcephfs: no mount of the kernel's. Every call has a deadline: libcephfs waits for ever for a
//! metadata server.

use std::ffi::{CStr, CString, c_int, c_uint};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use bytes::Bytes;
use skytether_common::{Error, Result};

use super::library::{CephFs, Statx, library};
use crate::cluster::{Cluster, c_text, failed};
use crate::library::Handle;

/// `CEPH_STATX_*`: mode, time of the last change, inode and size.
const WANTED: c_uint = 0x0001 | 0x0040 | 0x0100 | 0x0200;

/// Bytes of one write.
const WRITE: usize = 4 << 20;

/// The longest layout that is read.
const LAYOUT: usize = 4096;

/// A connection to a file system.
#[derive(Debug)]
pub(super) struct Mount {
    lib: &'static CephFs,
    handle: Handle,
    cluster: Arc<Cluster>,
    /// A call did not end in time, and still uses the handle.
    is_stuck: AtomicBool,
}

// SAFETY: libcephfs' handles may be used by several threads at the same time (it has locks of its own).
unsafe impl Send for Mount {}
// SAFETY: as above.
unsafe impl Sync for Mount {}

/// A handle that goes to another thread.
struct Moved<T>(T);

// SAFETY: only for libcephfs' handles, as above; one thread uses it at a time.
unsafe impl<T> Send for Moved<T> {}

impl<T> Moved<T> {
    fn take(self) -> T {
        self.0
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_stuck.load(Ordering::Acquire) {
            // It would wait for the same metadata server.
            return;
        }
        // SAFETY: files hold the mount, so that none is open.
        unsafe {
            (self.lib.unmount)(self.handle);
            (self.lib.release)(self.handle);
        }
    }
}

/// Which content a file has: another inode, size or time is another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) inode: u64,
    pub(super) size: u64,
    mtime: (i64, i64),
}

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    File(Stamp),
    Directory,
    Other,
}

impl Found {
    fn of(stat: &Statx) -> Self {
        match u32::from(stat.mode) & libc::S_IFMT {
            libc::S_IFREG => Self::File(Stamp { inode: stat.ino, size: stat.size, mtime: (stat.mtime.tv_sec, stat.mtime.tv_nsec) }),
            libc::S_IFDIR => Self::Directory,
            _ => Self::Other,
        }
    }
}

/// An open file. The metadata server keeps the objects of a file that is removed until it is closed.
#[derive(Debug)]
pub(super) struct OpenFile {
    mount: Arc<Mount>,
    number: c_int,
    path: String,
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let number = self.number;
        // Its failure changes nothing: the server closes what an ended session had open.
        let _closed = self.mount.call("close", &self.path, move |lib, handle| {
            // SAFETY: the file is open and closed once.
            (unsafe { (lib.close)(handle, number) }, ())
        });
    }
}

impl Mount {
    /// Connects to the file system `name`, or the default one.
    pub(super) fn connect(cluster: Arc<Cluster>, name: Option<&str>) -> Result<Arc<Self>> {
        let lib = library()?;
        let mut handle: Handle = ptr::null_mut();
        // SAFETY: the cluster is connected and outlives the mount, which holds it.
        let code = unsafe { (lib.create_from_rados)(&raw mut handle, cluster.handle) };
        if code < 0 {
            return Err(failed(code, format!("make a client of CephFS for {}", cluster.name), cluster.timeout));
        }
        // Not mounted yet: its end must not unmount it.
        let mount = Self { lib, handle, cluster, is_stuck: AtomicBool::new(true) };
        let text = name.map(c_text).transpose()?;
        let shown = name.unwrap_or("the default one").to_owned();
        mount.call("open the file system", &shown, move |lib, handle| {
            // SAFETY: the handle is new, and the texts live during the calls.
            unsafe {
                let code = text.map_or(0, |text| (lib.select_filesystem)(handle, text.as_ptr()));
                (if code < 0 { code } else { (lib.mount)(handle, c"/".as_ptr()) }, ())
            }
        })?;
        mount.is_stuck.store(false, Ordering::Release);
        Ok(Arc::new(mount))
    }

    /// Has a thread of its own do `work`, which gives libcephfs' answer, and waits as long as the cluster's deadline.
    fn call<T: Send + 'static>(
        &self,
        action: &str,
        path: &str,
        work: impl FnOnce(&'static CephFs, Handle) -> (c_int, T) + Send + 'static,
    ) -> Result<(c_int, T)> {
        let (send, receive) = mpsc::sync_channel(1);
        let (lib, handle) = (self.lib, Moved(self.handle));
        let what = || format!("{action} {path} of the CephFS of {}", self.cluster.name);
        let started = std::thread::Builder::new().name("cephfs".to_owned()).spawn(move || {
            let done = work(lib, handle.take());
            // The caller may have given up.
            let _heard = send.send(done);
        });
        started.map_err(|e| Error::exhausted(format!("cannot {}: no thread could be started", what())).with_source(e))?;
        match receive.recv_timeout(self.cluster.timeout) {
            Ok((code, _)) if code < 0 => Err(failed(code, what(), self.cluster.timeout)),
            Ok(done) => Ok(done),
            Err(_) => {
                self.is_stuck.store(true, Ordering::Release);
                Err(failed(-libc::ETIMEDOUT, what(), self.cluster.timeout))
            }
        }
    }

    /// What is at `path`; links are followed.
    pub(super) fn find(&self, path: &str) -> Result<Found> {
        let text = c_text(path)?;
        let (_, stat) = self.call("look at", path, move |lib, handle| {
            let mut stat = Statx::zeroed();
            // SAFETY: text and buffer live during the call.
            (unsafe { (lib.statx)(handle, text.as_ptr(), &raw mut stat, WANTED, 0) }, stat)
        })?;
        Ok(Found::of(&stat))
    }

    /// The names in a directory, and what they are.
    pub(super) fn list(&self, path: &str) -> Result<Vec<(String, Found)>> {
        let text = c_text(path)?;
        let (_, found) = self.call("list", path, move |lib, handle| {
            let mut dir: Handle = ptr::null_mut();
            // SAFETY: text and out pointer live during the call.
            let code = unsafe { (lib.opendir)(handle, text.as_ptr(), &raw mut dir) };
            if code < 0 {
                return (code, Vec::new());
            }
            let mut found = Vec::new();
            let code = loop {
                // SAFETY: plain bytes of the C library's, for which zeros are valid.
                let mut entry: libc::dirent = unsafe { std::mem::zeroed() };
                let mut stat = Statx::zeroed();
                // SAFETY: the directory is open and the buffers live during the call; no inode is wanted.
                let code = unsafe { (lib.readdirplus_r)(handle, dir, &raw mut entry, &raw mut stat, WANTED, 0, ptr::null_mut()) };
                if code <= 0 {
                    break code;
                }
                // SAFETY: libcephfs ends the name with a zero.
                let name = unsafe { CStr::from_ptr(entry.d_name.as_ptr()) }.to_string_lossy().into_owned();
                if name != "." && name != ".." {
                    found.push((name, Found::of(&stat)));
                }
            };
            // SAFETY: the directory is open and closed once.
            unsafe { (lib.closedir)(handle, dir) };
            (code, found)
        })?;
        Ok(found)
    }

    /// Opens a file for reading. Other clients write down what they still hold of it when its size is asked for.
    pub(super) fn open(self: &Arc<Self>, path: &str) -> Result<OpenFile> {
        let text = c_text(path)?;
        let (number, ()) = self.call("open", path, move |lib, handle| {
            // SAFETY: the text lives during the call.
            (unsafe { (lib.open)(handle, text.as_ptr(), libc::O_RDONLY, 0) }, ())
        })?;
        Ok(OpenFile { mount: Arc::clone(self), number, path: path.to_owned() })
    }

    /// Makes the directories of `path`.
    pub(super) fn make_directories(&self, path: &str) -> Result<()> {
        let text = c_text(path)?;
        self.call("make the directory", path, move |lib, handle| {
            // SAFETY: the text lives during the call.
            let code = unsafe { (lib.mkdirs)(handle, text.as_ptr(), 0o755) };
            (if code == -libc::EEXIST { 0 } else { code }, ())
        })?;
        Ok(())
    }

    /// Writes a file in objects of `object` bytes: under another name first, so that it is there whole or not at all.
    pub(super) fn write(&self, path: &str, bytes: Bytes, object: u32) -> Result<()> {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let draft = c_text(&format!("{directory}/.{name}.{}", uuid::Uuid::new_v4()))?;
        let target = c_text(path)?;
        let abandoned = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&abandoned);
        let done = self.call("write", path, move |lib, handle| (written(lib, handle, &draft, &target, &bytes, object, &seen), ()));
        // A call that came too late still runs. What it writes must not replace what is written after the error.
        abandoned.store(done.is_err(), Ordering::Release);
        done.map(|_| ())
    }
}

/// Writes `bytes` as `draft`, and renames that unless the write is `abandoned`.
fn written(lib: &CephFs, handle: Handle, draft: &CStr, target: &CStr, bytes: &[u8], object: u32, abandoned: &AtomicBool) -> c_int {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
    let Ok(object) = c_int::try_from(object) else { return -libc::EINVAL };
    // SAFETY: the text lives during the call; null: the file system's own pool.
    let file = unsafe { (lib.open_layout)(handle, draft.as_ptr(), flags, 0o644, object, 1, object, ptr::null()) };
    if file < 0 {
        return file;
    }
    let (mut at, mut code) = (0, 0);
    while at < bytes.len() && code >= 0 {
        let piece = &bytes[at..bytes.len().min(at + WRITE)];
        // SAFETY: the file is open, and the piece lives during the call.
        code = unsafe { (lib.write)(handle, file, piece.as_ptr().cast(), piece.len() as i64, at as i64) };
        at += usize::try_from(code).unwrap_or(0);
        if code == 0 {
            code = -libc::EIO;
        }
        if abandoned.load(Ordering::Acquire) {
            code = -libc::ECANCELED;
        }
    }
    // SAFETY: the file is open and closed once; both texts live during the calls.
    unsafe {
        if code >= 0 {
            code = (lib.fsync)(handle, file, 0);
        }
        let closed = (lib.close)(handle, file);
        code = if code < 0 { code } else { closed };
        if code >= 0 && abandoned.load(Ordering::Acquire) {
            code = -libc::ECANCELED;
        }
        if code >= 0 {
            code = (lib.rename)(handle, draft.as_ptr(), target.as_ptr());
        }
        if code < 0 {
            (lib.unlink)(handle, draft.as_ptr());
        }
    }
    code
}

impl OpenFile {
    /// What the file is now.
    pub(super) fn stamp(&self) -> Result<Found> {
        let number = self.number;
        let (_, stat) = self.mount.call("look at", &self.path, move |lib, handle| {
            let mut stat = Statx::zeroed();
            // SAFETY: the file is open, and the buffer lives during the call.
            (unsafe { (lib.fstatx)(handle, number, &raw mut stat, WANTED, 0) }, stat)
        })?;
        Ok(Found::of(&stat))
    }

    /// The text of its attribute `ceph.file.layout`.
    pub(super) fn layout(&self) -> Result<String> {
        let (number, name) = (self.number, CString::from(c"ceph.file.layout"));
        let (len, text) = self.mount.call("read the layout of", &self.path, move |lib, handle| {
            let mut text = vec![0u8; LAYOUT];
            // SAFETY: the file is open; name and buffer live during the call.
            (unsafe { (lib.fgetxattr)(handle, number, name.as_ptr(), text.as_mut_ptr().cast(), text.len()) }, text)
        })?;
        let len = usize::try_from(len).unwrap_or(0).min(text.len());
        Ok(String::from_utf8_lossy(&text[..len]).into_owned())
    }
}
