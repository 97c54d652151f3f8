//! Operations on objects: each is atomic on its object, whatever it consists of.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ops::Range;
use std::ptr;

use bytes::Bytes;
use skytether_common::{Error, Result};

use crate::cluster::{Pool, c_text};
use crate::library::Handle;

/// Rows of an index: keys and values.
pub(crate) type Rows = Vec<(String, Vec<u8>)>;

/// Writes to a full pool fail, instead of waiting for room.
const FULL_TRY: c_int = 64;

/// `LIBRADOS_CMPXATTR_OP_EQ`.
const EQUAL: u8 = 1;

/// `LIBRADOS_CREATE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 1;

/// Writes of one caller that are under way at the same time, and their bytes (librados copies them).
const UNDER_WAY: usize = 16;
const BYTES_UNDER_WAY: usize = 32 << 20;

/// Rows that an OSD gives in one answer, at most.
pub(crate) const PAGE: usize = 1000;

/// A change of one object.
pub(crate) struct Write<'a> {
    pool: &'a Pool,
    op: Handle,
}

impl Drop for Write<'_> {
    fn drop(&mut self) {
        // SAFETY: the operation was created and is released once.
        unsafe { (self.pool.cluster.lib.release_write_op)(self.op) };
    }
}

impl<'a> Write<'a> {
    pub(crate) fn new(pool: &'a Pool) -> Self {
        // SAFETY: no arguments.
        Self { pool, op: unsafe { (pool.cluster.lib.create_write_op)() } }
    }

    /// The object must not exist, and is made.
    pub(crate) fn create(self) -> Self {
        // SAFETY: the operation is open; no category is given.
        unsafe { (self.pool.cluster.lib.write_op_create)(self.op, EXCLUSIVE, ptr::null()) };
        self
    }

    /// The object's bytes become these.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        // SAFETY: librados copies the bytes.
        unsafe { (self.pool.cluster.lib.write_op_write_full)(self.op, bytes.as_ptr().cast(), bytes.len()) };
        self
    }

    /// The object goes.
    pub(crate) fn remove(self) -> Self {
        // SAFETY: the operation is open.
        unsafe { (self.pool.cluster.lib.write_op_remove)(self.op) };
        self
    }

    /// The row `key` must be `value`.
    pub(crate) fn if_row(self, key: &CStr, value: &[u8]) -> Self {
        // SAFETY: librados copies key and value; no result of this step alone is wanted.
        unsafe { (self.pool.cluster.lib.write_op_omap_cmp)(self.op, key.as_ptr(), EQUAL, value.as_ptr().cast(), value.len(), ptr::null_mut()) };
        self
    }

    /// These rows are set.
    pub(crate) fn set_rows(self, rows: &[(CString, Vec<u8>)]) -> Self {
        let keys: Vec<*const c_char> = rows.iter().map(|(key, _)| key.as_ptr()).collect();
        let values: Vec<*const c_char> = rows.iter().map(|(_, value)| value.as_ptr().cast()).collect();
        let lens: Vec<usize> = rows.iter().map(|(_, value)| value.len()).collect();
        if !rows.is_empty() {
            // SAFETY: three lists of the same length, which librados copies.
            unsafe { (self.pool.cluster.lib.write_op_omap_set)(self.op, keys.as_ptr(), values.as_ptr(), lens.as_ptr(), rows.len()) };
        }
        self
    }

    /// These rows go.
    pub(crate) fn remove_rows(self, keys: &[CString]) -> Self {
        let list: Vec<*const c_char> = keys.iter().map(|key| key.as_ptr()).collect();
        if !list.is_empty() {
            // SAFETY: a list of C strings, which librados copies.
            unsafe { (self.pool.cluster.lib.write_op_omap_rm_keys)(self.op, list.as_ptr(), list.len()) };
        }
        self
    }

    /// Carries it out; librados' answer.
    pub(crate) fn run(self, object: &CStr) -> c_int {
        // SAFETY: all of the operation was copied; null: the time of the call.
        unsafe { (self.pool.cluster.lib.write_op_operate)(self.op, self.pool.io, object.as_ptr(), ptr::null_mut(), FULL_TRY) }
    }

    /// Begins to carry it out.
    fn begin(self, object: &CStr) -> Result<UnderWay<'a>, c_int> {
        let lib = self.pool.cluster.lib;
        let mut completion: Handle = ptr::null_mut();
        // SAFETY: no callbacks; the out pointer is valid during the call.
        let made = unsafe { (lib.aio_create_completion)(ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), &raw mut completion) };
        if made < 0 {
            return Err(made);
        }
        let under_way = UnderWay { pool: self.pool, completion };
        // SAFETY: the operation was copied by librados when it was put together, and is taken over by this call.
        let begun = unsafe { (lib.aio_write_op_operate)(self.op, self.pool.io, completion, object.as_ptr(), ptr::null_mut(), FULL_TRY) };
        if begun < 0 { Err(begun) } else { Ok(under_way) }
    }
}

