//! Which files are programs that this machine can run.
//!
//! Only what decides that is read. The kernel reads the rest, in a process that is contained already.

use skytether_common::{Error, Result};

/// The machine of these programs, by its number in ELF headers (`EM_X86_64`).
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
/// No machine: see [`check`].
#[cfg(not(target_arch = "x86_64"))]
const MACHINE: u16 = 0;

/// The length of a header of a 64-bit file, and that of one program header, in bytes.
const HEADER: usize = 64;
const PROGRAM_HEADER: u16 = 56;

/// Kinds of files: with fixed addresses, and with any (`ET_EXEC`, `ET_DYN`).
const EXECUTABLE: u16 = 2;
const SHARED: u16 = 3;

/// Kinds of segments: bytes to load, and the name of a linker that loads the rest (`PT_LOAD`, `PT_INTERP`).
const LOAD: u32 = 1;
const INTERPRETER: u32 = 3;

/// What is read of a file's header.
struct Header {
    kind: u16,
    machine: u16,
    program_headers: u64,
    program_header_bytes: u16,
    count: u16,
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn header(bytes: &[u8]) -> Option<Header> {
    let header = bytes.get(..HEADER)?;
    let short = |at| field(header, at).map(u16::from_le_bytes);
    Some(Header {
        kind: short(16)?,
        machine: short(18)?,
        program_headers: u64::from_le_bytes(field(header, 32)?),
        program_header_bytes: short(54)?,
        count: short(56)?,
    })
}

/// The kinds of a file's segments; `None` where they are beyond its end.
fn segments(bytes: &[u8], header: &Header) -> Option<Vec<u32>> {
    let first = usize::try_from(header.program_headers).ok()?;
    let kind = |n: u16| {
        let at = first.checked_add(usize::from(n) * usize::from(PROGRAM_HEADER))?;
        bytes.get(at..at.checked_add(usize::from(PROGRAM_HEADER))?)?;
        field(bytes, at).map(u32::from_le_bytes)
    };
    (0..header.count).map(kind).collect()
}

/// Checks that a file is a statically linked program of this machine.
///
/// # Errors
/// - `Invalid` where it is no 64-bit ELF file, or a damaged one.
/// - `Unsupported` where it is for another machine, is no program, or needs a linker and libraries at run time; and for
///   all files on systems other than Linux on x86-64.
pub fn check(bytes: &[u8]) -> Result<()> {
    /// The first bytes of 64-bit files with the lowest byte of numbers first, of version 1.
    const MAGIC: &[u8] = b"\x7fELF\x02\x01\x01";
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(Error::unsupported("native program: this drive's machine cannot contain one; only Linux on x86-64 does"));
    }
    if !bytes.starts_with(b"\x7fELF") {
        return Err(Error::invalid("native program: it is no ELF file; link one with `cc -static`"));
    }
    let header = header(bytes).filter(|_| bytes.starts_with(MAGIC));
    let Some(header) = header else { return Err(Error::invalid("native program: it is no 64-bit ELF file of version 1 with little-endian numbers")) };
    if header.machine != MACHINE {
        let text = format!("native program: it is for another machine (ELF number {}), this drive has number {MACHINE}; compile it for x86-64", header.machine);
        return Err(Error::unsupported(text));
    }
    if header.kind != EXECUTABLE && header.kind != SHARED {
        return Err(Error::unsupported(format!(
            "native program: it is no program (ELF type {}) but an object or a dump; link it with `cc -static`",
            header.kind
        )));
    }
    let segments = (header.program_header_bytes == PROGRAM_HEADER).then(|| segments(bytes, &header)).flatten();
    let Some(segments) = segments else { return Err(Error::invalid("native program: its program headers are damaged")) };
    if segments.contains(&INTERPRETER) {
        return Err(Error::unsupported("native program: it is dynamically linked, and there are no libraries inside a drive; link it with `cc -static`"));
    }
    if !segments.contains(&LOAD) {
        return Err(Error::invalid("native program: it has no segment to load"));
    }
    Ok(())
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests {
    use skytether_common::Kind;

    use super::*;

    /// A header with one program header of that kind.
    fn file(kind: u16, machine: u16, segment: u32) -> Vec<u8> {
        let mut bytes = vec![0; HEADER + usize::from(PROGRAM_HEADER)];
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        bytes[16..18].copy_from_slice(&kind.to_le_bytes());
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32..40].copy_from_slice(&(HEADER as u64).to_le_bytes());
        bytes[54..56].copy_from_slice(&PROGRAM_HEADER.to_le_bytes());
        bytes[56..58].copy_from_slice(&1_u16.to_le_bytes());
        bytes[HEADER..HEADER + 4].copy_from_slice(&segment.to_le_bytes());
        bytes
    }

    #[test]
    fn static_programs_of_this_machine_are_taken() {
        for kind in [EXECUTABLE, SHARED] {
            check(&file(kind, MACHINE, LOAD)).unwrap();
        }
    }

    #[test]
    fn other_files_are_refused_and_the_reason_is_named() {
        let cases = [
            (file(EXECUTABLE, MACHINE, INTERPRETER), Kind::Unsupported, "dynamically linked"),
            (file(EXECUTABLE, 183, LOAD), Kind::Unsupported, "another machine (ELF number 183)"),
            (file(1, MACHINE, LOAD), Kind::Unsupported, "no program (ELF type 1)"),
            (file(EXECUTABLE, MACHINE, 7), Kind::Invalid, "no segment"),
            (b"#!/bin/sh\n".to_vec(), Kind::Invalid, "no ELF file"),
            (b"\x7fELF\x01\x01\x01".to_vec(), Kind::Invalid, "no 64-bit"),
            (file(EXECUTABLE, MACHINE, LOAD)[..HEADER + 9].to_vec(), Kind::Invalid, "damaged"),
        ];
        for (bytes, kind, text) in cases {
            let error = check(&bytes).unwrap_err();
            assert!(error.kind() == kind && error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn program_headers_anywhere_give_an_answer() {
        for at in [0, 1, 63, 64, 120, u64::MAX - 55, u64::MAX] {
            for count in [0, 1, 2, u16::MAX] {
                let mut bytes = file(EXECUTABLE, MACHINE, LOAD);
                bytes[32..40].copy_from_slice(&at.to_le_bytes());
                bytes[56..58].copy_from_slice(&count.to_le_bytes());
                assert_eq!(check(&bytes).is_ok(), at == 64 && count == 1, "{at} {count}");
            }
        }
    }
}
