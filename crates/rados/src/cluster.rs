//! A connection to a cluster, and its pools. Every call has a deadline: librados alone would wait for ever.

use std::ffi::{CString, c_char, c_int};
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use skytether_common::{Error, Kind, Result};

use crate::address::Address;
use crate::library::{ClusterStat, Handle, Library, library};

/// A connection. One for each open fleet: it has some 40 threads and 30 MB.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) lib: &'static Library,
    pub(crate) handle: Handle,
    pub(crate) name: String,
    pub(crate) timeout: Duration,
}

// SAFETY: librados' handles may be used by several threads at the same time (librados.h, "thread safe").
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: pools hold the cluster, so that no I/O context is left.
        unsafe { (self.lib.shutdown)(self.handle) };
    }
}

/// A text as C wants it.
pub(crate) fn c_text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid(format!("{text:?} holds a zero byte: Ceph takes no such name")))
}

/// `error` of librados (negative) while doing `what`.
pub(crate) fn failed(code: c_int, what: impl Into<String>, timeout: Duration) -> Error {
    let code = code.checked_neg().unwrap_or(libc::EIO);
    let (kind, advice) = match code {
        libc::ENOENT => (Kind::NotFound, String::new()),
        libc::EACCES | libc::EPERM => (Kind::Invalid, ": check the user, its keyring and its capabilities".to_owned()),
        libc::ENOSPC | libc::EDQUOT => (Kind::Exhausted, ": the pool is full; delete something, or add disks".to_owned()),
        libc::EOPNOTSUPP => (Kind::Unsupported, String::new()),
        libc::EIO => (Kind::Corrupt, ": Ceph has no good copy of it".to_owned()),
        libc::ESHUTDOWN => (Kind::Unavailable, ": the cluster has blocked this client; open the fleet again".to_owned()),
        libc::ETIMEDOUT => (Kind::Unavailable, format!(": no answer within {} s; look at `ceph status`, or set timeout= in the address", timeout.as_secs())),
        _ => (Kind::Unavailable, String::new()),
    };
    Error::new(kind, format!("cannot {}{advice}", what.into())).with_source(std::io::Error::from_raw_os_error(code))
}

impl Cluster {
    /// Connects as `at` says.
    pub(crate) fn connect(at: &Address) -> Result<Arc<Self>> {
        Self::connect_for(&at.name(), at.conf.as_deref(), &at.user, at.timeout)
    }

    /// Connects as `user`, with the configuration file `conf`; errors say that it is for `name`.
    pub(crate) fn connect_for(name: &str, conf: Option<&Path>, user: &str, timeout: Duration) -> Result<Arc<Self>> {
        let lib = library()?;
        let (ceph, client) = (c_text("ceph")?, c_text(&format!("client.{user}"))?);
        let mut handle: Handle = ptr::null_mut();
        // SAFETY: out pointer and C strings are valid during the call.
        let code = unsafe { (lib.create2)(&raw mut handle, ceph.as_ptr(), client.as_ptr(), 0) };
        if code < 0 {
            return Err(failed(code, format!("make a client of Ceph for {name}"), timeout));
        }
        let cluster = Self { lib, handle, name: name.to_owned(), timeout };
        let file = conf.map(|conf| c_text(&conf.to_string_lossy())).transpose()?;
        // SAFETY: null means Ceph's usual places.
        let code = unsafe { (lib.conf_read_file)(handle, file.as_ref().map_or(ptr::null(), |file| file.as_ptr())) };
        if code < 0 {
            let file = conf.map_or_else(|| "Ceph's configuration".to_owned(), |conf| conf.display().to_string());
            return Err(failed(code, format!("read {file} for {name}, which conf= in the address names"), timeout));
        }
        let seconds = timeout.as_secs().to_string();
        for (key, value) in [
            ("rados_osd_op_timeout", seconds.as_str()),
            ("rados_mon_op_timeout", &seconds),
            ("client_mount_timeout", &seconds),
            // Files and terminals are the program's own.
            ("log_file", ""),
            ("log_to_stderr", "false"),
            ("err_to_stderr", "false"),
            ("admin_socket", ""),
        ] {
            let (option, text) = (c_text(key)?, c_text(value)?);
            // SAFETY: C strings are valid during the call.
            let code = unsafe { (lib.conf_set)(handle, option.as_ptr(), text.as_ptr()) };
            if code < 0 {
                return Err(failed(code, format!("set {key} for {name}"), timeout));
            }
        }
        // SAFETY: the handle is configured.
        match unsafe { (lib.connect)(handle) } {
            code if code < 0 => {
                let error = failed(code, format!("connect to the Ceph cluster of {name} as client.{user}"), timeout);
                // Ceph says "not found" where a keyring or the monitors are missing: neither is a fleet.
                Err(if error.kind() == Kind::NotFound { Error::invalid(error.report()) } else { error })
            }
            _ => Ok(Arc::new(cluster)),
        }
    }

