//! The object class that an OSD loads: it passes sub-plans to the engine next to the OSD, and the object's bytes with
//! them.
//!
//! | module | subject |
//! |---|---|
//! | `ceph` | the functions of `ceph-osd` that are used, found at run time |
//! | [`engine`] | a conversation with the engine, within a deadline |
//!
//! Invariants: whatever a request holds, the OSD lives on. A panic ends the call and nothing else, a call ends within
//! its deadline, and the protocol's limits bound memory. No method gives −95 (EOPNOTSUPP), so that this number means
//! that an OSD has no such class. Methods only read, because librados repeats calls.
//!
//! See also `docs/internals/ceph-class.md`.

mod ceph;
pub mod engine;

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use skytether_ceph_protocol::proxy::Probe;
use skytether_ceph_protocol::{Refusal, Response};

use crate::ceph::{Call, Ceph};

/// Called by the OSD once, when it has loaded the library.
///
/// # Safety
/// Only an OSD calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __cls_init() {
    // Without the OSD's functions there is nothing to register with: the OSD says that the class has no methods.
    let _ = catch_unwind(|| {
        if let Some(ceph) = Ceph::find() {
            ceph.register(skytether_ceph_protocol::CLASS, &[(skytether_ceph_protocol::PROBE, probe), (skytether_ceph_protocol::RUN, run)]);
        }
    });
}

/// The number of this process's OSD, as its command line has it.
#[must_use]
pub fn osd_number(command: &[u8]) -> Option<u32> {
    let mut words = command.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    while let Some(word) = words.next() {
        let given = match word.as_str() {
            "-i" | "--id" => words.next(),
            "-n" | "--name" => words.next().and_then(|name| name.strip_prefix("osd.").map(str::to_owned)),
            other => match other.strip_prefix("--name=") {
                Some(name) => name.strip_prefix("osd.").map(str::to_owned),
                None => other.strip_prefix("--id=").or_else(|| other.strip_prefix("-i")).map(str::to_owned),
            },
        };
        if let Some(number) = given.and_then(|text| text.parse().ok()) {
            return Some(number);
        }
    }
    None
}

fn own_number() -> Option<u32> {
    osd_number(&std::fs::read("/proc/self/cmdline").ok()?)
}

/// Method `probe`.
unsafe extern "C" fn probe(context: *mut c_void, _: *mut c_char, _: c_int, output: *mut *mut c_char, length: *mut c_int) -> c_int {
    answer(context, output, length, |call| {
        let osd = own_number();
        let read = call.read(0, 1).err().unwrap_or(0);
        let engine = engine::hello(osd);
        (0, Probe { osd, class: env!("CARGO_PKG_VERSION").to_owned(), read, engine }.encode())
    })
}

/// Method `run`.
unsafe extern "C" fn run(context: *mut c_void, input: *mut c_char, bytes: c_int, output: *mut *mut c_char, length: *mut c_int) -> c_int {
    answer(context, output, length, |call| {
        let request = match usize::try_from(bytes) {
            // SAFETY: the OSD gives as many bytes, which live during the call.
            Ok(bytes) if !input.is_null() => unsafe { std::slice::from_raw_parts(input.cast::<u8>(), bytes) },
            _ => &[],
        };
        let osd = own_number();
        match engine::run(osd, request, |at, len| call.read(at, len)) {
            Ok(response) => (0, response),
            Err((why, reason)) => (code(why), Response::refused(osd, why, reason).encode()),
        }
    })
}

/// What the OSD logs of a refusal of the class itself.
fn code(why: Refusal) -> c_int {
    match why {
        Refusal::Late => -libc::ETIMEDOUT,
        Refusal::Invalid => -libc::EINVAL,
        Refusal::Busy => -libc::EBUSY,
        _ => -libc::EIO,
    }
}

/// Has `body` answer a call, contains its panics, and hands its bytes over.
fn answer(context: *mut c_void, output: *mut *mut c_char, length: *mut c_int, body: impl FnOnce(&Call<'_>) -> (c_int, Vec<u8>)) -> c_int {
    let done = catch_unwind(AssertUnwindSafe(|| {
        let Some(ceph) = Ceph::find() else { return -libc::EIO };
        let (code, bytes) = body(&Call { ceph: &ceph, context });
        if ceph.hand_over(&bytes, output, length) { code } else { -libc::ENOMEM }
    }));
    done.unwrap_or(-libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_name_the_osd() {
        for (command, number) in [
            ("/usr/bin/ceph-osd\0-f\0--cluster\0ceph\0--id\x0012\0--setuser\0ceph\0", Some(12)),
            ("ceph-osd\0-f\0-i\x000\0-c\0/etc/ceph.conf\0", Some(0)),
            ("ceph-osd\0--id=3\0", Some(3)),
            ("ceph-osd\0-i7\0", Some(7)),
            ("ceph-osd\0-f\0", None),
        ] {
            assert_eq!(osd_number(command.as_bytes()), number, "{command:?}");
        }
    }
}
