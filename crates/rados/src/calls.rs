//! Methods of object classes: code that runs in the OSD that has the object.
//!
//! `rados_exec` drops what a method says next to an error, and `rados_aio_exec` of Ceph 16 writes past the end of the
//! caller's buffer. So calls are read operations with `rados_read_op_exec`, which has neither defect. An OSD may die in
//! the middle of a call; librados then resends it, and a method can run twice. Methods that are called here only read.

use std::ffi::{CStr, c_char, c_int};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use skytether_common::{Error, Result};

use crate::address::Address;
use crate::cluster::{Cluster, Pool, c_text};

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Called {
    /// What the method gave, or Ceph's error as a negative number.
    pub code: i32,
    /// What it said, also next to an error.
    pub output: Vec<u8>,
}

impl Called {
    /// Whether the call can't be done in that OSD: no such class or method, or an erasure-coded pool.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.code == -libc::EOPNOTSUPP
    }

    /// Ceph's error in words; `None` where there is none.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        match self.code {
            code if code >= 0 => None,
            code if code == -libc::EOPNOTSUPP => Some("the OSD has no such object class, or the pool is erasure-coded".to_owned()),
            code if code == -libc::EPERM => Some("the OSD may not load the object class, or the user may not call it (capability x)".to_owned()),
            code => Some(std::io::Error::from_raw_os_error(code.saturating_neg()).to_string()),
        }
    }
}

/// The objects of a pool, made by any program.
#[derive(Debug, Clone)]
pub struct Objects {
    pool: Arc<Pool>,
}

impl Objects {
    /// The pool and namespace at an address. Blocks.
    ///
    /// # Errors
    /// As those of [`crate::open`] for the connection and the pool.
    pub fn open(at: &Address) -> Result<Self> {
        Ok(Self { pool: Cluster::connect(at)?.pool(&at.pool, &at.namespace)? })
    }

    /// Calls a method of an object class in the OSD that has `object`. Blocks.
    ///
    /// # Errors
    /// `Invalid` for names with a zero byte. Errors of Ceph and of the method are in what was [`Called`].
    pub fn call(&self, object: &str, class: &str, method: &str, input: &[u8]) -> Result<Called> {
        self.pool.call(&c_text(object)?, class, method, input)
    }

    /// The bytes of `object` in `range`, fewer at its end. Blocks.
    ///
    /// # Errors
    /// `NotFound` where there is no such object; those of Ceph.
    pub fn read(&self, object: &str, range: Range<u64>) -> Result<Vec<u8>> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.pool.read(&c_text(object)?, std::slice::from_ref(&range))?;
        found.and_then(|mut bytes| bytes.pop()).ok_or_else(|| Error::not_found(format!("there is no object {object} in pool {}", self.pool.name)))
    }

    /// Writes a whole object, in place of what it was. Blocks.
    ///
    /// # Errors
    /// Those of Ceph.
    pub fn write(&self, object: &str, bytes: impl Into<bytes::Bytes>) -> Result<()> {
        self.pool.write_all(&[(c_text(object)?, bytes.into())])
    }

    /// Removes an object; one that is not there is no error. Blocks.
    ///
    /// # Errors
    /// Those of Ceph.
    pub fn remove(&self, object: &str) -> Result<()> {
        self.pool.remove_all(vec![c_text(object)?])
    }

    /// Passes a command to the monitors, as JSON; their answer.
    ///
    /// # Errors
    /// What the monitors say.
    pub fn command(&self, words: &serde_json::Value) -> Result<Vec<u8>> {
        self.pool.cluster.command(words)
    }
}

impl Pool {
    pub(crate) fn call(&self, object: &CStr, class: &str, method: &str, input: &[u8]) -> Result<Called> {
        let (class, method) = (c_text(class)?, c_text(method)?);
        let lib = self.cluster.lib;
        let (mut out, mut len, mut own): (*mut c_char, usize, c_int) = (ptr::null_mut(), 0, 0);
        // SAFETY: no arguments.
        let op = unsafe { (lib.create_read_op)() };
        // SAFETY: librados copies names and input; the out pointers live until the operation has ended.
        unsafe { (lib.read_op_exec)(op, class.as_ptr(), method.as_ptr(), input.as_ptr().cast(), input.len(), &raw mut out, &raw mut len, &raw mut own) };
        // SAFETY: as above. The call returns after the answer, or after the deadline has cancelled the operation.
        let code = unsafe { (lib.read_op_operate)(op, self.io, object.as_ptr(), 0) };
        // SAFETY: released once.
        unsafe { (lib.release_read_op)(op) };
        Ok(Called { code: if code < 0 { code } else { own }, output: self.cluster.taken(out, len) })
    }
}