    /// The pool of this name, within a namespace.
    pub(crate) fn pool(self: &Arc<Self>, name: &str, namespace: &str) -> Result<Arc<Pool>> {
        let (text, within) = (c_text(name)?, c_text(namespace)?);
        let mut io: Handle = ptr::null_mut();
        // SAFETY: out pointer and C string are valid during the call.
        let code = unsafe { (self.lib.ioctx_create)(self.handle, text.as_ptr(), &raw mut io) };
        if code < 0 {
            return Err(failed(code, format!("open the pool {name}; `ceph osd pool ls` lists those that exist"), self.timeout));
        }
        // SAFETY: the context is open; the text is copied.
        unsafe { (self.lib.ioctx_set_namespace)(io, within.as_ptr()) };
        // Locks, too, fail or succeed in a full pool, instead of waiting for room: a fleet there can be opened.
        // SAFETY: the context is open.
        unsafe { (self.lib.set_pool_full_try)(io) };
        Ok(Arc::new(Pool { cluster: Arc::clone(self), io, name: name.to_owned() }))
    }

    /// Passes a command to the monitors; its answer.
    pub(crate) fn command(&self, words: &serde_json::Value) -> Result<Vec<u8>> {
        let text = c_text(&words.to_string())?;
        let commands = [text.as_ptr()];
        let (mut out, mut say): (*mut c_char, *mut c_char) = (ptr::null_mut(), ptr::null_mut());
        let (mut out_len, mut say_len) = (0, 0);
        // SAFETY: all pointers are valid during the call; librados allocates both answers.
        let code = unsafe {
            (self.lib.mon_command)(self.handle, commands.as_ptr(), 1, ptr::null(), 0, &raw mut out, &raw mut out_len, &raw mut say, &raw mut say_len)
        };
        let (answer, said) = (self.taken(out, out_len), self.taken(say, say_len));
        if code < 0 {
            let said = String::from_utf8_lossy(&said).into_owned();
            return Err(failed(code, format!("ask the monitors of {} about {} {said}", self.name, words["prefix"]), self.timeout));
        }
        Ok(answer)
    }

    /// The bytes of a buffer that librados allocated, which is freed.
    pub(crate) fn taken(&self, buffer: *mut c_char, len: usize) -> Vec<u8> {
        if buffer.is_null() {
            return Vec::new();
        }
        // SAFETY: librados gave a buffer of this length.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), len) }.to_vec();
        // SAFETY: as above, and nothing refers to it any more.
        unsafe { (self.lib.buffer_free)(buffer) };
        bytes
    }

    /// What the monitors know of all pools.
    pub(crate) fn pools(&self) -> Result<Vec<PoolInfo>> {
        let answer = self.command(&serde_json::json!({"prefix": "osd pool ls", "detail": "detail", "format": "json"}))?;
        serde_json::from_slice(&answer).map_err(|e| Error::unsupported(format!("{}: the monitors describe pools in an unknown form", self.name)).with_source(e))
    }

    /// Free bytes and all bytes of the disks; `None` where no manager counts them.
    pub(crate) fn space(&self) -> Result<Option<(u64, u64)>> {
        let mut found = ClusterStat::default();
        // SAFETY: the out pointer is valid during the call.
        let code = unsafe { (self.lib.cluster_stat)(self.handle, &raw mut found) };
        if code < 0 {
            return Err(failed(code, format!("ask for the free space of {}", self.name), self.timeout));
        }
        Ok((found.kb > 0).then(|| (found.kb_avail.saturating_mul(1024), found.kb.saturating_mul(1024))))
    }
}

/// A pool, as `ceph osd pool ls detail` has it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct PoolInfo {
    pub(crate) pool_name: String,
    /// 1: replicated, 3: erasure-coded.
    #[serde(rename = "type")]
    kind: u32,
    /// Copies, or shards.
    pub(crate) size: u32,
    #[serde(default)]
    pub(crate) erasure_code_profile: String,
}

impl PoolInfo {
    pub(crate) fn is_replicated(&self) -> bool {
        self.kind == 1
    }
}

/// A pool's I/O context.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) io: Handle,
    pub(crate) name: String,
}

// SAFETY: as for the cluster.
unsafe impl Send for Pool {}
// SAFETY: as for the cluster.
unsafe impl Sync for Pool {}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: operations borrow the pool or wait for their end, so that none is under way.
        unsafe { (self.cluster.lib.ioctx_destroy)(self.io) };
    }
}

impl Pool {
    /// The error of an operation on `object`.
    pub(crate) fn failed(&self, code: c_int, action: &str, object: &str) -> Error {
        failed(code, format!("{action} object {object} of pool {}", self.name), self.cluster.timeout)
    }
}
