//! The library for C; `include/oas.h` documents it.
//!
//! Each function checks its pointers for null, and catches what would unwind into C.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use skytether_common::{Error, Kind, Result};

use crate::input::Input;
use crate::operations::{Counts, Framed};
use crate::request::{Digest, Order, Pattern, What};
use crate::session::{Done, Ran, Session, Settings};
use crate::tools;

const NOT_HERE: u32 = 1;
const FIXED: u32 = 1;
const IGNORE_CASE: u32 = 2;
const BYTES: u32 = 4;
const MOST_DIGEST: usize = 32;

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
    static REASON: RefCell<CString> = RefCell::default();
}

/// What C programs get of a word count.
#[derive(Debug)]
#[repr(C)]
pub struct CCounts {
    lines: u64,
    words: u64,
    characters: u64,
    bytes: u64,
}

fn text(of: &str) -> CString {
    CString::new(of.replace('\0', " ")).unwrap_or_default()
}

fn errno(kind: Kind) -> c_int {
    match kind {
        Kind::Invalid => libc::EINVAL,
        Kind::NotFound => libc::ENOENT,
        Kind::Conflict => libc::EBUSY,
        Kind::Corrupt => libc::EBADMSG,
        Kind::Unavailable => libc::EAGAIN,
        Kind::Exhausted => libc::ENOSPC,
        Kind::Unsupported => libc::EOPNOTSUPP,
        Kind::Internal => libc::EIO,
    }
}

/// Runs a call: 0, or the number of its error, whose text is kept for the thread.
fn call(work: impl FnOnce() -> Result<c_int>) -> c_int {
    ERROR.with(|kept| kept.take());
    REASON.with(|kept| kept.take());
    let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Error::internal("the library panicked")));
    done.unwrap_or_else(|error| failed(&error))
}

fn failed(error: &Error) -> c_int {
    ERROR.with(|kept| *kept.borrow_mut() = text(&error.report()));
    -errno(error.kind())
}

fn null() -> Error {
    Error::invalid("a pointer is null")
}

/// # Safety
/// `pointer` is null or points to a value that lives as long as the call.
unsafe fn given<'a, T>(pointer: *const T) -> Result<&'a T> {
    // SAFETY: as the caller says.
    unsafe { pointer.as_ref() }.ok_or_else(null)
}

/// # Safety
/// `pointer` is null or has room for a value.
unsafe fn put<T>(pointer: *mut T, value: T) -> Result<()> {
    if pointer.is_null() {
        return Err(null());
    }
    // SAFETY: as the caller says.
    unsafe { pointer.write(value) };
    Ok(())
}