/// A change that was begun.
struct UnderWay<'a> {
    pool: &'a Pool,
    completion: Handle,
}

impl UnderWay<'_> {
    /// Waits for its end, which comes within the cluster's deadline.
    fn wait(&self) -> c_int {
        let lib = self.pool.cluster.lib;
        // SAFETY: the completion is released when this is dropped.
        unsafe {
            (lib.aio_wait_for_complete)(self.completion);
            (lib.aio_get_return_value)(self.completion)
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        // SAFETY: released once; librados keeps what it still needs.
        unsafe { (self.pool.cluster.lib.aio_release)(self.completion) };
    }
}

impl Pool {
    /// Carries out `change` on each of `objects`, several at the same time; the first error, after all have ended.
    fn each<'a, T>(&'a self, action: &str, objects: &[(CString, T)], change: impl Fn(Write<'a>, &T) -> (Write<'a>, usize), spared: c_int) -> Result<()> {
        let mut under_way: VecDeque<(usize, usize, UnderWay<'_>)> = VecDeque::new();
        let (mut bytes, mut first_error) = (0, None);
        let failed = |at: usize, code: c_int| self.failed(code, action, &objects[at].0.to_string_lossy());
        let settle = |under_way: &mut VecDeque<(usize, usize, UnderWay<'_>)>, bytes: &mut usize, error: &mut Option<Error>| {
            if let Some((at, len, one)) = under_way.pop_front() {
                *bytes -= len;
                let code = one.wait();
                if code < 0 && code != spared {
                    error.get_or_insert_with(|| failed(at, code));
                }
            }
        };
        for (at, (object, what)) in objects.iter().enumerate() {
            if first_error.is_some() {
                break;
            }
            let (write, len) = change(Write::new(self), what);
            while under_way.len() >= UNDER_WAY || (bytes + len > BYTES_UNDER_WAY && !under_way.is_empty()) {
                settle(&mut under_way, &mut bytes, &mut first_error);
            }
            match write.begin(object) {
                Ok(one) => {
                    bytes += len;
                    under_way.push_back((at, len, one));
                }
                Err(code) => {
                    first_error.get_or_insert_with(|| self.failed(code, action, &object.to_string_lossy()));
                }
            }
        }
        while !under_way.is_empty() {
            settle(&mut under_way, &mut bytes, &mut first_error);
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Writes whole objects. After an error some may be there.
    pub(crate) fn write_all(&self, objects: &[(CString, Bytes)]) -> Result<()> {
        self.each("write", objects, |write, bytes| (write.bytes(bytes), bytes.len()), 0)
    }

    /// Removes objects; those that are not there are no error.
    pub(crate) fn remove_all(&self, objects: Vec<CString>) -> Result<()> {
        let objects: Vec<(CString, ())> = objects.into_iter().map(|object| (object, ())).collect();
        self.each("remove", &objects, |write, ()| (write.remove(), 0), -libc::ENOENT)
    }

    /// The bytes of `object` at `ranges`, in one operation. No range may be empty. The bytes are fewer at the object's
    /// end. `None`: there is no such object.
    pub(crate) fn read(&self, object: &CStr, ranges: &[Range<u64>]) -> Result<Option<Vec<Vec<u8>>>> {
        self.read_version(object, ranges, None)
    }

    /// As [`Pool::read`]; `Conflict` where the object has another version than this one.
    pub(crate) fn read_version(&self, object: &CStr, ranges: &[Range<u64>], version: Option<u64>) -> Result<Option<Vec<Vec<u8>>>> {
        let lib = self.cluster.lib;
        let mut buffers: Vec<Vec<u8>> = ranges.iter().map(|range| vec![0; (range.end - range.start) as usize]).collect();
        let mut got: Vec<(usize, c_int)> = vec![(0, 0); ranges.len()];
        // SAFETY: no arguments.
        let op = unsafe { (lib.create_read_op)() };
        if let Some(version) = version {
            // SAFETY: the operation is open.
            unsafe { (lib.read_op_assert_version)(op, version) };
        }
        for ((range, buffer), (read, code)) in ranges.iter().zip(&mut buffers).zip(&mut got) {
            // SAFETY: the buffer has as many bytes, and lives until the operation has ended, as do both numbers.
            unsafe { (lib.read_op_read)(op, range.start, buffer.len(), buffer.as_mut_ptr().cast(), read, code) };
        }
        // SAFETY: as above. The call returns after the answer, or after the deadline has cancelled the operation.
        let code = unsafe { (lib.read_op_operate)(op, self.io, object.as_ptr(), 0) };
        // SAFETY: released once.
        unsafe { (lib.release_read_op)(op) };
        // Newer than this version, or older: the steps after the assertion were not done.
        if version.is_some() && (code == -libc::ERANGE || code == -libc::EOVERFLOW) {
            return Err(Error::conflict(format!("object {} of pool {} was replaced meanwhile", object.to_string_lossy(), self.name)));
        }
        let code = got.iter().map(|(_, code)| *code).chain([code]).find(|code| *code < 0).unwrap_or(0);
        if code == -libc::ENOENT {
            return Ok(None);
        }
        if code < 0 {
            return Err(self.failed(code, "read", &object.to_string_lossy()));
        }
        for (buffer, (read, _)) in buffers.iter_mut().zip(&got) {
            buffer.truncate(*read);
        }
        Ok(Some(buffers))
    }

    /// The rows of `object` with these keys, as far as there are any. `None`: there is no such object.
    pub(crate) fn rows(&self, object: &CStr, keys: &[CString]) -> Result<Option<Rows>> {
        let list: Vec<*const c_char> = keys.iter().map(|key| key.as_ptr()).collect();
        let lib = self.cluster.lib;
        self.read_rows(object, |op, iter, code| {
            // SAFETY: librados copies the keys; iterator and code live until the operation has ended.
            unsafe { (lib.read_op_omap_get_vals_by_keys)(op, list.as_ptr(), list.len(), iter, code) };
        })
    }

    /// The rows of `object` whose keys begin with `prefix` and come after `after`, at most `limit`, and whether more
    /// follow. `None`: there is no such object.
    pub(crate) fn page(&self, object: &CStr, prefix: &str, after: &str, limit: usize) -> Result<Option<(Rows, bool)>> {
        let (prefix, after, mut more) = (c_text(prefix)?, c_text(after)?, 0u8);
        let more_at = &raw mut more;
        let lib = self.cluster.lib;
        let found = self.read_rows(object, |op, iter, code| {
            // SAFETY: librados copies both texts; the out pointers live until the operation has ended.
            unsafe { (lib.read_op_omap_get_vals2)(op, after.as_ptr(), prefix.as_ptr(), limit.min(PAGE) as u64, iter, more_at, code) };
        })?;
        Ok(found.map(|rows| (rows, more != 0)))
    }

    fn read_rows(&self, object: &CStr, ask: impl FnOnce(Handle, *mut Handle, *mut c_int)) -> Result<Option<Rows>> {
        let lib = self.cluster.lib;
        let (mut iter, mut own): (Handle, c_int) = (ptr::null_mut(), 0);
        // SAFETY: no arguments.
        let op = unsafe { (lib.create_read_op)() };
        ask(op, &raw mut iter, &raw mut own);
        // SAFETY: what `ask` gave lives until after this call.
        let code = unsafe { (lib.read_op_operate)(op, self.io, object.as_ptr(), 0) };
        // SAFETY: released once.
        unsafe { (lib.release_read_op)(op) };
        let code = if code < 0 { code } else { own };
        let mut rows = Vec::new();
        let mut next = 0;
        while code >= 0 && !iter.is_null() {
            let (mut key, mut value, mut len): (*mut c_char, *mut c_char, usize) = (ptr::null_mut(), ptr::null_mut(), 0);
            // SAFETY: the iterator is open and the out pointers are valid.
            next = unsafe { (lib.omap_get_next)(iter, &raw mut key, &raw mut value, &raw mut len) };
            if next < 0 || key.is_null() {
                break;
            }
            // SAFETY: the iterator owns both until it ends.
            let (key, bytes) = unsafe {
                let bytes = if value.is_null() { &[] } else { std::slice::from_raw_parts(value.cast::<u8>(), len) };
                (CStr::from_ptr(key).to_string_lossy().into_owned(), bytes.to_vec())
            };
            rows.push((key, bytes));
        }
        if !iter.is_null() {
            // SAFETY: the iterator ends once, and nothing refers to it any more.
            unsafe { (lib.omap_get_end)(iter) };
        }
        match code.min(next) {
            code if code == -libc::ENOENT => Ok(None),
            code if code < 0 => Err(self.failed(code, "read the rows of", &object.to_string_lossy())),
            _ => Ok(Some(rows)),
        }
    }
}