/// # Safety
/// `pointer` is null or a text that ends with a zero byte.
unsafe fn string<'a>(pointer: *const c_char) -> Result<&'a [u8]> {
    if pointer.is_null() {
        return Err(null());
    }
    // SAFETY: as the caller says.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// # Safety
/// As [`string`].
unsafe fn input(path: *const c_char) -> Result<Input> {
    // SAFETY: as the caller says.
    Input::open(Path::new(OsStr::from_bytes(unsafe { string(path) }?)))
}

/// # Safety
/// `key` is null or has 32 bytes.
unsafe fn digest_of(number: c_int, key: *const u8) -> Result<Digest> {
    let keyed = || -> Result<[u8; 32]> {
        // SAFETY: as the caller says.
        unsafe { given(key.cast::<[u8; 32]>()) }.copied()
    };
    let all = [Digest::Crc32c, Digest::Crc32, Digest::Crc64Nvme, Digest::Md5, Digest::Sha256, Digest::Blake3];
    if number == c_int::from(Digest::Highway256([0; 32]).opcode()) {
        return Ok(Digest::Highway256(keyed()?));
    }
    let found = all.into_iter().find(|digest| c_int::from(digest.opcode()) == number);
    found.ok_or_else(|| Error::invalid(format!("{number} is no digest")))
}

/// # Safety
/// As [`string`].
unsafe fn pattern_of(pattern: *const c_char, flags: u32) -> Result<Pattern> {
    // SAFETY: as the caller says.
    let bytes = unsafe { string(pattern) }?;
    let what = if flags & FIXED != 0 {
        What::Strings(vec![bytes.to_vec()])
    } else {
        What::Regex(std::str::from_utf8(bytes).map_err(|cause| Error::invalid("a regular expression is not UTF-8").with_source(cause))?.to_owned())
    };
    Ok(Pattern { what, ignore_case: flags & IGNORE_CASE != 0, utf8: flags & BYTES == 0 })
}

/// # Safety
/// `ran` is null or has room for a number.
unsafe fn tell(ran: *mut c_int, how: &Ran) {
    if let Ran::Here { why: Some(why) } = how {
        REASON.with(|kept| *kept.borrow_mut() = text(&why.report()));
    }
    if !ran.is_null() {
        // SAFETY: as the caller says.
        unsafe { ran.write(c_int::from(!how.is_there())) };
    }
}

/// # Safety
/// As [`tell`].
unsafe fn only<T>(done: Vec<Done<T>>, ran: *mut c_int) -> Result<T> {
    let done = done.into_iter().next().ok_or_else(|| Error::internal("there is no answer"))?;
    // SAFETY: as the caller says.
    unsafe { tell(ran, &done.ran) };
    done.value
}

/// See `oas.h`.
///
/// # Safety
/// As `oas.h` has it: pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oas_open(target: *const c_char, flags: u32, session: *mut *mut Session) -> c_int {
    call(|| {
        let settings = Settings { here: flags & NOT_HERE == 0, ..Settings::default() };
        let opened = if target.is_null() {
            Session::local(settings)?
        } else {
            // SAFETY: as the caller says.
            let url = std::str::from_utf8(unsafe { string(target) }?).map_err(|cause| Error::invalid("a URL is not UTF-8").with_source(cause))?;
            Session::open(url, settings)?
        };
        let opened = Box::into_raw(Box::new(opened));
        // SAFETY: as the caller says.
        let done = unsafe { put(session, opened) };
        if done.is_err() {
            // SAFETY: it is the one that was made above, and the caller did not get it.
            drop(unsafe { Box::from_raw(opened) });
        }
        done.map(|()| 0)
    })
}

/// See `oas.h`.
///
/// # Safety
/// `session` is null, or came from [`oas_open`] and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oas_close(session: *mut Session) {
    if !session.is_null() {
        // A panic can't go on into C.
        // SAFETY: as the caller says.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(session) })));
    }
}

/// See `oas.h`.
#[unsafe(no_mangle)]
pub extern "C" fn oas_error() -> *const c_char {
    ERROR.with(|kept| kept.borrow().as_ptr())
}

/// See `oas.h`.
#[unsafe(no_mangle)]
pub extern "C" fn oas_reason() -> *const c_char {
    REASON.with(|kept| kept.borrow().as_ptr())
}

/// See `oas.h`.
///
/// # Safety
/// As `oas.h` has it: pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oas_sum(
    session: *const Session,
    path: *const c_char,
    algorithm: c_int,
    key: *const u8,
    digest: *mut u8,
    length: *mut usize,
    ran: *mut c_int,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe {
            let sum = only(given(session)?.sum(digest_of(algorithm, key)?, &[input(path)?]), ran)?;
            if digest.is_null() {
                return Err(null());
            }
            std::ptr::copy_nonoverlapping(sum.as_ptr(), digest, sum.len().min(MOST_DIGEST));
            put(length, sum.len())?;
        }
        Ok(0)
    })
}

/// See `oas.h`.
///
/// # Safety
/// As `oas.h` has it: pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oas_sum_files(
    session: *const Session,
    paths: *const *const c_char,
    count: usize,
    algorithm: c_int,
    key: *const u8,
    digests: *mut u8,
    results: *mut c_int,
) -> c_int {
    call(|| {
        if paths.is_null() || digests.is_null() || results.is_null() {
            return Err(null());
        }
        // SAFETY: as the caller says: all three have `count` elements.
        let (paths, digests, results) = unsafe {
            let digests = std::slice::from_raw_parts_mut(digests, count.saturating_mul(MOST_DIGEST));
            (std::slice::from_raw_parts(paths, count), digests, std::slice::from_raw_parts_mut(results, count))
        };
        // SAFETY: as the caller says.
        let (session, digest) = unsafe { (given(session)?, digest_of(algorithm, key)?) };
        // SAFETY: as the caller says.
        let opened: Vec<Result<Input>> = paths.iter().map(|path| unsafe { input(*path) }).collect();
        let inputs: Vec<Input> = opened.iter().flatten().cloned().collect();
        let mut sums = session.sum(digest, &inputs).into_iter();
        for ((opened, result), space) in opened.into_iter().zip(results).zip(digests.chunks_mut(MOST_DIGEST)) {
            let sum = opened.and_then(|_| sums.next().ok_or_else(|| Error::internal("there is no answer"))?.value);
            *result = match sum {
                Ok(sum) => {
                    let length = sum.len().min(MOST_DIGEST);
                    space[..length].copy_from_slice(&sum[..length]);
                    0
                }
                Err(error) => failed(&error),
            };
        }
        Ok(0)
    })
}

/// See `oas.h`.
///
/// # Safety
/// As `oas.h` has it: pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oas_verify_framed(
    session: *const Session,
    path: *const c_char,
    algorithm: c_int,
    key: *const u8,
    block: u64,
    bad: *mut i64,
    ran: *mut c_int,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe {
            let framed = only(given(session)?.verify_framed(digest_of(algorithm, key)?, block, &[input(path)?]), ran)?;
            put(
                bad,
                match framed {
                    Framed::Right => -1,
                    Framed::Bad(frame) => i64::try_from(frame).unwrap_or(i64::MAX),
                },
            )?;
        }
        Ok(0)
    })
}

/// See `oas.h`.
///
/// # Safety
/// As `oas.h` has it: pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oas_word_count(session: *const Session, path: *const c_char, flags: u32, counts: *mut CCounts, ran: *mut c_int) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe {
            let Counts { lines, words, characters, bytes } = only(given(session)?.word_count(flags & BYTES == 0, &[input(path)?]), ran)?;
            put(counts, CCounts { lines, words, characters, bytes })?;
        }
        Ok(0)
    })
}

/// See `oas.h`.
///
/// # Safety
/// As `oas.h` has it: pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oas_count(
    session: *const Session,
    path: *const c_char,
    pattern: *const c_char,
    flags: u32,
    matches: *mut u64,
    ran: *mut c_int,
) -> c_int {
    call(|| {
        // SAFETY: as the caller says.
        unsafe {
            let count = only(given(session)?.count(&pattern_of(pattern, flags)?, false, &[input(path)?]), ran)?;
            put(matches, count)?;
        }
        Ok(0)
    })
}

/// What C programs get matches with.
pub type Found = Option<unsafe extern "C" fn(context: *mut c_void, offset: u64, text: *const u8, length: usize) -> c_int>;

/// See `oas.h`.
///
/// # Safety
/// As `oas.h` has it: pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oas_search(
    session: *const Session,
    path: *const c_char,
    pattern: *const c_char,
    flags: u32,
    found: Found,
    context: *mut c_void,
    ran: *mut c_int,
) -> c_int {
    call(|| {
        let found = found.ok_or_else(null)?;
        // SAFETY: as the caller says.
        let (session, pattern, inputs) = unsafe { (given(session)?, pattern_of(pattern, flags)?, [input(path)?]) };
        let mut ended = 0;
        let done = session.search(&pattern, true, &inputs, |_, matches| {
            for one in matches {
                // SAFETY: the text lives as long as the call; the rest is the caller's.
                ended = unsafe { found(context, one.at, one.text.as_ptr(), one.text.len()) };
                if ended != 0 {
                    return Err(Error::conflict("the caller ended the search"));
                }
            }
            Ok(())
        });
        if ended != 0 {
            return Ok(ended);
        }
        // SAFETY: as the caller says.
        unsafe { only(done?, ran) }.map(|_| 0)
    })
}

/// See `oas.h`.
///
/// # Safety
/// As `oas.h` has it: pointers are null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn oas_sort(session: *const Session, paths: *const *const c_char, count: usize, output: *const c_char, ran: *mut c_int) -> c_int {
    call(|| {
        if paths.is_null() {
            return Err(null());
        }
        // SAFETY: as the caller says.
        unsafe {
            let paths = std::slice::from_raw_parts(paths, count);
            let inputs = paths.iter().map(|path| input(*path)).collect::<Result<Vec<Input>>>()?;
            let output = Path::new(OsStr::from_bytes(string(output)?));
            let done = tools::sort_into(given(session)?, &Order::LINES, &inputs, output);
            only(vec![done], ran)?;
        }
        Ok(0)
    })
}
